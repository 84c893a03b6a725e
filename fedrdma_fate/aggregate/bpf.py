"""A program for the kernel that passes notices on, instruction by instruction, and the few calls of bpf(2) it takes.

Encodings as the kernel's documentation has them (Documentation/bpf/standardization/instruction-set.rst); numbers of
commands, types and helpers are those of include/uapi/linux/bpf.h, and never change.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_SYSCALL_NUMBERS = {"x86_64": 321, "aarch64": 280}
"""Of bpf(2), by processor."""

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, PROG_LOAD, PROG_ATTACH = 0, 1, 2, 3, 5, 8
"""Commands."""

MAP_TYPE_ARRAY, MAP_TYPE_SOCKMAP = 2, 15
PROG_TYPE_SK_MSG, ATTACH_SK_MSG_VERDICT = 16, 7
_HELPER_LOOKUP, _HELPER_REDIRECT = 1, 60
"""bpf_map_lookup_elem, bpf_msg_redirect_map."""

_INGRESS = 1
"""BPF_F_INGRESS: into what the other socket receives, not out of it."""

_LICENSE = b"Apache-2.0\0"
"""None of the two helpers asks for another."""

_LOG_BYTES = 64 * 1024
"""Of what the kernel's verifier says: of so few instructions it is a page."""

_INSTRUCTION = struct.Struct("<BBhi")
"""Operation, registers (source in the upper four bits), offset, constant."""

_LOAD_8, _LOAD_4, _STORE_4 = 0x79, 0x61, 0x63
_ADD_8_ATOMIC = 0xDB
"""Adds to memory as one step, whichever cores do so at once."""
_LOAD_CONSTANT_8 = 0x18
"""Takes two instructions: the second one has the upper half, which is zero for a map."""
_MOVE, _MOVE_CONSTANT, _ADD_CONSTANT = 0xBF, 0xB7, 0x07
_JUMP_GREATER, _JUMP_EQUAL_CONSTANT = 0x2D, 0x15
_CALL, _EXIT = 0x85, 0x95
_IS_MAP = 1
"""In the place of the source register: the constant is the descriptor of a map."""

ROUTE_BYTES = 4
"""At the start of a notice: where it goes, a whole number in the byte order of the host."""

_Attribute = ctypes.Array[ctypes.c_char]


class BpfError(OSError):
    """The kernel has refused something; `log` is what its verifier says, where it has looked.

    Attributes:
        log: of the verifier.
    """

    def __init__(self, number: int, doing: str, log: str = "") -> None:
        super().__init__(number, f"{os.strerror(number)}, when {doing}{_last_line(log)}")
        self.log = log


def _last_line(log: str) -> str:
    """What the verifier objects to: its last line that is not about how much it has looked at."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("processed ")]
    return f" ({lines[-1]})" if lines else ""


def instruction(operation: int, to: int = 0, source: int = 0, offset: int = 0, constant: int = 0) -> bytes:
    """Eight bytes.

    Args:
        operation: class, size and mode.
        to: destination register.
        source: source register.
        offset: of memory in bytes, or of a jump in instructions.
        constant: an immediate value.
    """
    return _INSTRUCTION.pack(operation, source << 4 | to, offset, constant)


def routing_program(sockets: int, counters: int) -> bytes:
    """Passes a message on into the socket that its first four bytes name, and counts it there; else drops it.

    Args:
        sockets: descriptor of a map of sockets by route.
        counters: descriptor of an array by route, of 8-byte counters.
    """
    steps = [
        # r6: the message; r2: its first byte; r3: behind its last one
        instruction(_MOVE, 6, 1),
        instruction(_LOAD_8, 2, 1, 0),
        instruction(_LOAD_8, 3, 1, 8),
        instruction(_MOVE, 4, 2),
        instruction(_ADD_CONSTANT, 4, constant=ROUTE_BYTES),
        # too short for a route: to the end
        instruction(_JUMP_GREATER, 4, 3, 17),
        # r7: the route, and on the stack for the look-up
        instruction(_LOAD_4, 7, 2, 0),
        instruction(_STORE_4, 10, 7, -4),
        instruction(_LOAD_CONSTANT_8, 1, _IS_MAP, constant=counters),
        instruction(0),
        instruction(_MOVE, 2, 10),
        instruction(_ADD_CONSTANT, 2, constant=-4),
        instruction(_CALL, constant=_HELPER_LOOKUP),
        # no such route: to the end
        instruction(_JUMP_EQUAL_CONSTANT, 0, 0, 9),
        instruction(_MOVE_CONSTANT, 1, constant=1),
        instruction(_ADD_8_ATOMIC, 0, 1, 0),
        instruction(_MOVE, 1, 6),
        instruction(_LOAD_CONSTANT_8, 2, _IS_MAP, constant=sockets),
        instruction(0),
        instruction(_MOVE, 3, 7),
        instruction(_MOVE_CONSTANT, 4, constant=_INGRESS),
        instruction(_CALL, constant=_HELPER_REDIRECT),
        instruction(_EXIT),
        # SK_DROP: whoever sends is told that it has no permission
        instruction(_MOVE_CONSTANT, 0, constant=0),
        instruction(_EXIT),
    ]
    return b"".join(steps)


def _program(many: int, code: int, license_: int, log_bytes: int, log: int) -> bytes:
    """What is asked for when a program is loaded; for this type, nobody looks at the kernel's version in it."""
    level = 1 if log_bytes else 0
    return struct.pack(
        "=IIQQIIQII16s", PROG_TYPE_SK_MSG, many, code, license_, level, log_bytes, log, 0, 0, b"fedrdma_notice"
    )


class Kernel:
    """The calls of bpf(2) that notices take. Each raises BpfError where the kernel refuses."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._number = _SYSCALL_NUMBERS.get(platform.machine())

    def make_map(self, kind: int, value_bytes: int, entries: int, name: str) -> int:
        """A descriptor of a new map, whose keys are whole numbers below `entries`; tools show it by its name."""
        attribute = struct.pack("=7I16s", kind, ROUTE_BYTES, value_bytes, entries, 0, 0, 0, name.encode())
        return self._call(MAP_CREATE, attribute, "making a map")

    def load(self, program: bytes) -> int:
        """A descriptor of a program that the verifier has passed."""
        code, license_ = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(_LICENSE)
        log = ctypes.create_string_buffer(_LOG_BYTES)
        many = len(program) // _INSTRUCTION.size
        addresses = ctypes.addressof(code), ctypes.addressof(license_)
        doing = "loading the program"
        try:
            return self._call(PROG_LOAD, _program(many, *addresses, 0, 0), doing)
        except BpfError as error:
            if error.errno not in (errno.EACCES, errno.EINVAL):
                raise
            # it was looked at: once more, for the reason
            try:
                return self._call(PROG_LOAD, _program(many, *addresses, _LOG_BYTES, ctypes.addressof(log)), doing)
            except BpfError as again:
                raise BpfError(again.errno or 0, doing, log.value.decode(errors="replace")) from error

    def attach(self, sockets: int, program: int) -> None:
        """From now on, what sockets in this map send passes through the program."""
        attribute = struct.pack("=4I", sockets, program, ATTACH_SK_MSG_VERDICT, 0)
        self._call(PROG_ATTACH, attribute, "attaching the program")

    def put(self, map_: int, key: int, value: bytes) -> None:
        """Set what a map has for a key."""
        self._entry(MAP_UPDATE, map_, key, ctypes.create_string_buffer(value, len(value)), "writing to a map")

    def get(self, map_: int, key: int, length: int) -> bytes:
        """What a map has for a key."""
        value = ctypes.create_string_buffer(length)
        self._entry(MAP_LOOKUP, map_, key, value, "reading a map")
        return value.raw

    def drop(self, map_: int, key: int) -> None:
        """Take a key out of a map."""
        self._entry(MAP_DELETE, map_, key, None, "deleting from a map")

    def _entry(self, command: int, map_: int, key: int, value: _Attribute | None, doing: str) -> None:
        key_ = ctypes.create_string_buffer(struct.pack("=I", key), ROUTE_BYTES)
        address = 0 if value is None else ctypes.addressof(value)
        self._call(command, struct.pack("=IIQQQ", map_, 0, ctypes.addressof(key_), address, 0), doing)

    def _call(self, command: int, attribute: bytes, doing: str) -> int:
        if self._number is None:
            raise BpfError(errno.ENOSYS, doing)
        raw = ctypes.create_string_buffer(attribute, len(attribute))
        found = int(self._library.syscall(self._number, command, raw, len(attribute)))
        if found < 0:
            raise BpfError(ctypes.get_errno(), doing)
        return found
