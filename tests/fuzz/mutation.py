"""Makes bytes that nearly are what a decoder takes: of real ones, changed where decoders go wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

MOST_BYTES = 64 * 1024
"""Of an input; longer ones say nothing that these do not."""

_WIDTHS = (("B", 1), ("<H", 2), (">H", 2), ("<I", 4), (">I", 4), ("<Q", 8), (">Q", 8))
_BOUNDARIES = tuple(
    value & (1 << 64) - 1
    for power in (0, 7, 8, 15, 16, 20, 24, 26, 31, 32, 52, 62, 63, 64)
    for value in ((1 << power) - 1, 1 << power, (1 << power) + 1)
)
_PATCHES = tuple(
    {struct.pack(form, value & (1 << 8 * width) - 1) for form, width in _WIDTHS for value in _BOUNDARIES}
    # lengths of msgpack: strings, bytes, lists and tables that say how much follows
    | {bytes([code]) + b"\xff" * width for code, width in ((0xD9, 1), (0xDA, 2), (0xDB, 4), (0xC6, 4), (0xDD, 4))}
    # numbers that are none, and text that is none
    | {struct.pack(">d", float("nan")), struct.pack(">d", float("inf")), b"\xff\xfe", b"\x00", b"\n", b"\xed\xa0\x80"}
)
_PATCH_LIST = tuple(sorted(_PATCHES))


class Mutator:
    """Makes inputs of seeds; the same ones for the same seed of the random numbers."""

    def __init__(self, seeds: Sequence[bytes], number: int, tokens: Sequence[bytes] = ()) -> None:
        """
        Args:
            seeds: what the decoder takes, at least one.
            number: seeds the random numbers.
            tokens: see `Target`.
        """
        self._random = random.Random(number)
        self._seeds = list(seeds)
        self._tokens = list(tokens)
        self._kinds = 10 if tokens else 8

    def next(self) -> bytes:
        """An input of at most MOST_BYTES."""
        draw = self._random.random
        seeds = self._seeds
        data = bytearray(seeds[int(draw() * len(seeds))])
        for _ in range(1 + int(draw() ** 3 * 6)):
            length = len(data)
            at = int(draw() * (length + 1))
            kind = int(draw() * self._kinds)
            if kind >= 8:
                token = self._tokens[int(draw() * len(self._tokens))]
                # between, often or once, or in the place of what is there
                data[at : at + (0 if kind == 8 else len(token))] = token * (1 + int(draw() ** 6 * 2000 * (kind == 8)))
            elif kind == 0 and length:
                data[at % length] ^= 1 << int(draw() * 8)
            elif kind == 1 and length:
                data[at % length] = int(draw() * 256)
            elif kind in (2, 3):
                patch = _PATCH_LIST[int(draw() * len(_PATCH_LIST))]
                # in the place of what is there, or between
                data[at : at + (len(patch) if kind == 2 else 0)] = patch
            elif kind == 4:
                del data[at : at + 1 + int(draw() ** 4 * length)]
            elif kind == 5:
                part = data[at : at + 1 + int(draw() ** 3 * 64)]
                data[at:at] = part * (1 + int(draw() ** 6 * 2000))
            elif kind == 6:
                other = seeds[int(draw() * len(seeds))]
                start = int(draw() * (len(other) + 1))
                data[at : at + int(draw() * 32)] = other[start : start + 1 + int(draw() ** 2 * len(other))]
            else:
                del data[at:]
        return bytes(data[:MOST_BYTES])
