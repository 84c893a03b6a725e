"""One other site: its control channel, and the routing of frames between it and our parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from fedrdma_fate import __version__
from fedrdma_fate.engine.events import LinkSettings, Outgoing, TransferProgress, TransferStats
from fedrdma_fate.engine.link import Link
from fedrdma_fate.gateway.config import PeerConfig
from fedrdma_fate.gateway.control import ControlStream
from fedrdma_fate.gateway.hub import Hub
from fedrdma_fate.gateway.paths import DataPath, DataPaths, choose_transport
from fedrdma_fate.gateway.receiving import Receiving
from fedrdma_fate.gateway.sending import Sending
from fedrdma_fate.ports import Role, Slot
from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import (
    Abort,
    ChunkAck,
    Connect,
    ControlFrame,
    Delivered,
    Goodbye,
    Grant,
    GrantRecall,
    GrantRequest,
    GrantReturn,
    Hello,
    Inline,
    Offer,
    Ping,
    Pong,
    Reconcile,
    Refused,
    ResendChunks,
    Restart,
    Undeliverable,
    decode_frame,
    encode_frame,
)
from fedrdma_fate.wire.header import PROTOCOL_VERSION

logger = logging.getLogger(__name__)


class Peer:
    """The session with one other gateway; outlives its control channel. Belongs to the event loop's thread."""

    def __init__(self, config: PeerConfig, hub: Hub) -> None:
        self.config = config
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._stream: ControlStream | None = None
        self._dialled_by = ""
        self._heard_at = 0.0
        self._unsent: deque[Outgoing] = deque()
        self.hello: Hello | None = None
        self.last_error = "not connected yet"
        self.rtt_seconds: float | None = None
        self.receiving = Receiving(config.site, hub, self.send)
        self.sending = Sending(config, hub, self.send, self._dispatch)
        self.paths = DataPaths(
            config.site, hub.transports, self._make_link, self.send, self._loop.call_later, self._fall_back
        )

    @property
    def connected(self) -> bool:
        return self._stream is not None

    @property
    def main_path(self) -> DataPath | None:
        """The path that `fedrdma` and `fedrdma-e` use."""
        return next((path for path in self.paths.paths.values() if path.main), None)

    # -- the control channel --------------------------------------------------------------------------------------

    def own_hello(self) -> Hello:
        """Our greeting."""
        config = self._hub.config
        return Hello(
            site=config.site,
            incarnation=self._hub.incarnation,
            protocol=PROTOCOL_VERSION,
            version=__version__,
            host=self._hub.host,
            parties=config.parties,
            transports=self._allowed_transports(),
            receive_bytes=int(config.memory.receive_bytes) - self._ring_bytes(),
        )

    async def run(self, stream: ControlStream, hello: Hello, dialled_by: str) -> None:
        """Serve a control channel whose greetings have been exchanged, until it ends.

        Of two channels that met half-way, the one that the site with the smaller name dialled stays.
        """
        if self._stream is not None:
            if self._dialled_by <= dialled_by and self.hello == hello:
                stream.write(encode_frame(Goodbye("another control channel is in use")))
                return
            self._lose("replaced by a newer control channel")
        self._adopt(stream, hello, dialled_by)
        watchdog = asyncio.create_task(self._watch(stream))
        try:
            while (raw := await stream.read()) is not None:
                self._heard_at = time.monotonic()
                self._on_frame(decode_frame(raw))
        except WireError as error:
            logger.error("control channel of %s: %s", self.config.site, error)
            stream.write(encode_frame(Goodbye(str(error))))
        finally:
            watchdog.cancel()
            stream.close()
            if self._stream is stream:
                self._lose("the control channel ended")

    def send(self, frame: ControlFrame) -> bool:
        """Queue a frame; False and dropped without a control channel: state is reconciled when there is one again."""
        if self._stream is None:
            return False
        self._stream.write(encode_frame(frame))
        return True

    def close(self, reason: str) -> None:
        """Say goodbye and end all links."""
        self.send(Goodbye(reason))
        if self._stream is not None:
            self._stream.close()
        self.paths.close()

    def _adopt(self, stream: ControlStream, hello: Hello, dialled_by: str) -> None:
        restarted = self.hello is not None and self.hello.incarnation != hello.incarnation
        self.hello, self._stream, self._dialled_by = hello, stream, dialled_by
        self._heard_at = time.monotonic()
        self.last_error = ""
        if restarted:
            logger.warning("%s was restarted: what was on its way is sent anew", hello.site)
            self.receiving.peer_restarted()
            for path in self.paths.paths.values():
                path.link.peer_restarted()
        logger.info("connected to %s (%s)", hello.site, hello.version)
        role: Role = "active" if dialled_by == self._hub.config.site else "passive"
        self.paths.online(role)
        if role == "active" and self.main_path is None:
            self._choose_main_path(hello)
        self.sending.resend_inline()
        self.send(Ping(time.monotonic()))

    def _lose(self, reason: str) -> None:
        stream, self._stream = self._stream, None
        self.last_error = reason
        logger.warning("lost %s: %s", self.config.site, reason)
        self._hub.trace.emit("peer_lost", peer=self.config.site, reason=reason)
        self.paths.offline(reason)
        if stream is not None:
            stream.close()

    async def _watch(self, stream: ControlStream) -> None:
        """Ping, and give the channel up when the peer has been silent for too long."""
        silence = self._hub.config.timeouts.peer_silence
        while time.monotonic() - self._heard_at < silence:
            await asyncio.sleep(silence / 4)
            stream.write(encode_frame(Ping(time.monotonic())))
        if self._stream is stream:
            self._lose(f"silent for {silence:g} s")

    # -- frames ---------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: ControlFrame) -> None:
        match frame:
            case Ping(stamp=stamp):
                self.send(Pong(stamp))
            case Pong(stamp=stamp):
                self.rtt_seconds = time.monotonic() - stamp
            case Goodbye(reason=reason):
                self._lose(f"it said goodbye: {reason}")
            case Connect():
                self._on_connect(frame)
            case Inline():
                self.receiving.on_inline(frame)
            case Undeliverable(key=key, code=code, reason=reason):
                logger.error("%s will not come from %s: [%s] %s", key, self.config.site, code, reason)
                self._hub.mailbox.fail(key, code, reason)
            case Hello():
                raise WireError(ErrorCode.MALFORMED_FRAME, "a second greeting on one control channel.")
            case _:
                self._on_transfer_frame(frame)

    def _on_transfer_frame(self, frame: ControlFrame) -> None:
        match frame:
            case GrantRequest(transport=transport):
                self.receiving.on_grant_request(frame, self._link(transport))
            case Offer(transport=transport):
                self.receiving.on_offer(frame, self._link(transport))
            case Reconcile(transport=transport, transfers=transfers):
                self._reconcile(self._link(transport), transport, transfers)
            case Grant(transport=transport) | GrantRecall(transport=transport) | GrantReturn(transport=transport):
                self._link(transport).frame(frame)
            case Restart(transport=transport):
                self._link(transport).frame(frame)
            case Delivered(transfer=transfer):
                if not self.sending.on_delivered(transfer):
                    self._to_all_links(frame)
            case Refused(transfer=transfer, code=code, reason=reason):
                if not self.sending.on_refused(transfer, code, reason):
                    self._to_all_links(frame)
            case ChunkAck() | ResendChunks() | Abort():
                self._to_all_links(frame)
            case _:
                raise WireError(ErrorCode.MALFORMED_FRAME, f"{type(frame).__name__} is not for a gateway.")

    def _reconcile(self, link: Link, transport: str, transfers: tuple[tuple[int, int], ...]) -> None:
        open_transfers = []
        for transfer, grant in transfers:
            if self.receiving.already_delivered(transfer):
                self.send(Delivered(transfer))
            else:
                open_transfers.append((transfer, grant))
        link.frame(Reconcile(transport, tuple(open_transfers)))

    def _to_all_links(self, frame: ControlFrame) -> None:
        for path in self.paths.paths.values():
            path.link.frame(frame)

    def _link(self, transport: str) -> Link:
        if transport not in self._hub.transports:
            raise WireError(ErrorCode.MALFORMED_FRAME, f"a frame about the unknown transport {transport!r}.")
        return self.paths.need(transport, "the peer uses it", main=False).link

    # -- data paths -----------------------------------------------------------------------------------------------

    def _allowed_transports(self) -> tuple[str, ...]:
        wanted = self.config.transport or self._hub.config.transport
        return ("shm", "tcp", "grpc") if wanted == "auto" else (wanted, "grpc")

    def _ring_bytes(self) -> int:
        config = self._hub.config
        return config.memory.ring_slots * int(config.memory.ring_slot_bytes) * len(config.peers)

    def _choose_main_path(self, hello: Hello) -> None:
        own = tuple(name for name in self._allowed_transports() if name != "grpc")
        transport, reason = choose_transport(own, self._hub.host, hello, frozenset(self.paths.unusable))
        logger.info("data path to %s: %s (%s)", self.config.site, transport, reason)
        self.paths.need(transport, reason, main=True)
        self._send_unsent()

    def _on_connect(self, frame: Connect) -> None:
        before = self.main_path
        if frame.main and before is not None and frame.transport not in self.paths.paths and not before.ever_up:
            # the active side has fallen back to another transport
            for transport in [name for name, path in self.paths.paths.items() if path.main]:
                self.paths.abandon(transport)
            self.paths.on_connect(frame)
            self.sending.redispatch()
        else:
            self.paths.on_connect(frame)
        self._send_unsent()

    def _fall_back(self, transport: str) -> None:
        """The main path cannot be connected at all: take the next transport."""
        assert self.hello is not None
        logger.warning("giving up %s to %s: %s", transport, self.config.site, self.paths.paths[transport].last_error)
        self.paths.abandon(transport)
        self._choose_main_path(self.hello)
        self.sending.redispatch()

    def _send_unsent(self) -> None:
        if self.main_path is not None:
            while self._unsent:
                self._dispatch(self._unsent.popleft())

    def _dispatch(self, outgoing: Outgoing) -> None:
        main = self.main_path
        if outgoing.mode == "grpc":
            self.paths.need("grpc", "mode grpc", main=False).link.send(outgoing)
        elif main is None:
            self._unsent.append(outgoing)
        else:
            main.link.send(outgoing)

    def _make_link(self, transport: str) -> Link:
        config = self._hub.config
        settings = LinkSettings(
            transport=transport,
            poll_headers=config.notify == "poll",
            idle_timeout=config.timeouts.idle,
            connect_timeout=config.timeouts.connect,
        )
        return Link(self.config.site, settings, _LinkToPeer(self, transport, self._loop))

    def transfers(self) -> list[TransferProgress]:
        """Transfers under way, those that wait for the peer included."""
        return [progress for path in self.paths.paths.values() for progress in path.link.progress()]

    # -- from our links, on the event loop's thread ---------------------------------------------------------------

    def path_up(self, transport: str) -> None:
        """A data path is connected."""
        self.paths.on_up(transport)
        self._hub.metrics.link_up(self.config.site, transport, True)
        path = self.paths.paths.get(transport)
        if path is None:
            return
        logger.info("data path to %s over %s is up", self.config.site, transport)
        self._hub.trace.emit("link", peer=self.config.site, transport=transport, reason=path.reason)
        self.receiving.fill_ring(path.link, transport)

    def path_lost(self, transport: str, reason: str) -> None:
        """A data path is gone, or could not be connected."""
        logger.warning("data path to %s over %s: %s", self.config.site, transport, reason)
        self._hub.metrics.link_up(self.config.site, transport, False)
        self._hub.trace.emit("link_lost", peer=self.config.site, transport=transport, reason=reason)
        self.paths.on_lost(transport, reason)

    def received(self, offer: Offer, slot: Slot, payload_at: int, stats: TransferStats) -> None:
        """A payload has come."""
        self.receiving.received(offer, slot, payload_at, stats)
        path = self.paths.paths.get(offer.transport)
        if path is not None and path.up:
            self.receiving.fill_ring(path.link, offer.transport)


class _LinkToPeer:
    """Carries what happens on a link's thread over to the event loop."""

    def __init__(self, peer: Peer, transport: str, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._transport = transport
        self._loop = loop

    def frame(self, frame: ControlFrame) -> None:
        self._call(self._peer.send, frame)

    def path_up(self, transport: str) -> None:
        self._call(self._peer.path_up, transport)

    def path_lost(self, transport: str, reason: str) -> None:
        self._call(self._peer.path_lost, transport, reason)

    def received(self, offer: Offer, slot: Slot, payload_at: int, stats: TransferStats) -> None:
        self._call(self._peer.received, offer, slot, payload_at, stats)

    def receive_failed(self, offer: Offer, slot: Slot, code: ErrorCode, reason: str) -> None:
        self._call(self._peer.receiving.receive_failed, offer, slot, code, reason)

    def slots_returned(self, slots: Sequence[Slot]) -> None:
        self._call(self._peer.receiving.slots_returned, slots)

    def sent(self, outgoing: Outgoing, stats: TransferStats) -> None:
        self._call(self._peer.sending.sent, outgoing, stats, self._transport)

    def send_failed(self, outgoing: Outgoing, code: ErrorCode, reason: str) -> None:
        self._call(self._peer.sending.send_failed, outgoing, code, reason)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        # once the loop is closed, nobody is left to be told
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
