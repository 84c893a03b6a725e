"""Ends sessions: one that nobody lives in at any site, one that somebody drops, one that has ended at another site.

Each site looks for itself: when a session has had no task here for `timeouts.session`, it asks the other sites in it
for how long they have had none, and waits for the last of them. docs/sessions.md has it all.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping

from fedrdma_fate.gateway.background import TimerHandle
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.ended import REMEMBERED_ENDED, REMEMBERED_SECONDS, ended_error
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.tasks.presence import Presence
from fedrdma_fate.gateway.tasks.user_sessions import UserSessions
from fedrdma_fate.obs.complaints import EACH_TELLS, cut
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party, SessionAsk, SessionEnd, SessionIdle

logger = logging.getLogger(__name__)

MOST_ASKS = 3
"""Of a peer that is connected and does not answer; then it counts as having no task."""

SHORTEST_WAIT_FRACTION = 1 / 20
"""Of `timeouts.session`, between two rounds of questions, whatever a peer answers."""


@dataclasses.dataclass(slots=True)
class _Round:
    """Questions about a session.

    Attributes:
        unanswered: sites that have still to say for how long they have had no task.
        wait: seconds until the last of those that have answered, or are away, will have had none for long enough.
        number: how many rounds there have been in which somebody did not answer.
    """

    unanswered: set[str]
    wait: float
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Dropped:
    """What was dropped with a session.

    Attributes:
        messages: that nobody had pulled.
        total_bytes: of them.
        told: sites that were told.
        untold: sites that are told when they are connected again.
    """

    messages: int
    total_bytes: int
    told: tuple[str, ...]
    untold: tuple[str, ...]


class SessionEnds:
    """Belongs to the event loop's thread.

    Attributes:
        presence: which sessions have tasks here.
        users: in how many sessions tasks of listed users are.
    """

    def __init__(
        self,
        context: GatewayContext,
        peers: Mapping[str, Peer],
        call_later: Callable[[float, Callable[[], None]], TimerHandle] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            context: the gateway's.
            peers: the other sites, by their names.
            call_later: calls something on this thread after so many seconds; None: the running loop's.
            clock: seconds, of any origin; None: the running loop's.
        """
        loop = asyncio.get_running_loop()
        self._context = context
        self._peers = peers
        self._clock = clock or loop.time
        self._patience = context.config.timeouts.session
        self._rounds: dict[str, _Round] = {}
        self._to_tell: dict[str, dict[str, tuple[float, SessionEnd]]] = {}
        self.presence = Presence(self._on_idle, call_later or loop.call_later, self._clock, self._patience)
        self.users = UserSessions()
        context.mailbox.on_waiting = lambda session, _party: self.presence.expect(session)
        self._of_earlier_run = set(context.mailbox.sessions.known())
        for session in self._of_earlier_run:
            # whose tasks may never come back
            self.presence.expect(session)
        for session, reason, sites in context.mailbox.sessions.ended.here():
            # of an earlier run, which may not have told all of them
            for site in peers.keys() & {*sites}:
                self._keep_telling(site, SessionEnd(session, reason))
        for peer in peers.values():
            peer.session_talk = self

    def close(self) -> None:
        """Nobody is waited for any more."""
        self.presence.close()

    # -- tasks ----------------------------------------------------------------------------------------------------

    def check_open(self, session: str, parties: tuple[Party, ...] | None) -> None:
        """See that a task may attach to a session, with these parties in it; None: it does not know.

        Raises:
            GatewayError: SESSION_ENDED.
        """
        ended = self._context.mailbox.sessions.ended
        if ended.reason(session) is not None:
            raise ended.error(session)
        sites = None if parties is None else {self._context.routes.find(party) or "" for party in parties}
        if (reason := ended.reason_of_peers(session, sites)) is not None:
            # tasks that are in it have not named that site
            if not self.presence.has_tasks(session):
                self._end(session, reason)
            raise ended_error(session, reason)

    def expect(self, session: str, party: Party) -> None:
        """A task of an earlier run may come back."""
        self._of_earlier_run.add(session)
        self.arrive(session, party)

    def arrive(self, session: str, party: Party) -> None:
        """A task attached."""
        self._rounds.pop(session, None)
        self.presence.arrive(session, party)

    def depart(self, session: str, party: Party) -> None:
        """A task ended."""
        if self.presence.depart(session, party) and not self._is_held(session):
            self.presence.forget(session)

    def forgotten_here(self, session: str) -> None:
        """A task goes on in a session that no journal knows: it ends at all sites, for nobody can say what was lost.

        Where the task has not said who is in it, all peers are told.
        """
        if session in self._of_earlier_run:
            return
        reason = _lost_journal(self._context.config.site)
        others = set() if self.sites(session) else set(self._peers)
        self._end(session, reason, others=others)

    def drop(self, session: str) -> Dropped:
        """Somebody who may drops a session, at all sites.

        Raises:
            GatewayError: SESSION_ENDED where there is none of that id.
        """
        ended = self._context.mailbox.sessions.ended
        if ended.reason(session) is not None:
            raise ended.error(session)
        if session not in self.presence and not self._is_held(session):
            raise GatewayError(
                ErrorCode.SESSION_ENDED,
                f"this gateway knows no session {cut(session)!r}.",
                "`fedrdma sessions` lists those that it knows; one that is over everywhere is not listed any more.",
            )
        return self._end(session, f"it was dropped at {self._context.config.site}")

    # -- sites ----------------------------------------------------------------------------------------------------

    def on_frame(self, site: str, frame: SessionAsk | SessionIdle | SessionEnd) -> None:
        """See `SessionTalk`."""
        session = frame.session
        match frame:
            case SessionAsk():
                if session not in self.presence or self._is_in(site, session):
                    self._peers[site].send(SessionIdle(session, self.presence.idle_seconds(session)))
            case SessionIdle(seconds=seconds):
                self._on_answer(site, session, seconds)
            case SessionEnd(reason=reason):
                if self._context.mailbox.sessions.ended.reason(session) is None:
                    self._end_for(site, session, f"{cut(reason)} (told by {site})", told_by=site)

    def online(self, site: str) -> None:
        """See `SessionTalk`: tell what it may have missed."""
        for until, end in self._to_tell.get(site, {}).values():
            # later, its id may be that of another session
            if self._clock() < until:
                self._send_end(site, end)

    def forgotten(self, site: str, confirmed: Collection[str]) -> None:
        """See `SessionTalk`: nobody knows what it had, so sessions end in which it has had part, and all are told.

        That is where something has come from it, or is waited for, or it has confirmed something. Others go on.
        """
        reason = _lost_journal(site)
        mailbox, find = self._context.mailbox, self._context.routes.find
        known = mailbox.sessions.known()
        of_site = {*confirmed, *mailbox.budget.sessions(site)}
        of_site.update(key.session for key in mailbox.awaited_keys() if find(key.source) == site)
        of_site.update(each for each in known if any(find(party) == site for party in mailbox.sessions.sources(each)))
        for session in of_site:
            if mailbox.sessions.ended.reason(session) is None:
                self._end_for(site, session, reason)

    def _end_for(self, site: str, session: str, reason: str, told_by: str = "") -> None:
        """It has ended at a site: so it has here, where the site is in it."""
        if self._may_end(site, session):
            self._end(session, reason, told_by)
        else:
            # a task may yet come, and say that the peer is in it
            self._context.mailbox.sessions.ended.add_of_peer(site, session, reason)
            self._drop_of(site, session, reason)

    def _is_in(self, site: str, session: str) -> bool:
        """Whether a peer is one of `sites`; it may ask often, so nothing is walked through that it can make long."""
        return self._context.mailbox.budget.has(site, session) or self._is_known_in(site, session)

    def _may_end(self, site: str, session: str) -> bool:
        """Whether a peer is in it by what tasks here say or do: any can send messages of any session ahead of them."""
        mailbox = self._context.mailbox
        if mailbox.budget.has(site, session) and mailbox.sessions.admits_all(session):
            return True
        return self._is_known_in(site, session)

    def _is_known_in(self, site: str, session: str) -> bool:
        mailbox = self._context.mailbox
        parties = mailbox.sessions.others(session) | mailbox.awaited(session)
        named = any(self._context.routes.find(party) == site for party in parties)
        return named or self._peers[site].sending.holds(session)

    def _drop_of(self, site: str, session: str, reason: str) -> None:
        """What waits of a site's goes, as it wishes; what waits of others' in the same session stays."""
        messages, total_bytes = self._context.mailbox.drop_of(site, session)
        if not messages:
            return
        self._context.complaints.add(
            logger,
            "session ended",
            "sessions",
            "%s messages, %s bytes, of %s in the session %s were dropped: %s",
            messages,
            total_bytes,
            site,
            session,
            reason,
            lines=EACH_TELLS,
        )
        if not self._is_held(session):
            self._forget(session)

    def sites(self, session: str) -> set[str]:
        """The other sites that parties here exchange messages of this session with."""
        mailbox = self._context.mailbox
        parties = mailbox.sessions.others(session) | mailbox.sources(session)
        sites = {site for party in parties if (site := self._context.routes.find(party)) is not None}
        sites.update(site for site, peer in self._peers.items() if peer.sending.holds(session))
        return sites & self._peers.keys()

    # -- deciding -------------------------------------------------------------------------------------------------

    def _on_idle(self, session: str) -> None:
        if self.presence.has_tasks(session):
            return
        if not self._is_held(session):
            self._forget(session)
            return
        before = self._rounds.pop(session, None)
        missed = 0 if before is None else before.number + bool(before.unanswered)
        sites = self.sites(session)
        away = [site for site in sites if not self._peers[site].connected]
        wait = max((self._patience - self._away_seconds(site) for site in away), default=0.0)
        asked = {site for site in sites - {*away} if self._knows_sessions(site)} if missed < MOST_ASKS else set()
        self._rounds[session] = _Round(set(asked), wait, missed)
        if not asked:
            self._decide(session)
            return
        self.presence.look_again(session, self._pause(self._context.config.timeouts.peer_silence))
        for site in asked:
            self._peers[site].send(SessionAsk(session))

    def _on_answer(self, site: str, session: str, seconds: float) -> None:
        asked = self._rounds.get(session)
        if asked is None or site not in asked.unanswered:
            return
        asked.unanswered.discard(site)
        asked.wait = max(asked.wait, self._patience - max(0.0, seconds))
        if not asked.unanswered:
            self._decide(session)

    def _decide(self, session: str) -> None:
        """All have answered."""
        asked = self._rounds[session]
        if asked.wait > 0:
            asked.number = 0
            self.presence.look_again(session, self._pause(asked.wait))
            return
        self._end(session, f"no site had a task in it for {self._patience:g} s")

    def _pause(self, seconds: float) -> float:
        return min(max(seconds, self._patience * SHORTEST_WAIT_FRACTION), self._patience)

    def _away_seconds(self, site: str) -> float:
        """For how long nothing was heard of a site: who was there so long ago has no task that waits for us."""
        return self._clock() - self._peers[site].offline_since

    def _knows_sessions(self, site: str) -> bool:
        hello = self._peers[site].hello
        return hello is not None and hello.sessions

    def _is_held(self, session: str) -> bool:
        """Whether anything is here that would go with it."""
        mailbox = self._context.mailbox
        if mailbox.sessions.remembers(session) or mailbox.holds(session):
            return True
        return any(peer.sending.holds(session) for peer in self._peers.values())

    # -- ending ---------------------------------------------------------------------------------------------------

    def _end(self, session: str, reason: str, told_by: str = "", others: Collection[str] = ()) -> Dropped:
        sites = (self.sites(session) | {*others}) - {told_by}
        messages, total_bytes = self._context.mailbox.end(session, reason, tuple(sorted(sites)))
        for peer in self._peers.values():
            peer.sending.end_session(session)
        self.users.end(session)
        self._forget(session)
        self._context.trace.session_ended(session, reason, messages, total_bytes)
        self._context.complaints.add(
            logger,
            "session ended",
            "sessions",
            "the session %s has ended: %s; %s messages, %s bytes, were dropped",
            session,
            reason,
            messages,
            total_bytes,
            lines=EACH_TELLS,
        )
        told = {site for site in sites if self._tell(site, SessionEnd(session, reason))}
        return Dropped(messages, total_bytes, tuple(sorted(told)), tuple(sorted(sites - told)))

    def _forget(self, session: str) -> None:
        self._rounds.pop(session, None)
        self.presence.forget(session)

    def _tell(self, site: str, end: SessionEnd) -> bool:
        """Tell a site, now and on each new channel; whether it is there."""
        self._keep_telling(site, end)
        return self._send_end(site, end)

    def _keep_telling(self, site: str, end: SessionEnd) -> None:
        to_tell = self._to_tell.setdefault(site, {})
        to_tell[end.session] = self._clock() + REMEMBERED_SECONDS, end
        while len(to_tell) > REMEMBERED_ENDED:
            del to_tell[next(iter(to_tell))]

    def _send_end(self, site: str, end: SessionEnd) -> bool:
        return self._knows_sessions(site) and self._peers[site].send(end)


def _lost_journal(site: str) -> str:
    return f"the gateway of {site} has lost its journal, or a part of it, and so what it had of the session"
