"""What has come of a transfer is told from time to time, with digests where nothing else will look at it."""

from __future__ import annotations

from fedrdma_fate.core.digest import TAGGED, block_digest
from fedrdma_fate.core.held import PIECE_BYTES, Piece
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.engine.arrival_notes import MOST_PIECES, NOTE_SECONDS, ArrivalNotes
from fedrdma_fate.wire.frames import MessageKey, Offer, Party
from tests.support.endpoints import HeapRegion

KEY = MessageKey("s", "m", "t", Party("guest", "1"), Party("host", "2"))
CHUNK = PIECE_BYTES // 2


class Noted:
    """A transfer of so many chunks, in mode `grpc`."""

    def __init__(self, chunks: int, *, tagged: bool) -> None:
        self.plan = ChunkPlan(chunks * CHUNK, CHUNK)
        self.receiver = Receiver(7, self.plan, ReceiveSettings("grpc", tagged=tagged))
        self.slot = HeapRegion(self.receiver.layout.payload_at + chunks * CHUNK).slot()
        offer = Offer("tcp", 7, KEY, "object", chunks * CHUNK, "grpc", 3, CHUNK, 0)
        self.notes = ArrivalNotes(offer, self.slot, self.receiver, 0.0, tagged=tagged)
        self.now = 0.0

    def lands(self, index: int, byte: bytes = b"x") -> None:
        chunk = self.plan.chunk(index)
        at = self.receiver.layout.write_offset(chunk)
        self.slot.view[at : at + chunk.length] = byte * chunk.length
        self.receiver.on_landed(at, chunk.length, TAGGED if self.notes.tagged else None)

    def told(self) -> list[tuple[Piece, ...]]:
        """What it tells in the time until there is nothing to do but to look again."""
        told = []
        until = self.now + NOTE_SECONDS * 1.5
        while (due := self.notes.timer()) < until:
            self.now = due
            if (pieces := self.notes.on_timer(self.now)) is not None:
                told.append(pieces)
        self.now = until
        return told


def test_nothing_is_told_of_what_comes_faster_than_it_is_looked_for() -> None:
    noted = Noted(4, tagged=False)
    noted.lands(0)
    assert noted.notes.on_timer(NOTE_SECONDS / 2) is None
    assert noted.notes.timer() == NOTE_SECONDS


def test_where_the_bytes_will_be_looked_at_their_digests_are_not_told() -> None:
    noted = Noted(6, tagged=False)
    for index in (0, 1, 4):
        noted.lands(index)
    assert noted.told() == [((0, 2 * CHUNK, 0), (4 * CHUNK, 5 * CHUNK, 0))]
    noted.lands(2)
    assert noted.told() == [((2 * CHUNK, 3 * CHUNK, 0),)]
    assert noted.told() == []


def test_the_first_note_names_the_slot_even_where_nothing_was_seen_to_come() -> None:
    noted = Noted(4, tagged=False)
    assert noted.told() == [()]
    assert noted.told() == []


def test_what_a_tag_has_vouched_for_is_told_with_a_digest_for_each_piece() -> None:
    noted = Noted(5, tagged=True)
    for index in range(4):
        noted.lands(index, bytes([65 + index]))
    expected = [block_digest(b"A" * CHUNK + b"B" * CHUNK), block_digest(b"C" * CHUNK + b"D" * CHUNK)]
    assert noted.told() == [((0, PIECE_BYTES, expected[0]), (PIECE_BYTES, 2 * PIECE_BYTES, expected[1]))]


def test_what_was_wiped_before_its_digest_was_known_is_not_told_until_it_has_come_again() -> None:
    noted = Noted(8, tagged=True)
    for index in range(4):
        noted.lands(index)
    # the first piece is digested, the second is to be
    assert noted.notes.on_timer(NOTE_SECONDS) is None
    chunk = noted.plan.chunk(3)
    at = noted.receiver.layout.payload_at + chunk.offset
    noted.slot.view[at : at + chunk.length] = bytes(chunk.length)
    noted.receiver.on_landed(at, chunk.length, 1)
    (told,) = noted.told()
    assert [piece[:2] for piece in told] == [(0, PIECE_BYTES)]
    noted.lands(3)
    (told,) = noted.told()
    assert told == ((PIECE_BYTES, 2 * PIECE_BYTES, block_digest(b"x" * PIECE_BYTES)),)


def test_of_very_many_pieces_no_more_are_told() -> None:
    noted = Noted(4, tagged=False)
    noted.notes._pieces = MOST_PIECES - 1
    noted.lands(0)
    noted.lands(2)
    assert noted.told() == [((0, CHUNK, 0),)]
    noted.lands(1)
    assert noted.told() == []
