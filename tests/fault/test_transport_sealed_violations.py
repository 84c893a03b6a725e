"""What sealed endpoints do with what their peer has not sealed for that place: frames that were caught and changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.core.digest import BLOCK_BYTES, MISTAGGED, TAGGED
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Completion, CompletionKind, RemoteSlot, Slot
from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.key_schedule import SessionKeys
from fedrdma_fate.security.sealing import PathOpener, PathSealer, Seal
from fedrdma_fate.transport.exposure import ExposureTable, ProtocolViolation
from fedrdma_fate.transport.inbound import Inbound
from fedrdma_fate.transport.outbound import Outbound
from fedrdma_fate.transport.sealed_pieces import LARGEST_RECORD, introduction_bytes, sealed_length
from fedrdma_fate.transport.stream_frames import HEAD_BYTES, Head, Op, ack_head, unpack_head
from fedrdma_fate.transport.tcp_streams import StreamReader
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, Introduction
from tests.support.sealed import KEYS_OF_ACTIVE, MESSAGE

KEYS_OF_NEXT = SessionKeys(b"o" * 32, b"p" * 32).path("tcp", b"n" * 32, b"m" * 32).send

SLOT_BYTES = 3 * BLOCK_BYTES
UNTOUCHED = 0xEE
FIRST, SECOND = 5, 6


class Script:
    """A connection that brings what the test lets through."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def recv_into(self, target: memoryview) -> int:
        if not self.bytes:
            raise BlockingIOError
        count = min(len(target), len(self.bytes))
        target[:count] = self.bytes[:count]
        del self.bytes[:count]
        return count

    def recvmsg_into(self, targets: list[memoryview]) -> tuple[int]:
        received = 0
        for target in targets:
            if target and self.bytes:
                received += self.recv_into(target)
        if not received:
            raise BlockingIOError
        return (received,)


class Wire:
    """One sender, one receiver, and between them somebody who sees every frame."""

    def __init__(self, region: SharedRegion, seal: Seal) -> None:
        self.region = region
        self.seal = seal
        region.view[:] = bytes([UNTOUCHED]) * region.length
        self.opener = PathOpener(KEYS_OF_ACTIVE.reversed.receive, AES, seal)
        self.path = PathSealer(KEYS_OF_ACTIVE.send, AES, seal)
        self.exposures = ExposureTable()
        self.completions: list[CompletionKind] = []
        self.digests: list[int | None] = []
        self.acknowledgements: list[bytes] = []
        inbound = Inbound(
            self.exposures,
            self._complete,
            self.acknowledgements.append,
            lambda _: None,
        )
        inbound.opener = self.opener
        self.script = Script()
        self.reader = StreamReader(self.script, inbound)  # type: ignore[arg-type]
        self.outbound = Outbound(streams=1)
        self.source = SharedRegion.create("source", SLOT_BYTES)
        self.source.view[:] = bytes(range(256)) * (SLOT_BYTES // 256)

    def _complete(self, completion: Completion) -> None:
        self.completions.append(completion.kind)
        self.digests.append(completion.digest)

    def expose(self, grant: int, transfer: int) -> RemoteSlot:
        at = SLOT_BYTES * (grant - FIRST)
        remote = self.exposures.expose(grant, Slot(self.region, at, SLOT_BYTES))
        return RemoteSlot(remote.key, 0, SLOT_BYTES, self.path.begin(transfer, grant, MESSAGE))

    def write(self, target: RemoteSlot, length: int, at: int = 0) -> None:
        self.outbound.post_write(1, Slot(self.source, 0, length), target, at)

    def frames(self) -> list[tuple[Head, bytearray]]:
        """Everything posted, as it goes out: heads, and what follows them."""
        frames = []
        room = memoryview(bytearray(LARGEST_RECORD))
        while (piece := self.outbound.take()) is not None:
            raw = bytearray(piece.head)
            while piece.sealed is not None and (record := piece.sealed.next_record(room)) is not None:
                raw += b"".join(record)
            head = unpack_head(raw[:HEAD_BYTES])
            assert len(raw) == HEAD_BYTES + sealed_length(head)
            frames.append((head, raw[HEAD_BYTES:]))
            self.outbound.sent(piece)
        return frames

    def receive(self, *frames: tuple[Head, bytes | bytearray]) -> None:
        for head, body in frames:
            self.script.bytes += head.pack() + body
        self.reader.receive()

    def refuse(self, *frames: tuple[Head, bytes | bytearray]) -> str:
        with pytest.raises(ProtocolViolation) as violation:
            self.receive(*frames)
        return str(violation.value)

    def slot(self, grant: int = FIRST) -> bytes:
        at = SLOT_BYTES * (grant - FIRST)
        return bytes(self.region.view[at : at + SLOT_BYTES])

    @property
    def holds_nothing_unsealed(self) -> bool:
        """Whether every block of both slots is one of the source's, or zeros, or was not touched."""
        good = {bytes(range(256)) * (BLOCK_BYTES // 256), bytes(BLOCK_BYTES), bytes([UNTOUCHED]) * BLOCK_BYTES}
        slots = self.slot(FIRST) + self.slot(SECOND)
        return all(slots[at : at + BLOCK_BYTES] in good for at in range(0, len(slots), BLOCK_BYTES))


@pytest.fixture(params=["on", "integrity"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    region = SharedRegion.create("region", 2 * SLOT_BYTES)
    made = Wire(region, request.param)
    yield made
    made.source.close()
    region.close()


def test_what_nobody_touched_arrives(wire: Wire) -> None:
    wire.write(wire.expose(FIRST, 1), SLOT_BYTES)
    wire.receive(*wire.frames())
    assert wire.slot() == bytes(wire.source.view)
    assert wire.completions == [CompletionKind.LANDED]


def test_bytes_that_come_one_by_one_arrive(wire: Wire) -> None:
    target = wire.expose(FIRST, 1)
    wire.write(target, 300)
    wire.outbound.post_bytes(2, b"h" * 64, target, 1024, FIRST)
    for head, body in wire.frames():
        for byte in head.pack() + body:
            wire.script.bytes.append(byte)
            wire.reader.receive()
    assert wire.slot()[:300] == bytes(wire.source.view[:300])
    assert wire.slot()[1024:1088] == b"h" * 64
    assert wire.completions == [CompletionKind.LANDED, CompletionKind.IMMEDIATE]


PIECE_STARTS_AT = introduction_bytes(Head(Op.WRITE))
"""What goes between the head of a piece and its first record."""

CHANGES: dict[str, Callable[[bytearray], object]] = {
    "tag": lambda body: body.__setitem__(-1, body[-1] ^ 1),
    "byte": lambda body: body.__setitem__(-50, body[-50] ^ 1),
    "counter": lambda body: body.__setitem__(INTRODUCTION_BYTES, body[INTRODUCTION_BYTES] ^ 1),
    "transfer": lambda body: body.__setitem__(0, body[0] ^ 1),
    "attempt": lambda body: body.__setitem__(8, body[8] ^ 1),
    "message": lambda body: body.__setitem__(12, body[12] ^ 1),
}
CHANGES_OF_PIECES: dict[str, Callable[[bytearray], object]] = CHANGES | {
    "tag of the head": lambda body: body.__setitem__(PIECE_STARTS_AT - 1, body[PIECE_STARTS_AT - 1] ^ 1),
    "counter of a record": lambda body: body.__setitem__(PIECE_STARTS_AT, body[PIECE_STARTS_AT] ^ 1),
}


CHANGES_OF_RECORDS = ("tag", "byte", "counter of a record")
"""Behind a head that was found right."""


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("what", CHANGES_OF_RECORDS)
@pytest.mark.parametrize("wire", ["integrity"], indirect=True)
def test_a_record_that_was_readable_and_changed_is_wiped_counted_and_costs_its_write_alone(
    wire: Wire, what: str, resumed: bool
) -> None:
    """The task that it is from may have written on while it went: other messages of the link go on."""
    target = wire.expose(FIRST, 1)
    if resumed:
        wire.opener.note_resumed(FIRST)
    wire.write(target, SLOT_BYTES)
    wire.write(target, SLOT_BYTES)
    (head, body), again = wire.frames()
    CHANGES_OF_PIECES[what](body)
    wire.receive((head, body))
    assert wire.completions == [CompletionKind.LANDED]
    assert wire.digests == [MISTAGGED]
    assert wire.holds_nothing_unsealed
    assert bytes(BLOCK_BYTES) in (wire.slot()[:BLOCK_BYTES], wire.slot()[-BLOCK_BYTES:])
    assert wire.opener.take_refused() == {"forged": 1}
    assert wire.opener.wiped == {FIRST}, "should the link break now, the transfer begins anew"
    wire.receive(again)
    assert wire.digests == [MISTAGGED, TAGGED]
    assert wire.slot() == bytes(wire.source.view)


@pytest.mark.parametrize(
    ("wire", "what"),
    [("on", what) for what in CHANGES_OF_PIECES]
    + [("integrity", what) for what in CHANGES_OF_PIECES if what not in CHANGES_OF_RECORDS],
    indirect=["wire"],
)
def test_a_changed_bit_breaks_the_link_and_leaves_nothing(wire: Wire, what: str) -> None:
    wire.write(wire.expose(FIRST, 1), SLOT_BYTES)
    ((head, body),) = wire.frames()
    CHANGES_OF_PIECES[what](body)
    assert "wrong tag" in wire.refuse((head, body))
    assert wire.holds_nothing_unsealed
    assert not wire.completions
    assert wire.opener.take_refused() == {"forged": 1}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_bit_of_a_header_breaks_the_link_and_leaves_nothing(wire: Wire, what: str) -> None:
    wire.outbound.post_bytes(2, b"h" * 164, wire.expose(FIRST, 1), 1024, FIRST)
    ((head, body),) = wire.frames()
    CHANGES[what](body)
    assert "wrong tag" in wire.refuse((head, body))
    assert b"h" not in wire.slot()
    assert not wire.completions


HEADS: dict[str, dict[str, int]] = {
    "another place in the slot": {"address": BLOCK_BYTES},
    "another write": {"sequence": 1},
    "another kind of write": {"op": Op.CHUNK},
    "another chunk": {"immediate": 9},
    "a shorter piece": {"piece_length": BLOCK_BYTES},
}


@pytest.mark.parametrize("what", HEADS)
def test_a_chunk_moved_to_another_place_is_refused(wire: Wire, what: str) -> None:
    wire.write(wire.expose(FIRST, 1), 2 * BLOCK_BYTES)
    ((head, body),) = wire.frames()
    assert "wrong tag" in wire.refuse((head._replace(**HEADS[what]), body))
    # its head was refused, and not a byte was taken
    assert wire.slot() == bytes([UNTOUCHED]) * SLOT_BYTES
    assert wire.opener.take_refused() == {"forged": 1}


@pytest.mark.parametrize("ahead", [0, 5])
def test_a_forged_header_is_refused_when_it_comes_and_nothing_is_written_where_it_says(wire: Wire, ahead: int) -> None:
    """Also one that would wait for writes that never come, and hold up all that comes behind it on its stream."""
    target = wire.expose(FIRST, 1)
    wire.write(target, BLOCK_BYTES)
    wire.receive(*wire.frames())
    wire.outbound.post_bytes(2, b"h" * 64, target, 2 * BLOCK_BYTES, FIRST)
    ((head, body),) = wire.frames()
    forged = head._replace(address=0, sequence=head.sequence + ahead)
    assert "wrong tag" in wire.refuse((forged, body))
    assert wire.slot()[:BLOCK_BYTES] == bytes(wire.source.view[:BLOCK_BYTES])
    assert not wire.opener.wiped
    assert wire.opener.take_refused() == {"forged": 1}


def test_a_chunk_moved_to_another_transfers_grant_is_refused(wire: Wire) -> None:
    first, second = wire.expose(FIRST, 1), wire.expose(SECOND, 2)
    wire.write(first, BLOCK_BYTES)
    ((head, body),) = wire.frames()
    assert "wrong tag" in wire.refuse((head._replace(key=second.key), body))
    assert wire.slot(SECOND) in (
        bytes([UNTOUCHED]) * SLOT_BYTES,
        bytes(BLOCK_BYTES) + bytes([UNTOUCHED]) * 2 * BLOCK_BYTES,
    )


def test_a_chunk_of_another_transfer_in_a_grant_that_has_one_is_refused(wire: Wire) -> None:
    first = wire.expose(FIRST, 1)
    other = RemoteSlot(first.key, 0, SLOT_BYTES, wire.path.begin(2, FIRST, MESSAGE))
    wire.write(first, BLOCK_BYTES)
    wire.write(other, BLOCK_BYTES, BLOCK_BYTES)
    assert "another transfer" in wire.refuse(*wire.frames())
    assert wire.opener.take_refused() == {"other-transfer": 1}


def test_blocks_of_one_write_do_not_stand_in_for_each_other(wire: Wire) -> None:
    wire.write(wire.expose(FIRST, 1), 2 * BLOCK_BYTES)
    ((head, body),) = wire.frames()
    first = body[PIECE_STARTS_AT : PIECE_STARTS_AT + LARGEST_RECORD]
    second = body[PIECE_STARTS_AT + LARGEST_RECORD :]
    swapped = head, body[:PIECE_STARTS_AT] + second + first
    if wire.seal == "integrity":
        wire.receive(swapped)
        assert wire.digests == [MISTAGGED]
        assert wire.slot()[: 2 * BLOCK_BYTES] == bytes(2 * BLOCK_BYTES)
    else:
        assert "wrong tag" in wire.refuse(swapped)


def test_a_write_that_comes_again_is_refused_and_counted(wire: Wire) -> None:
    wire.write(wire.expose(FIRST, 1), BLOCK_BYTES)
    (frame,) = wire.frames()
    wire.receive(frame)
    assert "came twice" in wire.refuse(frame)
    assert wire.completions == [CompletionKind.LANDED]
    assert wire.opener.take_refused() == {"replayed": 1}


def test_a_piece_that_comes_again_in_place_of_another_is_refused_and_counted(wire: Wire) -> None:
    wire.outbound = Outbound(streams=3)
    wire.write(wire.expose(FIRST, 1), SLOT_BYTES)
    first, _, _ = wire.frames()
    assert "came twice" in wire.refuse(first, first)
    assert not wire.completions
    assert wire.opener.take_refused() == {"replayed": 1}


@pytest.mark.parametrize("resumed", [False, True])
def test_where_something_may_have_landed_before_nothing_lies_that_was_not_looked_at(wire: Wire, resumed: bool) -> None:
    wire.write(wire.expose(FIRST, 1), BLOCK_BYTES)
    ((head, body),) = wire.frames()
    if resumed:
        wire.opener.note_resumed(FIRST)
    # whoever cuts the connection here has no tag looked at
    half = PIECE_STARTS_AT + BLOCK_BYTES // 2
    wire.receive((head, body[:half]))
    in_place = wire.seal == "integrity" and not resumed
    assert wire.slot()[0] == (wire.source.view[0] if in_place else UNTOUCHED)
    assert not wire.completions
    wire.script.bytes += body[half:]
    wire.reader.receive()
    assert wire.slot()[:BLOCK_BYTES] == bytes(wire.source.view[:BLOCK_BYTES])
    assert wire.completions == [CompletionKind.LANDED]


def test_a_header_does_not_come_before_the_write_that_it_speaks_for(wire: Wire) -> None:
    """Who leaves a write out cannot give its number to the header behind it."""
    target = wire.expose(FIRST, 1)
    wire.write(target, BLOCK_BYTES)
    wire.outbound.post_bytes(2, b"h" * 64, target, 2 * BLOCK_BYTES, FIRST)
    _, (head, body) = wire.frames()
    wire.receive((head, body))
    assert not wire.completions
    assert wire.reader.parked
    other = Wire(wire.region, "on")
    other.expose(FIRST, 1)
    assert "never granted" in other.refuse((head._replace(sequence=0), body))


def test_pieces_that_are_not_made_of_blocks_are_refused(wire: Wire) -> None:
    wire.write(wire.expose(FIRST, 1), 2 * BLOCK_BYTES)
    ((head, body),) = wire.frames()
    assert "not made of blocks" in wire.refuse((head._replace(piece_at=1, piece_length=BLOCK_BYTES), body))


def test_what_is_not_sealed_is_refused(wire: Wire) -> None:
    target = wire.expose(FIRST, 1)
    plain = Outbound(streams=1)
    plain.post_write(1, Slot(wire.source, 0, 4096), RemoteSlot(target.key, 0, SLOT_BYTES), 0)
    piece = plain.take()
    assert piece is not None
    assert piece.source is not None
    head = unpack_head(piece.head)
    body = bytes(piece.source.view) + bytes(sealed_length(head) - head.length)
    assert "wrong tag" in wire.refuse((head, body))
    assert wire.holds_nothing_unsealed or wire.slot()[:4096] == bytes(4096)


def test_what_another_peer_has_sealed_is_refused(wire: Wire) -> None:
    target = wire.expose(FIRST, 1)
    stranger = PathSealer(KEYS_OF_ACTIVE.send._replace(chunks=b"s" * 32), AES, "on").begin(1, FIRST, MESSAGE)
    wire.write(RemoteSlot(target.key, 0, SLOT_BYTES, stranger), BLOCK_BYTES)
    assert "wrong tag" in wire.refuse(*wire.frames())
    assert wire.holds_nothing_unsealed
    assert wire.opener.take_refused() == {"forged": 1}


def test_what_a_task_writes_while_its_slot_is_sent_is_sealed_anew_with_its_own_nonce(wire: Wire) -> None:
    target = wire.expose(FIRST, 1)
    wire.write(target, BLOCK_BYTES)
    ((_, before),) = wire.frames()
    wire.source.view[:8] = b"changed!"
    wire.write(target, BLOCK_BYTES)
    ((head, after),) = wire.frames()
    assert before[:INTRODUCTION_BYTES] == after[:INTRODUCTION_BYTES]
    counters = {bytes(body[at : at + 8]) for body in (before, after) for at in (INTRODUCTION_BYTES, PIECE_STARTS_AT)}
    assert len(counters) == 4
    assert Introduction(1, 1, MESSAGE).pack() == bytes(after[:INTRODUCTION_BYTES])
    assert head.sequence == 1


def test_an_acknowledgement_of_what_has_not_left_yet_is_refused() -> None:
    outbound = Outbound(streams=1)
    region = SharedRegion.create("source", 4096)
    outbound.post_write(1, Slot(region, 0, 4096), RemoteSlot(1, 0, 4096), 0)
    piece = outbound.take()
    assert piece is not None
    with pytest.raises(ProtocolViolation, match="not under way"):
        outbound.acknowledged(Head(Op.ACK, sequence=0))
    region.close()


ACKNOWLEDGEMENTS: dict[str, Callable[[Head], Head]] = {
    "without a tag": lambda ack: ack._replace(key=0, address=0),
    "with a changed tag": lambda ack: ack._replace(address=ack.address ^ 1),
    "of another write": lambda ack: ack._replace(sequence=1),
}


@pytest.mark.parametrize("what", ACKNOWLEDGEMENTS)
def test_an_acknowledgement_that_the_peer_has_not_sent_is_refused(wire: Wire, what: str) -> None:
    target = wire.expose(FIRST, 1)
    wire.write(target, BLOCK_BYTES)
    wire.write(target, BLOCK_BYTES, BLOCK_BYTES)
    first, _ = wire.frames()
    wire.receive(first)
    ack = unpack_head(wire.acknowledgements[0])
    with pytest.raises(ProtocolViolation, match="a forged ACK"):
        wire.outbound.acknowledged(ACKNOWLEDGEMENTS[what](ack))


def test_an_acknowledgement_of_another_connection_or_of_the_other_direction_is_refused(wire: Wire) -> None:
    wire.write(wire.expose(FIRST, 1), BLOCK_BYTES)
    wire.frames()
    other, reversed_ = (PathOpener(keys, AES, wire.seal) for keys in (KEYS_OF_NEXT, KEYS_OF_ACTIVE.receive))
    for opener in (other, reversed_):
        assert opener.acknowledgement(0) != wire.opener.acknowledgement(0)
        with pytest.raises(ProtocolViolation, match="a forged ACK"):
            wire.outbound.acknowledged(unpack_head(ack_head(0, opener.acknowledgement(0))))
        wire.outbound = Outbound(streams=1)
        wire.write(RemoteSlot(1, 0, SLOT_BYTES, wire.path.begin(1, FIRST, MESSAGE)), BLOCK_BYTES)
        wire.frames()
    assert wire.outbound.acknowledged(unpack_head(ack_head(0, wire.opener.acknowledgement(0)))) == 1


@pytest.mark.parametrize("op", [Op.WRITE, Op.CHUNK, Op.FENCED])
def test_what_comes_into_a_grant_that_drains_tells_nothing_of_another_grant(wire: Wire, op: Op) -> None:
    """Nobody looks at its seal any more: it may be of whoever saw its key."""
    key = wire.expose(FIRST, 1).key
    wire.expose(SECOND, 2)
    wire.exposures.drain(FIRST)
    wire.opener.forget(FIRST)
    forged = Head(op, SECOND, 0, key, 0, 64, 0, 64)
    wire.receive((forged, bytes(sealed_length(forged))))
    wire.reader.release()
    assert wire.completions == []
    assert wire.slot(FIRST) == wire.slot(SECOND) == bytes([UNTOUCHED]) * SLOT_BYTES
