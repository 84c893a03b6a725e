"""Has the kernel drop what comes for nobody, before it wakes or costs anybody: a classic BPF program on a socket.

Who floods the port then pays for each datagram, and the gateway does not: what is dropped is never copied, and nobody
reads it. A name is 64 random bits that travelled on the control channel or to the peer alone, so only who sees the path
can get past.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Sequence

_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_MEMINFO = 26, 27, 55
_INSTRUCTION = struct.Struct("=HBBI")
_PROGRAM = struct.Struct("@HP")
_MEMINFO = struct.Struct("=9I")
_DROPS = 8
"""Its place in what SO_MEMINFO tells (linux/sock_diag.h, SK_MEMINFO_DROPS)."""

_LOAD_BYTE, _LOAD_WORD, _STORE, _RECALL, _JUMP_EQUAL, _RETURN = 0x30, 0x20, 0x02, 0x60, 0x15, 0x06
"""BPF_LD | BPF_B | BPF_ABS, BPF_LD | BPF_W | BPF_ABS, BPF_ST, BPF_LD | BPF_MEM, BPF_JMP | BPF_JEQ | BPF_K,
BPF_RET | BPF_K (linux/filter.h)."""

_KIND_AT, _NAME_AT = 8, 8 + 2
"""Behind the UDP header, kind and version; words are read in network order."""

_NOTHING = _INSTRUCTION.pack(_RETURN, 0, 0, 0)

_KEEP = b"".join(
    _INSTRUCTION.pack(*each)
    for each in (
        (_LOAD_WORD, 0, 0, _NAME_AT),
        (_STORE, 0, 0, 0),
        (_LOAD_WORD, 0, 0, _NAME_AT + 4),
        (_STORE, 0, 0, 1),
    )
)
"""Both words of the name, to be compared; what is too short to have them is dropped."""

_WHOLE = 0xFFFFFFFF
"""Of a datagram: as much of it as there is."""

MOST_NAMES = 100
"""Older kernels let a socket have 20 KiB of options (net.core.optmem_max), to which the program counts, and the one in
whose place it comes. With more names nothing is filtered."""


def keep_only(udp: socket.socket, kinds: Sequence[int], names: Sequence[bytes]) -> None:
    """From now on the socket takes only datagrams that begin with one of these kinds, and have such a name in byte 2.

    Where the kernel does not do it, or there are too many, it takes all.
    """
    program = _among(kinds) + _KEEP + b"".join(map(_accept, names)) + _NOTHING
    if len(names) <= MOST_NAMES:
        memory = ctypes.create_string_buffer(program)
        described = _PROGRAM.pack(len(program) // _INSTRUCTION.size, ctypes.addressof(memory))
        with contextlib.suppress(OSError):
            udp.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
            return
    # whoever reads drops the rest; the program from before would drop what is ours now
    with contextlib.suppress(OSError):
        udp.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def dropped_by_kernel(udp: socket.socket) -> int:
    """Datagrams that the filter dropped, or that found no room, modulo 2³²; 0 where the kernel does not tell."""
    try:
        told = udp.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
    except OSError:
        return 0
    return int(_MEMINFO.unpack(told)[_DROPS]) if len(told) == _MEMINFO.size else 0


def _among(kinds: Sequence[int]) -> bytes:
    """Go on behind this with these kinds alone."""
    jumps = [_INSTRUCTION.pack(_JUMP_EQUAL, len(kinds) - at, 0, kind) for at, kind in enumerate(kinds)]
    return _INSTRUCTION.pack(_LOAD_BYTE, 0, 0, _KIND_AT) + b"".join(jumps) + _NOTHING


def _accept(name: bytes) -> bytes:
    high, low = struct.unpack(">II", name)
    return b"".join(
        _INSTRUCTION.pack(*each)
        for each in (
            (_RECALL, 0, 0, 0),
            (_JUMP_EQUAL, 0, 3, high),
            (_RECALL, 0, 0, 1),
            (_JUMP_EQUAL, 0, 1, low),
            (_RETURN, 0, 0, _WHOLE),
        )
    )
