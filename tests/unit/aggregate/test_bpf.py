"""The program for the kernel, and what is asked of it: by the documented encodings, by what the program does in a small
interpreter, and, where the kernel lets us, by its verifier."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from fedrdma_fate.aggregate import bpf
from fedrdma_fate.aggregate.bpf import (
    MAP_TYPE_ARRAY,
    MAP_TYPE_SOCKMAP,
    BpfError,
    Kernel,
    instruction,
    routing_program,
)
from fedrdma_fate.aggregate.skmsg import try_skmsg

SOCKETS, COUNTERS = 11, 12
PROGRAM = routing_program(SOCKETS, COUNTERS)

needs_bpf = pytest.mark.skipif(bool(why := try_skmsg()), reason=f"no SKMSG here: {why}")


def test_the_program_is_what_the_documentation_encodes_so() -> None:
    """Written down by hand from the table of the instruction set, and as `bpftool prog dump` shows it."""
    expected = """
        bf 16 00 00 00 00 00 00   r6 = r1
        79 12 00 00 00 00 00 00   r2 = *(u64 *)(r1 + 0)
        79 13 08 00 00 00 00 00   r3 = *(u64 *)(r1 + 8)
        bf 24 00 00 00 00 00 00   r4 = r2
        07 04 00 00 04 00 00 00   r4 += 4
        2d 34 11 00 00 00 00 00   if r4 > r3 goto +17
        61 27 00 00 00 00 00 00   r7 = *(u32 *)(r2 + 0)
        63 7a fc ff 00 00 00 00   *(u32 *)(r10 - 4) = r7
        18 11 00 00 0c 00 00 00   r1 = map 12
        00 00 00 00 00 00 00 00
        bf a2 00 00 00 00 00 00   r2 = r10
        07 02 00 00 fc ff ff ff   r2 += -4
        85 00 00 00 01 00 00 00   call map_lookup_elem
        15 00 09 00 00 00 00 00   if r0 == 0 goto +9
        b7 01 00 00 01 00 00 00   r1 = 1
        db 10 00 00 00 00 00 00   lock *(u64 *)(r0 + 0) += r1
        bf 61 00 00 00 00 00 00   r1 = r6
        18 12 00 00 0b 00 00 00   r2 = map 11
        00 00 00 00 00 00 00 00
        bf 73 00 00 00 00 00 00   r3 = r7
        b7 04 00 00 01 00 00 00   r4 = 1
        85 00 00 00 3c 00 00 00   call msg_redirect_map
        95 00 00 00 00 00 00 00   exit
        b7 00 00 00 00 00 00 00   r0 = 0
        95 00 00 00 00 00 00 00   exit
    """
    lines = [bytes.fromhex(line.strip()[:23]) for line in expected.strip().splitlines()]

    assert [PROGRAM[at : at + 8] for at in range(0, len(PROGRAM), 8)] == lines


@pytest.mark.parametrize(
    ("arguments", "encoded"),
    [
        ((0xB7, 3, 0, 0, -1), "b7 03 00 00 ff ff ff ff"),
        ((0x63, 10, 7, -4, 0), "63 7a fc ff 00 00 00 00"),
        ((0x05, 0, 0, -2, 0), "05 00 fe ff 00 00 00 00"),
    ],
)
def test_registers_offset_and_constant_lie_where_they_belong(
    arguments: tuple[int, int, int, int, int], encoded: str
) -> None:
    assert instruction(*arguments) == bytes.fromhex(encoded)


class Machine:
    """As much of the kernel's machine as the program takes; pointers are whole numbers."""

    DATA, STACK, COUNTER = 1 << 32, 2 << 32, 3 << 32

    def __init__(self, message: bytes, sockets: set[int]) -> None:
        self.message, self.sockets = message, sockets
        self.counters = [0] * 4
        self.stack = bytearray(512)
        self.redirected: int | None = None

    def run(self, program: bytes) -> int:
        """What it returns: 1 to pass a message on, 0 to drop it."""
        steps = list(struct.iter_unpack("<BBhi", program))
        r: list[int] = [0] * 11
        r[1], r[10], at = 7, self.STACK + 512, 0
        for _ in range(100):
            operation, registers, offset, constant = steps[at]
            to, source, at = registers & 15, registers >> 4, at + 1
            match operation:
                case 0xBF:
                    r[to] = r[source]
                case 0xB7:
                    r[to] = constant
                case 0x07:
                    r[to] += constant
                case 0x79:
                    assert r[source] == 7
                    r[to] = {0: self.DATA, 8: self.DATA + len(self.message)}[offset]
                case 0x61:
                    first = r[source] + offset - self.DATA
                    # what the verifier sees to
                    assert 0 <= first <= len(self.message) - 4
                    r[to] = int.from_bytes(self.message[first : first + 4], "little")
                case 0x63:
                    first = r[to] + offset - self.STACK
                    self.stack[first : first + 4] = r[source].to_bytes(4, "little")
                case 0x18:
                    assert source == 1
                    r[to], at = constant, at + 1
                case 0x2D:
                    at += offset * (r[to] > r[source])
                case 0x15:
                    at += offset * (r[to] == constant)
                case 0xDB:
                    self.counters[r[to] - self.COUNTER] += r[source]
                case 0x85:
                    r[0] = self.call(constant, r)
                    r[1:6] = [-1] * 5
                case 0x95:
                    return r[0]
        raise AssertionError("it does not end")

    def call(self, helper: int, r: list[int]) -> int:
        if helper == 1:
            assert r[1] == COUNTERS
            first = r[2] - self.STACK
            key = int.from_bytes(self.stack[first : first + 4], "little")
            return self.COUNTER + key if key < len(self.counters) else 0
        assert (helper, r[1], r[2], r[4]) == (60, 7, SOCKETS, 1)
        if r[3] not in self.sockets:
            return 0
        self.redirected = r[3]
        return 1


def test_a_message_goes_into_the_socket_of_its_route_and_is_counted() -> None:
    machine = Machine(b"\2\0\0\0 and what follows", {0, 2})

    assert machine.run(PROGRAM) == 1
    assert (machine.redirected, machine.counters) == (2, [0, 0, 1, 0])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\2\0\0",
        # no socket has this route
        b"\1\0\0\0 and what follows",
        # behind the counters lie the sockets that write
        b"\4\0\0\0 and what follows",
        b"\xff\xff\xff\xff and what follows",
    ],
)
def test_what_has_no_route_is_dropped(message: bytes) -> None:
    machine = Machine(message, {0, 2, 4, 0xFFFFFFFF})

    assert machine.run(PROGRAM) == 0
    assert machine.redirected is None


@needs_bpf
def test_the_kernels_verifier_takes_the_program_and_says_why_it_takes_no_other() -> None:
    kernel = Kernel()
    maps = [
        kernel.make_map(MAP_TYPE_SOCKMAP, 4, 4, "test"),
        kernel.make_map(MAP_TYPE_ARRAY, 8, 2, "test"),
    ]
    try:
        os.close(kernel.load(routing_program(*maps)))
        with pytest.raises(BpfError, match=r"R0 !read_ok") as caught:
            kernel.load(instruction(0x95))
        assert caught.value.errno == errno.EACCES
        assert "processed" in caught.value.log
        # a jump to nowhere
        with pytest.raises(BpfError, match="jump"):
            kernel.load(instruction(0x05, offset=5) + instruction(0x95))
        # no map at all
        with pytest.raises(BpfError) as caught:
            kernel.load(routing_program(0, 1))
        assert caught.value.errno in (errno.EBADF, errno.EINVAL)
    finally:
        for each in maps:
            os.close(each)


@needs_bpf
def test_maps_keep_what_they_are_given_and_refuse_what_they_have_no_room_for() -> None:
    kernel = Kernel()
    counters = kernel.make_map(MAP_TYPE_ARRAY, 8, 2, "test")
    try:
        kernel.put(counters, 1, b"12345678")
        assert kernel.get(counters, 1, 8) == b"12345678"
        assert kernel.get(counters, 0, 8) == bytes(8)
        with pytest.raises(BpfError) as caught:
            kernel.put(counters, 2, bytes(8))
        assert caught.value.errno == errno.E2BIG
        with pytest.raises(BpfError) as caught:
            kernel.get(counters, 2, 8)
        assert caught.value.errno == errno.ENOENT
        with pytest.raises(BpfError):
            kernel.drop(counters, 0)
    finally:
        os.close(counters)


def test_a_processor_that_is_not_known_has_no_bpf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf.platform, "machine", lambda: "abacus")  # type: ignore[attr-defined]

    with pytest.raises(BpfError) as caught:
        Kernel().make_map(MAP_TYPE_ARRAY, 8, 2, "test")
    assert caught.value.errno == errno.ENOSYS


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", "Permission denied, when loading"),
        ("0: (95) exit\nR0 !read_ok\nprocessed 1 insns (limit 1000000)\n", "when loading (R0 !read_ok)"),
        ("processed 1 insns\n\n", "when loading"),
        ("unreachable insn 23\n", "(unreachable insn 23)"),
    ],
)
def test_an_error_tells_what_the_verifier_objects_to(log: str, told: str) -> None:
    error = BpfError(errno.EACCES, "loading", log)

    assert told in str(error)
    assert "processed" not in str(error)
    assert error.log == log
