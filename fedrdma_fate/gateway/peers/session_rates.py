"""How fast tasks of one session, and all together, may put small messages for a peer, which reads no faster than so."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from fedrdma_fate.gateway.peers.metering import BURST_SECONDS, SHORTEST_PAUSE_SECONDS
from fedrdma_fate.gateway.peers.token_bucket import TokenBucket

SHARE_OF_ALL = 0.75
"""Of what a peer may send: the rest is for frames besides small messages, so that no task has its gateway cut off."""

MOST_SESSIONS = 4096
"""Sessions are remembered while they put; the one that has put nothing for longest is forgotten first."""


class _Gate:
    """A rate, and who waits for it, first come first served."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self.turn = asyncio.Lock()
        self._rate = rate
        self._clock = clock
        self._bucket = TokenBucket(rate, rate * BURST_SECONDS, clock())

    @property
    def pause(self) -> float:
        """Seconds before the next may go, 0 where that is at once; short ones are saved up."""
        self._bucket.fill(self._clock())
        pause = -self._bucket.level / self._rate
        return pause if pause >= SHORTEST_PAUSE_SECONDS else 0.0

    @property
    def is_open(self) -> bool:
        """Whether nobody waits, and nobody has to."""
        return not self.turn.locked() and not self.pause

    @property
    def is_full(self) -> bool:
        """Whether it is as one that was made just now."""
        self._bucket.fill(self._clock())
        return not self.turn.locked() and self._bucket.level >= self._rate * BURST_SECONDS

    def set_rate(self, rate: float) -> None:
        """Another rate from now on."""
        self._bucket.fill(now := self._clock())
        bucket = TokenBucket(rate, rate * BURST_SECONDS, now)
        bucket.level = min(bucket.level, self._bucket.level)
        self._rate, self._bucket = rate, bucket

    def take(self, frames: int) -> None:
        """So many go."""
        self._bucket.level -= frames


class SessionRates:
    """Of one peer. Belongs to the event loop's thread.

    Who waits has put nothing yet, so that nothing is gained by going away before the answer. Sessions take turns: of
    each one at a time waits for the rate of all.
    """

    def __init__(
        self,
        session_rate: float,
        peer_rate: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            session_rate: frames a second of one session.
            peer_rate: frames a second that the peer reads, until it says so itself.
            clock: seconds, of any origin.
            sleep: waits so many of them.
        """
        self._session_rate = session_rate
        self._clock = clock
        self._sleep = sleep
        self._all = _Gate(peer_rate * SHARE_OF_ALL, clock)
        self._of_session: OrderedDict[str, _Gate] = OrderedDict()

    def peer_reads(self, rate: float) -> None:
        """The peer has said how many frames a second it reads."""
        self._all.set_rate(rate * SHARE_OF_ALL)

    def is_open(self, session: str) -> bool:
        """Whether a small message of a session may be put at once."""
        return self._gate(session).is_open and self._all.is_open

    def take(self, session: str, frames: int) -> None:
        """One is put that counts as so many frames."""
        self._gate(session).take(frames)
        self._all.take(frames)

    async def wait(self, session: str, frames: int) -> None:
        """Wait until one may be put, and take it."""
        async with (own := self._gate(session)).turn:
            await self._pass(own)
            async with self._all.turn:
                await self._pass(self._all)
                own.take(frames)
                self._all.take(frames)

    async def _pass(self, gate: _Gate) -> None:
        while pause := gate.pause:
            await self._sleep(pause)

    def _gate(self, session: str) -> _Gate:
        gate = self._of_session.pop(session, None)
        if gate is None:
            gate = _Gate(self._session_rate, self._clock)
        self._of_session[session] = gate
        self._forget()
        return gate

    def _forget(self) -> None:
        """Of each that comes two may go: so those that have long put nothing are soon gone."""
        for _ in range(2):
            oldest = next(iter(self._of_session))
            if len(self._of_session) <= MOST_SESSIONS and not self._of_session[oldest].is_full:
                return
            if len(self._of_session) > 1:
                del self._of_session[oldest]
