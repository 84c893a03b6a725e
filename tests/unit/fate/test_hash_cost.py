"""Keys that take long to hash or to compare, or more stack than there is: refused by both unpicklers, and soon."""

from __future__ import annotations

import pickle
import struct
import time
from typing import Any

import pytest

from fedrdma_fate.fate.hash_cost import MOST_DEEP, PIECE, HashCost, most_values
from fedrdma_fate.fate.stream_memory import MOST_TUPLES, is_bounded
from fedrdma_fate.fate.unpickler import names_with, unpickle
from fedrdma_fate.wire.errors import ErrorCode, FateError

MOST_SECONDS = 10.0
"""For what takes a tenth of one, or else minutes."""

ALIKE = 2**61 - 1
"""Its multiples have all the same hash."""


def no_id(pid: Any) -> Any:
    raise AssertionError(pid)


def load(stream: bytes, *, holds_arrays: bool) -> Any:
    return unpickle(stream, names_with(()), no_id, holds_arrays=holds_arrays)


def stream(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


def as_key(made: bytes) -> bytes:
    return b"}" + made + b"Ns"


def number(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def nested(levels: int) -> bytes:
    return b")" + pickle.TUPLE1 * levels


def put(index: int) -> bytes:
    return pickle.LONG_BINPUT + struct.pack("<I", index)


def get(index: int) -> bytes:
    return pickle.LONG_BINGET + struct.pack("<I", index)


LEVELS = 60
"""Of what doubles with each: too many to hash in a life."""

BY_DUP = b")" + (b"2" + pickle.TUPLE2) * LEVELS
BY_BINGET = b")" + b"".join(b"q%ch%c" % (n, n) + pickle.TUPLE2 for n in range(LEVELS))
BY_MEMOIZE = b")" + b"".join(b"\x94j" + struct.pack("<I", n) + pickle.TUPLE2 for n in range(LEVELS))
BY_GET = b")" + b"".join(b"p%d\ng%d\n" % (n, n) + pickle.TUPLE2 for n in range(LEVELS))
BY_MARK = b")" + b"".join(b"\x940(h%c)h%c)t" % (n, n) for n in range(LEVELS))


def frozensets(first: bytes, at: int) -> bytes:
    """Of which each holds the one before twice: itself, and in another."""
    made = first
    for level in range(LEVELS):
        made += put(at + level) + b"0(" + get(at + level) + b"(" + get(at + level) + b"N\x91\x91"
    return made


def many(keys: list[bytes]) -> bytes:
    return b"}(" + b"N".join(keys) + b"Nu"


HOSTILE = {
    "doubled by dup": as_key(BY_DUP),
    "doubled by binget": as_key(BY_BINGET),
    "doubled by memoize": as_key(BY_MEMOIZE),
    "doubled by get": as_key(BY_GET),
    "doubled by mark": as_key(BY_MARK),
    "in a set": b"\x8f(" + BY_DUP + b"\x90",
    "in a frozenset": b"(" + BY_DUP + b"\x91",
    "in an old dictionary": b"(" + BY_DUP + b"Nd",
    "within a frozenset as a key": as_key(b"((" + BY_DUP + b"\x91\x91"),
    # each of a number of values that one alone might have
    "many that stand for much": many([b")" + (b"2" + pickle.TUPLE2) * 16 + pickle.TUPLE1] * 5_000),
    "one again and again": b"(" + b"N" * 50_000 + b"t" + put(0) + b"0" + many([get(0)] * 50_000),
    "a number again and again": b"\x8b" + struct.pack("<I", 300_000) + b"\x7f" * 300_000 + put(0) + b"0"
    + many([get(0)] * 200_000),
    "equal frozensets": b"(" + frozensets(b"(N\x91", 0) + frozensets(b"(N\x91", 1000) + b"\x91",
    "numbers of one hash": many([number(n * ALIKE) for n in range(1, 60_000)]),
    "members of one hash": b"\x8f(" + b"".join(number(n * ALIKE) for n in range(1, 60_000)) + b"\x90",
    "members of a frozenset of one hash": b"(" + b"".join(number(n * ALIKE) for n in range(1, 60_000)) + b"\x91",
    "tuples of one hash": many([number(n * ALIKE) + pickle.TUPLE1 for n in range(1, 60_000)]),
    "keys of one hash, each set alone": b"}" + b"".join(number(n * ALIKE) + b"Ns" for n in range(1, 60_000)),
    "within each other": as_key(nested(1_000_000)),
}  # fmt: skip


@pytest.mark.parametrize("holds_arrays", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_keys_that_take_too_long_are_refused_soon(name: str, holds_arrays: bool) -> None:
    content = stream(HOSTILE[name])
    started = time.monotonic()
    with pytest.raises(FateError) as error:
        load(content, holds_arrays=holds_arrays)
    assert error.value.code is ErrorCode.PAYLOAD_MALFORMED
    assert time.monotonic() - started < MOST_SECONDS


@pytest.mark.parametrize("holds_arrays", [False, True])
def test_long_text_that_is_compared_with_equal_text_again_and_again_is_refused_soon(holds_arrays: bool) -> None:
    text = b"X" + struct.pack("<I", 4_000_000) + b"x" * 4_000_000
    content = stream(text + put(0) + b"0" + text + put(1) + b"0}(" + get(0) + b"N" + (get(1) + b"N") * 400_000 + b"u")
    started = time.monotonic()
    with pytest.raises(FateError):
        load(content, holds_arrays=holds_arrays)
    assert time.monotonic() - started < MOST_SECONDS


def test_byte_strings_behind_persistent_ids_count_as_well() -> None:
    """They take no room in the stream."""
    equal = [b"x" * 4_000_000 + b"y" * n for n in (0, 0)]
    content = stream(b"}(" + b"K\x00QN" + b"K\x01QN" * 200_000 + b"u")
    started = time.monotonic()
    with pytest.raises(FateError):
        unpickle(content, names_with(()), equal.__getitem__, holds_arrays=False, longest=4_000_000)
    assert time.monotonic() - started < MOST_SECONDS


HONEST: dict[str, Any] = {
    "rows": [(n, f"t{n}") for n in range(2 * MOST_TUPLES)],
    "rows as keys": {((n, n + 1), "t"): (n,) for n in range(MOST_TUPLES)},
    "few": {(): ((), (1, 2, 3, (4, 5)))},
    "rows of one": [(n, "same", ("a", "b")) for n in range(5000)],
    "long numbers as keys": {n * 0x9E3779B97F4A7C15F39CC0605CEDC834: n for n in range(1, 20_000)},
    "some of one hash": {n * ALIKE: n for n in range(1, 100)},
    "fractions": {n / 7: n for n in range(20_000)},
    "powers of two": {2.0**n: n for n in range(-1000, 1000)},
    "minus one and minus two": {(a, b, c): 0 for a in (-1, -2) for b in (-1, -2) for c in (-1, -2)},
    "frozensets": {frozenset((n, f"m{n}")): n for n in range(5000)},
    "sets": [{n, n + 1, f"{n}"} for n in range(5000)],
    "long text as keys": {f"{n}" * 5_000: n for n in range(100)},
    "state": {f"layer.{n}": [n / 3] * 100 for n in range(500)},
    "in turns": {"a": {(1, 2): {(3, 4): [(5, 6), {(7, 8): None}]}}},
    "thresholds": {True: 1, None: 2, 0.5: 3, b"x": 4, "x": 5, (): 6, frozenset(): 7},
}


@pytest.mark.parametrize("holds_arrays", [False, True])
@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("protocol", [2, 4])
def test_keys_and_tuples_as_jobs_send_them_arrive(name: str, protocol: int, holds_arrays: bool) -> None:
    value = HONEST[name]
    named = protocol == 2 and any("set" in word for word in name.split())
    if not named and name != "thresholds":
        assert load(pickle.dumps(value, protocol), holds_arrays=holds_arrays) == value
    assert load(pickle.dumps(value), holds_arrays=holds_arrays) == value


@pytest.mark.parametrize(
    "value",
    [
        {f"layer.{n}.weight": [n / 3] * 1000 for n in range(100)},
        {f"sample-{n}": n for n in range(20_000)},
        [{"a": n, "b": "x", "c": 1.5} for n in range(5000)],
        [(n, f"t{n}") for n in range(5000)],
        {"epoch": 3, "rows": [("a", 1), ("b", 2), ("c", (3, 4))]},
        ["tttt" * 10_000, b"\x85\x86\x87" * 20_000, {"a": "u" * 2000}],
        ("5f2h" * 16, (7, ("a", "b"), "test")),
    ],
    ids=["state", "samples", "records", "rows", "few rows", "text that looks like tuples", "row of a table"],
)
def test_the_unpickler_in_c_gets_what_jobs_send(value: Any) -> None:
    assert is_bounded(pickle.dumps(value))


def test_the_deepest_tuple_is_the_one_at_the_limit() -> None:
    cost, made = HashCost(10**6), ()
    for _ in range(MOST_DEEP - 1):
        made = (made,)
        assert cost.take(made)
    assert cost.take((made,)) is False


def test_what_all_tuples_of_a_stream_stand_for_counts_together() -> None:
    cost, rows = HashCost(0), 0
    while cost.take(((1,) * 99, rows)):
        rows += 1
    assert rows == most_values(0) // 101


@pytest.mark.parametrize(
    ("key", "values"),
    [(ALIKE, 1), (2 ** (8 * PIECE), 9), ((1, 2, 3), 4), (frozenset((1, 2)), 3), (None, 1), (1.5, 1), ("x" * PIECE, 1)],
    ids=lambda value: repr(value)[:20],
)
def test_a_key_costs_what_is_hashed_of_it(key: Any, values: int) -> None:
    cost = HashCost(0)
    assert cost.put([key], {})
    assert cost.left == most_values(0) - values


@pytest.mark.parametrize("key", ["x", b"x", 0, -1, ALIKE - 1, 1 - ALIKE], ids=repr)
def test_short_text_and_numbers_of_their_own_hash_cost_nothing(key: Any) -> None:
    cost = HashCost(0)
    assert cost.put([key] * 1000, {})
    assert cost.left == most_values(0)


def test_keys_of_one_hash_count_in_each_dictionary_by_itself() -> None:
    cost = HashCost(0)
    for _ in range(most_values(0) // 2):
        assert cost.put([ALIKE], {})
    one: dict[int, int] = {}
    assert not all(cost.put([n * ALIKE], one) for n in range(1, most_values(0)))
