"""Measures the path to a peer: round-trip time, goodput by chunk size, and whether large first chunks survive."""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import time
from collections.abc import Mapping
from typing import TypeVar

from fedrdma_fate.core.goodput_probe import (
    CHUNK_SIZES,
    FIRST_BYTES,
    FIRST_CHUNK_ROUNDS,
    SIZE_ROUNDS,
    Bounds,
    Trial,
    Verdict,
    best_trial,
    first_chunk_plans,
    judge_first_chunks,
    link_rate,
    measuring_plan,
)
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.peers.paths import DataPath
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.peers.probe_transfers import POOL_DIVISOR, lease_spare
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError, TransferError, TransportError, WireError
from fedrdma_fate.wire.frames import Mode

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PINGS = 10
"""The least round trip of so many counts: one at least that nothing held up."""
COLD_SECONDS = 0.25
"""So long nothing is sent before a chunk counts as the first one."""

_PATH_POLL_SECONDS = 0.02
"""Between two looks for a data path that is being connected."""
_RANDOM_BYTES = 1 << 20
"""Random bytes that are made once and repeated through the slot, which is cheaper than to make all of them."""
_OWNER = "probe"
_RUN_AGAIN = "Probe again when it is connected: `fedrdma status` shows it."


class Probing:
    """The probes of a gateway, one at a time. Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext, peers: Mapping[str, Peer]) -> None:
        self._context = context
        self._peers = peers
        self._busy_with = ""

    async def measure(self, site: str, total_bytes: int, seconds: float) -> dict[str, object]:
        """Measure the path to a peer.

        Args:
            site: its name.
            total_bytes: most bytes to send.
            seconds: most time to take.

        Returns:
            The report: sizes in bytes, times in seconds, rates in bits a second.

        Raises:
            TransportError: PEER_UNKNOWN; PEER_UNREACHABLE, also when it goes away meanwhile; LINK_LOST.
            MemoryPoolError: POOL_TIMEOUT when memory is short here or there, or another probe is under way.
            WireError: PROTOCOL_VERSION when its gateway knows no probes.
            TransferError: IDLE_TIMEOUT when nothing can be measured within the bounds.
        """
        peer = self._peers.get(site)
        if peer is None:
            known = ", ".join(self._peers) or "none"
            raise TransportError(ErrorCode.PEER_UNKNOWN, f"no peer is named {site!r}.", f"Peers here: {known}.")
        if self._busy_with:
            raise MemoryPoolError(
                ErrorCode.POOL_TIMEOUT, f"a probe of {self._busy_with} is under way.", "Wait until it has ended."
            )
        self._busy_with = site
        try:
            report = await _Probe(self._context, peer, total_bytes, seconds).run()
        finally:
            self._busy_with = ""
        self._context.trace.probed(report)
        return report


class _Probe:
    """One probe."""

    def __init__(self, context: GatewayContext, peer: Peer, total_bytes: int, seconds: float) -> None:
        self._context = context
        self._peer = peer
        self._began = time.monotonic()
        self._deadline = self._began + seconds
        self._bytes_left = total_bytes
        self._sent_bytes = 0
        self._rate = 0.0
        self._trip = 0.0
        wanted = peer.config.mode or context.config.mode
        # grpc has a chunk size of its own, which is not for choosing
        # the others do not use the chunk sizes that are tried
        self._mode: Mode = "fedrdma" if wanted == "fedrdma" else "fedrdma-e"

    async def run(self) -> dict[str, object]:
        """All measurements, and what they say."""
        path = await self._usable_path()
        transport = next(name for name, other in self._peer.paths.paths.items() if other is path)
        trips = [await self._round_trip() for _ in range(PINGS)]
        self._trip = min(trips)
        verdict, first_chunks = await self._try_first_chunks()
        trials = await self._try_chunk_sizes(enable=verdict.link_enable == "always")
        best = best_trial(trials)
        rate = link_rate(best, self._trip) if best else None
        chunk_bytes = best.plan.chunk_bytes if best else None
        self._peer.sending.tuners[transport].on_probe(rate, chunk_bytes, verdict.link_enable, verdict.reason)
        return {
            "site": self._context.config.site,
            "peer": self._peer.config.site,
            "peer_version": self._peer.hello.version if self._peer.hello else None,
            "transport": transport,
            "reason": path.reason,
            "mode": self._mode,
            "lends": self._peer.shares_memory(),
            "rtt_least_seconds": self._trip,
            "rtt_median_seconds": statistics.median(trips),
            "pings": len(trips),
            "link_enable": verdict.link_enable,
            "link_enable_reason": verdict.reason,
            "first_chunks": [_trial(trial) for trial in first_chunks],
            "chunks": [_trial(trial) for trial in trials],
            "not_measured": [size for size in CHUNK_SIZES if size not in {trial.plan.chunk_bytes for trial in trials}],
            "best_chunk_bytes": chunk_bytes,
            "bits_per_second": max((trial.bits_per_second for trial in trials), default=0.0),
            "rate_bits_per_second": rate,
            "sent_bytes": self._sent_bytes,
            "seconds": time.monotonic() - self._began,
        }

    # -- the measurements -----------------------------------------------------------------------------------------

    async def _round_trip(self) -> float:
        answer = self._peer.probes.ping()
        try:
            return await self._unless_gone(answer, self._seconds_left)
        except TimeoutError:
            raise self._out_of_bounds() from None
        finally:
            answer.cancel()

    async def _first_look(self) -> None:
        """How fast the link is, more or less."""
        size = min(FIRST_BYTES, self._largest_bytes, self._bytes_left)
        if size == 0:
            raise self._out_of_bounds()
        trial = await self._send(ChunkPlan(size, FIRST_BYTES), self._seconds_left)
        if not self._seconds_left:
            raise self._out_of_bounds()
        if not trial.survived:
            reason = f"the data path to {self._peer.config.site} broke at the first {size} bytes."
            raise TransportError(ErrorCode.LINK_LOST, reason, _RUN_AGAIN)
        self._learn(trial)

    async def _try_first_chunks(self) -> tuple[Verdict, list[Trial]]:
        plans = first_chunk_plans(self._largest_bytes, self._bytes_left)
        if plans is None:
            await self._first_look()
            return judge_first_chunks([], []), []
        alone, behind = plans
        # before anything else: what a path has carried may have warmed it. Hanging, it must leave time for the others
        trials: dict[ChunkPlan, list[Trial]] = {alone: [await self._send(alone, self._seconds_left / 4)], behind: []}
        await self._first_look()
        self._learn(trials[alone][0])
        coming = (plans * FIRST_CHUNK_ROUNDS)[1:]
        if self._bounds().most_chunks(alone.total_bytes, 0.5) < len(coming):
            return judge_first_chunks([], []), trials[alone]
        for plan in coming:
            await asyncio.sleep(min(COLD_SECONDS, self._seconds_left))
            trials[plan].append(await self._send(plan, self._seconds_left / 4))
            self._learn(trials[plan][-1])
        return judge_first_chunks(trials[alone], trials[behind]), trials[alone] + trials[behind]

    async def _try_chunk_sizes(self, *, enable: bool) -> list[Trial]:
        """Each size that the bounds allow; of several trials of a size, the best."""
        best: dict[int, Trial] = {}
        coming = CHUNK_SIZES * SIZE_ROUNDS
        for at, size in enumerate(coming):
            plan = measuring_plan(size, len(coming) - at, self._bounds(), enable=enable)
            if plan is None:
                continue
            trial = await self._send(plan, self._seconds_left)
            if not self._seconds_left:
                break
            self._learn(trial)
            if size not in best or trial.bits_per_second > best[size].bits_per_second:
                best[size] = trial
        return [best[size] for size in sorted(best)]

    def _learn(self, trial: Trial) -> None:
        if trial.survived:
            self._rate = max(self._rate, link_rate(trial, self._trip))

    # -- one payload ----------------------------------------------------------------------------------------------

    async def _send(self, plan: ChunkPlan, timeout: float) -> Trial:
        """Send a payload, and wait for `timeout` seconds until it has arrived."""
        path = await self._usable_path()
        attempt, began = path.attempt, time.monotonic()
        lease = lease_spare(self._context.send_pool, plan.total_bytes, _OWNER)
        try:
            await asyncio.to_thread(_fill, lease.slot)
        except BaseException:
            lease.release()
            raise
        self._bytes_left -= plan.total_bytes
        self._sent_bytes += plan.total_bytes
        transfer, end = self._peer.probes.begin(path.link, lease, plan, self._mode)
        try:
            stats = await self._unless_gone(end, timeout)
        except (TimeoutError, TransferError) as error:
            self._peer.probes.cancel(transfer, "the probe does not wait any longer")
            logger.info("a probe of %s was lost: %s", self._peer.config.site, error)
            return Trial(plan, time.monotonic() - began, survived=False)
        except FedRDMAError as error:
            self._peer.probes.cancel(transfer, "the probe has failed")
            raise self._explained(error) from error
        same_path = self._peer.paths.main is path and path.attempt == attempt
        return Trial(plan, stats.seconds, survived=same_path and stats.resent_bytes == 0)

    async def _unless_gone(self, result: asyncio.Future[Result], timeout: float) -> Result:
        """Wait for a result as long as the peer is there.

        Raises:
            TransportError: PEER_UNREACHABLE.
            TimeoutError: after `timeout` seconds.
        """
        gone = asyncio.create_task(self._peer.offline.wait())
        try:
            await asyncio.wait((result, gone), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            if gone.done():
                raise self._unreachable("went away during the probe")
            raise TimeoutError(f"nothing came within {timeout:.1f} s")
        finally:
            gone.cancel()

    # -- bounds and errors ----------------------------------------------------------------------------------------

    @property
    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _bounds(self) -> Bounds:
        return Bounds(self._largest_bytes, self._bytes_left, self._seconds_left, self._rate, self._trip)

    @property
    def _largest_bytes(self) -> int:
        """The largest payload that is a quarter of both sides' memory."""
        there = self._peer.hello.receive_bytes if self._peer.hello else 0
        most = min(self._context.send_pool.region.length, there) // POOL_DIVISOR
        overhead = SlotLayout(ChunkPlan(1, 1), "fedrdma").slot_bytes
        # fedrdma stages a chunk behind the payload, in the worst case one as large as the payload
        return max(0, most - overhead) // (2 if self._mode == "fedrdma" else 1)

    async def _usable_path(self) -> DataPath:
        """The main data path; one that is being connected anew is waited for."""
        deadline = time.monotonic() + min(self._context.config.timeouts.connect, self._seconds_left)
        while True:
            if not self._peer.connected:
                raise self._unreachable("went away during the probe" if self._sent_bytes else "is not connected")
            path = self._peer.paths.main
            if path is not None and path.up:
                return path
            if time.monotonic() >= deadline:
                why = path.last_error if path is not None else "none was made yet"
                raise TransportError(
                    ErrorCode.LINK_LOST, f"there is no data path to {self._peer.config.site}: {why}.", _RUN_AGAIN
                )
            await asyncio.sleep(_PATH_POLL_SECONDS)

    def _explained(self, error: FedRDMAError) -> FedRDMAError:
        site = self._peer.config.site
        if error.code is ErrorCode.WRONG_PARTY:
            version = self._peer.hello.version if self._peer.hello else "unknown"
            return WireError(
                ErrorCode.PROTOCOL_VERSION,
                f"the gateway of {site}, version {version}, knows no probes.",
                "Run the same fedrdma-fate version on both sides.",
            )
        return type(error)(error.code, f"{site}: {error.message}", error.remedy)

    def _unreachable(self, what: str) -> TransportError:
        site, why = self._peer.config.site, self._peer.last_error
        reason = f": {why.rstrip('.')}" if why else ""
        return TransportError(ErrorCode.PEER_UNREACHABLE, f"{site} {what}{reason}.", _RUN_AGAIN)

    def _out_of_bounds(self) -> TransferError:
        return TransferError(
            ErrorCode.IDLE_TIMEOUT,
            f"the path to {self._peer.config.site} could not be measured within the bounds.",
            "Allow more: `fedrdma probe --seconds --bytes`; regions of some MiB are needed at both sites.",
        )


def _fill(slot: Slot) -> None:
    """With noise: what the memory held before is not for this peer, and zeros might be compressed on the way."""
    noise = os.urandom(min(_RANDOM_BYTES, slot.length))
    for at in range(0, slot.length, _RANDOM_BYTES):
        piece = slot.view[at : at + _RANDOM_BYTES]
        piece[:] = noise[: len(piece)]


def _trial(trial: Trial) -> dict[str, object]:
    return {
        "chunk_bytes": trial.plan.chunk_bytes,
        "payload_bytes": trial.plan.total_bytes,
        "link_enable": trial.plan.enable_bytes > 0,
        "seconds": trial.seconds,
        "survived": trial.survived,
        "bits_per_second": trial.bits_per_second,
    }
