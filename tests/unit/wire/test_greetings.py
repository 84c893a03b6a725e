"""Greetings between versions: what an older one does not know is left out, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from fedrdma_fate.wire.errors import WireError
from fedrdma_fate.wire.frames import Frame, Hello, decode_frame, encode_frame
from fedrdma_fate.wire.greetings import LATER_FIELDS, encode_greeting, known_by_refusal, later_fields_of

HELLO = Hello(
    "a",
    "run",
    2,
    "1.0",
    "host",
    ("9",),
    ("tcp",),
    1 << 20,
    exchange_key=b"k" * 32,
    seal="on",
    site_sums=True,
    same_payload=True,
    sum_parent="north",
    sum_fan_in=16,
)


class OlderHello(Frame, frozen=True, tag="hello"):
    """As an older version has it: strict, and without the later fields."""

    site: str
    incarnation: str
    protocol: int
    version: str
    host: str
    parties: tuple[str, ...]
    transports: tuple[str, ...]
    receive_bytes: int
    borrows: bool = False
    exchange_key: bytes = b""
    seal: str = "off"
    ciphers: tuple[str, ...] = ()
    frames_per_second: float = 20_000.0
    sessions: bool = False
    memory_held: bool = False
    obeys_shares: bool = False
    resumes: bool = False
    chunk_digests: bool = False
    continues: bool = False
    chunk_tags: bool = False
    bounded_loss: bool = False
    journal: str = ""
    flow_calls: bool = False


OLDER = msgspec.msgpack.Decoder(OlderHello)


def test_an_older_version_takes_a_greeting_without_what_it_does_not_know() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        OLDER.decode(encode_greeting(HELLO))
    known = known_by_refusal(f"[FR201] a control frame of 530 bytes does not parse: {refused.value}. Run the same.")
    assert known == ()

    taken = OLDER.decode(encode_greeting(HELLO, known))
    assert (taken.site, taken.exchange_key, taken.seal) == ("a", HELLO.exchange_key, "on")
    its = OlderHello("b", "run", 2, "0.9", "host", ("9",), ("tcp",), 1 << 20)
    assert later_fields_of(msgspec.msgpack.encode(its)) == set()


@pytest.mark.parametrize("number", range(len(LATER_FIELDS)))
def test_whoever_does_not_know_one_field_is_spared_that_and_the_newer_ones(number: int) -> None:
    known = known_by_refusal(f"Object contains unknown field `{LATER_FIELDS[number]}`")
    assert known == LATER_FIELDS[:number]
    greeting = encode_greeting(HELLO, known)
    assert later_fields_of(greeting) == set(known)
    said = decode_frame(greeting)
    assert isinstance(said, Hello)
    assert {name for name in Hello.__struct_fields__ if getattr(said, name) != getattr(HELLO, name)} <= set(
        LATER_FIELDS[number:]
    )


def test_between_gateways_of_one_version_nothing_is_left_out() -> None:
    assert encode_greeting(HELLO, later_fields_of(encode_frame(HELLO))) == encode_frame(HELLO)


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "site a is not among the peers",
        # what is about keys, sealing or who one is stays
        *(f"unknown field `{name}`" for name in ("seal", "exchange_key", "ciphers", "site", "journal", "flow_calls")),
        "unknown field `no_field_of_ours`",
        "unknown field `" + "x" * 600,
    ],
)
def test_a_refusal_for_anything_else_leaves_nothing_out(reason: str) -> None:
    assert known_by_refusal(reason) is None


def test_fields_of_a_newer_version_are_passed_over_in_a_greeting_and_nowhere_else() -> None:
    newer = {**msgspec.to_builtins(HELLO, builtin_types=(bytes,)), "of_next_year": [1, {"deep": True}]}
    assert decode_frame(msgspec.msgpack.encode(newer)) == HELLO
    with pytest.raises(WireError, match="of_next_year"):
        decode_frame(msgspec.msgpack.encode({"frame": "delivered", "transfer": 1, "of_next_year": 1}))


def test_a_greeting_with_a_field_whose_name_is_no_text_is_malformed() -> None:
    whole = encode_frame(HELLO)
    number = len(msgspec.msgpack.decode(whole))
    head = msgspec.msgpack.encode({str(each): 0 for each in range(number)})[:3]
    assert whole.startswith(head), "a map of 16 fields and more has its count in two bytes"
    longer = head[:1] + (number + 1).to_bytes(2, "big") + whole[3:] + b"\xa2\xff\xfe\x00"
    with pytest.raises(WireError):
        later_fields_of(longer)
