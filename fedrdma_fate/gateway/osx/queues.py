"""OSX's queues on messages of the engine: a push is a put, a pop is a get, and tags number what a queue holds.

A party that uses queues is a task of its site like others: what it pushes lies in the pools by their rules, waits for
memory, is spilled, and travels in the mode of the peer.

More than 500 lines: a call, the end of a queue whose turn it has, and the party that it counts for are let go together.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    SECRET_BYTES,
    Attach,
    Commit,
    Get,
    GotInline,
    GotSlot,
    Leased,
    LeaseSlot,
    PutInline,
    ReleaseLeases,
    Request,
)
from fedrdma_fate.gateway.journal_records import Told
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.queue_numbers import MOST_BROKER_QUEUES, MOST_QUEUES, QUEUE_TAG, End, QueueNumbers
from fedrdma_fate.gateway.osx.refused_pushes import telling
from fedrdma_fate.gateway.osx.requests import LONGEST_POP_SECONDS, MOST_PAYLOAD_BYTES, Queue
from fedrdma_fate.gateway.routing import not_served
from fedrdma_fate.gateway.tasks.conversation import TaskConversation
from fedrdma_fate.gateway.tasks.server import TaskServer
from fedrdma_fate.gateway.tasks.socket import Answer, WithDescriptor, WithSequel
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKey, Party

logger = logging.getLogger(__name__)

MOST_MEMBERS = 1024
"""Parties of sessions that count as living here between their calls; of the longest silent ones it is forgotten."""

SILENT_SECONDS = LONGEST_POP_SECONDS
"""A party that has not called for so long lives no more: none pops for longer."""

MOST_FREE = 8
"""Conversations of a party that are kept for its next calls: as many as some workers make at once."""

MOST_ENDS = 65536
"""Of queues that nobody uses now, in some 30 MB."""

_COPY_BYTES = 8 * 1024 * 1024
"""At once: other threads wait for some milliseconds."""


@dataclasses.dataclass(slots=True)
class _Member:
    """A party of a session that uses queues here.

    Attributes:
        attach: as which task.
        free: conversations of it that no call has; one at least while there is no call, which keeps it attached.
        seen: when it began its latest call, on the loop's clock.
        calls: under way.
    """

    attach: Attach
    free: list[TaskConversation]
    seen: float
    calls: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class _End:
    """One end of a queue: pushes, or pops, come one after the other, in the order in which they asked.

    Attributes:
        next: number of the next message.
        turn: held by whoever pushes or pops.
        callers: that hold it, or wait for it.
    """

    next: int
    turn: asyncio.Lock
    callers: int = 0


class Push:
    """A large message that is being pushed: the caller writes it, in whatever thread, then commits."""

    def __init__(self, queues: Queues, queue: Queue, end: _End, conversation: TaskConversation, lease: Leased) -> None:
        """Use `Queues.begin_push`."""
        self._queues = queues
        self._queue = queue
        self._end = end
        self._conversation = conversation
        self._lease = lease.lease
        self._offset = lease.offset
        self._is_over = False

    def write(self, payload: memoryview) -> None:
        """Put it into its slot."""
        region = self._queues.tasks.context.send_pool.region
        with Slot(region, self._offset, len(payload)).view as slot:
            for at in range(0, len(payload), _COPY_BYTES):
                slot[at : at + _COPY_BYTES] = payload[at : at + _COPY_BYTES]

    async def commit(self) -> None:
        """Send it.

        Raises:
            FedRDMAError: it is not sent.
        """
        tag, destinations = _tag(self._end.next), (self._queue.destination,)
        try:
            with telling(self._queues.tasks.context, _key(self._queue, self._end.next)):
                await _reply(self._conversation, Commit(self._lease, self._queue.name, tag, destinations, "bytes"))
            self._end.next += 1
        finally:
            self._queues.note_pushed(self._queue, self._end)

    def end(self) -> None:
        """Whoever pushes is through, or gone. May be repeated."""
        if not self._is_over:
            self._is_over = True
            # where it was committed, that is known no more
            self._conversation.answer(ReleaseLeases((self._lease,)))
            self._queues.let_go(self._queue, self._queue.source, self._end, self._conversation)


class Pop:
    """A message that was popped, and is given back where it could not be handed over."""

    def __init__(
        self,
        queues: Queues,
        queue: Queue,
        end: _End,
        conversation: TaskConversation,
        answer: WithSequel | WithDescriptor,
    ) -> None:
        """Use `Queues.pop`."""
        self._queues = queues
        self._queue = queue
        self._end = end
        self._conversation = conversation
        self._answer = answer
        self._is_over = False
        self.total_bytes = len(answer.reply.body) if isinstance(answer.reply, GotInline) else _slot(answer).total_bytes

    def read(self) -> bytes:
        """The message, in whatever thread.

        Raises:
            OSError: it cannot be read.
        """
        if isinstance(self._answer.reply, GotInline):
            return self._answer.reply.body
        assert isinstance(self._answer, WithDescriptor)
        place, pieces, at = _slot(self._answer), list[bytes](), 0
        while at < place.total_bytes:
            # a call gives 2 GiB less a page at most
            piece = os.pread(self._answer.descriptor, place.total_bytes - at, place.offset + at)
            if not piece:
                raise OSError("the file of a message is cut off")
            pieces.append(piece)
            at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self, *, handed_over: bool) -> None:
        """It was handed over, or stays. May be repeated."""
        if self._is_over:
            return
        self._is_over = True
        if isinstance(self._answer, WithDescriptor):
            self._answer.close()
        if not handed_over:
            self._answer.undo()
        else:
            key = _key(self._queue, self._end.next)
            self._end.next += 1
            self._queues.tasks.context.mailbox.sessions.settle_pull(key)
            if isinstance(self._answer, WithSequel):
                self._answer.then()
            else:
                self._conversation.answer(ReleaseLeases((_slot(self._answer).lease,)))
        self._queues.let_go(self._queue, self._queue.destination, self._end, self._conversation)


class Queues:
    """Belongs to the event loop's thread.

    Attributes:
        tasks: of this site, among which parties that use queues are.
    """

    def __init__(self, tasks: TaskServer, drop: Callable[[Message, FedRDMAError], object]) -> None:
        """
        Args:
            tasks: serves them.
            drop: tells who has sent a message that nobody will get it.
        """
        self.tasks = tasks
        self._drop = drop
        self._loop = asyncio.get_running_loop()
        self._members: OrderedDict[tuple[str, Party], _Member] = OrderedDict()
        self._ends: OrderedDict[tuple[Queue, End], _End] = OrderedDict()
        self._released: dict[str, int] = {}

    @property
    def _numbers(self) -> QueueNumbers:
        return self.tasks.context.mailbox.sessions.queues

    async def push(self, queue: Queue, body: bytes) -> None:
        """Send a message of up to INLINE_LIMIT_BYTES.

        Raises:
            FedRDMAError: it is not sent.
        """
        assert len(body) <= INLINE_LIMIT_BYTES
        async with self._pushing(queue) as (end, conversation):
            await _reply(conversation, PutInline(queue.name, _tag(end.next), (queue.destination,), "bytes", body))
            end.next += 1

    async def refuse(self, queue: Queue, error: FedRDMAError) -> None:
        """A push of a broker's was refused before anybody read it: whoever pops is told in its place."""
        with contextlib.suppress(FedRDMAError):
            async with self._pushing(queue):
                raise error

    @contextlib.asynccontextmanager
    async def _pushing(self, queue: Queue) -> AsyncIterator[tuple[_End, TaskConversation]]:
        end, conversation = await self._take_turn(queue, "push")
        try:
            with telling(self.tasks.context, _key(queue, end.next)):
                yield end, conversation
        finally:
            self.note_pushed(queue, end)
            self.let_go(queue, queue.source, end, conversation)

    def note_pushed(self, queue: Queue, end: _End) -> None:
        """A push was made, or not: also one that was given up, or had an error, may have gone, and has its number."""
        end.next = max(end.next, self._numbers.next(_key(queue, 0), "push") or 0)

    async def begin_push(self, queue: Queue, total_bytes: int) -> Push:
        """Wait for memory for a larger one. What comes back has to be ended.

        Raises:
            FedRDMAError: it cannot be sent.
        """
        self.tasks.context.routes.site_of(queue.destination)
        end, conversation = await self._take_turn(queue, "push")
        try:
            with telling(self.tasks.context, _key(queue, end.next)):
                lease = await _reply(conversation, LeaseSlot(total_bytes))
            assert isinstance(lease, Leased)
        except BaseException:
            self.note_pushed(queue, end)
            self.let_go(queue, queue.source, end, conversation)
            raise
        return Push(self, queue, end, conversation, lease)

    def check_own(self, party: Party) -> None:
        """See that a party is of this site. Any thread may call.

        Raises:
            GatewayError: WRONG_PARTY.
        """
        context = self.tasks.context
        if not context.routes.is_local(party):
            raise not_served(party, context.config)

    async def begin_turn(self, queue: Queue) -> Callable[[], None]:
        """Wait for the turn of a push that goes another way; what comes back ends the turn.

        Raises:
            FedRDMAError: the party may not push in this session.
        """
        end, conversation = await self._take_turn(queue, "push")
        return functools.partial(self.let_go, queue, queue.source, end, conversation)

    async def pop(self, queue: Queue, seconds: float, *, stays: bool = False) -> Pop | None:
        """Wait for the next message, None after so many seconds. What comes back has to be ended.

        One that will not come, or is too large, is told by an error, and the next pop is for the one behind it.

        Args:
            queue: the queue.
            seconds: to wait.
            stays: only look: that error, too, comes again.

        Raises:
            FedRDMAError: none will come; PAYLOAD_TOO_LARGE.
        """
        self.tasks.context.routes.site_of(queue.source)
        until = self._loop.time() + seconds
        try:
            end, conversation = await self._take_turn(queue, "pop", seconds)
        except asyncio.TimeoutError:
            return None
        try:
            left = max(0.0, until - self._loop.time())
            answer = await _reply(conversation, Get(queue.name, _tag(end.next), queue.source, left))
            assert isinstance(answer, (WithSequel, WithDescriptor))
        except BaseException as error:
            if isinstance(error, FedRDMAError) and not stays:
                self._pass_by(queue, end)
            self.let_go(queue, queue.destination, end, conversation)
            if isinstance(error, GatewayError) and error.code is ErrorCode.PULL_TIMEOUT:
                return None
            raise
        pop = Pop(self, queue, end, conversation, answer)
        if pop.total_bytes > MOST_PAYLOAD_BYTES:
            raise self._too_large(pop, queue, answer, conversation, stays=stays)
        return pop

    def _pass_by(self, queue: Queue, end: _End) -> None:
        """Where the next message will not come, it is the next one no more."""
        if self.tasks.context.mailbox.pass_by(_key(queue, end.next)):
            end.next += 1

    def _too_large(
        self,
        pop: Pop,
        queue: Queue,
        answer: WithSequel | WithDescriptor,
        conversation: TaskConversation,
        *,
        stays: bool,
    ) -> FedRDMAError:
        """Drop a message that cannot be handed over, and tell who has sent it."""
        error = MemoryPoolError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"{queue.source} has sent {pop.total_bytes} bytes as {queue.name!r}; a message of a queue has at most "
            f"{MOST_PAYLOAD_BYTES}.",
            "Send it by FATE's federation for OSX, with a max_message_size of 2147483646 or less.",
        )
        if not stays and (message := conversation.task.received.get(_slot(answer).lease)) is not None:
            logger.error("dropped %s: [%s] %s", message.key, error.code.value, error.message)
            self._drop(message, error)
        pop.end(handed_over=not stays)
        return error

    def release(self, session: str) -> None:
        """One of the parties here is through with a session; which one is not said.

        When as many have said so as there are, and none of them calls, they live here no longer: what becomes of the
        session then is known of tasks that have ended. Until then nothing is taken from the others. Parties of a
        broker's site, in whose name something was pushed, say nothing here, and end with those of this site.
        """
        members = [key for key in self._members if key[0] == session]
        said = self._released.pop(session, 0) + 1
        if said < sum(self.tasks.context.routes.is_local(party) for _, party in members):
            self._released[session] = said
            return
        for key in members:
            if not self._members[key].calls:
                self._forget(key)

    def let_go(self, queue: Queue, party: Party, end: _End, conversation: TaskConversation) -> None:
        """A call is over."""
        end.turn.release()
        end.callers -= 1
        self._leave_call(queue, party, conversation)

    def close(self) -> None:
        """Nobody calls any more."""
        for key in list(self._members):
            self._forget(key)

    async def _take_turn(self, queue: Queue, which: End, seconds: float | None = None) -> tuple[_End, TaskConversation]:
        party = queue.source if which == "push" else queue.destination
        conversation = self._join(queue.session, party)
        try:
            end = self._end_of(queue, which)
        except BaseException:
            self._leave_call(queue, party, conversation)
            raise
        end.callers += 1
        if end.callers == 1:
            # nobody is before it: it does not wait
            await end.turn.acquire()
            return end, conversation
        turn = asyncio.ensure_future(end.turn.acquire())
        try:
            await asyncio.wait([turn], timeout=seconds)
            if not turn.done():
                raise asyncio.TimeoutError
        except BaseException:
            if turn.done():
                end.turn.release()
            turn.cancel()
            end.callers -= 1
            self._leave_call(queue, party, conversation)
            raise
        return end, conversation

    def _leave_call(self, queue: Queue, party: Party, conversation: TaskConversation) -> None:
        if (member := self._members.get((queue.session, party))) is None:
            conversation.end()
            return
        member.calls -= 1
        if len(member.free) < MOST_FREE:
            member.free.append(conversation)
        else:
            conversation.end()

    def _join(self, session: str, party: Party) -> TaskConversation:
        """A call of a party begins."""
        now = self._loop.time()
        self._forget_silent(now)
        key = session, party
        if (member := self._members.get(key)) is None:
            secret = secrets.token_bytes(SECRET_BYTES)
            attach = Attach(CLIENT_PROTOCOL_VERSION, secrets.token_hex(8), session, party, secret=secret)
            member = self._members[key] = _Member(attach, [self._attached(attach)], now)
        conversation = member.free.pop() if member.free else self._attached(member.attach)
        self._members.move_to_end(key)
        member.seen = now
        member.calls += 1
        sessions, is_local = self.tasks.context.mailbox.sessions, self.tasks.context.routes.is_local(party)
        # nobody at a broker hears of it by the answer to the next push, and that would be lost, too
        while not is_local and (failed := sessions.note_told(session, party)) is not None:
            sessions.record(Told(session, party))
            logger.error("of what a broker has brought: [%s] %s", failed.code.value, failed.message)
        return conversation

    def _attached(self, attach: Attach) -> TaskConversation:
        conversation = self.tasks.begin(os.geteuid(), "osx")
        answer = conversation.answer(attach)
        assert isinstance(answer, WithDescriptor)
        # what it writes, this process writes, which has the region open
        answer.close()
        return conversation

    def _forget_silent(self, now: float) -> None:
        """Of those that have not called for the longest, one where it is time, or there are too many.

        Of too many, one of a broker's site first: that may name as many as it likes, and those of this site live on.
        """
        idle = next((key for key, member in self._members.items() if not member.calls), None)
        if idle is None:
            return
        if now - self._members[idle].seen >= SILENT_SECONDS:
            self._forget(idle)
        elif len(self._members) >= MOST_MEMBERS:
            is_local = self.tasks.context.routes.is_local
            others = (key for key, member in self._members.items() if not member.calls and not is_local(key[1]))
            self._forget(next(others, idle))

    def _forget(self, key: tuple[str, Party]) -> None:
        for conversation in self._members.pop(key).free:
            conversation.end()
        if all(session != key[0] for session, _ in self._members):
            self._released.pop(key[0], None)

    def _end_of(self, queue: Queue, which: End) -> _End:
        end = self._ends.get((queue, which))
        if end is None:
            first = self._first(queue, which)
            while len(self._ends) >= MOST_ENDS:
                idle = next((key for key, each in self._ends.items() if not each.callers), None)
                if idle is None:
                    break
                del self._ends[idle]
            end = self._ends[queue, which] = _End(first, asyncio.Lock())
        self._ends.move_to_end((queue, which))
        return end

    def _first(self, queue: Queue, which: End) -> int:
        """What an earlier run of the gateway, or calls that are long past, have pushed or popped is not done again.

        Raises:
            GatewayError: LIMIT_REACHED where nothing is known of it, and there are too many of which something is.
        """
        key = _key(queue, 0)
        known = self._numbers.next(key, which)
        of_broker = which == "push" and self.tasks.context.routes.broker_of(queue.source) != ""
        if known is None and not self._numbers.has_room(key, which, of_broker=of_broker):
            raise GatewayError(
                ErrorCode.LIMIT_REACHED,
                f"{MOST_BROKER_QUEUES if of_broker else MOST_QUEUES} ends of queues, or more, are remembered here.",
                "Let jobs end: sessions whose parties have released them need none.",
            )
        return known or 0


def _key(queue: Queue, number: int) -> MessageKey:
    return MessageKey(queue.session, queue.name, _tag(number), queue.source, queue.destination)


def _tag(number: int) -> str:
    return f"{QUEUE_TAG}{number}"


def _slot(answer: WithSequel | WithDescriptor) -> GotSlot:
    assert isinstance(answer.reply, GotSlot)
    return answer.reply


async def _reply(conversation: TaskConversation, request: Request) -> Answer | None:
    answer: Answer | Coroutine[Any, Any, Answer | None] | None = conversation.answer(request)
    return await answer if isinstance(answer, Coroutine) else answer
