"""Two links over sealed TCP streams, and on the way between them somebody who can do anything to what travels there.

The links, the endpoints and what seals are those of a gateway; the control channel, which TLS keeps from him, the test
carries. Time is the test's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Literal

from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.engine.link import Link
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import Endpoint, EndpointAddress
from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.key_schedule import SessionKeys
from fedrdma_fate.security.sealing import PathSealing, Seal
from fedrdma_fate.transport.sealed_pieces import sealed_length
from fedrdma_fate.transport.stream_frames import HEAD_BYTES, Op, unpack_head
from fedrdma_fate.transport.tcp import TcpEndpoint, TcpSettings
from fedrdma_fate.wire.frames import MessageKey, Mode, Party
from tests.support.endpoints import HeapRegion
from tests.support.engine import Recorded, StrictLink

Way = Literal["there", "back"]
WAYS: tuple[Way, Way] = ("there", "back")

STREAMS = 2
IDLE_SECONDS = 60.0
MOST_KEPT_FRAMES = 64
"""Of those that went by, to be sent again."""


class _Stream(socket.socket):
    """A socket that has taken in what was sent as soon as `send` returns, as loopback has not; it passes for TCP."""

    def setsockopt(self, *_: Any) -> None:
        return

    def getsockname(self) -> tuple[str, int]:
        return "192.0.2.1", 1

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.2", 1


def _streams() -> tuple[_Stream, _Stream]:
    one, other = (_Stream(fileno=each.detach()) for each in socket.socketpair())
    for each in (one, other):
        each.setblocking(False)
    return one, other


class _Way:
    """One direction of one stream: what has come, cut into frames, and what is to go on."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.unread = bytearray()
        self.frames: deque[bytes] = deque()
        self.unsent = bytearray()

    def read(self) -> bool:
        """Take in what has come; whether anything has."""
        came = False
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self.source.recv(1 << 20):
                self.unread += data
                came = True
        while len(self.unread) >= HEAD_BYTES:
            head = unpack_head(self.unread[:HEAD_BYTES])
            is_sealed = head.op in (Op.WRITE, Op.CHUNK, Op.FENCED)
            length = HEAD_BYTES + (sealed_length(head) if is_sealed else head.piece_length)
            if len(self.unread) < length:
                break
            self.frames.append(bytes(self.unread[:length]))
            del self.unread[:length]
        return came

    def write(self) -> bool:
        """Send on what goes; whether anything went."""
        went = False
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self.unsent:
                del self.unsent[: self.target.send(self.unsent)]
                went = True
        return went


class _Draft:
    """A data path whose sockets are there."""

    def __init__(self, connections: list[socket.socket]) -> None:
        self._connections = connections

    @property
    def address(self) -> EndpointAddress:
        return {}

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        del peer, timeout
        return TcpEndpoint(self._connections, TcpSettings())

    def abandon(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """The world closes them."""


@dataclasses.dataclass
class Sent:
    """A message that was given to the sending link."""

    outgoing: Outgoing
    body: bytes


class OnPath:
    """The two links, and him.

    Attributes:
        now: the time of both links, seconds.
        sending: what the sending link has told.
        receiving: what the receiving one has.
        sent: messages, by transfer.
        frames_seen: how many went by him.
    """

    def __init__(self, seal: Seal) -> None:
        self.now = 0.0
        self.seal = seal
        self.sending, self.receiving = Recorded(), Recorded()
        settings = LinkSettings("tcp", idle_timeout=IDLE_SECONDS)
        self.links = {
            "there": StrictLink("receiver", settings, self.sending.emit, lambda: self.now),
            "back": StrictLink("sender", settings, self.receiving.emit, lambda: self.now),
        }
        self.sent: dict[int, Sent] = {}
        self.frames_seen = 0
        self._told = {"there": self.sending, "back": self.receiving}
        self._grants = itertools.count(1)
        self._connections = 0
        self._sockets: list[socket.socket] = []
        self._ways: dict[tuple[Way, int], _Way] = {}
        self._seen: deque[bytes] = deque(maxlen=MOST_KEPT_FRAMES)
        self._random = random.Random(1)
        self.connect()

    # -- the honest world -----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """A new data path, with keys of its own."""
        self.cut()
        self._connections += 1
        nonces = self._connections.to_bytes(32, "big"), bytes(32)
        ends: dict[Way, list[socket.socket]] = {"there": [], "back": []}
        for stream in range(STREAMS):
            near, his_near = _streams()
            far, his_far = _streams()
            ends["there"].append(near)
            ends["back"].append(far)
            self._sockets += (his_near, his_far)
            self._ways["there", stream] = _Way(his_near, his_far)
            self._ways["back", stream] = _Way(his_far, his_near)
        keys = SessionKeys(b"s" * 32, b"r" * 32).path("tcp", *nonces)
        for way in WAYS:
            of_side = keys if way == "there" else keys.reversed
            sealing = PathSealing.of_keys(of_side, AES, self.seal)
            self.command(
                way,
                functools.partial(
                    Link.connect, draft=_Draft(ends[way]), peer={}, attempt=1, keys=of_side.datagrams, sealing=sealing
                ),
            )

    def command(self, way: Way, command: Callable[[Link], None]) -> None:
        """Have the link at the beginning of this way do something in a turn."""
        self.links[way].turn(deque([command]))

    def send(self, body: bytes, mode: Mode, chunk_bytes: int, enable_bytes: int = 0) -> None:
        """Give the sending link a message."""
        transfer = len(self.sent) + 1
        region = HeapRegion(max(1, len(body)))
        region.view[: len(body)] = body
        payload = Payload(region.slot(0, len(body)), len(body))
        key = MessageKey("s", f"m{transfer}", "0", Party("guest", "1"), Party("host", "2"))
        plan = ChunkPlan(len(body), chunk_bytes, enable_bytes)
        self.sent[transfer] = Sent(Outgoing(transfer, key, "bytes", payload, plan, mode), body)
        self.command("there", lambda link: link.send(self.sent[transfer].outgoing))

    def turn(self, way: Way) -> None:
        """One turn of a link; slots that were asked for are granted."""
        self.links[way].turn()
        wanted, self.receiving.wanted = self.receiving.wanted, []
        for request in wanted:
            region = HeapRegion(request.slot_bytes)
            # what lay in the slot before is another's
            region.view[:] = b"\xee" * request.slot_bytes
            grant = next(self._grants)
            grant_it = functools.partial(Link.grant, grant=grant, slot=region.slot(), transfer=request.transfer)
            self.command("back", grant_it)

    def carry(self) -> bool:
        """Carry the frames of the control channel, both ways; whether there were any."""
        any_frame = False
        for way, other in zip(WAYS, reversed(WAYS), strict=True):
            frames, self._told[way].frames = self._told[way].frames, []
            for frame in frames:
                any_frame = True
                self.command(other, functools.partial(Link.frame, frame=frame))
        return any_frame

    def settle(self, *, relays: bool) -> None:
        """Until nothing moves; with `relays` he passes everything on as it is."""
        busy = True
        while busy:
            for way in WAYS:
                self.turn(way)
            busy = self.carry() or bool(self.receiving.wanted)
            for each in self._ways.values():
                busy = each.read() or busy
            if relays:
                for key in self._ways:
                    while self.pass_on(*key):
                        busy = True
            for each in self._ways.values():
                busy = each.write() or busy

    def let_time_pass(self, seconds: float) -> None:
        """He passes on everything meanwhile, and a data path that is lost is made anew."""
        ends_at = self.now + seconds
        while True:
            self.settle(relays=True)
            if self.is_lost:
                self.forget_losses()
                self.connect()
                continue
            due = [
                timer
                for link in self.links.values()
                for timer in (link._outgoing.timer(), link._incoming.timer())
                if timer is not None
            ]
            if not due or min(due) > ends_at:
                return
            self.now = max(self.now, min(due)) + 1e-6

    @property
    def is_lost(self) -> bool:
        """Whether one of the two has noticed that the data path is gone."""
        return any(kind == "lost" for told in self._told.values() for kind, _, _ in told.paths)

    def forget_losses(self) -> None:
        """Of data paths."""
        for told in self._told.values():
            told.paths.clear()

    def close(self) -> None:
        """End both links, and everything between them."""
        for link in self.links.values():
            link.end(deque())
        self.cut()

    # -- what he can do -------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> list[tuple[Way, int]]:
        """Where there is a frame that he has not passed on."""
        return [key for key, each in self._ways.items() if each.frames]

    def cut(self) -> None:
        """End all streams."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        self._ways.clear()

    def pass_on(self, way: Way, stream: int) -> bool:
        """The next frame, as it is; whether there was one."""
        frame = self._take(way, stream)
        if frame is not None:
            self._ways[way, stream].unsent += frame
        return frame is not None

    def flip(self, way: Way, stream: int, where: float) -> bool:
        """The next frame, with a bit changed."""
        frame = self._take(way, stream)
        if frame is None:
            return False
        changed = bytearray(frame)
        changed[int(where * (len(changed) - 1))] ^= 1 << self._random.randrange(8)
        self._ways[way, stream].unsent += changed
        return True

    def drop(self, way: Way, stream: int) -> bool:
        """The next frame does not arrive."""
        return self._take(way, stream) is not None

    def double(self, way: Way, stream: int) -> bool:
        """The next frame, twice."""
        frame = self._take(way, stream)
        if frame is not None:
            self._ways[way, stream].unsent += frame + frame
        return frame is not None

    def swap(self, way: Way, stream: int) -> bool:
        """The next two frames, the later one first."""
        if way_has := self._ways.get((way, stream)):
            if len(way_has.frames) < 2:
                return False
            first, second = self._take(way, stream), self._take(way, stream)
            assert first is not None
            assert second is not None
            way_has.unsent += second + first
        return way_has is not None

    def move(self, way: Way, stream: int) -> bool:
        """The next frame, by the other stream."""
        frame = self._take(way, stream)
        if frame is not None:
            self._ways[way, (stream + 1) % STREAMS].unsent += frame
        return frame is not None

    def replay(self, way: Way, stream: int, where: float) -> bool:
        """A frame that went by before, perhaps on another data path or the other way."""
        each = self._ways.get((way, stream))
        if each is None or not self._seen:
            return False
        each.unsent += self._seen[int(where * (len(self._seen) - 1))]
        return True

    def cut_within(self, way: Way, stream: int, where: float) -> bool:
        """Some of the next frame, and then nothing any more."""
        frame = self._take(way, stream)
        if frame is None:
            return False
        each = self._ways[way, stream]
        each.unsent += frame[: int(where * len(frame))]
        each.write()
        for link in WAYS:
            self.turn(link)
        self.cut()
        return True

    def _take(self, way: Way, stream: int) -> bytes | None:
        each = self._ways.get((way, stream))
        if each is None or not each.frames:
            return None
        frame = each.frames.popleft()
        self._seen.append(frame)
        self.frames_seen += 1
        return frame

    # -- what has to be so ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing was delivered that was not sent, or twice.

        Raises:
            AssertionError: something was.
        """
        delivered = Counter(offer.transfer for offer, _, _ in self.receiving.received_offers)
        assert all(count == 1 for count in delivered.values()), delivered
        for offer, slot, payload_at in self.receiving.received_offers:
            body = bytes(slot.part(payload_at, offer.total_bytes).view)
            assert body == self.sent[offer.transfer].body, f"transfer {offer.transfer} came changed"
        for told in (self.sending.sent_messages, self.sending.send_failures):
            counts = Counter(each[0].transfer for each in told)
            assert all(count == 1 for count in counts.values()), counts

    def outcome(self, transfer: int) -> str:
        """What became of a message, where both ends agree.

        Raises:
            AssertionError: they do not, or one of them was told nothing.
        """
        sent = any(outgoing.transfer == transfer for outgoing, _ in self.sending.sent_messages)
        failed = any(outgoing.transfer == transfer for outgoing, _, _ in self.sending.send_failures)
        arrived = any(offer.transfer == transfer for offer, _, _ in self.receiving.received_offers)
        assert sent != failed, f"transfer {transfer}: sent {sent}, failed {failed}"
        assert sent == arrived, f"transfer {transfer}: sent {sent}, arrived {arrived}"
        return "delivered" if arrived else "failed"
