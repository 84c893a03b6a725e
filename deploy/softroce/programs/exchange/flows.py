"""Other TCP flows beside the rounds: between silos 1 and 2, 3 and 4, each way, or from each silo into the server."""

from __future__ import annotations

import bisect
import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from deploy.softroce.programs.exchange.interface import Host, Options
from deploy.softroce.programs.meeting import Chair, Seat

SILOS, SERVER = "silos", "server"
FLOW_BPS = 250_000_000
"""FedComm, section 4.2: netstress sends at around 250 Mbit/s. The kernel paces each flow to it, where the network is
wider."""
NOTE_SECONDS = 0.02
"""Between two notes of how much has come: what a flow had is told to so much."""
_BLOCK_BYTES = 2**16
_SO_MAX_PACING_RATE = 47
"""socket(7); Python has no name for it."""
_END_SECONDS = 10.0
"""In which a thread whose socket was closed has ended."""


def receivers_of(number: int, kind: str, silos: int) -> list[int]:
    """To which hosts a host sends; the last of an odd number of silos has no other to send to."""
    if not number:
        return []
    if kind == SERVER:
        return [0]
    partner = number + 1 if number % 2 else number - 1
    return [partner] if partner <= silos else []


class Taken:
    """What has come by flows to this host, by time. One thread a flow writes, another reads."""

    def __init__(self) -> None:
        self._notes: list[list[tuple[float, int]]] = []
        self._threads: list[threading.Thread] = []

    def start(self, thread: threading.Thread) -> None:
        """A thread of a flow, of either end; its CPU time is counted."""
        thread.start()
        self._threads.append(thread)

    def cpu_seconds(self) -> float:
        """Of this process, that flows have taken so far; those that have ended are left out."""
        alive = [one.ident for one in self._threads if one.is_alive() and one.ident is not None]
        return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in alive)

    def take(self, connection: socket.socket) -> None:
        """All that a flow brings, until it ends."""
        notes = [(time.monotonic(), 0)]
        self._notes.append(notes)
        block, total = bytearray(_BLOCK_BYTES), 0
        with contextlib.suppress(OSError):
            while count := connection.recv_into(block):
                total += count
                now = time.monotonic()
                if len(notes) > 1 and now < notes[-2][0] + NOTE_SECONDS:
                    notes[-1] = (now, total)
                else:
                    notes.append((now, total))

    def rate(self, begin: float, end: float) -> float | None:
        """Bit/s that a flow had between two moments, their mean; None where there is none, or no time."""
        if not self._notes or end <= begin:
            return None
        came = (_until(notes, end) - _until(notes, begin) for notes in self._notes)
        return 8 * sum(came) / len(self._notes) / (end - begin)


def _until(notes: Sequence[tuple[float, int]], moment: float) -> float:
    """Bytes that had come by then, evenly between two notes."""
    after = bisect.bisect_left(notes, (moment, 0))
    if after == 0:
        return 0.0
    at, total = notes[after - 1]
    if after == len(notes):
        return float(total)
    later, more = notes[after]
    return total + (more - total) * (moment - at) / (later - at)


def _send(connection: socket.socket) -> None:
    block = bytes(_BLOCK_BYTES)
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(block)


@contextlib.contextmanager
def flowing(host: Host, options: Options, meeting: Chair | Seat) -> Iterator[Taken]:
    """Flows as they are asked for, meanwhile; all hosts have to call it at the same point."""
    taken = Taken()
    if options.flows is None:
        yield taken
        return
    sending = receivers_of(host.number, options.flows, host.silos)
    coming = sum(host.number in receivers_of(one, options.flows, host.silos) for one in range(host.silos + 1))
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((host.address, 0), backlog=max(1, coming)))
        ports = _agree(meeting, listener.getsockname()[1])
        threads = []
        for number in sending:
            connection = stack.enter_context(socket.create_connection((host.addresses[number], ports[number])))
            connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, FLOW_BPS // 8)
            threads.append((connection, threading.Thread(target=_send, args=(connection,), daemon=True)))
        for _ in range(coming):
            connection = stack.enter_context(listener.accept()[0])
            threads.append((connection, threading.Thread(target=taken.take, args=(connection,), daemon=True)))
        for _, thread in threads:
            taken.start(thread)
        try:
            yield taken
        finally:
            for connection, _ in threads:
                # who is in a call of it comes back
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for _, thread in threads:
                thread.join(_END_SECONDS)


def _agree(meeting: Chair | Seat, port: int) -> list[Any]:
    """The ports of all hosts, by number."""
    if isinstance(meeting, Chair):
        ports = [port, *meeting.hear()]
        meeting.tell(ports)
        return ports
    meeting.say(port)
    return list(meeting.hear())
