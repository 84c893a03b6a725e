"""UDP: as FedComm does it, without positions; and with a position in each datagram, paced.

A datagram begins with the run's token, its round and sender, and (`udp-indexed`) its position; what does not fit is
dropped and counted. The end of a model is told by TCP; where there are positions and some datagrams did not come, it is
seen by the others when the last should have, and no packet of TCP, which may be lost as well, is waited for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from deploy.softroce.programs.exchange.interface import (
    Exchanged,
    Host,
    Models,
    Options,
    Received,
    Server,
    Silo,
    models_of,
)
from deploy.softroce.programs.exchange.tcp import NEVER_SECONDS, accepted, connected
from deploy.softroce.programs.meeting import Chair, Seat

DATAGRAM_FLOATS = 512
"""FedComm's: 2,048 bytes of a model, which are two IP packets at an MTU of 1500."""
PIECE_BYTES = 4 * DATAGRAM_FLOATS
SILENCE_SECONDS = 2.0
"""FedComm's devices wait for as much silence after the end was told."""
LAST_SECONDS = 0.05
"""Of silence after which nothing is on its way any more: the end, by TCP, took the same way as the datagrams."""
LATE_DATAGRAMS = 8
"""So many datagrams' time behind the moment at which the last should have come: the queues that they share delay all
alike, and of a model of some hundred datagrams it is a hundredth."""
PACKET_OVERHEAD_BYTES = 34
"""Of Ethernet and IPv4, for each fragment."""
UDP_HEADER_BYTES = 8
_RECEIVE_BUFFER_BYTES = 8 * 2**20
_POLL_SECONDS = 0.1
"""After which a reader looks whether it is to end."""
_LOOK_SECONDS = 0.01
"""Between two looks at whether a model is whole; when it was is noted by who takes its datagrams."""
_HEADER = struct.Struct("!8sIHI")
"""Token of the run, round, sender, position in pieces; where there are none, the number of the tensor."""
_END = struct.Struct("!I")
"""The round whose model ends."""
_END_BYTES_AT_ONCE = 4096
"""That one call of recv takes: more than all rounds tell."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What the two ways by UDP differ in.

    Attributes:
        has_positions: datagrams say where they belong, and are paced; else they are closed up, and sent as fast as the
            socket takes them.
        silo_silence: seconds without a datagram that a silo waits for.
    """

    has_positions: bool
    silo_silence: float


FEDCOMM = Kind(False, SILENCE_SECONDS)
INDEXED = Kind(True, LAST_SECONDS)


class Assembly:
    """What has come of one model."""

    def __init__(self, kind: Kind, parts: Sequence[int], kept: bytes) -> None:
        """
        Args:
            parts: lengths of the model's tensors, bytes; what is missing of one is closed up in it alone.
            kept: what the receiver has where nothing comes, if there are positions.
        """
        self._kind, self._size, self._parts = kind, sum(parts), tuple(parts)
        self._model = bytearray(kept if kind.has_positions else b"")
        self._closed_up = [bytearray() for _ in parts]
        self._pieces = pieces_of(parts) if kind.has_positions else []
        self._seen = bytearray(len(self._pieces))
        self._came = 0
        self._positions = _Positions(len(self._pieces))
        self.latest = time.monotonic()

    @property
    def overdue(self) -> float:
        """When what is missing will not come any more, as `time.monotonic` counts; infinite where that is not known."""
        return self._positions.overdue

    @property
    def missing_bytes(self) -> int:
        """That have not come."""
        return self._size - self._came

    @property
    def model(self) -> bytes:
        """As it is used: with zeros at the end of each tensor whose pieces were closed up."""
        if self._kind.has_positions:
            return bytes(self._model)
        return b"".join(
            got + bytes(length - len(got)) for got, length in zip(self._closed_up, self._parts, strict=True)
        )

    def add(self, position: int, piece: bytes) -> bool:
        """Whether a piece belongs here; it is taken then.

        Args:
            position: of the piece; where there are no positions, of its tensor.
        """
        if not self._kind.has_positions:
            if position >= len(self._parts) or not piece:
                return False
            if len(self._closed_up[position]) + len(piece) > self._parts[position]:
                return False
            self._closed_up[position] += piece
        else:
            if position >= len(self._pieces) or self._seen[position]:
                return False
            _, begin, end = self._pieces[position]
            if len(piece) != end - begin:
                return False
            self._seen[position] = 1
            self._model[begin:end] = piece
        self._came += len(piece)
        self.latest = time.monotonic()
        if self._kind.has_positions:
            self._positions.note(position, self.latest)
        return True


class _Positions:
    """When the last of datagrams that are sent at one pace should come, by those that came."""

    def __init__(self, count: int) -> None:
        self._count, self._seen = count, 0
        self._first: tuple[int, float] | None = None
        self._last = (-1, 0.0)

    def note(self, position: int, moment: float) -> None:
        """One came for the first time."""
        self._seen += 1
        if self._first is None:
            self._first = position, moment
        self._last = max(self._last, (position, moment))

    @property
    def overdue(self) -> float:
        """When no more will come; infinite where no datagram before another is missing: TCP's end may come, too."""
        position, moment = self._last
        if self._first is None or position == self._first[0] or self._seen == position + 1:
            return math.inf
        pace = (moment - self._first[1]) / (position - self._first[0])
        return moment + (self._count - 1 - position + LATE_DATAGRAMS) * pace


def pieces_of(parts: Sequence[int]) -> list[tuple[int, int, int]]:
    """A model's datagrams: the number of the tensor, and where the piece begins and ends in the model."""
    pieces, begin = [], 0
    for number, length in enumerate(parts):
        end = begin + length
        pieces += [(number, at, min(at + PIECE_BYTES, end)) for at in range(begin, end, PIECE_BYTES)]
        begin = end
    return pieces


class Inbox:
    """A socket's datagrams, sorted by their senders; one round is open at a time."""

    def __init__(
        self, sock: socket.socket, token: bytes, senders: Mapping[tuple[str, int], int], kind: Kind, models: Models
    ) -> None:
        """
        Args:
            senders: addresses, and which host's each is.
        """
        self._socket, self._token, self._senders, self._kind, self._models = sock, token, senders, kind, models
        self._lock = threading.Lock()
        self._number = -1
        self._assemblies: dict[int, Assembly] = {}
        self._dropped = dict.fromkeys(senders.values(), 0)
        self._strangers = 0
        self._closed: set[int] = set()
        self._ends = threading.Event()
        sock.settimeout(_POLL_SECONDS)

    def open(self, number: int) -> None:
        """From now on datagrams of this round are taken; what the receiver has stays where nothing comes."""
        with self._lock:
            self._number = number
            self._closed.clear()
            self._assemblies = {
                sender: Assembly(self._kind, self._models.parts, self._models.held(sender))
                for sender in self._senders.values()
            }
            self._dropped = dict.fromkeys(self._dropped, 0)
            self._strangers = 0

    def wait(self, sender: int, silence: float, is_told: Callable[[float], bool]) -> Received:
        """Until all is there, or nothing more will come, where one can know, or for so many seconds of silence after
        the end was told.

        Args:
            is_told: waits for the end, but no longer than so many seconds, and says whether it was told.
        """
        assembly = self._assemblies[sender]
        begun = time.monotonic()
        told: float | None = None
        while not (whole := self._kind.has_positions and not assembly.missing_bytes):
            now = time.monotonic()
            if now - max(begun, assembly.latest) > NEVER_SECONDS:
                raise SystemExit(f"nothing came for {NEVER_SECONDS:.0f} s")
            left = assembly.overdue - now
            if told is not None:
                left = min(left, max(told, assembly.latest) + silence - now)
            if left <= 0:
                break
            if told is None:
                told = time.monotonic() if is_told(min(left, _LOOK_SECONDS)) else None
            else:
                time.sleep(min(left, _LOOK_SECONDS))
        with self._lock:
            # what no sender's name is on is counted once
            strangers, self._strangers = self._strangers, 0
            dropped = self._dropped[sender] + strangers
            # late datagrams change nothing any more
            self._closed.add(sender)
            model = assembly.model
        moment = max(begun, told or begun, assembly.latest) if whole else time.monotonic()
        self._models.take(model, sender, self._number, whole=False)
        return Received(moment, assembly.missing_bytes, dropped)

    def take(self, datagram: bytes, address: tuple[str, int]) -> None:
        """Sort one datagram, or count it as dropped."""
        with self._lock:
            host = self._senders.get(address)
            if host is None or len(datagram) < _HEADER.size:
                self._strangers += 1
                return
            token, number, sender, position = _HEADER.unpack_from(datagram)
            ours = secrets.compare_digest(token, self._token) and sender == host and number == self._number
            ours = ours and host not in self._closed
            if not ours or not self._assemblies[host].add(position, datagram[_HEADER.size :]):
                self._dropped[host] += 1

    def run(self) -> None:
        """Read until `close`."""
        most = _HEADER.size + PIECE_BYTES + 1
        while not self._ends.is_set():
            with contextlib.suppress(TimeoutError):
                datagram, address = self._socket.recvfrom(most)
                self.take(datagram, address)

    def close(self) -> None:
        """End `run`."""
        self._ends.set()


class EndMarks:
    """Ends of models as TCP tells them. One may come when nobody waits for it any more."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._came = bytearray()
        self._told = -1

    def tell(self, number: int) -> None:
        """To the other end, of a round."""
        self._connection.sendall(_END.pack(number))

    def is_told(self, number: int, seconds: float) -> bool:
        """Whether the round's end is told, for which it waits so long.

        Raises:
            SystemExit: the connection ended.
        """
        if self._told < number and select.select([self._connection], [], [], seconds)[0]:
            if not (more := self._connection.recv(_END_BYTES_AT_ONCE)):
                raise SystemExit("the other host hung up before it told the end of a model")
            self._came += more
            while len(self._came) >= _END.size:
                self._told = max(self._told, *_END.unpack_from(self._came))
                del self._came[: _END.size]
        return self._told >= number


def wire_bytes(datagram_bytes: int, mtu: int) -> int:
    """Of a datagram with the headers of UDP and of each of its IP fragments."""
    per_packet = mtu - 20
    packets = -(-(datagram_bytes + UDP_HEADER_BYTES) // per_packet)
    return datagram_bytes + UDP_HEADER_BYTES + packets * PACKET_OVERHEAD_BYTES


def datagrams_of(
    model: bytes, parts: Sequence[int], token: bytes, number: int, sender: int, has_positions: bool
) -> Iterator[bytes]:
    """A model of tensors of these lengths as datagrams."""
    for position, (part, begin, end) in enumerate(pieces_of(parts)):
        place = position if has_positions else part
        yield _HEADER.pack(token, number, sender, place) + model[begin:end]


def send_paced(
    sock: socket.socket, datagrams: Iterator[bytes], addresses: Sequence[tuple[str, int]], rate_bps: float, mtu: int
) -> None:
    """Each datagram to all addresses, so fast that each gets so many bit/s, headers included."""
    due = time.monotonic()
    for datagram in datagrams:
        time.sleep(max(0.0, due - time.monotonic()))
        for address in addresses:
            sock.sendto(datagram, address)
        due += wire_bytes(len(datagram), mtu) * 8 / rate_bps


@dataclasses.dataclass(frozen=True, slots=True)
class _Ends:
    """What either end sends with."""

    kind: Kind
    sock: socket.socket
    inbox: Inbox
    token: bytes
    options: Options
    models: Models

    def send(self, number: int, sender: int, addresses: Sequence[tuple[str, int]], rate_bps: float) -> None:
        model = self.models.own(number)

        def datagrams() -> Iterator[bytes]:
            return datagrams_of(model, self.models.parts, self.token, number, sender, self.kind.has_positions)

        # a blocking socket: the card holds the sender back
        self.sock.settimeout(None)
        if self.kind.has_positions:
            send_paced(self.sock, datagrams(), addresses, rate_bps, self.options.mtu)
        else:
            for address in addresses:
                for datagram in datagrams():
                    self.sock.sendto(datagram, address)


class DatagramServer:
    """Sends to all silos, tells each the end, and takes what comes."""

    def __init__(
        self,
        ends: _Ends,
        connections: Sequence[socket.socket],
        addresses: Sequence[tuple[str, int]],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._ends, self._addresses, self._pool = ends, addresses, pool
        self._marks = [EndMarks(connection) for connection in connections]

    def exchange(self, number: int) -> Exchanged:
        self._ends.inbox.open(number)
        self._ends.send(number, 0, self._addresses, self._ends.options.down_bps)
        for marks in self._marks:
            marks.tell(number)
        sent = time.monotonic()

        def take(silo: int) -> Received:
            return self._ends.inbox.wait(silo, LAST_SECONDS, functools.partial(self._marks[silo - 1].is_told, number))

        return Exchanged(sent, tuple(self._pool.map(take, range(1, len(self._marks) + 1))))

    def resent(self, number: int) -> int:
        """Nothing is ever sent again."""
        del number
        return 0


class DatagramSilo:
    """Takes datagrams until the end and silence, and sends its own."""

    def __init__(self, ends: _Ends, connection: socket.socket, host: Host, server: tuple[str, int]) -> None:
        self._ends, self._marks, self._host, self._server = ends, EndMarks(connection), host, server

    def prepare(self, number: int) -> None:
        self._ends.inbox.open(number)

    def receive(self, number: int) -> Received:
        is_told = functools.partial(self._marks.is_told, number)
        return self._ends.inbox.wait(0, self._ends.kind.silo_silence, is_told)

    def send(self, number: int) -> None:
        self._ends.send(number, self._host.number, [self._server], self._ends.options.up_bps)
        self._marks.tell(number)

    def resent(self, number: int) -> int:
        """Nothing is ever sent again."""
        del number
        return 0


@contextlib.contextmanager
def _two_sockets(host: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """One to send with, which blocks, and one to receive with."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiving,
    ):
        sending.bind((host.address, 0))
        receiving.bind((host.address, 0))
        receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        yield sending, receiving


@contextlib.contextmanager
def _reading(inbox: Inbox) -> Iterator[None]:
    reader = threading.Thread(target=inbox.run, daemon=True)
    reader.start()
    try:
        yield
    finally:
        inbox.close()
        reader.join()


def datagram_server(kind: Kind) -> Callable[[Host, Chair, Options], contextlib.AbstractContextManager[Server]]:
    """Of either way."""

    @contextlib.contextmanager
    def opened(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
        token = secrets.token_bytes(8)
        with accepted(host, chair) as connections, _two_sockets(host) as (sending, receiving):
            chair.tell([token.hex(), sending.getsockname()[1], receiving.getsockname()[1]])
            ports = chair.hear()
            senders = {(host.addresses[silo], told[0]): silo for silo, told in enumerate(ports, start=1)}
            models = models_of(0, options)
            inbox = Inbox(receiving, token, senders, kind, models)
            addresses = [(host.addresses[silo], told[1]) for silo, told in enumerate(ports, start=1)]
            with _reading(inbox), ThreadPoolExecutor(host.silos) as pool:
                yield DatagramServer(_Ends(kind, sending, inbox, token, options, models), connections, addresses, pool)

    return opened


def datagram_silo(kind: Kind) -> Callable[[Host, Seat, Options], contextlib.AbstractContextManager[Silo]]:
    """Of either way."""

    @contextlib.contextmanager
    def opened(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
        with connected(host, seat) as connection, _two_sockets(host) as (sending, receiving):
            token_text, from_port, to_port = seat.hear()
            seat.say([sending.getsockname()[1], receiving.getsockname()[1]])
            server, token = host.addresses[0], bytes.fromhex(token_text)
            models = models_of(host.number, options)
            inbox = Inbox(receiving, token, {(server, from_port): 0}, kind, models)
            with _reading(inbox):
                yield DatagramSilo(
                    _Ends(kind, sending, inbox, token, options, models), connection, host, (server, to_port)
                )

    return opened
