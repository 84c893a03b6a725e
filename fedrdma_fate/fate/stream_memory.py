"""Whether Python's unpickler in C would read a stream in memory, and on a stack, that is bounded.

It keeps what a stream remembers in an array, and makes that as long as the greatest index that the stream names: ten
bytes that name index 2**31 have it write 32 GiB of zeros (CPython before 3.14). So streams are walked first, opcode by
opcode, without doing what they say. Streams as picklers have written them since protocol 4 name no index, and those
without a byte that could be such an opcode need no walk.

A key of a dictionary is hashed as it is put there, and C hashes a tuple within tuples without counting how deep: some
hundred thousand levels, a byte each in the stream, end the process. Deeper than there are tuples, none can lie.
"""

from __future__ import annotations

import pickle
import pickletools
import re

_FRAME_BYTES = 8
"""Of the length behind FRAME."""

_INDEX_BYTES = 4
"""Of the index behind LONG_BINPUT."""

_INDEX_DIGITS = 10
"""Of the index behind PUT, at most: more are no honest one's, and Python takes other spellings of numbers, too."""

MOST_TUPLES = 20_000
"""Made by a stream that is given to C: a third of the depth that was seen to pass on a stack of 8 MiB, which is what
Linux gives a thread. A stream with more is not refused, and takes ten times as long."""

_OPCODES_AT_ONCE = 500
"""Matched at once: the matcher keeps some bytes for each."""

_SPECIAL = frozenset((pickle.PUT, pickle.LONG_BINPUT, pickle.FRAME, pickle.STOP))
_TUPLES = (pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE)
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


def _run_of_fixed() -> re.Pattern[bytes]:
    """Opcodes with a fixed number of bytes behind them, one after the other."""
    alternatives = [
        b"[" + b"".join(re.escape(bytes([code])) for code in sorted(codes)) + b"]" + b".{%d}" % size
        for size in sorted(set(_FIXED.values()))
        if (codes := [code for code, other in _FIXED.items() if other == size])
    ]
    return re.compile(b"(?:" + b"|".join(alternatives) + b"){0,%d}" % _OPCODES_AT_ONCE, re.DOTALL)


_RUN = _run_of_fixed()


def is_bounded(stream: bytes | memoryview, start: int = 0) -> bool:
    """Whether the unpickler in C may be given the pickle that starts there; it may still be refused.

    False also where that unpickler and this walk might see different opcodes: in a frame that ends within one.

    Args:
        stream: bytes, of which a pickle is the beginning.
        start: where it starts.
    """
    raw = stream if isinstance(stream, bytes) else bytes(stream)
    names_no_index = raw.find(pickle.LONG_BINPUT, start) < 0 and raw.find(pickle.PUT, start) < 0
    if names_no_index and _most_tuples(raw, start, len(raw)) <= MOST_TUPLES:
        return True
    tuples = 0
    end = frame_end = len(raw)
    in_frame = False
    limit = end - start
    at = start
    while at < end:
        if in_frame and at == frame_end:
            in_frame, frame_end = False, end
        run = _RUN.match(raw, at, frame_end)
        if run is not None and run.end() > at:
            tuples += _most_tuples(raw, at, run.end())
            if tuples > MOST_TUPLES:
                return False
            at = run.end()
            continue
        code = raw[at : at + 1]
        at += 1
        if code == pickle.FRAME:
            if in_frame:
                return False
            length = int.from_bytes(raw[at : at + _FRAME_BYTES], "little")
            at += _FRAME_BYTES
            if at + length > end:
                # refused at once
                return True
            in_frame, frame_end = True, at + length
            continue
        if code[0] in _COUNTED:
            width = _COUNTED[code[0]]
            at += width + int.from_bytes(raw[at : at + width], "little")
        elif code[0] in _LINES or code == pickle.PUT:
            line_end = raw.find(b"\n", at)
            if code in _TWO_LINES and line_end >= 0:
                line_end = raw.find(b"\n", line_end + 1)
            if line_end < 0:
                # refused
                return not in_frame
            if code == pickle.PUT and not _is_small(raw[at:line_end], limit):
                return False
            at = line_end + 1
        elif code == pickle.LONG_BINPUT:
            if int.from_bytes(raw[at : at + _INDEX_BYTES], "little") >= limit:
                return False
            at += _INDEX_BYTES
        elif code[0] in _FIXED:
            # longer than what is left of the frame, or of the stream
            return not in_frame
        else:
            # the end, or no opcode
            return True
        if in_frame and at > frame_end:
            return False
    return True


def _most_tuples(raw: bytes, start: int, end: int) -> int:
    """How many tuples these opcodes make, or more, for what follows an opcode is counted as well."""
    return sum(raw.count(opcode, start, end) for opcode in _TUPLES)


def _is_small(digits: bytes, limit: int) -> bool:
    return digits.isdigit() and len(digits) <= _INDEX_DIGITS and int(digits) < limit
