"""The payloads and pings of probes of one peer, on their way."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.engine.events import TransferStats
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError, error_from_code
from fedrdma_fate.wire.frames import PROBE_TRANSFERS_FROM, MessageKey, Mode, Party, Ping

POOL_DIVISOR = 4
"""A probe takes at most a quarter of a pool, and only as long as another quarter stays free."""


def lease_spare(pool: SlotPool, length: int, owner: str) -> Lease:
    """A slot for the payload of a probe, which takes nothing that messages need.

    Raises:
        MemoryPoolError: PAYLOAD_TOO_LARGE when it is more than a quarter of the pool, POOL_TIMEOUT when the pool
            is short of room just now: a probe does not wait.
    """
    stats = pool.stats()
    most = stats.length // POOL_DIVISOR
    if length > most:
        raise MemoryPoolError(
            ErrorCode.PAYLOAD_TOO_LARGE, f"{length} bytes for a probe; it may take {most} of {stats.name} memory."
        )
    spare = stats.length - stats.leased_bytes - length
    lease = pool.lease(length, owner) if spare >= most and not stats.waiting else None
    if lease is None:
        raise MemoryPoolError(
            ErrorCode.POOL_TIMEOUT,
            f"no room for a probe of {length} bytes: {stats.leased_bytes} of {stats.length} bytes of {stats.name} "
            "memory are in use, and messages go first.",
            "Probe again when `fedrdma status` shows less, or raise the region's size.",
        )
    return lease


@dataclasses.dataclass(frozen=True, slots=True)
class _ProbeTransfer:
    """A payload of a probe on its way: the link that has it, what keeps its slot, and who waits for its end."""

    link: LinkHandle
    lease: Lease
    end: asyncio.Future[TransferStats]


class ProbeTransfers:
    """Belongs to the event loop's thread."""

    def __init__(self, peer: str, context: GatewayContext, send: Callable[[Ping], bool]) -> None:
        """
        Args:
            peer: name of the peer's site.
            context: the gateway's.
            send: sends a ping, if there is a control channel.
        """
        self._context = context
        self._send = send
        # no party can be configured that is spelt so: a gateway that knows no probes refuses them
        own, other = Party("gateway", f":{context.config.site}"), Party("gateway", f":{peer}")
        self._key = MessageKey("probe", "", "", own, other)
        self._transfers: dict[int, _ProbeTransfer] = {}
        self._pings: dict[float, asyncio.Future[float]] = {}

    # -- pings ----------------------------------------------------------------------------------------------------

    def ping(self) -> asyncio.Future[float]:
        """Seconds to the peer and back, as soon as they are known; never, when the control channel is lost."""
        stamp = time.monotonic()
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._pings[stamp] = answer
        answer.add_done_callback(lambda _: self._pings.pop(stamp, None))
        self._send(Ping(stamp))
        return answer

    def on_pong(self, stamp: float) -> None:
        """An answer, perhaps to one of ours."""
        answer = self._pings.get(stamp)
        if answer is not None and not answer.done():
            answer.set_result(time.monotonic() - stamp)

    # -- payloads -------------------------------------------------------------------------------------------------

    def begin(
        self, link: LinkHandle, lease: Lease, plan: ChunkPlan, mode: Mode
    ) -> tuple[int, asyncio.Future[TransferStats]]:
        """Send a payload; the lease is released when nothing reads its slot any more. The transfer, and its end."""
        transfer = PROBE_TRANSFERS_FROM + self._context.new_transfer()
        end: asyncio.Future[TransferStats] = asyncio.get_running_loop().create_future()
        # somebody may wait no longer when it fails
        end.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._transfers[transfer] = _ProbeTransfer(link, lease, end)
        payload = Payload(lease.slot, plan.total_bytes)
        link.send(Outgoing(transfer, self._key, "bytes", payload, plan, mode))
        return transfer, end

    def cancel(self, transfer: int, reason: str) -> None:
        """Give a payload up, unless it has ended."""
        under_way = self._transfers.get(transfer)
        if under_way is not None:
            under_way.link.cancel(transfer, ErrorCode.TRANSFER_ABORTED, reason)

    def sent(self, outgoing: Outgoing, stats: TransferStats) -> bool:
        """The peer has a payload; False when it is none of a probe."""
        under_way = self._end(outgoing.transfer)
        if under_way is not None and not under_way.end.done():
            under_way.end.set_result(stats)
        return outgoing.transfer >= PROBE_TRANSFERS_FROM

    def send_failed(self, outgoing: Outgoing, code: ErrorCode, reason: str) -> bool:
        """The peer will not get a payload; False when it is none of a probe."""
        under_way = self._end(outgoing.transfer)
        if under_way is not None:
            _fail(under_way, error_from_code(code.value, reason))
        return outgoing.transfer >= PROBE_TRANSFERS_FROM

    def link_retired(self, link: LinkHandle) -> None:
        """A link tells us nothing any more."""
        for transfer, under_way in list(self._transfers.items()):
            if under_way.link is link:
                del self._transfers[transfer]
                _fail(under_way, error_from_code(ErrorCode.LINK_LOST.value, "the data path was given up"))
                spawn(self._context.tasks, _release_when_ended(under_way))

    def _end(self, transfer: int) -> _ProbeTransfer | None:
        under_way = self._transfers.pop(transfer, None)
        if under_way is not None:
            under_way.lease.release()
        return under_way


def _fail(under_way: _ProbeTransfer, error: FedRDMAError) -> None:
    if not under_way.end.done():
        under_way.end.set_exception(error)


async def _release_when_ended(under_way: _ProbeTransfer) -> None:
    """Its thread may still read the slot."""
    await asyncio.to_thread(under_way.link.close)
    under_way.lease.release()
