"""All programs of a testbed agree on what comes next, and no packet of that is on the wire.

Host 0 calls the meeting, the others come to it. They talk through a unix socket in the file system that all hosts
share.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

PLACE = Path("/run/meeting")
"""In a tmpfs that starts empty with the guest."""
PATIENCE_SECONDS = 120.0
PAUSE_SECONDS = 0.002


class Chair:
    """Host 0's part."""

    def __init__(self, lines: Sequence[BinaryIO], connections: Sequence[socket.socket] = ()) -> None:
        """
        Args:
            lines: to the others, in the order of the hosts.
            connections: which the lines are of; without, nobody is seen to leave.
        """
        self._lines, self._connections = lines, connections

    def tell(self, what: object) -> None:
        """Tell it to all others."""
        for line in self._lines:
            _say(line, what)

    def hear(self) -> list[Any]:
        """What each of the others says next, in the order of the hosts.

        Raises:
            SystemExit: one has left.
        """
        return [_hear(line, f"host {number}") for number, line in enumerate(self._lines, start=1)]

    def gone(self) -> list[int]:
        """The numbers of those who have left, and have said nothing that is not heard yet."""
        return [number for number, one in enumerate(self._connections, start=1) if _has_ended(one)]


class Seat:
    """The part of one of the others."""

    def __init__(self, line: BinaryIO) -> None:
        self._line = line

    def say(self, what: object) -> None:
        """Say it to host 0."""
        _say(self._line, what)

    def hear(self) -> Any:
        """What host 0 says next.

        Raises:
            SystemExit: it has left.
        """
        return _hear(self._line, "host 0")


@contextlib.contextmanager
def chaired(others: int, place: Path = PLACE) -> Iterator[Chair]:
    """Wait for so many others, and meet them."""
    with contextlib.ExitStack() as stack, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        # under its name it takes connections at once
        beside = place.with_suffix(".part")
        server.bind(str(beside))
        server.listen(others)
        beside.rename(place)
        lines: dict[int, tuple[BinaryIO, socket.socket]] = {}
        while len(lines) < others:
            connection = stack.enter_context(server.accept()[0])
            line = stack.enter_context(_line_of(connection))
            lines[int(_hear(line, "a host"))] = line, connection
        in_order = [lines[number] for number in sorted(lines)]
        yield Chair([line for line, _ in in_order], [connection for _, connection in in_order])


@contextlib.contextmanager
def seated(me: int, place: Path = PLACE) -> Iterator[Seat]:
    """Go to the meeting, as the host of this number.

    Raises:
        SystemExit: nobody calls it.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not place.exists():
        if time.monotonic() > deadline:
            raise SystemExit("host 0 calls no meeting")
        time.sleep(PAUSE_SECONDS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(place))
        with _line_of(connection) as line:
            _say(line, me)
            yield Seat(line)


def number_of_hosts() -> int:
    """Of this testbed."""
    return len(os.environ["TESTBED_HOSTS"].split(","))


def _line_of(connection: socket.socket) -> BinaryIO:
    return cast(BinaryIO, connection.makefile("rwb"))


def _has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _say(line: BinaryIO, what: object) -> None:
    line.write(json.dumps(what).encode() + b"\n")
    line.flush()


def _hear(line: BinaryIO, who: str) -> Any:
    said = line.readline()
    if not said.endswith(b"\n"):
        raise SystemExit(f"{who} has left")
    return json.loads(said)
