"""Sessions that were ended while tasks may still come for them: who comes late is told, and waits for nothing."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

from fedrdma_fate.wire.errors import ErrorCode, GatewayError

REMEMBERED_ENDED = 4096
"""Sessions that have ended here, and as many of each peer's of which nothing was known here."""

REMEMBERED_SECONDS = 86400.0
"""A task that stands in a queue behind other jobs comes within a day; afterwards the session's id is like any other."""


class _End(NamedTuple):
    """Until when it is remembered, why it was, and which sites are told so."""

    until: float
    reason: str
    sites: tuple[str, ...]


class EndedSessions:
    """Belongs to the event loop's thread; `reason` may be called by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: seconds, of any origin.
        """
        self._clock = clock
        self._here: OrderedDict[str, _End] = OrderedDict()
        self._at_peers: dict[str, OrderedDict[str, _End]] = {}

    def add(self, session: str, reason: str, sites: tuple[str, ...] = ()) -> None:
        """A session has ended here, and these sites are told so."""
        self._remember(self._here, session, reason, sites)

    def add_of_peer(self, site: str, session: str, reason: str) -> None:
        """A peer says that a session has ended, of which it is not known here whether the peer is in it."""
        self._remember(self._at_peers.setdefault(site, OrderedDict()), session, reason)

    def reason(self, session: str) -> str | None:
        """Why a session has ended here; None where it has not, or that was long ago."""
        return self._known(self._here, session)

    def here(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Sessions that have ended here, why, and which sites are told so."""
        return [(session, end.reason, end.sites) for session, end in self._here.items()]

    def reason_of_peers(self, session: str, sites: Collection[str] | None) -> str | None:
        """Why it has ended at one of these sites, as that one said; None as the sites: at any."""
        for site, ended in self._at_peers.items():
            if (sites is None or site in sites) and (reason := self._known(ended, session)) is not None:
                return reason
        return None

    def error(self, session: str) -> GatewayError:
        """The error for whoever comes late."""
        return ended_error(session, self.reason(session) or "it is over")

    def _remember(self, ended: OrderedDict[str, _End], session: str, reason: str, sites: tuple[str, ...] = ()) -> None:
        if self._known(ended, session) is None:
            # where it ended before, that was long ago
            ended.pop(session, None)
            ended[session] = _End(self._clock() + REMEMBERED_SECONDS, reason, sites)
        else:
            ended[session] = ended[session]._replace(sites=sites)
        while len(ended) > REMEMBERED_ENDED:
            ended.popitem(last=False)

    def _known(self, ended: OrderedDict[str, _End], session: str) -> str | None:
        end = ended.get(session)
        return end.reason if end is not None and self._clock() < end.until else None


def ended_error(session: str, reason: str) -> GatewayError:
    """The error of a session that has ended."""
    return GatewayError(
        ErrorCode.SESSION_ENDED,
        f"the session {session!r} has ended: {reason}.",
        "Run the job again, as a new session; where it was not to end, see the log of the site that ended it.",
    )
