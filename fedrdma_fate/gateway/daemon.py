"""The gateway: starts and stops its parts in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from fedrdma_fate.engine.link_thread import LinkHandle, LinkThread, MakeLink
from fedrdma_fate.gateway.assembly import Assembly, assemble
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.config.schema import GatewayConfig, split_address
from fedrdma_fate.gateway.path_store import SAVE_SECONDS
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.status import status_document
from fedrdma_fate.gateway.tasks.stopping import stopping_error
from fedrdma_fate.memory.heap import keep_giving_back
from fedrdma_fate.obs.complaints import WINDOW_SECONDS, Complaints
from fedrdma_fate.security.plain import warn_if_reachable
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import MessageKey, Party

logger = logging.getLogger(__name__)

_DRAIN_POLL_SECONDS = 0.02
"""Between two looks whether everything has been delivered: far less than people who stop a gateway notice."""
_END_SECONDS = 5.0
"""How long a stopping gateway waits for each kind of work to end."""


class Gateway:
    """One site's gateway. `start`, then `wait`, then `stop`; all on one event loop."""

    def __init__(self, config: GatewayConfig, make_link: MakeLink = LinkThread) -> None:
        """
        Args:
            config: its configuration.
            make_link: makes the links to its peers.
        """
        self._config = config
        self._make_link = make_link
        self._started = time.monotonic()
        self._stop_wanted = asyncio.Event()
        self._undo = contextlib.ExitStack()
        self._assembly: Assembly | None = None
        self._ending: Assembly | None = None

    async def start(self) -> None:
        """Allocate memory, listen, dial the peers.

        Raises:
            FedRDMAError: something cannot be had; what was had before is given back.
        """
        if self._config.security == "off":
            self._warn_if_reachable()
        try:
            assembly = self._assembly = assemble(self._config, self._undo, self.status, self._make_link)
            await assembly.control.start()
            await assembly.socket.start()
            if assembly.port is not None:
                await assembly.port.start()
            for front in assembly.fronts:
                await front.start()
        except BaseException:
            await self._end()
            raise
        spawn(assembly.context.tasks, _keep_paths(assembly))
        spawn(assembly.context.tasks, assembly.context.journal.keep_short())
        spawn(assembly.context.tasks, assembly.kept.watch_keeper())
        spawn(assembly.context.tasks, keep_giving_back())
        spawn(assembly.context.tasks, _sum_complaints_up(assembly.context.complaints))
        spawn(assembly.context.tasks, assembly.tasks.held.keep_watch(lambda: _tell_held(assembly)))
        if assembly.identity_watch is not None:
            spawn(assembly.context.tasks, assembly.identity_watch.keep_watch())
        for peer in assembly.peers.values():
            if peer.config.address is not None:
                spawn(assembly.context.tasks, assembly.dialler.keep_dialling(peer, peer.config.address))
        logger.info(
            "gateway of %s listens on %s and %s",
            self._config.site,
            self._config.listen.control,
            self._config.listen.socket,
        )

    def stop_soon(self) -> None:
        """Make `wait` return."""
        self._stop_wanted.set()

    def reopen_trace(self) -> None:
        """Somebody may have renamed the file of the trace: write to a new one."""
        if self._assembly is not None:
            self._assembly.context.trace.reopen()

    async def wait(self) -> None:
        """Until somebody wants the gateway to stop."""
        await self._stop_wanted.wait()

    async def stop(self, *, keep: bool = False) -> None:
        """Take no more requests, let transfers finish for a while, and give everything back.

        Args:
            keep: leave what is not delivered, or not pulled, to the next run, as a gateway that is killed does, if
                `timeouts.restart` lets it. Else both ends are told of it.
        """
        keep = keep and self._assembly is not None and _has_something_to_keep(self._assembly)
        try:
            if self._assembly is not None:
                await self._wind_down(self._assembly, keep=keep)
        finally:
            await self._end(orderly=not keep)
        logger.info("gateway of %s has stopped", self._config.site)

    def status(self, may_know: Callable[[Party], bool] = lambda _party: True) -> dict[str, object]:
        """The status document.

        Args:
            may_know: whether it may show transfers of this party of the site.

        Raises:
            RuntimeError: the gateway does not run.
            GatewayError: GATEWAY_STOPPING: it is about to run no more.
        """
        if self._ending is not None:
            raise stopping_error(self._ending.context)
        if self._assembly is None:
            raise RuntimeError("the gateway does not run")
        assembly = self._assembly
        watch = assembly.identity_watch
        certificate = None if watch is None else watch.own_certificate
        return status_document(
            assembly.context,
            assembly.peers,
            assembly.tasks.task_count,
            assembly.tasks.held.holdings,
            assembly.tasks.sums,
            assembly.tasks.site_sums,
            assembly.calls,
            assembly.brokers,
            assembly.port,
            self._started,
            certificate,
            may_know,
        )

    # -- stopping -------------------------------------------------------------------------------------------------

    async def _wind_down(self, assembly: Assembly, *, keep: bool) -> None:
        assembly.tasks.stopping = True
        for front in assembly.fronts:
            await front.stop()
        assembly.context.leaves_to_next = keep
        assembly.context.mailbox.refuse_all(stopping_error(assembly.context))
        assembly.context.send_pool.close()
        for peer in assembly.peers.values():
            peer.sending.lending.leave()
            peer.receiving.borrowing.leave(keep=keep)
        await self._drain(assembly)
        reason = f"the gateway of {self._config.site} stops"
        told: set[MessageKey] = set()
        if not keep:
            _tell_of_loss(assembly, reason, told)
            await assembly.socket.stop()
            if assembly.port is not None:
                await assembly.port.stop()
        await _save_paths(assembly)
        if not keep:
            # what peers were told meanwhile that it is here
            _tell_of_loss(assembly, reason, told)
        # what it had is told by now
        forgets = not keep
        assembly.dialler.stop(reason, forgets=forgets)
        links = [link for peer in assembly.peers.values() for link in peer.close(reason, forgets=forgets)]
        await asyncio.to_thread(_end_links, links, assembly.transports)
        if moves := assembly.context.mailbox.moves_under_way():
            await asyncio.wait(moves, timeout=_END_SECONDS)
        if keep:
            # nobody is told anything any more, and what tasks have mapped is theirs in the next run, too
            assembly.kept.leave()

    async def _drain(self, assembly: Assembly) -> None:
        deadline = time.monotonic() + self._config.timeouts.drain
        while any(_has_unfinished(peer) for peer in assembly.peers.values()):
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    async def _end(self, *, orderly: bool = False) -> None:
        """Give back whatever there is, also after half a start: then what an earlier run has left is left again."""
        assembly, self._assembly = self._assembly, None
        try:
            if assembly is not None:
                self._ending = assembly
                await self._end_assembly(assembly)
                if orderly:
                    assembly.context.mailbox.discard_all()
                    assembly.kept.forget()
        finally:
            self._ending = None
            self._undo.close()

    async def _end_assembly(self, assembly: Assembly) -> None:
        await assembly.socket.stop(keep=assembly.context.leaves_to_next)
        if assembly.port is not None:
            await assembly.port.stop()
        for front in assembly.fronts:
            await front.stop()
        for task in list(assembly.context.tasks):
            task.cancel()
        if assembly.context.tasks:
            await asyncio.wait(list(assembly.context.tasks), timeout=_END_SECONDS)
        await assembly.control.stop()

    def _warn_if_reachable(self) -> None:
        listen = self._config.listen
        addresses = {"listen.control": listen.control, "listen.data": listen.data, "listen.grpc": listen.grpc}
        given = {key: address for key, address in addresses.items() if address is not None}
        warn_if_reachable({key: split_address(key, address)[0] for key, address in given.items()})


def _tell_of_loss(assembly: Assembly, reason: str, told: set[MessageKey]) -> None:
    """Both ends of what nobody will get hear of it; of what waits here, once, as `told` says."""
    for peer in assembly.peers.values():
        peer.sending.give_up(ErrorCode.GATEWAY_STOPPING, reason)
    for message in assembly.context.mailbox.all_messages():
        if message.key not in told and (origin := assembly.peers.get(message.origin)) is not None:
            told.add(message.key)
            origin.receiving.drop(message, ErrorCode.GATEWAY_STOPPING, reason)


def _has_something_to_keep(assembly: Assembly) -> bool:
    """Whether anything would be lost with what the gateway has: messages, or what tasks that run know."""
    if assembly.kept.earlier is None or not assembly.context.journal.is_kept:
        return False
    peers = assembly.peers.values()
    return bool(
        assembly.context.mailbox.summary()["messages"]
        or assembly.tasks.task_count
        or any(peer.sending.pending or peer.sending.has_to_tell for peer in peers)
    )


def _tell_held(assembly: Assembly) -> None:
    """Who holds memory that others wait for: for tasks that wait here, and peers whose transfers do."""
    assembly.tasks.tell_waiting()
    holders = assembly.tasks.held.receive_holders()
    for peer in assembly.peers.values():
        peer.tell_held(holders)


async def _save_paths(assembly: Assembly) -> None:
    """Write down what is known of the paths, if that has changed."""
    store = assembly.context.path_store
    for peer in assembly.peers.values():
        for transport, path in peer.paths.paths.items():
            store.note(peer.config.site, transport, path.link.known_path)
    document = store.pending()
    if document is not None and not await asyncio.to_thread(store.write, document):
        store.not_written()


async def _keep_paths(assembly: Assembly) -> None:
    """Now and then: not every gateway stops in order."""
    while True:
        await asyncio.sleep(SAVE_SECONDS)
        await _save_paths(assembly)


async def _sum_complaints_up(complaints: Complaints) -> None:
    """So that the log says it, too, when whoever gave cause for them has stopped."""
    while True:
        await asyncio.sleep(WINDOW_SECONDS)
        complaints.sum_up()


def _has_unfinished(peer: Peer) -> bool:
    return peer.connected and bool(peer.sending.pending or peer.sending.lending.returnable)


def _end_links(links: Iterable[LinkHandle], transports: contextlib.ExitStack) -> None:
    transports.close()
    deadline = time.monotonic() + _END_SECONDS
    for link in links:
        link.close(max(0.0, deadline - time.monotonic()))
        if link.alive:
            logger.warning("a data path is still being connected; its thread ends with the process")
