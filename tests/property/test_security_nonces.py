"""Whatever tasks and links do, no key seals two different byte strings under one nonce."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.key_schedule import (
    Greeter,
    KeyExchange,
    SessionKeys,
    attempt_key,
    new_path_nonce,
)
from fedrdma_fate.security.sealing import AttemptSealer, PathSealer
from fedrdma_fate.wire.sealed import RECORD_OVERHEAD, unpack_introduction

_SLOT_BYTES = 64


class SealingHistories(RuleBasedStateMachine):
    """One gateway sends to one peer: tasks write into slots whenever they like, also into those that are being sent.

    Kept of every sealing: the key, made as the receiver makes it, and the nonce, read from what went out.
    """

    @initialize()
    def greet(self) -> None:
        self.slots = [bytearray(_SLOT_BYTES) for _ in range(3)]
        self.sealed: dict[tuple[bytes, bytes], bytes] = {}
        self.twice: list[tuple[bytes, bytes]] = []
        self.control_channel()

    @rule()
    def control_channel(self) -> None:
        """A new control channel: another exchange, though site and run are the same."""
        ours, theirs = KeyExchange(), KeyExchange()
        own = Greeter("a", "run", ours.public, b"", "on", (AES,))
        peer = Greeter("b", "run", theirs.public, b"", "on", (AES,))
        self.session = SessionKeys.of_greetings(ours, own, peer)
        self.peer_nonce = new_path_nonce()
        self.connect()

    @rule(hostile=st.booleans())
    def connect(self, hostile: bool = True) -> None:
        """A new data path; a hostile peer presents the same random bytes again."""
        if not hostile:
            self.peer_nonce = new_path_nonce()
        keys = self.session.path("tcp", new_path_nonce(), self.peer_nonce)
        self.chunks = keys.send.chunks
        self.path = PathSealer(keys.send, AES, "on")
        self.attempts: list[tuple[AttemptSealer, int]] = []

    @rule(transfer=st.integers(1, 3), slot=st.integers(0, 2))
    def begin(self, transfer: int, slot: int) -> None:
        """A transfer begins, is begun anew, or is resumed; the same slot may go out as several."""
        self.attempts.append((self.path.begin(transfer, transfer, bytes(32)), slot))

    @rule(slot=st.integers(0, 2), data=st.binary(min_size=1, max_size=8), at=st.integers(0, _SLOT_BYTES - 8))
    def write(self, slot: int, data: bytes, at: int) -> None:
        """A task writes, before or after its commit."""
        self.slots[slot][at : at + len(data)] = data

    @precondition(lambda self: self.attempts)
    @rule(which=st.integers(0, 100), at=st.integers(0, 3), length=st.integers(0, 16))
    def send(self, which: int, at: int, length: int) -> None:
        """A chunk is sent, or sent again."""
        sealer, slot = self.attempts[which % len(self.attempts)]
        data = bytes(self.slots[slot][at * 16 : at * 16 + length])
        room = bytearray(length + RECORD_OVERHEAD)
        sealer.seal(b"place", memoryview(data), memoryview(room))
        about = unpack_introduction(sealer.introduction)
        (counter,) = struct.unpack_from("<Q", room)
        used = attempt_key(self.chunks, about.transfer, about.attempt), counter.to_bytes(12, "big")
        if used in self.sealed and self.sealed[used] != data:
            self.twice.append(used)
        self.sealed[used] = data

    @invariant()
    def no_nonce_came_twice_with_other_bytes(self) -> None:
        assert not getattr(self, "twice", [])


TestSealingHistories = SealingHistories.TestCase
TestSealingHistories.settings = settings(max_examples=60, stateful_step_count=60)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), unique=True, max_size=20))
def test_different_attempts_have_different_keys(attempts: list[tuple[int, int]]) -> None:
    keys = {attempt_key(bytes(32), transfer, attempt) for transfer, attempt in attempts}
    assert len(keys) == len(attempts)
