"""Two processes, one registered buffer each: a write, a write with immediate, and completions that wake the reader."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import mmap
import secrets
import select
import socket
import time
from collections.abc import Iterator
from typing import IO, Any, Literal

from fedrdma_fate.transport.verbs.device_selection import PortPreference, select_port
from fedrdma_fate.transport.verbs.easy import Device, devices
from fedrdma_fate.transport.verbs.interface import Outcome, PairAddress, Piece, RetrySettings, Target, WorkCompletion

GREETING = b"hello by RDMA WRITE"
GREETING_AT = 4096
IMMEDIATE = 42
BUFFER_BYTES = 64 * 1024
PATIENCE_SECONDS = 30.0

Role = Literal["read", "write"]


@dataclasses.dataclass(frozen=True)
class Control:
    """The two directions of a connection to the peer, for lines of JSON."""

    heard: IO[str]
    said: IO[str]


class Waiter:
    """A device, a registered buffer, a completion queue with a descriptor to sleep on, and one queue pair."""

    def __init__(self) -> None:
        """Take the first device that will do.

        Raises:
            TransportError: there is none; the error says what is wrong with those that are there.
        """
        self.port = select_port(devices(), PortPreference())
        with contextlib.ExitStack() as undo:
            self.device = Device(self.port.device)
            undo.callback(self.device.close)
            # memory of our own, registered by its address; peers may write into all of it
            self.buffer = mmap.mmap(-1, BUFFER_BYTES)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
            self.region = self.device.register(self.address, BUFFER_BYTES, remote_write=True)
            undo.callback(self.region.close)
            self.queue = self.device.completion_queue(depth=16)
            undo.callback(self.queue.close)
            self.pair = self.device.queue_pair(self.queue, self.port.port, sends=8, receives=8)
            undo.callback(self.pair.close)
            self._undo = undo.pop_all()

    def connect(self, control: Control) -> Target:
        """Tell the peer where we are, hear where it is, and connect; where the peer's buffer is."""
        first_packet = secrets.randbelow(1 << 24)
        own = {"pair": self.pair.number, "psn": first_packet, "gid": self.port.gid, "mtu": self.port.mtu}
        _say(control, {**own, "address": self.address, "key": self.region.remote_key})
        peer = _hear(control)
        address = PairAddress(peer["pair"], peer["psn"], peer["gid"])
        self.pair.connect(self.port, address, first_packet, min(self.port.mtu, peer["mtu"]), RetrySettings())
        return Target(peer["address"], peer["key"])

    def piece(self, offset: int, length: int) -> Piece:
        """A part of the buffer as a work request names it."""
        return Piece(self.address + offset, length, self.region.local_key)

    def completion(self) -> WorkCompletion:
        """The next completion. Sleeps until the device announces one: nothing polls in a loop, nothing blocks in verbs.

        Raises:
            SystemExit: it is a failure, or it does not come.
        """
        sleeper = select.poll()
        sleeper.register(self.queue.fileno, select.POLLIN)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            # first arm, then look: what comes in between is announced
            self.queue.arm()
            for done in self.queue.poll(1):
                if done.outcome is not Outcome.DONE:
                    raise SystemExit(f"a work request failed: {done.text}")
                return done
            sleeper.poll(PATIENCE_SECONDS * 1000)
        raise SystemExit(f"no completion within {PATIENCE_SECONDS:g} s")

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()


def read(control: Control, waiter: Waiter) -> str:
    """Let the peer write into our buffer, and sleep until its immediate says that it has; what it wrote."""
    # a write with immediate consumes a receive, which needs no memory
    waiter.pair.receive(1, waiter.piece(0, 0))
    waiter.connect(control)
    _say(control, "ready")
    done = waiter.completion()
    text = waiter.buffer[GREETING_AT : GREETING_AT + len(GREETING)].decode()
    _say(control, "read")
    return f"read: {text!r}, announced by the immediate {done.immediate}"


def write(control: Control, waiter: Waiter) -> str:
    """Write the greeting into the peer's buffer, and behind it a write of no bytes with an immediate."""
    target = waiter.connect(control)
    _hear(control)
    waiter.buffer[: len(GREETING)] = GREETING
    place = Target(target.address + GREETING_AT, target.key)
    waiter.pair.write(1, waiter.piece(0, len(GREETING)), place)
    waiter.pair.write(2, waiter.piece(0, 0), place, immediate=IMMEDIATE)
    done = [waiter.completion().work_request for _ in range(2)]
    # the peer tells that it has read, so that it need not look at a connection that is gone
    _hear(control)
    return f"wrote {len(GREETING)} bytes and an immediate: work requests {done} completed"


@contextlib.contextmanager
def meet(role: Role, address: str, port: int) -> Iterator[Control]:
    """A TCP connection between the two; RDMA needs another way to exchange numbers and keys first."""
    connection = _wait(address, port) if role == "read" else _dial(address, port)
    # two files: one that is both forgets what it has read ahead when it writes
    with connection, connection.makefile("r") as heard, connection.makefile("w") as said:
        yield Control(heard, said)


def _wait(address: str, port: int) -> socket.socket:
    with socket.create_server((address, port)) as server:
        return server.accept()[0]


def _dial(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection((address, port), timeout=PATIENCE_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _say(control: Control, what: object) -> None:
    print(json.dumps(what), file=control.said, flush=True)


def _hear(control: Control) -> Any:
    line = control.heard.readline()
    if not line:
        raise SystemExit("the peer has hung up")
    return json.loads(line)
