"""What each federation session has pushed and pulled at this gateway, and who has left it."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from fedrdma_fate.gateway.journal_records import (
    Joined,
    Left,
    Over,
    Pulled,
    Pushed,
    PushFailed,
    SessionRecord,
    Told,
    Unpulled,
    Unpushed,
)
from fedrdma_fate.gateway.messages.budget import units
from fedrdma_fate.gateway.messages.closed_parties import ClosedParties
from fedrdma_fate.gateway.messages.ended import EndedSessions
from fedrdma_fate.gateway.messages.open_parties import OpenParties
from fedrdma_fate.gateway.messages.queue_numbers import QUEUE_TAG, QueueNumbers
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, error_from_code
from fedrdma_fate.wire.frames import MOST_PARTIES, MessageKey, Party

MOST_REMEMBERED = 1 << 18
"""Messages of which it is remembered that they were pushed, or pulled, of all sessions; one with long names counts as
several (`budget.units`). Some 100 MB. Of older ones it is not noticed any more that they are pushed or pulled twice."""

Engine = Literal["fedrdma", "osx"]
"""By what a party's tasks exchange messages: FATE's federation of ours, or FATE's for OSX. Their payloads differ."""

MOST_FAILURES = 1024
"""Failures of pushes that a party is still to be told, one at each call: the first says what is wrong."""


class Push(NamedTuple):
    """How a message was pushed: by which task, the payload's digest where known, and why it failed, where it did."""

    client: str = ""
    digest: int | None = None
    failed: str = ""


_UNKNOWN = Push()


class Pull(NamedTuple):
    """By which task a message was pulled, and by which of its gets, where no message of the journal says so."""

    client: str = ""
    asked: int = 0


_KNOWN = Pull()


@dataclasses.dataclass(slots=True)
class _Session:
    """One session.

    Attributes:
        pushed: by parties of this gateway, in their order.
        pulled: by parties of this gateway, in their order.
        failures: of pushes, which their party has not been told yet, each with its message.
        others: parties that those were pushed to and pulled from, and how many messages.
        sources: those that were pulled from.
        units: as how many messages those that were pushed or pulled count.
    """

    pushed: OrderedDict[MessageKey, Push] = dataclasses.field(default_factory=OrderedDict)
    pulled: OrderedDict[MessageKey, Pull] = dataclasses.field(default_factory=OrderedDict)
    failures: dict[Party, list[tuple[MessageKey, FedRDMAError]]] = dataclasses.field(default_factory=dict)
    others: Counter[Party] = dataclasses.field(default_factory=Counter)
    sources: Counter[Party] = dataclasses.field(default_factory=Counter)
    units: int = 0

    @property
    def empty(self) -> bool:
        return not (self.pushed or self.pulled or self.failures)

    def forget_oldest(self) -> None:
        """Forget one message, where there is any: the oldest of those that are more, pushed or pulled."""
        messages: OrderedDict[MessageKey, Any] = max(self.pushed, self.pulled, key=len)
        key, _ = messages.popitem(last=False)
        self._count(key, messages, -1)

    def add_push(self, key: MessageKey, push: Push) -> None:
        """One more that was pushed."""
        self.pushed[key] = push
        self._count(key, self.pushed, 1)

    def add_pull(self, key: MessageKey, pull: Pull) -> None:
        """One more that was pulled."""
        self.pulled[key] = pull
        self._count(key, self.pulled, 1)

    def forget(self, messages: OrderedDict[MessageKey, Any], gone: list[MessageKey]) -> None:
        """Forget some that were pushed, or some that were pulled."""
        for key in gone:
            self._count(key, messages, -1)
        if len(gone) == len(messages):
            # to look for each takes seconds where there are very many
            messages.clear()
            return
        for key in gone:
            del messages[key]

    def _count(self, key: MessageKey, messages: OrderedDict[MessageKey, Any], change: int) -> None:
        self.units += change * units(key)
        other = key.source if messages is self.pulled else key.destination
        for parties in (self.others, self.sources) if messages is self.pulled else (self.others,):
            parties[other] += change
            if not parties[other]:
                del parties[other]


class Sessions:
    """Belongs to the event loop's thread.

    Attributes:
        ended: those that are over, and why.
        queues: how far they have come.
        record: called with each change, for the journal.
        open: who is in them.
    """

    def __init__(self) -> None:
        self.ended = EndedSessions()
        self.queues = QueueNumbers()
        self.record: Callable[[SessionRecord], object] = lambda _record: None
        self._sessions: dict[str, _Session] = {}
        self._closed = ClosedParties()
        self.open = OpenParties()
        self._engines: dict[tuple[str, Party], Engine] = {}
        self._units = 0
        # of those that there are the one of which most is remembered, or an earlier one
        self._largest = ""

    @property
    def count(self) -> int:
        """Sessions of which anything is remembered but that they are closed."""
        return len(self._sessions)

    def join(
        self, session: str, party: Party, parties: Iterable[Party] | None = None, engine: Engine | None = None
    ) -> None:
        """A new task of this party attached, and names everybody in the session; None: it does not know.

        Raises:
            GatewayError: LIMIT_REACHED where its tasks have named more than a session can have, SESSION_ENDED,
                ENGINES_MIXED; then it did not join.
        """
        if self.ended.reason(session) is not None:
            raise self.ended.error(session)
        known = self.open.named(session, party, frozenset())
        named = None if parties is None or known is None else known | {*parties}
        if named is not None and len(named) > MOST_PARTIES:
            raise GatewayError(
                ErrorCode.LIMIT_REACHED,
                f"tasks of {party} name {len(named)} parties of the session {session!r}; {MOST_PARTIES} is the limit.",
                "Name the same ones in all tasks of a job.",
            )
        if engine is not None:
            if self._engines.get((session, party), engine) != engine:
                raise GatewayError(
                    ErrorCode.ENGINES_MIXED,
                    f"tasks of {party} are in the session {session!r} by both engines, osx and fedrdma.",
                    "Set one and the same federation engine for all parties of a job.",
                )
            self._engines[session, party] = engine
        self._closed.remove(session, party)
        if (session, party) in self.open and named == known:
            return
        self.open.add(session, party, named)
        self.record(Joined(session, party, _listed(named)))

    def admits(self, key: MessageKey) -> bool:
        """Whether the session goes on, and tasks of the destination, if there have been any, know the source in it."""
        is_in = self.ended.reason(key.session) is None and self.names(key.session, key.destination, key.source)
        return is_in and not self.is_of_another_engine(key)

    def is_of_another_engine(self, key: MessageKey) -> bool:
        """Whether the tasks of the destination use another engine than the one that the message comes by."""
        engine = self._engines.get((key.session, key.destination))
        return engine is not None and engine != engine_of(key)

    def names(self, session: str, party: Party, other: Party) -> bool:
        """Whether the tasks of a party that is here may exchange messages with another party."""
        named = self.open.named(session, party, None)
        return named is None or other in named

    def has_joined(self, session: str, party: Party) -> bool:
        """Whether a task of this party has attached, and it has not left."""
        return (session, party) in self.open

    def leave(self, session: str, party: Party) -> None:
        """The party left: forget what it did."""
        self.record(Left(session, party))
        self.open.remove(session, party)
        self._engines.pop((session, party), None)
        self._closed.add(session, party)
        self.queues.leave(session, party)
        state = self._sessions.get(session)
        if state is None:
            return
        before = state.units
        state.forget(state.pushed, [key for key in state.pushed if key.source == party])
        state.forget(state.pulled, [key for key in state.pulled if key.destination == party])
        self._units -= before - state.units
        state.failures.pop(party, None)
        if state.empty:
            del self._sessions[session]

    def end(self, session: str, reason: str, sites: tuple[str, ...] = ()) -> None:
        """A session is over, and these sites are told so: forget all of it but that."""
        self.record(Over(session, reason, sites))
        self.ended.add(session, reason, sites)
        self._closed.forget(session)
        self.queues.end(session)
        self.open.end(session)
        for place in [place for place in self._engines if place[0] == session]:
            del self._engines[place]
        if (state := self._sessions.pop(session, None)) is not None:
            self._units -= state.units

    def is_closed(self, session: str, party: Party) -> bool:
        """Whether this party has left the session, or it has ended."""
        return (session, party) in self._closed or self.ended.reason(session) is not None

    def closed_error(self, session: str, party: Party) -> GatewayError:
        """The error for a party that has left, or whose session has ended."""
        if self.ended.reason(session) is not None:
            return self.ended.error(session)
        return GatewayError(
            ErrorCode.SESSION_CLOSED,
            f"{party} has left the session {session!r}.",
            "Do not use a context after destroying it.",
        )

    def remembers(self, session: str) -> bool:
        """Whether any party here has joined it and not left, or something is remembered of it."""
        return session in self._sessions or bool(self.open.of(session))

    def known(self) -> set[str]:
        """Sessions of which `remembers` is true."""
        return {*self._sessions, *(session for session, _ in self.open)}

    def joined(self, session: str) -> list[Party]:
        """Parties of this site that have joined it and not left."""
        return list(self.open.of(session))

    def others(self, session: str) -> set[Party]:
        """With whom parties here exchange its messages: named by their tasks, pushed to, pulled from."""
        others = set[Party]().union(*(named for named in self.open.of(session).values() if named is not None))
        if (state := self._sessions.get(session)) is not None:
            others.update(state.others)
        return others

    def sources(self, session: str) -> Collection[Party]:
        """From whom parties here have pulled its messages."""
        state = self._sessions.get(session)
        return () if state is None else state.sources

    def admits_all(self, session: str) -> bool:
        """Whether the tasks of any party here do not know who is in it."""
        return None in self.open.of(session).values()

    # -- pushing --------------------------------------------------------------------------------------------------

    def note_push(
        self, keys: tuple[MessageKey, ...], push: Push = _UNKNOWN, *, again: bool = False
    ) -> tuple[MessageKey, ...]:
        """Note that these messages are being pushed.

        Args:
            keys: the messages.
            push: by whom, and the digest of the payload that they have in common, where that is known.
            again: its task has asked for it before, and has had no answer.

        Returns:
            those that are to be sent: one that was pushed before, with the same bytes, is the same message.

        Raises:
            GatewayError: DUPLICATE_PUSH when one of them was pushed with other bytes, or comes twice; none is noted.
            FedRDMAError: one of them was pushed before, and not delivered; likewise.
        """
        known = self.pushed
        if len(set(keys)) < len(keys):
            raise _pushed_before(next(key for key in keys if keys.count(key) > 1), "")
        for key in keys:
            if (before := known(key)) is None:
                continue
            if before.failed:
                # its receiver was told that it does not come
                raise error_from_code(before.failed, f"{key} was pushed before, and was not delivered.")
            if push.digest is None or before.digest is None:
                if again and before.client and before.client == push.client:
                    continue
                raise _pushed_before(key, ", and whether with the same bytes is not known")
            if push.digest != before.digest:
                raise _pushed_before(key, " with other bytes")
        anew = tuple(key for key in keys if known(key) is None)
        for key in anew:
            self.remember_push(key, push)
            self.record(Pushed(key, *push))
        return anew

    def pushed(self, key: MessageKey) -> Push | None:
        """How it was pushed, None where it was not."""
        state = self._sessions.get(key.session)
        return None if state is None else state.pushed.get(key)

    def remember_push(self, key: MessageKey, push: Push = _UNKNOWN) -> None:
        """It was pushed, also where that is known, but perhaps not its digest."""
        self.queues.note(key, "push")
        state = self._of(key.session)
        known = state.pushed.get(key)
        if known is None:
            state.add_push(key, push)
            self._count(key)
        elif known.digest is None:
            state.pushed[key] = known._replace(digest=push.digest)

    def note_digest(self, key: MessageKey, digest: int) -> None:
        """The digest of what was pushed has become known."""
        push = self.pushed(key)
        if push is not None and push.digest is None:
            push = push._replace(digest=digest)
            self.remember_push(key, push)
            self.record(Pushed(key, *push))

    def forget_push(self, key: MessageKey) -> None:
        """The push came to nothing, as its task knows: it may be made again."""
        self.record(Unpushed(key))
        self._forget(key, pulled=False)

    def push_failed(self, key: MessageKey, error: FedRDMAError) -> None:
        """A push could not be delivered: its party is told at its next call. May be repeated until then."""
        if not self.is_closed(key.session, key.source):
            state = self._of(key.session)
            if (push := state.pushed.get(key)) is not None:
                state.pushed[key] = push._replace(failed=error.code.value)
            failures = state.failures.setdefault(key.source, [])
            if len(failures) < MOST_FAILURES and all(key != known for known, _ in failures):
                failures.append((key, error))
                self.record(PushFailed(key, error.code.value, error.message))

    def push_not_delivered(self, key: MessageKey, code: ErrorCode, reason: str) -> None:
        """As `push_failed`, in the words that a task is told."""
        self.push_failed(key, error_from_code(code.value, f"an earlier push, {key}, was not delivered: {reason}"))

    def raise_push_failure(self, session: str, party: Party) -> None:
        """Raise, once, that an earlier push of this party failed.

        Raises:
            FedRDMAError: why it failed.
        """
        if (failure := self.note_told(session, party)) is not None:
            self.record(Told(session, party))
            raise failure

    def note_told(self, session: str, party: Party) -> FedRDMAError | None:
        """The first failure that the party was not told of yet, if there is one: it was told."""
        state = self._sessions.get(session)
        if state is None or party not in state.failures:
            return None
        _, failure = state.failures[party].pop(0)
        if not state.failures[party]:
            del state.failures[party]
        return failure

    # -- pulling --------------------------------------------------------------------------------------------------

    def note_pull(self, key: MessageKey, pull: Pull = _KNOWN, *, is_recorded: bool = True) -> None:
        """The message was handed out; where that is not recorded yet, a next run does not know of it."""
        if is_recorded:
            self.record(Pulled(key, *pull))
        self.queues.note(key, "pop")
        state = self._of(key.session)
        if key in state.pulled:
            state.pulled[key] = pull
        else:
            state.add_pull(key, pull)
            self._count(key)

    def settle_pull(self, key: MessageKey) -> None:
        """Whoever it was handed out to has got it: nobody is asked about that after a restart."""
        state = self._sessions.get(key.session)
        if state is not None and state.pulled.get(key, _KNOWN) != _KNOWN:
            self.record(Pulled(key))
            state.pulled[key] = _KNOWN

    def forget_pull(self, key: MessageKey) -> None:
        """It was not handed out after all."""
        self.record(Unpulled(key))
        self.queues.note_returned(key)
        self._forget(key, pulled=True)

    def was_pulled(self, key: MessageKey) -> bool:
        """Whether the message was handed out before."""
        state = self._sessions.get(key.session)
        return state is not None and key in state.pulled

    def pull(self, key: MessageKey) -> Pull:
        """Who pulled a message, where that is known."""
        state = self._sessions.get(key.session)
        return _KNOWN if state is None else state.pulled.get(key, _KNOWN)

    def pulls(self) -> Iterator[tuple[MessageKey, Pull]]:
        """Messages that were pulled by a task that is known."""
        for state in self._sessions.values():
            for key, pull in state.pulled.items():
                if pull.client:
                    yield key, pull

    # -- for the journal ------------------------------------------------------------------------------------------

    def remember_join(self, session: str, party: Party, parties: Iterable[Party] | None) -> None:
        """An earlier run let it join, and this is all that its tasks had named."""
        self._closed.remove(session, party)
        self.open.add(session, party, None if parties is None else frozenset(parties))

    def records(self) -> Iterator[SessionRecord]:
        """As few records as say what is known here."""
        for session, reason, sites in self.ended.here():
            yield Over(session, reason, sites)
        for session, party in self._closed:
            yield Left(session, party)
        for (session, party), named in self.open.items():
            yield Joined(session, party, _listed(named))
        for state in self._sessions.values():
            # before what was pushed: a message that was pushed again has not failed with the push before
            for key, error in (failure for failures in state.failures.values() for failure in failures):
                yield PushFailed(key, error.code.value, error.message)
            for key, push in state.pushed.items():
                yield Pushed(key, *push)
            for key, pull in state.pulled.items():
                yield Pulled(key, *pull)
        yield from self.queues.records()

    def _count(self, key: MessageKey) -> None:
        """One more is remembered."""
        self._units += units(key)
        while self._units > MOST_REMEMBERED:
            self._forget_of_largest(key.session)

    def _forget_of_largest(self, latest: str) -> None:
        """Forget a message of the session of which most is remembered: one that floods costs no other its own."""
        largest = self._sessions.get(self._largest)
        if largest is None or largest.units < self._sessions[latest].units:
            self._largest = max(self._sessions, key=lambda session: self._sessions[session].units)
            largest = self._sessions[self._largest]
        before = largest.units
        largest.forget_oldest()
        self._units -= before - largest.units
        if largest.empty:
            del self._sessions[self._largest]

    def _forget(self, key: MessageKey, *, pulled: bool) -> None:
        if (state := self._sessions.get(key.session)) is not None:
            messages: OrderedDict[MessageKey, Any] = state.pulled if pulled else state.pushed
            if key in messages:
                state.forget(messages, [key])
                self._units -= units(key)

    def _of(self, session: str) -> _Session:
        return self._sessions.setdefault(session, _Session())


def engine_of(key: MessageKey) -> Engine:
    """By which a message comes."""
    return "osx" if key.tag.startswith(QUEUE_TAG) else "fedrdma"


def mixed_error(key: MessageKey) -> GatewayError:
    """The error for a message that comes by another engine than its destination uses."""
    by = engine_of(key)
    other = "fedrdma" if by == "osx" else "osx"
    return GatewayError(
        ErrorCode.ENGINES_MIXED,
        f"{key.source} sends by the engine {by} in the session {key.session!r}, {key.destination} uses {other}.",
        "Set one and the same federation engine for all parties of a job.",
    )


def _pushed_before(key: MessageKey, how: str) -> GatewayError:
    return GatewayError(
        ErrorCode.DUPLICATE_PUSH,
        f"{key} was pushed before{how}.",
        "A name and tag can be pushed once to each party; the first message is kept.",
    )


def _listed(named: frozenset[Party] | None) -> tuple[Party, ...] | None:
    return None if named is None else tuple(sorted(named, key=str))
