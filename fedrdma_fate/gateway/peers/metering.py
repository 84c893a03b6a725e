"""How fast a peer may send control frames, and how far it may get ahead of us."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.peers.paths import DataPaths
from fedrdma_fate.gateway.peers.token_bucket import TokenBucket
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

logger = logging.getLogger(__name__)

FRAME_BYTES = 16 * 1024
"""A frame counts once more for each of so many bytes: a long one takes longer to read."""

FRAMES_OF_AN_ORDER = 16
"""As which a sum that is ordered counts, and again when it is over: to begin it takes as long as some frames."""

CONNECT_SECONDS = 0.01
"""Of its rate is as what a peer's half of a data path counts: to open ours, with a thread, memory or queue pairs, takes
up to some milliseconds. So a hundred a second may begin; one that is lost again and again is, five times at most."""

BURST_SECONDS = 1.0
"""Of the rate, at once: what a peer sends again after a reconnection."""

SHORTEST_PAUSE_SECONDS = 0.01
"""Pauses that are shorter are saved up: a timer costs more than some frames."""

FLOOD_SECONDS = 30.0
"""Who has wanted more than its rate for so long without a break is cut off."""

SHUT_OUT_SECONDS = 30.0
"""Who was cut off may not come back sooner: else it would go on as before."""

TURN_FRAMES = 256
"""Of one peer in one turn of the event loop: some milliseconds, then the others have theirs."""

MOST_COMMANDS = 4096
"""Of the event loop to a link's thread, which may be busy: no further frames are read before it has caught up."""

MOST_SMALL_BYTES = 16 * 1024 * 1024
"""Of small messages on their way to disk, of all peers; no further frames are read before they are there."""

LOOK_AGAIN_SECONDS = 0.01
"""While a link or the disk catches up."""

MOST_UNSENT_BYTES = 64 * 1024 * 1024
"""Of frames to a peer that does not read them, besides `limits.outgoing_bytes`, before it is cut off."""


def frames_counted(frame_bytes: int) -> int:
    """As how many a frame counts."""
    return 1 + frame_bytes // FRAME_BYTES


class FrameMeter:
    """Belongs to the event loop's thread."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        """
        Args:
            rate: frames a second.
            clock: seconds, of any origin.
        """
        self._rate = rate
        self._clock = clock
        self._at = clock()
        self._bucket = TokenBucket(rate, rate * BURST_SECONDS, self._at)
        self._throttled_since: float | None = None

    def pause(self, frame_bytes: int) -> float:
        """A frame has come: seconds to wait before the next is read, 0 as long as the peer keeps to its rate."""
        now = self._at = self._clock()
        self._bucket.fill(now)
        self._bucket.level -= frames_counted(frame_bytes)
        level = self._bucket.level
        if level >= 0:
            if level > self._rate * BURST_SECONDS / 2:
                self._throttled_since = None
            return 0.0
        if self._throttled_since is None:
            self._throttled_since = now
        pause = -level / self._rate
        return pause if pause >= SHORTEST_PAUSE_SECONDS else 0.0

    def charge(self, frames: int) -> None:
        """What has come made us send so many frames: they count as well."""
        self._bucket.level -= frames

    @property
    def floods(self) -> bool:
        """Whether the peer has wanted more for so long that it is to be cut off."""
        return self._throttled_since is not None and self._at - self._throttled_since >= FLOOD_SECONDS


class Pace:
    """How fast the frames of one control channel are read: no faster than the peer may send and we can follow."""

    def __init__(self, site: str, context: GatewayContext, paths: DataPaths, clock: Callable[[], float]) -> None:
        """
        Args:
            site: name of the peer's.
            context: the gateway's.
            paths: the data paths to the peer.
            clock: seconds, of any origin.
        """
        limits = context.config.limits
        self._site = site
        self._context = context
        self._paths = paths
        self._rate = limits.frames_per_second
        self._most_unsent = int(limits.outgoing_bytes) + MOST_UNSENT_BYTES
        self._meter = FrameMeter(self._rate, clock)
        self._frames = 0

    def pause(self, frame_bytes: int, unsent_bytes: int) -> Awaitable[None] | None:
        """A frame was read and acted upon: what is to be awaited before the next, if anything.

        Raises:
            GatewayError: LIMIT_REACHED when the peer is to be cut off.
        """
        if unsent_bytes > self._most_unsent:
            raise _too_much(f"{self._site} has not read {unsent_bytes} bytes that are for it")
        seconds = self._meter.pause(frame_bytes)
        if self._meter.floods:
            raise _too_much(f"{self._site} sends more than {self._rate:g} frames a second, on and on")
        self._frames += 1
        if seconds:
            message = "%s sends more than %s frames a second, and is read more slowly"
            self._context.complaints.add(logger, "throttled", self._site, message, self._site, self._rate)
            return asyncio.sleep(seconds)
        if self._is_behind:
            return self._catch_up()
        return asyncio.sleep(0) if self._frames % TURN_FRAMES == 0 else None

    def charge(self, frames: int) -> None:
        """A frame that is acted upon leads to so many of ours, which the peer has to answer for."""
        self._meter.charge(frames)

    def charge_connect(self) -> None:
        """A data path was begun."""
        self._meter.charge(math.ceil(self._rate * CONNECT_SECONDS))

    @property
    def _is_behind(self) -> bool:
        if self._context.small_bytes > MOST_SMALL_BYTES:
            return True
        return any(path.link.backlog > MOST_COMMANDS for path in self._paths.paths.values())

    async def _catch_up(self) -> None:
        while self._is_behind:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _too_much(what: str) -> GatewayError:
    return GatewayError(ErrorCode.LIMIT_REACHED, f"{what}: it is cut off for {SHUT_OUT_SECONDS:g} s.")
