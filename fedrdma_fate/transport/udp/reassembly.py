"""Puts pieces of chunks where they belong, and tells when a chunk is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrdma_fate.ports import Slot
from fedrdma_fate.transport.udp.cuts import Cut, recut
from fedrdma_fate.transport.udp.nacks import NackedChunk
from fedrdma_fate.transport.udp.piece_runs import place
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES

if TYPE_CHECKING:
    from fedrdma_fate.transport.udp.piece_runs import Bytes

MOST_PARTIAL_CHUNKS = 4096
"""Chunks of a connection of which some pieces are there: 64 MiB in the smallest, more than a path has under way. Beyond
it the oldest is forgotten, and has to come anew."""

OVERTAKING_CHUNKS = 1
"""Pieces of a chunk are missing when so many others have become whole since its last one came. The sender takes it for
lost when one sent three later has come whole, and a full buffer may break all between: told any later, all of it goes
again. To be told of what is only late costs nothing, for nothing goes again before the sender takes it for lost."""

REORDERING_LOOKS = 2
"""And when so many looks in a row have found no other of it: where nothing is sent behind it."""

MOST_RECUTS = 16
"""Of one chunk while it arrives: a path's MTU has fewer steps (`meeting.py`, PATH_MTUS). Cut once more, it begins anew,
so that who cuts each piece otherwise makes no more work than pieces do."""

MOST_PARTIAL_MESSAGES = 256
"""The same of messages: some trains of them."""


class ChunkAssembly:
    """The slots that are open to the peer, and the chunks that are arriving there."""

    def __init__(self) -> None:
        self._slots: dict[int, memoryview] = {}
        self._keys: dict[int, int] = {}
        self._received: dict[int, int] = {}
        self._partial: dict[tuple[int, int], _Pieces] = {}
        self._untold: dict[tuple[int, int], _Pieces] = {}
        self._whole = 0
        self._looks = 0

    def has(self, key: int) -> bool:
        """Whether a slot is open under this key."""
        return key in self._slots

    def open(self, key: int, grant: int, slot: Slot) -> None:
        """Let chunks in."""
        self._slots[key] = slot.view
        self._received[key] = 0
        self._keys[grant] = key

    def close(self, grant: int) -> None:
        """Let nothing in any more."""
        key = self._keys.pop(grant, None)
        if key is None:
            return
        del self._slots[key], self._received[key]
        for known in [each for each in self._partial if each[0] == key]:
            self._forget(known)

    def received_bytes(self, key: int) -> int:
        """Of pieces that have come for this slot; of a chunk that was whole already they count once more."""
        return self._received[key]

    def clear(self) -> None:
        """Close all of them."""
        for grant in list(self._keys):
            self.close(grant)

    def take(self, piece: int, cut: Cut, key: int, immediate: int, offset: int, data: memoryview) -> bool | None:
        """Place one piece: whether its chunk is whole now. None for one that belongs nowhere, and is dropped."""
        opened = self._slots.get(key)
        length = len(data)
        end = offset + length
        pieces, size = cut
        if opened is None or piece >= pieces or end > len(opened):
            return None
        if length != size and (length > size or piece + 1 < pieces):
            return None
        if pieces == 1:
            opened[offset:end] = data
            self._received[key] += length
            self._forget((key, immediate))
            self._whole += 1
            return True
        where = (key, immediate)
        partial = self._partial.get(where)
        if partial is None or (partial.cut != cut and not partial.recut(cut)):
            partial = self._begin(where, cut)
        if not partial.add(piece):
            return False
        opened[offset:end] = data
        return self._on_placed(where, partial, length)

    def take_run(self, piece: int, cut: Cut, key: int, immediate: int, offset: int, run: Bytes) -> bool | None:
        """Place several pieces, a row each, from this one on: whether their chunk is whole now.

        None where they have to be taken one by one: they do not all belong there, or some had come before.
        """
        opened, count = self._slots.get(key), len(run)
        if opened is None or piece + count > cut.pieces or offset + run.size > len(opened) or run.shape[1] != cut.size:
            return None
        where = (key, immediate)
        partial = self._partial.get(where)
        if partial is None:
            partial = self._begin(where, cut)
        if partial.cut != cut or not partial.add_run(piece, count):
            return None
        place(opened, offset, run)
        return self._on_placed(where, partial, run.size)

    def _begin(self, where: tuple[int, int], cut: Cut) -> _Pieces:
        if len(self._partial) >= MOST_PARTIAL_CHUNKS:
            self._forget(next(iter(self._partial)))
        partial = self._partial[where] = _Pieces(cut)
        return partial

    def _on_placed(self, where: tuple[int, int], partial: _Pieces, length: int) -> bool:
        self._received[where[0]] += length
        if partial.missing:
            partial.whole_then, partial.looks_then = self._whole, self._looks
            self._untold[where] = partial
            return False
        self._forget(where)
        self._whole += 1
        return True

    def take_nacks(self, *, counts: bool = True) -> list[NackedChunk]:
        """Look for chunks of which pieces are missing that hardly are on their way any more; each is told once.

        When more pieces of it have come, and not all, it is told again.

        Args:
            counts: as one of REORDERING_LOOKS; not where the last one was just now.
        """
        self._looks += counts
        overtaken = [
            (where, pieces)
            for where, pieces in self._untold.items()
            if self._whole - pieces.whole_then >= OVERTAKING_CHUNKS
            or self._looks - pieces.looks_then > REORDERING_LOOKS
        ]
        for where, _ in overtaken:
            del self._untold[where]
        return [NackedChunk(*where, pieces.cut, pieces.missing_bits) for where, pieces in overtaken]

    def _forget(self, where: tuple[int, int]) -> None:
        self._partial.pop(where, None)
        self._untold.pop(where, None)


class MessageAssembly:
    """Messages that are arriving: of each, DATAGRAM_BYTES are kept, and what lies behind them only has to come."""

    def __init__(self) -> None:
        self._partial: dict[int, tuple[_Pieces, bytearray]] = {}

    def take(self, piece: int, cut: Cut, number: int, data: memoryview) -> bytes | None:
        """Take one piece in; the message when it is whole."""
        if piece >= cut.pieces or len(data) > cut.size:
            return None
        if cut.pieces == 1:
            return bytes(data[:DATAGRAM_BYTES])
        if number not in self._partial:
            if len(self._partial) >= MOST_PARTIAL_MESSAGES:
                del self._partial[next(iter(self._partial))]
            self._partial[number] = _Pieces(cut), bytearray()
        partial, kept = self._partial[number]
        if partial.cut != cut or not partial.add(piece):
            return None
        start = piece * cut.size
        part = data[: max(0, DATAGRAM_BYTES - start)]
        if part:
            if len(kept) < start:
                kept.extend(bytes(start - len(kept)))
            kept[start : start + len(part)] = part
        if partial.missing:
            return None
        del self._partial[number]
        return bytes(kept)


class _Pieces:
    """Which pieces of something are there.

    Attributes:
        cut: how it is cut into pieces.
        missing: how many are not there.
        whole_then: how many chunks were whole when the last one came.
        looks_then: how often it had been looked for missing ones then.
    """

    __slots__ = ("_recuts", "_there", "cut", "looks_then", "missing", "whole_then")

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.missing = cut.pieces
        self.whole_then = 0
        self.looks_then = 0
        self._there = 0
        self._recuts = 0

    @property
    def missing_bits(self) -> int:
        """A bit for each that is not there."""
        return self.cut.all & ~self._there

    def add(self, piece: int) -> bool:
        """Whether it was not there before."""
        bit = 1 << piece
        if self._there & bit:
            return False
        self._there |= bit
        self.missing -= 1
        return True

    def add_run(self, first: int, count: int) -> bool:
        """Whether none of so many was there before; else they are not added."""
        bits = ((1 << count) - 1) << first
        if self._there & bits:
            return False
        self._there |= bits
        self.missing -= count
        return True

    def recut(self, cut: Cut) -> bool:
        """The sender cuts it otherwise now: keep what lies wholly in pieces that are there. False: too often."""
        if self._recuts >= MOST_RECUTS:
            return False
        there = recut(self._there, self.cut, cut)
        if there == cut.all:
            # so it was never a cut of the same chunk
            return False
        self._recuts += 1
        self._there = there
        self.cut = cut
        self.missing = cut.pieces - there.bit_count()
        return True
