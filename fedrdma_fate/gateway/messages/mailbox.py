"""Messages that have arrived and wait to be pulled, and pulls that wait for their message.

Some lines more than 500: a message, its pull and the notice that it will not come rule each other out here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from fedrdma_fate.gateway.journal_records import Missed
from fedrdma_fate.gateway.messages.budget import Budget
from fedrdma_fate.gateway.messages.late_messages import LateMessage, LateMessages
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.sessions import Engine, Sessions, mixed_error
from fedrdma_fate.gateway.messages.tolerances import Round, Tolerances
from fedrdma_fate.obs.complaints import EACH_TELLS, Complaints
from fedrdma_fate.ports import Region
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, error_from_code
from fedrdma_fate.wire.frames import MessageKey, Party

logger = logging.getLogger(__name__)

MOST_MIXED = 1024
"""Pairs of parties that are remembered to use two engines: one has said it already in any job that is set up so."""

MOST_UNTOLD = 1024
"""Pairs of parties of which more messages failed than there is room to remember one by one; the oldest goes."""


class Mailbox:
    """Everything that waits at this gateway. Belongs to the event loop's thread.

    Attributes:
        sessions: what was pushed and pulled, and who has left.
        tolerances: what may be missing of messages that are to be pulled.
        on_waiting: called with session and party when something begins to wait for them.
        on_wanted_whole: called with a message of which nothing was let be missing by who gets it, but by who sent it.
        on_lost: called with a message that was here, and is not any more, and why.
        on_turned_away: called with a message that was dropped because its destination's tasks do not know its source.
        on_rejoined: called with session and party when that is in a session again that it had left.
        on_back: called with a message that was dropped because its party left, when that joins the session again.
        is_passed_on: whether a message is for no party of this site: it is for who waits for it just then, or nobody.
    """

    def __init__(
        self, budget: Budget | None = None, complaints: Complaints | None = None, sessions: Sessions | None = None
    ) -> None:
        """
        Args:
            budget: what may wait here of each peer; None: whatever comes.
            complaints: about messages that nobody can have.
            sessions: those of an earlier run.
        """
        self.budget = budget or Budget()
        self._complaints = complaints or Complaints()
        self.on_lost: Callable[[Message, FedRDMAError], object] = lambda _message, _error: None
        self.on_turned_away: Callable[[Message], object] = lambda _message: None
        self.on_rejoined: Callable[[str, Party], object] = lambda _session, _party: None
        self.on_back: Callable[[LateMessage], object] = lambda _late: None
        self.on_wanted_whole: Callable[[Message], object] = lambda _message: None
        self.is_passed_on: Callable[[MessageKey], bool] = lambda _key: False
        self.on_waiting: Callable[[str, Party], object] = lambda _session, _party: None
        self.sessions = sessions or Sessions()
        self.tolerances = Tolerances()
        self._messages: dict[MessageKey, Message] = {}
        self._failed: dict[MessageKey, tuple[str, str, str]] = {}
        self._waiting: dict[MessageKey, asyncio.Future[Message]] = {}
        self._in_doubt: set[MessageKey] = set()
        self._mixed: dict[tuple[str, Party, Party], MessageKey] = {}
        self._untold: OrderedDict[tuple[str, Party, Party], tuple[str, str]] = OrderedDict()
        self._late = LateMessages()

    def join(self, session: str, party: Party, parties: Iterable[Party] | None, engine: Engine | None = None) -> None:
        """A task attached and names who is in the session: what came before it from others is dropped."""
        had_left = self.sessions.is_closed(session, party)
        self.sessions.join(session, party, parties, engine)
        for key in [key for key in self._messages if key.session == session and key.destination == party]:
            if not self.sessions.admits(key):
                self._turn_away(self._remove(key))
        for key in [key for key in self._failed if key.session == session and key.destination == party]:
            if not self.sessions.admits(key):
                self._forget_failure(key)
        for late in self._late.take(session, party):
            self.on_back(late)
        if had_left:
            self.on_rejoined(session, party)

    def restore_late(self, late: LateMessage) -> None:
        """An earlier run has noted it; where its party is back, that run may have asked about it, or not."""
        if self.sessions.has_joined(late.key.session, late.key.destination):
            self.on_back(late)
        else:
            self._late.add(late)

    def tolerate(self, round_: Round) -> None:
        """A task lets something be missing of messages that it will get."""
        self.tolerances.begin(round_)
        for key in round_.awaited:
            if (message := self.find(key)) is not None:
                self.tolerances.came(key, message.seconds)

    def note_mixed(self, key: MessageKey) -> None:
        """A message is not taken where it is of another engine than its destination's: who waits for others is told."""
        if not self.sessions.is_of_another_engine(key):
            return
        if len(self._mixed) < MOST_MIXED:
            self._mixed[_pair(key)] = key
        for waits, future in self._waiting.items():
            if _pair(waits) == _pair(key) and not future.done():
                future.set_exception(mixed_error(key))

    def _turn_away(self, message: Message) -> None:
        self.note_mixed(message.key)
        # in this order: who is not told of it by this run is told by the next, which finds it
        self.on_turned_away(message)
        message.discard()

    def leave(self, session: str, party: Party) -> int:
        """The party left: drop what waits for it, refuse what it waits for; how many messages were dropped."""
        self.sessions.leave(session, party)
        self.tolerances.leave(session, party)
        self._mixed = {pair: key for pair, key in self._mixed.items() if pair[:2] != (session, party)}
        for pair in [pair for pair in self._untold if pair[:2] == (session, party)]:
            del self._untold[pair]
        self._in_doubt = {each for each in self._in_doubt if (each.session, each.destination) != (session, party)}
        for key, (*_, origin) in self._failed.items():
            if not origin and (key.session, key.destination) == (session, party):
                # of this site: other sites are asked about theirs
                self.note_late(LateMessage(key, "", 0))
        # nobody has pulled them: should the party be back, they are missed as those that come from now on are
        dropped, _ = self._drop(lambda key, _: key.session == session and key.destination == party, self._note_late)
        for key, future in self._waiting.items():
            if key.session == session and key.destination == party and not future.done():
                future.set_exception(self.sessions.closed_error(session, party))
        return dropped

    def end(self, session: str, reason: str, sites: tuple[str, ...] = ()) -> tuple[int, int]:
        """A session is over, and these sites are told so: drop what waits of it, refuse who waits for it.

        Returns:
            how many messages and bytes that were.
        """
        self.sessions.end(session, reason, sites)
        self.tolerances.end(session)
        self._late.end(session)
        self._mixed = {pair: key for pair, key in self._mixed.items() if pair[0] != session}
        for pair in [pair for pair in self._untold if pair[0] == session]:
            del self._untold[pair]
        self._in_doubt = {each for each in self._in_doubt if each.session != session}
        dropped = self._drop(lambda key, _: key.session == session)
        for key, future in self._waiting.items():
            if key.session == session and not future.done():
                future.set_exception(self.sessions.ended.error(session))
        return dropped

    def note_late(self, late: LateMessage) -> None:
        """Nobody of its party has pulled it, and that has left."""
        self._late.add(late)
        self.sessions.record(Missed(late.origin, late.transfer, late.key))

    def _note_late(self, message: Message) -> None:
        self.note_late(LateMessage(message.key, message.origin, message.transfer))

    def _drop(
        self, is_over: Callable[[MessageKey, str], bool], note: Callable[[Message], object] = lambda _message: None
    ) -> tuple[int, int]:
        """Drop messages, each noted before, and notices of such as will not come, by key and origin; how many messages
        and bytes."""
        gone = [message for key, message in self._messages.items() if is_over(key, message.origin)]
        for message in gone:
            note(message)
            self._remove(message.key).discard()
        for key in [key for key, (*_, origin) in self._failed.items() if is_over(key, origin)]:
            self._forget_failure(key)
        return len(gone), sum(message.total_bytes for message in gone)

    # -- arriving -------------------------------------------------------------------------------------------------

    def deliver(self, message: Message) -> bool:
        """Keep a message for its destination; False when it is a second one or nobody is left to pull it."""
        key = message.key
        if not self.sessions.admits(key):
            # a task attached while it was on its way
            self._turn_away(message)
            return False
        future = self._waiting.get(key)
        answered = _has_message(future)
        closed = self.sessions.is_closed(key.session, key.destination)
        of_nobody = self._is_of_nobody(key)
        if closed or answered or key in self._messages or self._is_pulled(key) or of_nobody:
            reason = "its party has left" if closed else "nobody waits for it" if of_nobody else "it is here already"
            told, origin = "dropped %s: %s", message.origin or "tasks of this site"
            self._complaints.add(
                logger, "dropped message", origin, told, key, reason, level=logging.INFO, lines=EACH_TELLS
            )
            if closed:
                self._note_late(message)
            message.discard()
            return False
        self._forget_failure(key)
        self.tolerances.came(key, message.seconds)
        if future is not None and not future.done():
            future.set_result(message)
        else:
            # a pull that was refused, and has not had its turn yet, does not get it: it is for the next one
            self._keep(message)
            self.on_waiting(key.session, key.destination)
        return True

    def fail(self, key: MessageKey, code: str, reason: str, origin: str = "") -> str:
        """A message will never come: tell whoever waits for it, or will. May be repeated.

        Returns:
            why a notice of a peer's is not kept for whoever will wait, or an empty string. Then whoever waits for any
            message of that source which is not here is told.
        """
        if self.sessions.is_closed(key.session, key.destination):
            if not origin:
                self.note_late(LateMessage(key, "", 0))
            return ""
        if key in self._messages or self._is_pulled(key) or not self.sessions.admits(key) or self._is_of_nobody(key):
            return ""
        future = self._waiting.get(key)
        if _has_message(future):
            # it is here, and its pull has only not had its turn yet
            return ""
        self._forget_failure(key)
        if future is not None and not future.done():
            future.set_exception(_failure(key, code, reason))
            if self.is_passed_on(key):
                return ""
        if objection := self.budget.objection(origin, key, 0):
            self._untold[_pair(key)] = code, reason
            if len(self._untold) > MOST_UNTOLD:
                self._untold.popitem(last=False)
            return objection
        self._failed[key] = (code, reason, origin)
        self.budget.add(origin, key, 0)
        self.on_waiting(key.session, key.destination)
        return ""

    # -- pulling --------------------------------------------------------------------------------------------------

    async def take(
        self, key: MessageKey, timeout: float | None, note: Callable[[Message], object] | None = None
    ) -> Message:
        """The message, as soon as it is here; it then belongs to the caller.

        Args:
            key: the message.
            timeout: seconds to wait; None waits for ever.
            note: called, instead of `Sessions.note_pull`, when it is the caller's.

        Raises:
            GatewayError: DUPLICATE_PULL, PULL_TIMEOUT after `timeout` seconds, SESSION_CLOSED.
            FedRDMAError: why it will not come.
        """
        while True:
            self._check_pull(key)
            message = self._messages.get(key)
            if message is None:
                self._check_untold(key)
                message = await self._wait(key, timeout)
            elif message.moving is not None:
                await asyncio.wait([message.moving])
                continue
            if self._messages.get(key) is message:
                self._remove(key)
            if self.sessions.is_closed(key.session, key.destination):
                # its party left before this had its turn
                self._discard_unpulled(message)
                continue
            if note is None:
                self.sessions.note_pull(key)
            else:
                note(message)
            return message

    def _check_pull(self, key: MessageKey) -> None:
        if self.sessions.is_closed(key.session, key.destination):
            raise self.sessions.closed_error(key.session, key.destination)
        if key in self._waiting or self.sessions.was_pulled(key):
            raise GatewayError(ErrorCode.DUPLICATE_PULL, f"{key} was pulled before.", "Pull each message once.")
        if (mixed := self._mixed.get(_pair(key))) is not None:
            raise mixed_error(mixed)
        if key in self._failed:
            code, reason, _ = self._failed[key]
            raise _failure(key, code, reason)

    def _check_untold(self, key: MessageKey) -> None:
        """It is not here, and nobody knows any more whether it is one of those that will not come."""
        if (failure := self._untold.get(_pair(key))) is not None:
            code, reason = failure
            raise error_from_code(
                code,
                f"{key} is not here. Of {key.source} more messages in this session failed than can be kept in mind "
                f"here, and it may be one of them: {reason}",
            )

    async def _wait(self, key: MessageKey, timeout: float | None) -> Message:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            await asyncio.wait([future], timeout=timeout)
        except asyncio.CancelledError:
            self._put_back(future)
            raise
        finally:
            del self._waiting[key]
        if not future.done():
            raise GatewayError(
                ErrorCode.PULL_TIMEOUT,
                f"{key} did not come within {timeout:g} s.",
                "See in `fedrdma status` whether its peer is connected, and in the other site's log whether it was "
                "pushed.",
            )
        return future.result()

    def pass_by(self, key: MessageKey) -> bool:
        """Whoever waited for it was told that it will not come, and waits for another: as if it was pulled.

        Returns:
            whether there is a notice that it will not come.
        """
        if key not in self._failed:
            return False
        self.sessions.note_pull(key)
        self._forget_failure(key)
        return True

    def return_(self, message: Message) -> None:
        """A message that was taken could not be handed over: it waits again, for the same pull made anew."""
        key = message.key
        if self._is_replaced(message):
            self._discard_unpulled(message)
            return
        self.sessions.forget_pull(key)
        self._keep(message)
        self.on_waiting(key.session, key.destination)

    def doubt(self, key: MessageKey) -> None:
        """A task of an earlier run has pulled it, and may not have got it: should it come once more, it is kept."""
        self._in_doubt.add(key)

    def settle(self, key: MessageKey, *, got: bool) -> None:
        """Whether that task has got it: else it is to be had as if nobody had pulled it, or is when it comes."""
        if key not in self._in_doubt:
            # its session is over, or its party has left
            return
        self._in_doubt.remove(key)
        if not got:
            self.sessions.forget_pull(key)
            return
        self._forget_failure(key)
        if key in self._messages:
            self._remove(key).discard()

    def _is_pulled(self, key: MessageKey) -> bool:
        return self.sessions.was_pulled(key) and key not in self._in_doubt

    def _is_of_nobody(self, key: MessageKey) -> bool:
        return self.is_passed_on(key) and ((future := self._waiting.get(key)) is None or future.done())

    def _put_back(self, future: asyncio.Future[Message]) -> None:
        """The task went away just when it was to get its message, which stays for another one of its party."""
        if not future.done() or future.exception() is not None:
            return
        message = future.result()
        if self._is_replaced(message):
            self._discard_unpulled(message)
        else:
            self._keep(message)

    def _discard_unpulled(self, message: Message) -> None:
        key = message.key
        if self.sessions.is_closed(key.session, key.destination) and self.sessions.ended.reason(key.session) is None:
            self._note_late(message)
        message.discard()

    def _is_replaced(self, message: Message) -> bool:
        """Nobody is left to pull it, or its party has left, and come back, and another one of its name is here."""
        key = message.key
        return self.sessions.is_closed(key.session, key.destination) or key in self._messages

    def _keep(self, message: Message) -> None:
        self._messages[message.key] = message
        self.budget.add(message.counts_as, message.key, message.total_bytes)

    def _remove(self, key: MessageKey) -> Message:
        message = self._messages.pop(key)
        self.budget.remove(message.counts_as, key, message.total_bytes)
        return message

    def _forget_failure(self, key: MessageKey) -> None:
        if key in self._failed:
            self.budget.remove(self._failed.pop(key)[2], key, 0)

    def discard(self, key: MessageKey) -> None:
        """Nobody needs this message, if it is here: what it says has come otherwise."""
        if (message := self._messages.get(key)) is not None:
            self._remove(key)
            message.discard()

    def refuse_all(self, error: FedRDMAError) -> None:
        """The gateway stops: refuse everybody who waits."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    # -- looking --------------------------------------------------------------------------------------------------

    def objection(self, origin: str, key: MessageKey, total_bytes: int) -> str:
        """Why a message of a peer, or of `name_of_pusher`, is not taken, or empty; what is waited for always is."""
        return "" if self.is_awaited(key) else self.budget.objection(origin, key, total_bytes)

    def has(self, key: MessageKey) -> bool:
        """Whether a message waits here; any thread may ask."""
        return key in self._messages

    def is_awaited(self, key: MessageKey) -> bool:
        """Whether a pull waits for this message."""
        return key in self._waiting

    @property
    def waiting_pulls(self) -> int:
        """Pulls that wait for their message; safe from any thread."""
        return len(self._waiting)

    def in_region(self, region: Region) -> Iterator[Message]:
        """Messages in this region that nobody has pulled and that could be spilled, the longest waiting first."""
        return (
            message
            for message in self._messages.values()
            if message.lease is not None and message.moving is None and message.lease.slot.region is region
        )

    def summary(self) -> dict[str, int]:
        """Counts and bytes, for status."""
        spilled = [m.total_bytes for m in self._messages.values() if m.spilled is not None]
        return {
            "messages": len(self._messages),
            "message_bytes": sum(m.total_bytes for m in self._messages.values()),
            "spilled_messages": len(spilled),
            "spilled_bytes": sum(spilled),
            "waiting_pulls": self.waiting_pulls,
            "sessions": self.sessions.count,
        }

    def all_messages(self) -> Iterable[Message]:
        """All that nobody has pulled."""
        return self._messages.values()

    def find(self, key: MessageKey) -> Message | None:
        """One that nobody has pulled, None where there is none."""
        return self._messages.get(key)

    def holds(self, session: str) -> bool:
        """Whether anything of it waits here: a message, a notice that one will not come, a pull."""
        return any(key.session == session for keys in (self._messages, self._failed, self._waiting) for key in keys)

    def sources(self, session: str) -> set[Party]:
        """Whose messages of it wait here, or are waited for."""
        kept = (self._messages, self._failed, self._waiting)
        return {key.source for keys in kept for key in keys if key.session == session}

    def awaited_keys(self) -> Iterable[MessageKey]:
        """Messages that pulls wait for."""
        return self._waiting

    def awaited(self, session: str) -> set[Party]:
        """Whose messages of it pulls wait for."""
        return {key.source for key in self._waiting if key.session == session}

    def drop_of(self, origin: str, session: str) -> tuple[int, int]:
        """Drop what waits of a site's in a session; how many messages and bytes that were."""
        if not self.budget.has(origin, session):
            return 0, 0
        return self._drop(lambda key, by: key.session == session and by == origin)

    def waits_here(self, message: Message) -> bool:
        """Whether nobody has pulled this message yet."""
        return self._messages.get(message.key) is message

    def moves_under_way(self) -> list[asyncio.Task[None]]:
        """Messages just being moved."""
        return [m.moving for m in self._messages.values() if m.moving is not None]

    def discard_all(self) -> None:
        """Drop every message: the gateway is going away."""
        for key in list(self._messages):
            self._remove(key).discard()


def _pair(key: MessageKey) -> tuple[str, Party, Party]:
    return key.session, key.destination, key.source


def _has_message(pull: asyncio.Future[Message] | None) -> bool:
    """Whether a pull has got its message, and at most had no turn since."""
    return pull is not None and pull.done() and not pull.cancelled() and pull.exception() is None


def _failure(key: MessageKey, code: str, reason: str) -> FedRDMAError:
    return error_from_code(code, f"{key} will not come: {reason}")
