"""Negative acknowledgements: which pieces of chunks have not come, so that only these are sent again."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from fedrdma_fate.transport.udp.cuts import Cut, cut_for, recut
from fedrdma_fate.transport.udp.packets import CONNECTION_HEAD, NACK, NACK_CHUNK_HEAD, VERSION

MOST_NACKED_CHUNKS = 1024
"""Chunks of a connection that are remembered with what the peer lacks of them: 16 MiB in the smallest, what 1 % of the
packets lost makes of a gigabit that is under way. Of others all pieces go again."""


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


class NackedChunks:
    """What the peer lacks of chunks of ours."""

    def __init__(self) -> None:
        self._missing: dict[tuple[int, int], tuple[Cut, int]] = {}

    def note(self, chunk: NackedChunk) -> None:
        """The latest word of the peer counts."""
        where = chunk.key, chunk.immediate
        self._missing.pop(where, None)
        if len(self._missing) >= MOST_NACKED_CHUNKS:
            del self._missing[next(iter(self._missing))]
        self._missing[where] = chunk.cut, chunk.missing

    def missing_pieces(
        self, key: int, immediate: int, length: int, size: int, earlier: Collection[int]
    ) -> list[int] | range:
        """The numbers of the pieces that are to be sent, in order: all, where nothing is known.

        Args:
            key: of the slot.
            immediate: names the chunk.
            length: bytes that it has.
            size: of its pieces now.
            earlier: sizes of its pieces before; what the peer says of others is nothing.
        """
        cut = cut_for(length, size)
        known, missing = self._missing.get((key, immediate), (cut, cut.all))
        if known != cut:
            if known.size not in earlier or known != cut_for(length, known.size):
                return range(cut.pieces)
            missing = cut.all & ~recut(known.all & ~missing, known, cut)
        if missing == cut.all:
            return range(cut.pieces)
        return [piece for piece in range(cut.pieces) if missing >> piece & 1]
