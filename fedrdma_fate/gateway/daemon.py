"""The gateway: puts the parts together, starts and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time

from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.config import GatewayConfig, socket_path, split_address
from fedrdma_fate.gateway.control import ControlServer, ControlStream, dial
from fedrdma_fate.gateway.host import host_identity
from fedrdma_fate.gateway.hub import Hub
from fedrdma_fate.gateway.mailbox import Mailbox
from fedrdma_fate.gateway.peer import Peer
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.gateway.status import status_document
from fedrdma_fate.gateway.tasks import TaskServer
from fedrdma_fate.gateway.transports import make_transports
from fedrdma_fate.memory.arena import RegionDirectory
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.obs.metrics import GatewayMetrics, MetricsServer, Occupancy, PoolUse
from fedrdma_fate.obs.trace import Trace
from fedrdma_fate.security.plain import warn_if_reachable
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, WireError
from fedrdma_fate.wire.frames import Goodbye, Hello, decode_frame, encode_frame
from fedrdma_fate.wire.header import PROTOCOL_VERSION

logger = logging.getLogger(__name__)

FIRST_REDIAL_SECONDS = 0.2
LAST_REDIAL_SECONDS = 5.0
HELLO_TIMEOUT_SECONDS = 10.0


class Gateway:
    """One site's gateway. `start`, then `wait`, then `stop`; all on one event loop."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._started = time.monotonic()
        self._stop_wanted = asyncio.Event()
        self._stack = contextlib.ExitStack()
        self._metrics_server: MetricsServer | None = None
        self._warn_if_reachable()

    async def start(self) -> None:
        """Allocate memory, listen, dial the peers.

        Raises:
            FedRDMAError: something cannot be had; what was had before is given back.
        """
        try:
            self._build()
            await self._control.start()
            await self._tasks.start()
        except BaseException:
            self._stack.close()
            raise
        for peer in self._peers.values():
            if peer.config.address is not None:
                spawn(self._hub.tasks, self._keep_dialling(peer, peer.config.address))
        logger.info(
            "gateway of %s listens on %s and %s",
            self._config.site,
            self._config.listen.control,
            self._config.listen.socket,
        )

    def stop_soon(self) -> None:
        """Make `wait` return."""
        self._stop_wanted.set()

    async def wait(self) -> None:
        """Until somebody wants the gateway to stop."""
        await self._stop_wanted.wait()

    async def stop(self) -> None:
        """Take no more pushes, let transfers finish for a while, tell everybody, give everything back."""
        self._tasks.stopping = True
        self._hub.mailbox.refuse_all(
            GatewayError(ErrorCode.GATEWAY_STOPPING, f"the gateway of {self._config.site} is stopping.")
        )
        await self._drain()
        await self._tasks.stop()
        for peer in self._peers.values():
            await asyncio.to_thread(peer.close, f"the gateway of {self._config.site} stops")
        for task in list(self._hub.tasks):
            task.cancel()
        if self._hub.tasks:
            await asyncio.wait(self._hub.tasks, timeout=2)
        await self._control.stop()
        self._hub.mailbox.discard_all()
        self._stack.close()
        logger.info("gateway of %s has stopped", self._config.site)

    def status(self) -> dict[str, object]:
        """The status document."""
        return status_document(self._hub, self._peers, self._tasks.task_count, self._started)

    # -- putting together -----------------------------------------------------------------------------------------

    def _build(self) -> None:
        config = self._config
        regions = RegionDirectory.open(config.memory.directory, config.site)
        self._stack.callback(regions.close)
        send_region = regions.create_region("send", config.memory.send_bytes)
        receive_region = regions.create_region("receive", config.memory.receive_bytes)
        spill = SpillStore(config.memory.spill_directory, config.site)
        self._stack.callback(spill.close)
        trace = Trace(config.trace)
        self._stack.callback(trace.close)
        metrics = GatewayMetrics()
        transports = make_transports(config, regions.path, receive_region)
        for transport in transports.values():
            self._stack.callback(transport.close)
        self._hub = Hub(
            config=config,
            incarnation=secrets.token_hex(8),
            host=host_identity(config.memory.directory),
            send_pool=SlotPool(send_region, "send"),
            receive_pool=SlotPool(receive_region, "receive"),
            spill=spill,
            mailbox=Mailbox(),
            routes=Routes(config),
            transports=transports,
            trace=trace,
            metrics=metrics,
        )
        self._stack.callback(self._hub.send_pool.close)
        self._stack.callback(self._hub.receive_pool.close)
        self._peers = {peer.site: Peer(peer, self._hub) for peer in config.peers}
        self._control = ControlServer(config.listen.control, None, self._on_stream)
        self._tasks = TaskServer(socket_path(config.listen.socket), self._hub, self._peers, self.status)
        metrics.watch(self._occupancy)
        if config.listen.metrics is not None:
            self._metrics_server = metrics.start_http(*split_address("listen.metrics", config.listen.metrics))
            self._stack.callback(self._metrics_server.close)

    def _occupancy(self) -> Occupancy:
        pools = {}
        for pool in (self._hub.send_pool, self._hub.receive_pool):
            stats = pool.stats()
            pools[stats.name] = PoolUse(stats.leased_bytes, stats.length - stats.leased_bytes, stats.slots)
        waiting = {
            "put": self._hub.send_pool.stats().waiting,
            "get": self._hub.mailbox.summary()["waiting_pulls"],
        }
        return Occupancy(pools, waiting)

    def _warn_if_reachable(self) -> None:
        listen = self._config.listen
        hosts = {
            key: split_address(key, address)[0]
            for key in ("control", "data", "grpc")
            if (address := getattr(listen, key))
        }
        warn_if_reachable({f"listen.{key}": host for key, host in hosts.items()})

    async def _drain(self) -> None:
        deadline = time.monotonic() + self._config.timeouts.drain
        while any(peer.connected and peer.sending.pending for peer in self._peers.values()):
            if time.monotonic() >= deadline:
                pending = {name: peer.sending.pending for name, peer in self._peers.items()}
                logger.error("stopped with messages not delivered: %s", pending)
                return
            await asyncio.sleep(0.02)

    # -- control channels -----------------------------------------------------------------------------------------

    async def _keep_dialling(self, peer: Peer, address: str) -> None:
        pause = FIRST_REDIAL_SECONDS
        # the other may dial as well: the site with the smaller name goes first
        await asyncio.sleep(0 if self._config.site < peer.config.site else 1.0)
        while True:
            if not peer.connected:
                async with dial(address, None) as stream:
                    stream.write(encode_frame(peer.own_hello()))
                    hello = await self._read_hello(stream)
                    if hello is not None and hello.site == peer.config.site:
                        pause = FIRST_REDIAL_SECONDS
                        await peer.run(stream, hello, self._config.site)
                    elif hello is not None:
                        peer.last_error = f"{address} is the gateway of {hello.site!r}"
                        logger.error("%s is the gateway of %s, not of %s", address, hello.site, peer.config.site)
                    elif peer.last_error != _UNREACHABLE:
                        peer.last_error = _UNREACHABLE
                        logger.warning(
                            "[FR502] %s does not answer at %s; messages for it wait", peer.config.site, address
                        )
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_REDIAL_SECONDS)

    async def _on_stream(self, stream: ControlStream) -> None:
        """Another gateway has dialled us."""
        hello = await self._read_hello(stream)
        if hello is None:
            return
        peer = self._peers.get(hello.site)
        if peer is None:
            logger.error("[FR503] refused the unknown site %r", hello.site)
            reason = f"[FR503] {hello.site!r} is not among the peers of {self._config.site!r}"
            stream.write(encode_frame(Goodbye(reason)))
            return
        stream.write(encode_frame(peer.own_hello()))
        await peer.run(stream, hello, hello.site)

    async def _read_hello(self, stream: ControlStream) -> Hello | None:
        """The greeting that a control channel begins with; None when there is none that fits."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
                raw = await stream.read()
            frame = decode_frame(raw) if raw is not None else None
        except (TimeoutError, WireError) as error:
            logger.error("a control channel began with no greeting: %s", error)
            stream.write(encode_frame(Goodbye(f"expected a greeting: {error}")))
            return None
        if isinstance(frame, Goodbye):
            logger.error("a peer refused us: %s", frame.reason)
            return None
        if not isinstance(frame, Hello):
            return None
        if frame.protocol != PROTOCOL_VERSION:
            reason = f"[FR202] {frame.site} speaks protocol {frame.protocol}, {self._config.site} {PROTOCOL_VERSION}"
            logger.error(reason)
            stream.write(encode_frame(Goodbye(reason)))
            return None
        return frame


_UNREACHABLE = "it does not answer"
