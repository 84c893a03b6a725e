"""How fast tasks of one session, and all together, may put small messages for a peer, which reads no faster than so."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from fedrdma_fate.gateway.peers.metering import BURST_SECONDS, frames_counted
from fedrdma_fate.gateway.peers.token_bucket import TokenBucket

SHARE_OF_ALL = 0.75
"""Of what a peer may send: the rest is for frames besides small messages, so that no task has its gateway cut off."""

MOST_SESSIONS = 4096
"""Sessions are remembered while they put; the one that has put nothing for longest is forgotten first."""


class SessionRates:
    """Of one peer. Belongs to the event loop's thread."""

    def __init__(self, session_rate: float, peer_rate: float, clock: Callable[[], float]) -> None:
        """
        Args:
            session_rate: frames a second of one session.
            peer_rate: frames a second that the peer reads.
            clock: seconds, of any origin.
        """
        self._session_rate = session_rate
        self._rate = peer_rate * SHARE_OF_ALL
        self._clock = clock
        self._all = TokenBucket(self._rate, self._rate * BURST_SECONDS, clock())
        self._of_session: OrderedDict[str, TokenBucket] = OrderedDict()

    def note(self, session: str, body_bytes: int) -> None:
        """A small message of a session is sent."""
        now = self._clock()
        own = self._of_session.pop(session, None)
        if own is None:
            own = TokenBucket(self._session_rate, self._session_rate * BURST_SECONDS, now)
        self._of_session[session] = own
        while len(self._of_session) > MOST_SESSIONS:
            self._of_session.popitem(last=False)
        for bucket in (own, self._all):
            bucket.fill(now)
            bucket.level -= frames_counted(body_bytes)

    def pause(self, session: str) -> float:
        """Seconds that the task waits before it may put the next; 0 as long as both rates are kept."""
        own = self._of_session.get(session)
        of_session = 0.0 if own is None else -own.level / self._session_rate
        return max(0.0, of_session, -self._all.level / self._rate)
