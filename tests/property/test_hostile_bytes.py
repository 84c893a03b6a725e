"""Every reader of what a peer, a task or a file says, given bytes that nearly are what it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tests.fuzz import runner
from tests.fuzz.registry import TARGETS
from tests.fuzz.runner import CORPUS, MOST_GROWTH, fuzz, kept, read_one
from tests.fuzz.target import Finding, Target

INPUTS = {"frames": 8_000, "datagrams": 5_000, "sealed-datagrams": 5_000, "headers": 5_000, "task-socket": 5_000}
"""Where an input takes some ten microseconds; a second or two for each target."""

FEW_INPUTS = {
    "flow-requests": 500,
    "newcomers": 100,
    "tls": 200,
    "configuration": 150,
    "greetings": 500,
    "path-store": 500,
}
"""Where it takes some milliseconds."""

INPUTS_OF_OTHERS = 2_000
"""Where it takes some hundred."""

MOST_CORPUS_BYTES = 200 * 1024
"""Of all that is kept, which is in every clone."""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_bytes_bring_anything_but_a_typed_error(name: str) -> None:
    target = TARGETS[name]()
    try:
        outcome = fuzz(target, {**INPUTS, **FEW_INPUTS}.get(name, INPUTS_OF_OTHERS))
    finally:
        target.close()
    assert outcome.findings == {}
    assert outcome.taken


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_reader_takes_most_of_its_seeds(name: str) -> None:
    target = TARGETS[name]()
    taken = 0
    try:
        for seed in target.seeds:
            # some are there to be refused: old protocols name what FATE's picklers do not
            with contextlib.suppress(*target.refusals):
                taken += target.read(seed)
    finally:
        target.close()
    assert taken >= len(target.seeds) / 2


def test_what_is_kept_is_small_and_of_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MOST_CORPUS_BYTES


class _OurError(Exception):
    """A typed error."""


def _planted(read: Callable[[bytes], bool]) -> Target:
    return Target("planted", [b"seed"], read, (_OurError,))


def _refuses(_data: bytes) -> bool:
    raise _OurError


def _crashes(data: bytes) -> bool:
    return bool(data[10_000_000])


def _grows(_data: bytes) -> bool:
    return bool(b"\x01" * (2 * MOST_GROWTH))


def _differs(_data: bytes) -> bool:
    raise Finding("does not come back")


def _hangs(_data: bytes) -> bool:
    while True:
        pass


def test_a_reader_that_refuses_by_a_typed_error_is_right() -> None:
    assert fuzz(_planted(_refuses), 100).findings == {}


@pytest.mark.parametrize(
    ("read", "found"),
    [(_crashes, "IndexError"), (_grows, "memory grew"), (_differs, "does not come back"), (_hangs, "takes more than")],
)
def test_a_reader_that_is_wrong_is_found(
    read: Callable[[bytes], bool], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "HANG_SECONDS", 0.1)
    target = _planted(read)
    assert found in read_one(target, b"seed")
    assert any(found in each for each in fuzz(target, 3).findings)
    assert kept(target) == []
