"""What each request on a connection of a task leads to: leases, pushes, pulls."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fedrdma_fate import memory_files
from fedrdma_fate.client import protocol
from fedrdma_fate.client.protocol import (
    AskProbe,
    AskSessions,
    AskStatus,
    Attach,
    Attached,
    Begun,
    Commit,
    Done,
    DropSession,
    ExpectSum,
    Forget,
    Get,
    GoOn,
    GotInline,
    GotSlot,
    LeaseSlot,
    Leave,
    Notice,
    NotSummed,
    NotYet,
    ProbeReport,
    PutInline,
    ReleaseLeases,
    Reply,
    Request,
    ReturnLease,
    SessionsReport,
    StatusReport,
    Sum,
    Summed,
    Tolerate,
    Written,
)
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.sessions import Engine, Pull
from fedrdma_fate.gateway.messages.tolerances import Round
from fedrdma_fate.gateway.peers.entitlement import not_in_session
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.gateway.tasks.given_back import forget, give_back, give_back_or_lose, incomplete_error
from fedrdma_fate.gateway.tasks.held_memory import lies_in
from fedrdma_fate.gateway.tasks.ordered_sums import order_ahead
from fedrdma_fate.gateway.tasks.pushing import LeasedPayload, checked_key
from fedrdma_fate.gateway.tasks.session_list import dropped_document
from fedrdma_fate.gateway.tasks.socket import Answer, WithDescriptor, WithSequel
from fedrdma_fate.gateway.tasks.stopping import stopping_error
from fedrdma_fate.gateway.tasks.sum_outcome import SumOutcome
from fedrdma_fate.gateway.tasks.task import Task
from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.memory.shared_slots import hold_range
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey, Party
from fedrdma_fate.wire.site_sum import NEXT_TAG

if TYPE_CHECKING:
    from fedrdma_fate.gateway.tasks.server import TaskServer


class TaskConversation:
    """One connection of a task."""

    def __init__(self, server: TaskServer, user: int, engine: Engine = "fedrdma") -> None:
        self._server, self._context = server, server.context
        self._user, self._engine = user, engine
        self._task: Task | None = None
        self.notify: Callable[[Notice], object] = lambda _notice: None

    def end(self) -> None:
        """The connection is gone."""
        task, self._task = self._task, None
        if task is not None:
            self._server.detach(task)

    def may_know(self, party: Party) -> bool:
        """Whether its user may know what tasks of this party have."""
        return self._server.users.may_run_for(self._user, party)

    @property
    def task(self) -> Task:
        """The task at its other end.

        Raises:
            GatewayError: CLIENT_PROTOCOL: none has attached yet.
        """
        if self._task is None:
            raise GatewayError(ErrorCode.CLIENT_PROTOCOL, "a task has to attach first.")
        return self._task

    def holds_memory_of(self, pools: Iterable[SlotPool]) -> bool:
        """Whether its task has got messages that lie in one of these."""
        received = () if self._task is None else self._task.received.values()
        return any(lies_in(message, pool) for pool in pools for message in received)

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        """See `socket.Conversation`."""
        match request:
            case AskStatus():
                return StatusReport(msgspec.json.encode(self._server.status_for(self._user)))
            case AskProbe():
                return self._probe(request)
            case AskSessions():
                return SessionsReport(msgspec.json.encode(self._server.sessions_for(self._user)))
            case DropSession(session=session):
                return self._drop(session)
            case Attach():
                return self._attach(request)
            case GoOn():
                return self._go_on(request, self.task)
            case ReleaseLeases(leases=leases):
                for lease in leases:
                    self.task.release(lease)
                return None
            case ReturnLease(lease=lease):
                return self._return(lease, self.task)
            case LeaseSlot():
                return self._lease(request, self.task)
            case Commit():
                return self._commit(request, self.task)
            case Written():
                return self._written(request, self.task)
            case PutInline():
                return self._put_inline(request, self.task)
            case Tolerate():
                return self._tolerate(request, self.task)
            case Get():
                return self._get(request, self.task)
            case Forget():
                return self._forget(request, self.task.attach)
            case Sum():
                return self._sum(request, self.task)
            case ExpectSum():
                return self._expect_sum(request, self.task)
            case Leave():
                return self._leave(self.task.attach)

    async def _probe(self, request: AskProbe) -> Reply:
        self._server.users.check_own(self._user, "measure the path to a peer")
        if self._server.stopping:
            raise stopping_error(self._context)
        try:
            report = await self._server.probe(request.peer, request.total_bytes, request.seconds)
        except FedRDMAError as error:
            if self._server.stopping:
                raise stopping_error(self._context) from error
            raise
        return ProbeReport(msgspec.json.encode(report))

    def _drop(self, session: str) -> Reply:
        self._server.users.check_own(self._user, "drop a session")
        dropped = self._server.sessions.drop(session)
        return SessionsReport(msgspec.json.encode(dropped_document(session, dropped)))

    def _attach(self, attach: Attach) -> Answer:
        if self._task is not None:
            raise GatewayError(ErrorCode.CLIENT_PROTOCOL, "a task attaches once on each connection.")
        region = self._context.send_pool.region
        try:
            descriptor = memory_files.open_for_writing(region.fileno)
        except OSError as error:
            raise region_unusable("the send region", error) from error
        try:
            task = self._server.attach(attach, self._user, self._engine)
        except BaseException:
            os.close(descriptor)
            raise
        self._task = task
        try:
            # the next gateway sees by it whether somebody may still write into the slots of this task
            hold_range(descriptor, region.length + task.place, 1)
        except OSError as error:
            os.close(descriptor)
            raise region_unusable("the send region", error) from error
        patience = self._context.config.timeouts.restart if self._context.journal.is_kept else 0.0
        return WithDescriptor(Attached(self._context.incarnation, patience), descriptor)

    def _go_on(self, request: GoOn, task: Task) -> Reply:
        if not task.is_awaited:
            self._server.forgotten(task)
            because = f": {self._server.why_unknown}" if self._server.why_unknown else ""
            raise GatewayError(
                ErrorCode.SESSION_CLOSED,
                f"the gateway of {self._context.config.site} was restarted, and does not know this task of "
                f"{task.attach.party} from its earlier run{because}.",
                "Run the job again.",
            )
        with self._context.journal.together():
            for missed in task.go_on(request):
                give_back(self._context, missed)
            for key, got in task.take_pulls(request.unanswered):
                self._context.mailbox.settle(key, got=got)
        message = "%s goes on in %s after the gateway was restarted"
        self._server.tell("task came back", self._user, message, task.attach.party, task.attach.session)
        return Done()

    # -- pushing --------------------------------------------------------------------------------------------------

    def _check_pushing(self, attach: Attach) -> None:
        if self._server.stopping:
            raise stopping_error(self._context)
        sessions = self._context.mailbox.sessions
        if sessions.is_closed(attach.session, attach.party):
            raise sessions.closed_error(attach.session, attach.party)
        sessions.raise_push_failure(attach.session, attach.party)

    def _lease(self, request: LeaseSlot, task: Task) -> Reply | Coroutine[Any, Any, Reply]:
        self._check_pushing(task.attach)
        if (lease := self._context.send_pool.lease(request.total_bytes, task.owner)) is None:
            return self._lease_later(request, task)
        return protocol.Leased(task.has(lease), lease.slot.offset)

    async def _lease_later(self, request: LeaseSlot, task: Task) -> Reply:
        lease = await self._await_room(request, task)
        try:
            # it may have ended while the task waited, and the room may come of that
            self._check_pushing(task.attach)
        except FedRDMAError:
            lease.release()
            raise
        return protocol.Leased(task.has(lease), lease.slot.offset)

    async def _await_room(self, request: LeaseSlot, task: Task) -> Lease:
        pool = self._context.send_pool
        timeout = self._context.config.timeouts.put if request.timeout is None else request.timeout
        message = "%s waits for %s bytes of send memory"
        self._server.tell("waits for send memory", task.user, message, task.attach.party, request.total_bytes)
        # in the next turn of the loop, when the request below stands in the queue
        asyncio.get_running_loop().call_soon(make_room, self._context, pool)
        try:
            with self._server.waiting(self, put=True):
                return await pool.acquire(request.total_bytes, task.owner, timeout)
        except MemoryPoolError as error:
            if self._server.stopping:
                raise stopping_error(self._context) from error
            raise

    def _put_inline(self, request: PutInline, task: Task) -> Answer | Coroutine[Any, Any, Answer | None]:
        self._check_pushing(task.attach)
        pushing = self._server.pushing
        pushing.check_size(request)
        if not pushing.may_put(request, task.attach):
            return self._put_later(request, task)
        pushing.take(request, task.attach)
        moves = pushing.put_inline(request, task.attach, task.user)
        return _when_moved(moves) if moves else Done()

    async def _put_later(self, request: PutInline, task: Task) -> Reply:
        with self._server.waiting(self, put=True):
            await self._server.pushing.wait_to_put(request, task.attach, self._context.config.timeouts.put)
        self._check_pushing(task.attach)
        return await _when_moved(self._server.pushing.put_inline(request, task.attach, task.user))

    def _commit(self, request: Commit, task: Task) -> Answer | Coroutine[Any, Any, Answer | None]:
        if request.again and request.unfinished:
            # whatever became of it: the task commits it when it is whole
            return NotYet(digests=True)
        if (
            request.again
            and request.lease not in task.sending
            and self._server.pushing.was_pushed(request, task.attach)
        ):
            return Done()
        try:
            has_room = self._server.pushing.may_commit(request)
        except GatewayError:
            self._let_go(request, task)
            raise
        if has_room:
            return self._commit_compared(request, task)
        return NotYet(digests=True) if request.unfinished else self._commit_later(request, task)

    async def _commit_later(self, request: Commit, task: Task) -> Reply:
        try:
            with self._server.waiting(self, put=True):
                await self._server.pushing.wait_to_commit(request, self._context.config.timeouts.put)
        except BaseException:
            # also where the task has gone away, which gave the lease away before
            self._let_go(request, task)
            raise
        answer = self._commit_compared(request, task)
        return await answer if isinstance(answer, Coroutine) else answer

    def _commit_compared(self, request: Commit, task: Task) -> Reply | Coroutine[Any, Any, Reply]:
        """Whether it is the same as one that was pushed before is found out first."""
        payload = task.sending.get(request.lease)
        if payload is None or request.unfinished:
            return self._commit_now(request, task)
        if not self._server.pushing.is_to_be_compared(request, payload, task.attach):
            return self._commit_now(request, task)
        return self._compare(request, payload, task)

    async def _compare(self, request: Commit, payload: LeasedPayload, task: Task) -> Reply:
        try:
            self._note_whole(request, payload)
            await self._server.pushing.compare(request, payload, task.attach)
        except BaseException:
            self._let_go(request, task)
            raise
        return self._commit_now(request, task)

    def _note_whole(self, request: Commit, payload: LeasedPayload) -> None:
        if not request.unfinished and payload.written_from:
            payload.on_written(0, ())
            # where it was committed before it was whole, nobody will tell of it any more
            self._server.pushing.on_written(payload)

    def _let_go(self, request: Commit, task: Task) -> None:
        if not (request.keep or request.unfinished):
            task.release(request.lease)

    def _commit_now(self, request: Commit, task: Task) -> Reply:
        payload = self._payload(request.lease, task)
        pushing = self._server.pushing
        self._note_whole(request, payload)
        total_bytes = payload.total_bytes
        try:
            self._check_pushing(task.attach)
            # one that was pushed before is looked at when it is whole
            is_known = request.unfinished and pushing.is_known(request, task.attach)
            if is_known or (request.unfinished and not pushing.takes_unfinished(request, task.attach)):
                return NotYet(digests=is_known or pushing.wants_digests(request, task.attach, total_bytes))
            if request.whole_bytes > payload.total_bytes:
                raise GatewayError(
                    ErrorCode.CLIENT_PROTOCOL,
                    f"{request.whole_bytes} bytes are to come whole, of a payload of {payload.total_bytes}.",
                )
            pushing.commit(request, payload, task.attach, task.user, task.reopen)
            return Begun(pushing.wants_digests(request, task.attach, total_bytes)) if request.unfinished else Done()
        finally:
            self._let_go(request, task)

    def _written(self, request: Written, task: Task) -> Reply:
        payload = self._payload(request.lease, task)
        if not request.written_from < payload.written_from:
            raise GatewayError(
                ErrorCode.CLIENT_PROTOCOL,
                f"lease {request.lease} was written from {payload.written_from} on, now from {request.written_from}.",
            )
        if not payload.has_blocks(request.written_from, len(request.block_digests)):
            raise GatewayError(
                ErrorCode.CLIENT_PROTOCOL,
                f"{len(request.block_digests)} digests from {request.written_from} on: lease {request.lease} has fewer "
                "blocks.",
            )
        payload.on_written(request.written_from, request.block_digests)
        self._server.pushing.on_written(payload)
        return Done()

    def _payload(self, lease: int, task: Task) -> LeasedPayload:
        payload = task.sending.get(lease)
        if payload is None:
            raise MemoryPoolError(ErrorCode.LEASE_UNKNOWN, f"lease {lease} is not this task's.")
        return payload

    # -- pulling --------------------------------------------------------------------------------------------------

    def _tolerate(self, request: Tolerate, task: Task) -> Reply:
        keys = [self._key_to_get(request.name, request.tag, source, task.attach) for source in request.sources]
        self._context.mailbox.tolerate(
            Round(keys, request.loss_share, jointly=request.jointly, straggler_wait=request.straggler_wait)
        )
        return Done()

    def _key_to_get(self, name: str, tag: str, source: Party, attach: Attach) -> MessageKey:
        """The key of a message that a task may wait for."""
        self._context.routes.site_of(source)
        if self._server.stopping:
            raise stopping_error(self._context)
        if not self._context.mailbox.sessions.names(attach.session, attach.party, source):
            raise not_in_session(attach.session, attach.party, source)
        return checked_key(MessageKey(attach.session, name, tag, source, attach.party))

    async def _get(self, request: Get, task: Task) -> Answer:
        key = self._key_to_get(request.name, request.tag, request.source, task.attach)
        number = task.new_lease()
        try:
            with self._server.waiting(self, put=False):
                message = await self._context.mailbox.take(
                    key, request.timeout, lambda message: self._note_pull(message, task, number, request.number)
                )
        except GatewayError as error:
            if error.code is ErrorCode.PULL_TIMEOUT:
                raise self._server.timed_out(error) from error
            raise
        if message.missing and not request.tolerates:
            give_back(self._context, message)
            raise incomplete_error(message)
        if message.may_miss and not request.tolerates:
            self._context.mailbox.on_wanted_whole(message)
        self._context.mailbox.tolerances.discard(key)
        self._context.trace.get(key, message.total_bytes)
        again = functools.partial(give_back, self._context) if request.keeps else None
        if (body := message.small_body()) is not None:
            task.receive(number, message, again)
            return WithSequel(
                GotInline(message.kind, body),
                lambda: task.release(number),
                lambda: self._not_handed_over(task, number),
            )
        try:
            place, descriptor, offset = message.locate()
        except FedRDMAError as error:
            give_back_or_lose(self._context, message, error)
            raise
        task.receive(number, message, again)
        reply = GotSlot(message.kind, number, place, offset, message.total_bytes, message.missing)
        return WithDescriptor(reply, descriptor, lambda: self._not_handed_over(task, number))

    async def _sum(self, request: Sum, task: Task) -> Answer:
        keys = self._keys_to_sum(request.name, request.tag, request.sources, task)
        with self._server.waiting(self, put=False):
            outcome: SumOutcome | NotSummed | None = task.take_returned_sum(keys)
            if outcome is None:
                earlier = task.take_sum(keys)
                outcome = await self._server.sums.sum_of(keys, request.timeout, task.attach.client, earlier)
        if isinstance(outcome, NotSummed):
            return outcome
        message = outcome.message
        try:
            _, descriptor, offset = message.locate()
        except FedRDMAError:
            task.keep_sum(keys, outcome)
            raise
        number = task.has_sum(keys, outcome, request.number)
        fold = outcome.fold
        reply = Summed(
            fold.parties_in,
            fold.weight(),
            outcome.shapes,
            number,
            offset,
            message.total_bytes,
            fold.reason,
            message.payload_at,
            outcome.unfinished,
        )
        return WithDescriptor(reply, descriptor, lambda: self._not_handed_over(task, number))

    def _expect_sum(self, request: ExpectSum, task: Task) -> Reply:
        keys = self._keys_to_sum(request.name, NEXT_TAG, request.sources, task)
        order_ahead(self._context, keys, task.attach.client)
        return Done()

    def _keys_to_sum(self, name: str, tag: str, sources: Sequence[Party], task: Task) -> list[MessageKey]:
        keys = [self._key_to_get(name, tag, source, task.attach) for source in sources]
        if len(set(keys)) < len(keys):
            raise GatewayError(ErrorCode.CLIENT_PROTOCOL, "a sum names one party twice.")
        return keys

    def _return(self, lease: int, task: Task) -> Reply:
        # where and how a sum of an earlier run can be given again, only its journal said
        if lease not in task.received or task.has_earlier_sum(lease):
            raise MemoryPoolError(ErrorCode.LEASE_UNKNOWN, f"lease {lease} is of no message that this task has got.")
        self._not_handed_over(task, lease)
        return Done()

    def _not_handed_over(self, task: Task, number: int) -> None:
        if not task.return_sum(number) and (message := task.take_received(number)) is not None:
            give_back(self._context, message)

    def _note_pull(self, message: Message, task: Task, lease: int, asked: int) -> None:
        """A message that was pulled, and is with no task, could not come any more: both are written down, or none."""
        # of one that is lent there is nothing in the journal but this
        pull = Pull(task.attach.client, asked) if message.when_gone is None else Pull()
        with self._context.journal.together():
            self._context.mailbox.sessions.note_pull(message.key, pull)
            lease = 0 if message.small_body() is not None else lease
            self._context.journal.handed(message, task.attach.client, lease, asked)

    def _forget(self, request: Forget, attach: Attach) -> Reply:
        self._context.routes.site_of(request.source)
        forget(self._context, attach.session, attach.party, request.source, request.prefix, request.tag)
        return Done()

    def _leave(self, attach: Attach) -> Reply:
        dropped = self._server.leave(attach.session, attach.party)
        message = "%s left %s; %s messages were dropped"
        self._server.tell("left", self._user, message, attach.party, attach.session, dropped)
        return Done()


async def _when_moved(moves: list[asyncio.Task[None]]) -> Reply:
    """A task puts no faster than the disk takes."""
    if moves:
        await asyncio.wait(moves)
    return Done()
