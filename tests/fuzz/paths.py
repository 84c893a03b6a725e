"""Targets: what comes by the connections of the data paths `tcp`, `grpc` and `shm`, and by datagrams of `udp`."""

from __future__ import annotations

from typing import Any

from fedrdma_fate.ports import Completion
from fedrdma_fate.transport.exposure import ExposureTable, ProtocolViolation
from fedrdma_fate.transport.grpc_endpoint import GrpcEndpoint
from fedrdma_fate.transport.inbound import Inbound, PeerClosed
from fedrdma_fate.transport.listener import _HELLO, _HELLO_MAGIC, MOST_CONNECTIONS, Listener, _Pending
from fedrdma_fate.transport.outbound import Outbound
from fedrdma_fate.transport.shm_endpoint import _NOTICE, ShmEndpoint, _PeerClosed
from fedrdma_fate.transport.shm_endpoint import Op as ShmOp
from fedrdma_fate.transport.stream_frames import Head, Op, ack_head, violation_frame
from fedrdma_fate.transport.tcp_streams import StreamReader
from fedrdma_fate.transport.udp import packets as udp_packets
from fedrdma_fate.transport.udp.cuts import Cut
from fedrdma_fate.transport.udp.endpoint import UdpEndpoint
from fedrdma_fate.transport.udp.liveness import Liveness
from fedrdma_fate.transport.udp.meeting import probe
from fedrdma_fate.transport.udp.nacks import NackedChunk, encode_nacks
from fedrdma_fate.transport.udp.outbound import DatagramOutbound
from fedrdma_fate.transport.udp.packets import (
    CHUNK_HEAD,
    CONNECTION_HEAD,
    KEY_MASK,
    MESSAGE_HEAD,
    PATH_HEAD,
    PING_HEAD,
    PONG_HEAD,
)
from fedrdma_fate.transport.udp.path_mtu import LongSent, PathMtu
from fedrdma_fate.transport.udp.path_validation import PathTags, PathValidation
from fedrdma_fate.transport.udp.reassembly import ChunkAssembly, MessageAssembly
from tests.fuzz.target import Target, require
from tests.support.endpoints import HeapRegion

PATH_KEY = bytes(range(32))
KEY = 0x4242424242424242
SLOT_BYTES, GUARD_BYTES = 4096, 64
MOST_READS = 5_000
"""Calls of a stream reader for one input, which bring 16 bytes or more each."""


class _Bytes:
    """A connection by which these bytes come, some at a time, and then its end."""

    def __init__(self, data: bytes, at_once: int) -> None:
        self._data, self._at_once = memoryview(data), at_once

    def recv_into(self, target: memoryview) -> int:
        length = min(len(self._data), len(target), self._at_once)
        target[:length] = self._data[:length]
        self._data = self._data[length:]
        return length

    def recv(self, length: int) -> bytes:
        taken = bytearray(min(length, self._at_once))
        return bytes(taken[: self.recv_into(memoryview(taken))])

    def getsockopt(self, *_which: int) -> int:
        return 0

    def close(self) -> None:
        pass


class _Exposed:
    """A slot between two guards, and what takes the writes of a peer into it."""

    def __init__(self) -> None:
        self._region = HeapRegion(SLOT_BYTES + 2 * GUARD_BYTES)
        self.exposures = ExposureTable()
        self.exposures.expose(1, self._region.slot(GUARD_BYTES, SLOT_BYTES), key=KEY)
        self.completions: list[Completion] = []
        self.outbound = Outbound(streams=1)
        self.inbound = Inbound(
            self.exposures, self.completions.append, self.outbound.acknowledge, self.outbound.acknowledged
        )

    def check(self) -> None:
        view = self._region.view
        guards = bytes(view[:GUARD_BYTES]) + bytes(view[-GUARD_BYTES:])
        require(not guards.strip(b"\0"), "a write landed outside of its slot")


def _streams() -> list[bytes]:
    write = Head(Op.WRITE, 0, 0, KEY, 0, 100, 0, 60).pack() + b"w" * 60
    rest = Head(Op.WRITE, 0, 0, KEY, 0, 100, 60, 40).pack() + b"w" * 40
    chunk = Head(Op.CHUNK, 7, 1, KEY, 200, 50, 0, 50).pack() + b"c" * 50
    fenced = Head(Op.FENCED, 9, 2, KEY, 4032, 64, 0, 64).pack() + b"f" * 64
    empty = Head(Op.FENCED, 9, 3, KEY, 0, 0, 0, 0).pack()
    return [write + rest + chunk + fenced + empty, chunk, write + violation_frame("no"), ack_head(0)]


def tcp() -> Target:
    """Frames of a `tcp` stream."""

    def read(data: bytes) -> bool:
        exposed = _Exposed()
        reader = StreamReader(_Bytes(data, 1 + len(data) % 97), exposed.inbound)  # type: ignore[arg-type]
        try:
            for _ in range(MOST_READS):
                reader.receive()
                if reader.parked:
                    break
        except PeerClosed:
            pass
        finally:
            exposed.check()
        return bool(exposed.completions)

    return Target("tcp", _streams(), read, (ProtocolViolation,))


def grpc() -> Target:
    """Messages of a `grpc` call."""

    def read(data: bytes) -> bool:
        exposed = _Exposed()
        endpoint: Any = GrpcEndpoint.__new__(GrpcEndpoint)
        endpoint._inbound = exposed.inbound
        try:
            endpoint._on_message(memoryview(data))
        except PeerClosed:
            pass
        finally:
            exposed.check()
        return bool(exposed.completions)

    return Target("grpc", _streams(), read, (ProtocolViolation,))


class _NoneRevoked:
    def was_revoked(self, _key: int) -> bool:
        return False


def shm() -> Target:
    """Notices of a `shm` link."""
    landed = [_NOTICE.pack(op, 5, KEY, 16, 100) for op in (ShmOp.WRITTEN, ShmOp.IMMEDIATE, ShmOp.CHUNK)]
    words = _NOTICE.pack(ShmOp.VIOLATION, 0, 0, 0, 4) + b"oops"

    def read(data: bytes) -> bool:
        exposed = _Exposed()
        endpoint: Any = ShmEndpoint.__new__(ShmEndpoint)
        endpoint._connection = _Bytes(data, 1 + len(data) % 97)
        endpoint._received, endpoint._completions = bytearray(), exposed.completions
        endpoint._keys, endpoint._exposures = _NoneRevoked(), exposed.exposures
        try:
            while True:
                endpoint._hear()
        except _PeerClosed:
            pass
        for done in exposed.completions:
            require(done.offset + done.length <= SLOT_BYTES, "a notice speaks of what is outside of its slot")
        return bool(exposed.completions)

    return Target("shm", [b"".join(landed), *landed, words], read, (ProtocolViolation,))


class _Listening:
    """A listening socket to which nobody comes."""

    def setblocking(self, _blocking: bool) -> None:
        pass

    def close(self) -> None:
        pass


def hellos() -> Target:
    """The first bytes of a connection to a data port."""
    listener = Listener(_Listening())  # type: ignore[arg-type]
    token = b"t" * 16

    def read(data: bytes) -> bool:
        links: dict[int, Any] = {}
        listener._expected[token] = links
        listener._pending[0] = _Pending(_Bytes(data, 1 + len(data) % 9), 0.0)  # type: ignore[arg-type]
        while 0 in listener._pending:
            listener._hear(0)
        require(all(0 <= number < MOST_CONNECTIONS for number in links), "a connection of a number that cannot be")
        require(listener._expected.keys() == {token}, "a stranger has made the listener expect a link")
        return bool(links)

    seeds = [_HELLO.pack(_HELLO_MAGIC, token, number, 64) for number in (0, 63)]
    return Target("hellos", seeds, read, (), close=listener.close)


def udp() -> Target:
    """Datagrams of a `udp` link, from somebody who knows its connection and the key of a slot; a length before each."""
    region = HeapRegion(SLOT_BYTES + 2 * GUARD_BYTES)
    elsewhere = (udp_packets.PING, udp_packets.PATH_RESPONSE)
    followed = object()

    def read(data: bytes) -> bool:
        endpoint: Any = UdpEndpoint.__new__(UdpEndpoint)
        endpoint._own, endpoint._completions = KEY, []
        endpoint._chunks, endpoint._messages = ChunkAssembly(), MessageAssembly()
        endpoint._chunks.open(KEY & KEY_MASK, 1, region.slot(GUARD_BYTES, SLOT_BYTES))
        endpoint._liveness, endpoint._longest, endpoint._latest_cut = Liveness(), 0, Cut(0, 0)
        endpoint._path_mtu = PathMtu(1352, 1252, [1472, 1352, 1252], 0.0)
        endpoint._path_mtu.search([1472, 1352, 1252], 0.0)
        endpoint._tags, endpoint._peer, endpoint._followed, endpoint._used = PathTags(PATH_KEY), KEY, followed, False
        endpoint._validation = PathValidation(KEY, endpoint._tags, bytes)
        for number in range(4):
            endpoint._path_mtu.on_ping(number, LongSent(9, 1352), 0.0)
        endpoint._outbound = DatagramOutbound(_Nowhere(), 1472, KEY, int, segments=False)  # type: ignore[arg-type]
        rest = memoryview(data)
        while len(rest) >= 2:
            length = int.from_bytes(rest[:2], "little")
            datagram = rest[2 : 2 + length]
            # what the listener lets through comes from elsewhere now and then
            if len(datagram) >= CONNECTION_HEAD.size and length % 2 and datagram[0] in elsewhere:
                endpoint._takes_elsewhere(datagram, ("192.0.2.1", 9), 0.0)
            else:
                endpoint._takes(datagram)
            rest = rest[2 + length :]
        guards = bytes(region.view[:GUARD_BYTES]) + bytes(region.view[-GUARD_BYTES:])
        require(not guards.strip(b"\0"), "a piece landed outside of its slot")
        return bool(endpoint._completions)

    return Target("udp", _datagrams(), read, ())


class _Nowhere:
    """A socket that takes everything."""

    def sendmsg(self, *_what: object) -> None:
        pass

    def sendto(self, *_what: object) -> None:
        pass


def _datagrams() -> list[bytes]:
    version = udp_packets.VERSION

    def sized(*datagrams: bytes) -> bytes:
        return b"".join(len(each).to_bytes(2, "little") + each for each in datagrams)

    def piece(number: int, pieces: int, offset: int, size: int = 40) -> bytes:
        head = CHUNK_HEAD.pack(udp_packets.CHUNK, version, KEY, number, pieces, size, KEY & KEY_MASK, 7, offset)
        return head + b"c" * size

    def part(number: int, parts: int) -> bytes:
        return MESSAGE_HEAD.pack(udp_packets.MESSAGE, version, KEY, number, parts, 40, 9) + b"m" * 40

    pongs = [PONG_HEAD.pack(udp_packets.PONG, version, KEY, number, 1472 - 120 * number) for number in range(4)]
    padding = CONNECTION_HEAD.pack(udp_packets.PADDING, version, KEY).ljust(100, b"\0")
    tags = PathTags(PATH_KEY)
    pings = [PING_HEAD.pack(udp_packets.PING, version, KEY, number, tags.of_ping(KEY, number)) for number in range(3)]
    challenge = PATH_HEAD.pack(udp_packets.PATH_CHALLENGE, version, KEY, bytes(16))
    response = PATH_HEAD.pack(udp_packets.PATH_RESPONSE, version, KEY, tags.of_response(KEY, bytes(16)))
    odd = [each + bytes(len(each) % 2 == 0) for each in (pings[1], response, pings[2], response)]
    life = [padding, *pings, *pongs, challenge, response]
    whole = sized(piece(0, 3, 0), piece(2, 3, 80), piece(1, 3, 40), part(1, 2), part(0, 2), *life)
    nacks, _ = encode_nacks(
        KEY, [NackedChunk(KEY & KEY_MASK, number, Cut(12, 40), 5 << number) for number in range(9)], 1472
    )
    return [
        sized(nacks),
        whole,
        sized(piece(0, 3, 0), piece(1, 6, 20, 20), piece(2, 3, 80), piece(3, 6, 60, 20), piece(2, 6, 40, 20)),
        sized(piece(0, 1, SLOT_BYTES - 40)),
        sized(*odd),
        sized(part(0, 1)),
        sized(*life, probe(b"t" * 16, 100, 0)),
    ]
