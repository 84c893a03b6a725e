"""What is sealed under a key is opened by whoever has it, once, and nothing else is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.security.datagram_tags import (
    DATAGRAM_KEY_BYTES,
    OVERHEAD_BYTES,
    WINDOW,
    DatagramKeys,
    DatagramOpener,
    DatagramSealer,
    ForgedDatagramError,
    ReplayedDatagramError,
    ReplayWindow,
    new_datagram_key,
)
from fedrdma_fate.wire.datagrams import SEAL_BYTES

KEY = new_datagram_key()


def test_what_was_sealed_is_opened() -> None:
    sealer, opener = DatagramSealer(KEY), DatagramOpener(KEY)
    for body in (b"", b"a report", bytes(4000)):
        sealed = sealer.seal(body)
        assert len(sealed) == len(body) + OVERHEAD_BYTES
        assert opener.open(sealed) == body


def test_a_sealed_datagram_is_as_much_longer_as_the_wire_says() -> None:
    assert OVERHEAD_BYTES == SEAL_BYTES


def test_any_bit_that_is_changed_makes_it_a_forgery() -> None:
    sealed, opener = DatagramSealer(KEY).seal(b"delivered"), DatagramOpener(KEY)
    for at in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(ForgedDatagramError):
            opener.open(bytes(changed))
    assert opener.open(sealed) == b"delivered", "forgeries have moved nothing"


@pytest.mark.parametrize("length", range(OVERHEAD_BYTES))
def test_one_too_short_for_a_tag_is_a_forgery(length: int) -> None:
    with pytest.raises(ForgedDatagramError):
        DatagramOpener(KEY).open(DatagramSealer(KEY).seal(b"")[:length])


def test_one_under_another_key_or_sent_back_to_its_sender_is_a_forgery() -> None:
    keys = DatagramKeys(new_datagram_key(), new_datagram_key())
    sealed = DatagramSealer(keys.send).seal(b"delivered")
    for key in (keys.receive, new_datagram_key()):
        with pytest.raises(ForgedDatagramError):
            DatagramOpener(key).open(sealed)
    assert DatagramOpener(keys.reversed.receive).open(sealed) == b"delivered"


@pytest.mark.parametrize("length", [0, DATAGRAM_KEY_BYTES - 1, DATAGRAM_KEY_BYTES + 1, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="has 32 bytes"):
        DatagramOpener(bytes(length))


def test_the_same_bytes_open_once() -> None:
    sealed, opener = DatagramSealer(KEY).seal(b"delivered"), DatagramOpener(KEY)
    opener.open(sealed)
    for _ in range(2):
        with pytest.raises(ReplayedDatagramError):
            opener.open(sealed)


def test_lost_and_reordered_ones_are_opened_within_the_window_and_what_is_older_is_not() -> None:
    sealer, opener = DatagramSealer(KEY), DatagramOpener(KEY)
    sealed = [sealer.seal(b"%d" % number) for number in range(2 * WINDOW)]
    chance = random.Random(5)
    shuffled = [number for number in range(WINDOW) if number % 7]
    chance.shuffle(shuffled)
    for number in shuffled:
        assert opener.open(sealed[number]) == b"%d" % number
    opener.open(sealed[WINDOW - 1 + 7])
    assert opener.open(sealed[7]) == b"7", "the oldest that may come"
    with pytest.raises(ReplayedDatagramError):
        opener.open(sealed[0])


@given(st.lists(st.one_of(st.integers(1, 3 * WINDOW), st.integers(1, 2**64 - 1)), max_size=200))
def test_no_counter_is_new_twice_and_a_new_one_in_the_window_always_is(counters: list[int]) -> None:
    window, came = ReplayWindow(), set[int]()
    for counter in counters:
        new = window.is_new(counter)
        recent = counter > max(came, default=0) - WINDOW
        assert new == (recent and counter not in came)
        if new:
            window.note(counter)
            came.add(counter)


def test_a_counter_far_ahead_takes_no_memory() -> None:
    window = ReplayWindow()
    window.note(1)
    window.note(2**64 - 1)
    assert window._seen.bit_length() <= WINDOW
    assert not window.is_new(1)
