"""Whether Python's unpickler in C would read a stream in memory, on a stack and in time that its length bounds.

It keeps what a stream remembers in an array, and makes that as long as the greatest index that the stream names: ten
bytes that name index 2**31 have it write 32 GiB of zeros (CPython before 3.14). It makes a bytearray as long as the
stream says, and then sees that there is less. And it hashes and compares keys without counting (`hash_cost.py`, which
does). So streams are walked first, opcode by opcode, without doing what they say: what is not plainly harmless is left
to the unpickler in Python, which takes longer and counts.

Short streams as picklers have written them since protocol 4, with one tuple at most, need no walk.
"""

from __future__ import annotations

import copyreg
import math
import pickle
import pickletools
import re

from fedrdma_fate.fate.hash_cost import PIECE, most_values

_FRAME_BYTES = 8
"""Of the length behind FRAME."""

_INDEX_BYTES = 4
"""Of the index behind LONG_BINPUT."""

_INDEX_DIGITS = 10
"""Of the index behind PUT, at most: more are no honest one's, and Python takes other spellings of numbers, too."""

MOST_TUPLES = 20_000
"""Made by a stream that is given to C: a third of the depth that was seen to pass on a stack of 8 MiB, which is what
Linux gives a thread."""

SHORT_BYTES = 512
"""So much has room for a tuple, and to put it as a key, so often that some twenty thousand values are hashed."""

_OPCODES_AT_ONCE = 500
"""Matched at once: the matcher keeps some bytes for each."""

_SPECIAL = frozenset((pickle.PUT, pickle.LONG_BINPUT, pickle.FRAME, pickle.STOP))
_TUPLES = b"".join((pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE, pickle.FROZENSET))
"""What makes something that is hashed, or compared, through what is in it."""
_AGAIN = b"".join((pickle.DUP, pickle.BINGET, pickle.LONG_BINGET, pickle.BINPERSID))
"""What brings an object once more."""
_KEYS = b"".join((pickle.SETITEM, pickle.SETITEMS, pickle.ADDITEMS, pickle.DICT, pickle.FROZENSET))
"""What hashes."""
_OWN_HASH_BYTES = 7
"""Numbers of no more bytes have each a hash of their own."""
_OWN_HASH_DIGITS = 17
"""As have those of no more digits."""
_AGAIN_LINES = frozenset((pickle.GET, pickle.PERSID))
_TAKE_MEMORY = b"".join((pickle.LONG_BINPUT, pickle.PUT, pickle.BYTEARRAY8))
"""What names an index, and what makes a bytearray before it is seen whether there is so much."""
_NUMBERS = b"".join((pickle.INT, pickle.LONG, pickle.LONG1, pickle.LONG4))
"""What makes a number of any length."""
_MOST_DOUBLINGS = 30
"""Of what is hashed; more are never few enough."""
_EXTENSIONS = frozenset((pickle.EXT1, pickle.EXT2, pickle.EXT4))
_TWO_LINES = frozenset((pickle.GLOBAL, pickle.INST))
"""What a module and a name follow, each on a line."""

_COUNT_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


def _sizes() -> tuple[dict[int, int], dict[int, int], frozenset[int]]:
    """Opcodes by what follows them: so many bytes, a count of so many bytes and what it counts, or a line."""
    fixed, counted, lines = {}, {}, set()
    for opcode in pickletools.opcodes:
        code = opcode.code.encode("latin-1")
        size = 0 if opcode.arg is None else opcode.arg.n
        if code in _SPECIAL:
            continue
        if size >= 0:
            fixed[code[0]] = size
        elif size == pickletools.UP_TO_NEWLINE:
            lines.add(code[0])
        else:
            counted[code[0]] = _COUNT_BYTES[size]
    return fixed, counted, frozenset(lines)


_FIXED, _COUNTED, _LINES = _sizes()


def _fixed() -> bytes:
    """An opcode with a fixed number of bytes behind it, as a regular expression."""
    alternatives = [
        b"[" + b"".join(re.escape(bytes([code])) for code in sorted(codes)) + b"]" + b".{%d}" % size
        for size in sorted(set(_FIXED.values()))
        if (codes := [code for code, other in _FIXED.items() if other == size])
    ]
    return b"(?:" + b"|".join(alternatives) + b")"


_RUN = re.compile(_fixed() + b"{0,%d}" % _OPCODES_AT_ONCE, re.DOTALL)
_OPCODE = re.compile(b"(?=(.))" + _fixed(), re.DOTALL)
"""Its group is the opcode without what is behind it."""


def is_bounded(raw: bytes, start: int = 0, *, longest: int = 0) -> bool:
    """Whether the unpickler in C may be given the pickle that starts there; it may still be refused.

    False also where that unpickler and this walk might see different opcodes: in a frame that ends within one.

    Args:
        raw: a pickle is the beginning.
        start: where it starts.
        longest: bytes of the longest byte string that a persistent id stands for.
    """
    length = len(raw) - start
    if length <= SHORT_BYTES and longest < PIECE:
        part = raw[start:]
        if not _count(part, _TAKE_MEMORY) and (
            _count(part, _TUPLES) <= 1 or _is_quick(part, length, 0, 0, _count(part, _NUMBERS), 0)
        ):
            return True
    walked = _walk(raw, start)
    return walked is not None and walked.is_quick(length, longest)


def has_registered_extensions() -> bool:
    """Whether a library of the task has any: the unpickler in C takes them from a cache, and asks for no name."""
    return bool(copyreg._inverted_registry or copyreg._extension_cache)  # type: ignore[attr-defined]


def has_extensions(raw: bytes, start: int = 0) -> bool:
    """Whether the pickle that starts there has extension codes of `copyreg`, which pass by the names, or might."""
    walked = _walk(raw, start)
    return walked is None or any(code in _EXTENSIONS for code in walked.fixed())


class _Walked:
    """What was met on the way through a stream.

    Attributes:
        runs: opcodes with a fixed number of bytes behind them.
        others: how many others there are.
        again: those of them that bring an object once more.
        long_numbers: those of them that make a number whose hash may be another's, too.
        longest: characters of the longest text, or bytes of the longest number.
    """

    __slots__ = ("again", "long_numbers", "longest", "others", "runs")

    def __init__(self) -> None:
        self.runs: list[bytes] = []
        self.others = self.again = self.long_numbers = self.longest = 0

    def fixed(self) -> list[bytes]:
        """The opcodes in the runs, without what is behind them."""
        return _OPCODE.findall(b"".join(self.runs))

    def is_quick(self, stream_bytes: int, longest: int) -> bool:
        """Whether hashing and comparing its keys takes no longer than it may, whatever is put where."""
        known = stream_bytes, self.others, self.again, self.long_numbers, max(self.longest, longest)
        opcodes = b"".join(self.runs)
        # bytes behind an opcode look like opcodes; only where that may matter it is worth to leave them out
        return _is_quick(opcodes, *known) or _is_quick(b"".join(self.fixed()), *known)


def _is_quick(opcodes: bytes, stream_bytes: int, others: int, again: int, long_numbers: int, longest: int) -> bool:
    """Whether hashing and comparing takes no longer than it may, whatever these opcodes put where.

    Args:
        opcodes: also with more than there are.
        stream_bytes: of the stream.
        others: see `_Walked`.
        again: see `_Walked`.
        long_numbers: see `_Walked`.
        longest: see `_Walked`.
    """
    tuples = _count(opcodes, _TUPLES)
    if tuples > MOST_TUPLES:
        return False
    if not _count(opcodes, _KEYS):
        return True
    again += _count(opcodes, _AGAIN)
    if not tuples and not long_numbers and not again:
        return True
    # a tuple is met as often as the tuple around it, times the places where it is there
    doublings = again if again < tuples else tuples and tuples * math.log2(1 + again / tuples)
    if doublings > _MOST_DOUBLINGS:
        return False
    # each of them is hashed, and compared with those of the same hash: half of all, when the last is put
    alike = 1 + (tuples + long_numbers) / 2
    pieces = 1 + longest // PIECE
    return (len(opcodes) + others) * pieces * alike * 2**doublings <= most_values(stream_bytes)


def _count(opcodes: bytes, wanted: bytes) -> int:
    return len(opcodes) - len(opcodes.translate(None, wanted))


def _walk(raw: bytes, start: int) -> _Walked | None:
    """What is met, up to where the stream ends or is refused; None where it must not be given to C."""
    walked = _Walked()
    end = frame_end = len(raw)
    in_frame = False
    limit = end - start
    at = start
    while at < end:
        if in_frame and at == frame_end:
            in_frame, frame_end = False, end
        run = _RUN.match(raw, at, frame_end)
        if run is not None and run.end() > at:
            walked.runs.append(run[0])
            at = run.end()
            continue
        code = raw[at : at + 1]
        at += 1
        if code == pickle.FRAME:
            if in_frame:
                return None
            length = int.from_bytes(raw[at : at + _FRAME_BYTES], "little")
            at += _FRAME_BYTES
            if at + length > end:
                # refused at once
                return walked
            in_frame, frame_end = True, at + length
            continue
        walked.others += 1
        if code[0] in _COUNTED:
            width = _COUNTED[code[0]]
            counted = int.from_bytes(raw[at : at + width], "little")
            at += width + counted
            walked.longest = max(walked.longest, min(counted, limit))
            if code == pickle.BYTEARRAY8 and at > end:
                return None
            if code in _NUMBERS and counted > _OWN_HASH_BYTES:
                walked.long_numbers += 1
        elif code[0] in _LINES or code == pickle.PUT:
            line_end = raw.find(b"\n", at)
            walked.longest = max(walked.longest, line_end - at)
            if code in _TWO_LINES and line_end >= 0:
                line_end = raw.find(b"\n", line_end + 1)
            if line_end < 0:
                # refused
                return None if in_frame else walked
            if code == pickle.PUT and not _is_small(raw[at:line_end], limit):
                return None
            if code in _AGAIN_LINES:
                walked.again += 1
            if code in _NUMBERS and line_end - at > _OWN_HASH_DIGITS:
                walked.long_numbers += 1
            at = line_end + 1
        elif code == pickle.LONG_BINPUT:
            if int.from_bytes(raw[at : at + _INDEX_BYTES], "little") >= limit:
                return None
            at += _INDEX_BYTES
        elif code[0] in _FIXED:
            # longer than what is left of the frame, or of the stream
            return None if in_frame else walked
        else:
            # the end, or no opcode
            return walked
        if in_frame and at > frame_end:
            return None
    return walked


def _is_small(digits: bytes, limit: int) -> bool:
    return digits.isdigit() and len(digits) <= _INDEX_DIGITS and int(digits) < limit
