"""Negative acknowledgements: which pieces of chunks have not come, so that only these are sent again."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from fedrdma_fate.transport.udp.cuts import Cut, cut_for, recut
from fedrdma_fate.transport.udp.packets import CONNECTION_HEAD, NACK, NACK_CHUNK_HEAD, VERSION

MOST_SENT_CHUNKS = 4096
"""Chunks of a connection that are remembered, those sent latest, with what the peer lacks of them: 64 MiB in the
smallest, more than a path has under way. Of others all pieces go again."""

MOST_UNANSWERED_REPEATS = 4
"""Times that what the peer lacks of a chunk goes again without another word of it; then all of the chunk does. Where a
fifth is lost all of these are lost once in 600 times. But what came may have been thrown away there, as damaged, and
of pieces that came before nothing more is said: without this only they would go, for ever. Ours."""


class NackedChunk(NamedTuple):
    """A chunk of which some pieces are missing.

    Attributes:
        key: of its slot.
        immediate: names it.
        cut: its pieces, as they came.
        missing: a bit for each piece that has not come.
    """

    key: int
    immediate: int
    cut: Cut
    missing: int


def encode_nacks(connection: int, chunks: list[NackedChunk], most_bytes: int) -> tuple[bytes, int]:
    """A datagram of these many bytes at most, and how many of the chunks it names, from the first on."""
    parts = [CONNECTION_HEAD.pack(NACK, VERSION, connection)]
    left = most_bytes - CONNECTION_HEAD.size
    for chunk in chunks:
        bitmap_bytes = -(-chunk.cut.pieces // 8)
        left -= NACK_CHUNK_HEAD.size + bitmap_bytes
        if left < 0:
            break
        parts += (
            NACK_CHUNK_HEAD.pack(chunk.key, chunk.immediate, *chunk.cut),
            chunk.missing.to_bytes(bitmap_bytes, "little"),
        )
    return b"".join(parts), len(parts) // 2


def decode_nacks(body: bytes | memoryview) -> Iterator[NackedChunk]:
    """What follows the head of such a datagram.

    Raises:
        ValueError: it is cut short, or names pieces that no chunk has.
    """
    at = 0
    while at < len(body):
        try:
            key, immediate, pieces, size = NACK_CHUNK_HEAD.unpack_from(body, at)
        except struct.error as error:
            raise ValueError(f"a negative acknowledgement of {len(body)} bytes is cut short") from error
        at += NACK_CHUNK_HEAD.size
        bitmap = bytes(body[at : at + -(-pieces // 8)])
        at += -(-pieces // 8)
        missing = int.from_bytes(bitmap, "little")
        if at > len(body) or not size or not 0 < missing < 1 << pieces:
            raise ValueError(f"{pieces} pieces of {size} bytes with the bitmap {bitmap.hex()}")
        yield NackedChunk(key, immediate, Cut(pieces, size), missing)


@dataclasses.dataclass(slots=True)
class _Sent:
    """A chunk that was sent: its length, what the peer has said it lacks of it, as pieces of which cut, and how often
    that has gone since."""

    length: int
    cut: Cut | None = None
    missing: int = 0
    repeats: int = 0


class NackedChunks:
    """What the peer lacks of chunks of ours. What it says of chunks that were not sent, or not cut so, is nothing."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], _Sent] = {}
        self._repeated: set[tuple[int, int]] = set()

    def on_sent(self, key: int, immediate: int, length: int) -> int | None:
        """A chunk goes out. The immediate of another, of which all pieces would go again from now on though less was
        told; None: of none."""
        sent = self._sent.pop((key, immediate), None)
        if sent is None or sent.length != length:
            sent = _Sent(length)
        self._sent[key, immediate] = sent
        sent.repeats += sent.cut is not None
        if sent.repeats >= MOST_UNANSWERED_REPEATS:
            self._repeated.add((key, immediate))
        if len(self._sent) <= MOST_SENT_CHUNKS:
            return None
        oldest = next(iter(self._sent))
        return None if self._sent.pop(oldest).cut is None else oldest[1]

    def take_repeated(self) -> list[int]:
        """The immediates of chunks that go whole from now on, for the peer says nothing of what went again."""
        repeated, self._repeated = self._repeated, set()
        whole = []
        for where in repeated:
            sent = self._sent.get(where)
            # it may have said something since
            if sent is not None and sent.repeats >= MOST_UNANSWERED_REPEATS:
                sent.cut, sent.missing, sent.repeats = None, 0, 0
                whole.append(where[1])
        return whole

    def note(self, chunk: NackedChunk, size: int, earlier: Collection[int]) -> int:
        """The latest word of the peer counts. How many bytes would go again now; 0 where it says nothing.

        Args:
            chunk: what the peer says.
            size: of pieces now.
            earlier: sizes of pieces before.
        """
        sent = self._sent.get((chunk.key, chunk.immediate))
        cut = chunk.cut
        if sent is None or (cut.size != size and cut.size not in earlier) or cut != cut_for(sent.length, cut.size):
            return 0
        sent.cut, sent.missing, sent.repeats = cut, chunk.missing, 0
        return min(_missing(sent, cut_for(sent.length, size)).bit_count() * size, sent.length)

    def missing_pieces(self, key: int, immediate: int, length: int, size: int) -> list[int] | range:
        """The numbers of the pieces that are to be sent, in order: all, where nothing is known.

        Args:
            key: of the slot.
            immediate: names the chunk.
            length: bytes that it has.
            size: of its pieces now.
        """
        cut = cut_for(length, size)
        sent = self._sent.get((key, immediate))
        missing = cut.all if sent is None or sent.length != length else _missing(sent, cut)
        if missing == cut.all:
            return range(cut.pieces)
        return [piece for piece in range(cut.pieces) if missing >> piece & 1]


def _missing(sent: _Sent, cut: Cut) -> int:
    """A bit for each piece of this cut that the peer lacks some of."""
    known = sent.cut
    if known is None or known == cut:
        return cut.all if known is None else sent.missing
    return cut.all & ~recut(known.all & ~sent.missing, known, cut)
