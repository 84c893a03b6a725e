"""Answers the FATE tasks of this site: leases, pushes, pulls.

More than 500 lines: what each request of a task leads to is to be seen in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fedrdma_fate import memory_files
from fedrdma_fate.client import protocol
from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    AskProbe,
    AskSessions,
    AskStatus,
    Attach,
    Attached,
    Begun,
    Commit,
    Done,
    DropSession,
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
    SessionsReport,
    StatusReport,
    Sum,
    Summed,
    Tolerate,
    Written,
)
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal.journal import Journal
from fedrdma_fate.gateway.journal_records import Came, Leased, SumHanded, Unleased, Went
from fedrdma_fate.gateway.journal_records import Outgoing as OutgoingRecord
from fedrdma_fate.gateway.messages.mailbox import Message
from fedrdma_fate.gateway.messages.tolerances import JointBudget
from fedrdma_fate.gateway.peers.entitlement import not_in_session
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.gateway.tasks.held_memory import HeldMemory, lies_in, told_of_peers
from fedrdma_fate.gateway.tasks.pushing import LeasedPayload, Pushing, checked_key
from fedrdma_fate.gateway.tasks.returning import TASKS_LOOK_SECONDS, EarlierSum, Had, digest_of_secret
from fedrdma_fate.gateway.tasks.session_ends import SessionEnds
from fedrdma_fate.gateway.tasks.session_list import dropped_document, sessions_document
from fedrdma_fate.gateway.tasks.socket import Answer, StoppingError, WithDescriptor, WithSequel
from fedrdma_fate.gateway.tasks.sums import Sums
from fedrdma_fate.gateway.tasks.users import TaskUsers, refused
from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.memory.shared_slots import hold_range, place_is_held, range_is_held
from fedrdma_fate.obs.complaints import EACH_TELLS
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey, Party

logger = logging.getLogger(__name__)


_PLACE_BITS = 48
"""Of the place that the first task gets: a file can have locks up to 2**63, and no run has 2**48 tasks."""


class MakeStatus(Protocol):
    """Makes the status document."""

    def __call__(self, may_know: Callable[[Party], bool]) -> dict[str, object]:
        """For somebody who may know of the transfers of these parties of the site, and of no others."""
        ...


class Task:
    """One task process: its connections share leases, which go back when the last connection ends."""

    def __init__(
        self, attach: Attach, user: int, abandon: Callable[[Payload], None], journal: Journal, place: int
    ) -> None:
        """
        Args:
            attach: who it is.
            user: whose process it is.
            abandon: told of a payload whose slot is given back before it was written whole.
            journal: takes down which slots it has.
            place: of the byte behind the send region that it holds a lock on, as long as it may write there.
        """
        self.place = place
        self._journal = journal
        self._secret = digest_of_secret(attach.secret)
        # a megabyte of names that are kept of the session is enough, and each task has them
        self.attach = msgspec.structs.replace(attach, parties=None, secret=b"")
        self._named: int | None = hash(attach.parties)
        self.user = user
        self.is_awaited = False
        self.unfinished: dict[MessageKey, tuple[Sending, OutgoingRecord]] = {}
        self._in_doubt: list[tuple[Message, int]] = []
        self._sums: list[EarlierSum] = []
        self._seen_mapped: set[int] = set()
        self.connections = 0
        self.sending: dict[int, LeasedPayload] = {}
        self._abandon = abandon
        self.received: dict[int, Message] = {}
        self._next_lease = 0

    def is_of(self, attach: Attach, user: int) -> bool:
        """Whether this is who attaches."""
        if self._named is None:
            # of an earlier run, which has written down a digest of the secret instead
            self._named = hash(attach.parties)
        alike = msgspec.structs.replace(attach, parties=None, secret=b"") == self.attach
        alike = alike and digest_of_secret(attach.secret) == self._secret and hash(attach.parties) == self._named
        return alike and user == self.user

    @classmethod
    def of_earlier_run(cls, had: Had, abandon: Callable[[Payload], None], journal: Journal) -> Task:
        """One that has not come back yet, with what it had."""
        came = had.task
        attach = Attach(CLIENT_PROTOCOL_VERSION, came.client, came.session, came.party, came.mode)
        task = cls(attach, came.user, abandon, journal, came.place)
        task._secret, task._named, task.is_awaited = came.secret, None, True
        task.sending = {number: LeasedPayload(lease) for number, lease in had.leases.items()}
        task.received = {number: message for number, (message, _) in had.messages.items()}
        task._in_doubt = [*had.messages.values(), *had.small]
        task._sums = had.sums
        for summed in had.sums:
            if (handed := summed.kept.handed) is not None:
                task.received[handed.lease] = summed.message
                task._in_doubt.append((summed.message, handed.asked))
        task.unfinished = {record.key: (sending, record) for sending, record in had.unfinished}
        task._next_lease = max([0, *task.sending, *task.received])
        return task

    def go_on(self, request: GoOn) -> list[Message]:
        """It has come back; messages that were given to it and that it has not got."""
        self.is_awaited = False
        self._next_lease = max(self._next_lease, request.highest)
        unanswered, held = {*request.unanswered}, {*request.held}
        missed = {id(message): message for message, asked in self._in_doubt if asked in unanswered}
        self.received = {number: message for number, message in self.received.items() if id(message) not in missed}
        for message, _ in self._in_doubt:
            if id(message) not in missed and all(message is not mapped for mapped in self.received.values()):
                # it needs no memory of ours any more
                message.discard()
        self._in_doubt.clear()
        # those that it has got are like any message
        self._sums = [each for each in self._sums if each.kept.handed is None or id(each.message) in missed]
        for summed in self._sums:
            missed.pop(id(summed.message), None)
        for number in [number for number in (*self.sending, *self.received) if number not in held]:
            self.release(number)
        return list(missed.values())

    def take_sum(self, keys: Sequence[MessageKey]) -> EarlierSum | None:
        """The sum of these messages that an earlier run has begun for it; it then belongs to the caller."""
        found = next((each for each in self._sums if each.kept.began.keys == tuple(keys)), None)
        if found is not None:
            self._sums.remove(found)
        return found

    def let_go_of_unmapped(self) -> None:
        """What it was seen to have mapped, and has not any more, goes back, though it has not come back itself."""
        for number, message in list(self.received.items()):
            if message.lease is None:
                continue
            if range_is_held(message.lease.slot):
                self._seen_mapped.add(number)
            elif number in self._seen_mapped:
                self._in_doubt = [doubt for doubt in self._in_doubt if doubt[0] is not message]
                self.release(number)

    def note_came(self) -> None:
        """Write down who it is."""
        if self._secret:
            attach = self.attach
            self._journal.write(
                Came(
                    attach.client,
                    self._secret,
                    attach.session,
                    attach.party,
                    attach.mode,
                    self.user,
                    self.place,
                )
            )

    def reopen(self, key: MessageKey) -> tuple[Sending, OutgoingRecord] | None:
        """What it had not written whole when the earlier run was killed, and commits now; None where it is none."""
        return self.unfinished.pop(key, None)

    @property
    def owner(self) -> str:
        return f"task:{self.attach.client}"

    def new_lease(self) -> int:
        """A number that this task has not had."""
        self._next_lease += 1
        return self._next_lease

    def has(self, lease: Lease) -> int:
        """It has a send slot now; the number of its lease."""
        number = self.new_lease()
        slot = lease.slot
        self._journal.write(Leased(self.attach.client, self.place, number, slot.offset, slot.length))
        self.sending[number] = LeasedPayload(lease)
        return number

    def release(self, lease: int) -> None:
        """Give one lease back; an unknown one is ignored."""
        if (sending := self.sending.pop(lease, None)) is not None:
            self._journal.write(Unleased(self.attach.client, lease))
            if sending.written_from:
                self._abandon(sending)
            self._lose(lambda record: record.offset == sending.lease.slot.offset)
            sending.lease.release()
        if (received := self.received.pop(lease, None)) is not None:
            received.discard()

    def _lose(self, is_lost: Callable[[OutgoingRecord], bool]) -> None:
        """What it will not write any more is told to be lost."""
        for key, (peer, record) in list(self.unfinished.items()):
            if is_lost(record):
                del self.unfinished[key]
                peer.note_lost(record, "the gateway was killed before its task had written all of it")

    def held_bytes(self) -> tuple[int, int]:
        """Of slots that it writes to, and of messages that it has got and that lie in a slot or a file here."""
        sending = sum(payload.total_bytes for payload in self.sending.values())
        return sending, sum(message.total_bytes for message in self.received.values())

    def release_all(self) -> int:
        """The process is gone; how many leases it held."""
        held = [*self.sending, *self.received]
        for lease in held:
            self.release(lease)
        for message, _ in self._in_doubt:
            message.discard()
        for summed in self._sums:
            summed.message.discard()
        self._lose(lambda _record: True)
        if self._secret:
            self._journal.write(Went(self.attach.client))
        return len(held)


@dataclasses.dataclass(slots=True)
class _Wait:
    """A request that waits: whether it is a put, and whether its task was told what for."""

    put: bool
    told: bool = False


class TaskServer:
    """Belongs to the event loop's thread.

    Attributes:
        has_new_memory: whether tasks of an earlier run have another send region than this one has.
    """

    def __init__(
        self,
        context: GatewayContext,
        peers: Mapping[str, Sending],
        status: MakeStatus,
        probe: Callable[[str, int, float], Awaitable[dict[str, object]]],
        users: TaskUsers,
        sessions: SessionEnds,
    ) -> None:
        """
        Args:
            context: the gateway's.
            peers: what sends to the other sites, by their names.
            status: makes the status document.
            probe: measures the path to a site within so many bytes and seconds; see `Probing.measure`.
            users: who may run tasks here.
            sessions: which sessions have tasks here, and what ends them.
        """
        self.context = context
        self._peers = peers
        self.pushing = Pushing(context, peers)
        self.sums = Sums(context)
        self.status = status
        self.probe = probe
        self.users = users
        self.sessions = sessions
        self.held = HeldMemory(
            context, lambda: [(task.attach, task.received.values()) for task in self._tasks.values()]
        )
        self._waiting: dict[TaskConversation, _Wait] = {}
        self.stopping = False
        self._tasks: dict[str, Task] = {}
        # no two tasks that may live at once have one place, those of earlier runs included
        self._places = secrets.randbits(_PLACE_BITS)
        self.has_new_memory = False

    @property
    def task_count(self) -> int:
        """Task processes attached."""
        return len(self._tasks)

    def admits(self, user: int) -> bool:
        """Whether tasks of this user of the host may connect."""
        return self.users.admits(user)

    def begin(self, user: int) -> TaskConversation:
        """A task of this user has connected."""
        return TaskConversation(self, user)

    def close(self) -> None:
        """Nobody is waited for any more."""
        self.sessions.close()
        self.sums.close()

    def attach(self, attach: Attach, user: int) -> Task:
        """The task behind a new connection of this user.

        Raises:
            GatewayError: CLIENT_PROTOCOL, WRONG_PARTY, LIMIT_REACHED, SESSION_ENDED or GATEWAY_STOPPING.
        """
        self._check_attach(attach, user)
        self.sessions.check_open(attach.session, attach.parties)
        task = self._tasks.get(attach.client)
        if task is None:
            if not self.users.is_own(user):
                self.sessions.users.join(user, attach.session, attach.party)
            self.context.mailbox.join(attach.session, attach.party, attach.parties)
            self._places += 1
            journal = self.context.journal
            task = self._tasks[attach.client] = Task(attach, user, self.pushing.abandon, journal, self._places)
            task.note_came()
            self.sessions.arrive(attach.session, attach.party)
        elif task.is_awaited:
            self.context.mailbox.join(attach.session, attach.party, attach.parties)
        task.connections += 1
        return task

    def expect(self, had: Sequence[Had]) -> None:
        """Tasks of an earlier run may come back, and have this."""
        for each in had:
            task = Task.of_earlier_run(each, self.pushing.abandon, self.context.journal)
            attach = task.attach
            if not self.users.is_own(task.user):
                with contextlib.suppress(GatewayError):
                    self.sessions.users.join(task.user, attach.session, attach.party)
            self._tasks[attach.client] = task
            self.sessions.arrive(attach.session, attach.party)
        if had:
            spawn(self.context.tasks, self._await_tasks())

    async def _await_tasks(self) -> None:
        """As long as any has not come back: one that has ended meanwhile never will."""
        region = self.context.send_pool.region
        until = asyncio.get_running_loop().time() + self.context.config.timeouts.restart
        while awaited := [task for task in self._tasks.values() if task.is_awaited]:
            in_time = asyncio.get_running_loop().time() < until
            for task in [task for task in awaited if not task.connections]:
                # where its region is gone, so are its locks
                lives = place_is_held(region.fileno, region.length + task.place)
                if lives or (in_time and self.has_new_memory):
                    task.let_go_of_unmapped()
                else:
                    self._end(task)
            await asyncio.sleep(TASKS_LOOK_SECONDS)

    def detach(self, task: Task) -> None:
        """One of the connections of a task has ended."""
        task.connections -= 1
        if not task.connections and not task.is_awaited:
            self._end(task)

    def _end(self, task: Task) -> None:
        attach = task.attach
        del self._tasks[attach.client]
        held = task.release_all()
        self.context.send_pool.release_owner(task.owner)
        self.sessions.depart(attach.session, attach.party)
        if held:
            message = "%s of %s ended; %s leases came back"
            self.tell("ended with leases", task.user, message, attach.party, attach.session, held)

    def leave(self, session: str, party: Party) -> int:
        """The party is in the session no more; how many messages for it were dropped."""
        self.sessions.users.leave(session, party)
        return self.context.mailbox.leave(session, party)

    def status_for(self, user: int) -> dict[str, object]:
        """The status document, without transfers of parties that the user may not run tasks for."""
        return self.status(lambda party: self.users.may_run_for(user, party))

    def sessions_for(self, user: int) -> dict[str, object]:
        """The sessions here, of parties that the user may run tasks for."""
        tasks = list(self._tasks.values())
        held = [(task.attach, *task.held_bytes()) for task in tasks]
        return sessions_document(
            self.context, self.sessions, self._peers, held, lambda party: self.users.may_run_for(user, party)
        )

    def tell(self, kind: str, user: int, message: str, *values: object) -> None:
        """Log what a task has done, of each kind and user some lines in each window."""
        self.context.complaints.add(
            logger, kind, f"user {user}", message, *values, level=logging.INFO, lines=EACH_TELLS
        )

    @contextlib.contextmanager
    def waiting(self, conversation: TaskConversation, *, put: bool) -> Iterator[None]:
        """While this is entered, a put or get waits: where that is because tasks hold memory, its task is told."""
        self._waiting[conversation] = _Wait(put)
        try:
            yield
        finally:
            del self._waiting[conversation]

    def tell_waiting(self) -> None:
        """Tell those who wait who holds the memory, once for each wait; of that at other sites, who puts."""
        pools = {pool.stats().name: pool for pool in (self.context.send_pool, self.context.receive_pool)}
        held = [pools[holding.pool] for holding in self.held.holdings]
        there = told_of_peers(self._peers)
        for conversation, wait in self._waiting.items():
            here = [holding.told(conversation.may_know) for holding in self.held.holdings]
            text = "; ".join([*here, there] if there and wait.put else here)
            if text and not wait.told:
                wait.told = True
                conversation.notify(Notice(text, move=conversation.holds_memory_of(held)))

    def timed_out(self, error: GatewayError) -> GatewayError:
        """A get that timed out; where its message may be waiting for receive memory, the error says who has that."""
        pool = self.context.receive_pool.stats()
        if not pool.waiting:
            return error
        received = [message for task in self._tasks.values() for message in task.received.values()]
        held = sum(message.total_bytes for message in received if message.lease is not None)
        return GatewayError(
            error.code,
            f"{error.message} Transfers that wait for room in the receive region: {pool.waiting}; tasks here hold "
            f"{held:,} of its {pool.length:,} bytes in what they got before.",
            "Let arrays of earlier gets go, or copy what is kept for long; or raise memory.receive_bytes. "
            + error.remedy,
        )

    def _check_attach(self, attach: Attach, user: int) -> None:
        if attach.protocol != CLIENT_PROTOCOL_VERSION:
            raise GatewayError(
                ErrorCode.CLIENT_PROTOCOL,
                f"the task speaks client protocol {attach.protocol}, this gateway {CLIENT_PROTOCOL_VERSION}.",
                "Run the same fedrdma-fate version in FATE and in the gateway.",
            )
        known = self._tasks.get(attach.client)
        if known is not None and user != known.user:
            raise refused(user, f"attach as a task of user {known.user}")
        if known is not None and not known.is_of(attach, user):
            raise GatewayError(ErrorCode.CLIENT_PROTOCOL, "one client attaches to two sessions, or as two users.")
        if not self.context.routes.is_local(attach.party):
            raise GatewayError(
                ErrorCode.WRONG_PARTY,
                f"{attach.party} is not served at site {self.context.config.site!r}.",
                f"Parties here: {', '.join(self.context.config.parties)}. Point the task at its own site's gateway.",
            )
        self.users.check(user, attach.party)
        if self.stopping:
            raise stopping_error(self.context)


class TaskConversation:
    """One connection of a task."""

    def __init__(self, server: TaskServer, user: int) -> None:
        self._server = server
        self._user = user
        self._context = server.context
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
                return self._go_on(request, self._attached)
            case ReleaseLeases(leases=leases):
                for lease in leases:
                    self._attached.release(lease)
                return None
            case LeaseSlot():
                return self._lease(request, self._attached)
            case Commit():
                return self._commit(request, self._attached)
            case Written():
                return self._written(request, self._attached)
            case PutInline():
                return self._put_inline(request, self._attached)
            case Tolerate():
                return self._tolerate(request, self._attached)
            case Get():
                return self._get(request, self._attached)
            case Sum():
                return self._sum(request, self._attached)
            case Leave():
                return self._leave(self._attached.attach)

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

    @property
    def _attached(self) -> Task:
        if self._task is None:
            raise GatewayError(ErrorCode.CLIENT_PROTOCOL, "a task has to attach first.")
        return self._task

    def _attach(self, attach: Attach) -> Answer:
        if self._task is not None:
            raise GatewayError(ErrorCode.CLIENT_PROTOCOL, "a task attaches once on each connection.")
        region = self._context.send_pool.region
        try:
            descriptor = memory_files.open_for_writing(region.fileno)
        except OSError as error:
            raise region_unusable("the send region", error) from error
        try:
            task = self._server.attach(attach, self._user)
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
            raise GatewayError(
                ErrorCode.SESSION_CLOSED,
                f"the gateway of {self._context.config.site} was restarted, and does not know this task of "
                f"{task.attach.party} from its earlier run.",
                "Run the job again.",
            )
        with self._context.journal.together():
            for missed in task.go_on(request):
                self._give_back(missed)
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

    async def _lease(self, request: LeaseSlot, task: Task) -> Reply:
        self._check_pushing(task.attach)
        pool = self._context.send_pool
        lease = pool.lease(request.total_bytes, task.owner)
        if lease is None:
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
        joint = JointBudget(request.loss_share) if request.jointly else None
        for key in keys:
            self._context.mailbox.tolerances.add(key, request.loss_share, joint)
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
            self._give_back(message)
            raise incomplete_error(message)
        self._context.mailbox.tolerances.discard(key)
        self._context.trace.get(key, message.total_bytes)
        if (body := message.small_body()) is not None:
            task.received[number] = message
            return WithSequel(
                GotInline(message.kind, body),
                lambda: task.release(number),
                lambda: self._not_handed_over(task, number),
            )
        try:
            place, descriptor, offset = message.locate()
        except FedRDMAError:
            self._give_back(message)
            raise
        task.received[number] = message
        reply = GotSlot(message.kind, number, place, offset, message.total_bytes, message.missing)
        return WithDescriptor(reply, descriptor, lambda: self._not_handed_over(task, number))

    async def _sum(self, request: Sum, task: Task) -> Answer:
        keys = [self._key_to_get(request.name, request.tag, source, task.attach) for source in request.sources]
        if len(set(keys)) < len(keys):
            raise GatewayError(ErrorCode.CLIENT_PROTOCOL, "a sum names one party twice.")
        with self._server.waiting(self, put=False):
            earlier = task.take_sum(keys)
            outcome = await self._server.sums.sum_of(keys, request.timeout, task.attach.client, earlier)
        if isinstance(outcome, NotSummed):
            return outcome
        message = outcome.message
        try:
            _, descriptor, offset = message.locate()
        except FedRDMAError:
            message.discard()
            raise
        number = task.new_lease()
        task.received[number] = message
        self._context.journal.write(SumHanded(outcome.number, number, request.number))
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
        # where it does not get there the task is gone, and with it what it was for
        return WithDescriptor(reply, descriptor, lambda: task.release(number))

    def _not_handed_over(self, task: Task, number: int) -> None:
        if (message := task.received.pop(number, None)) is not None:
            self._give_back(message)

    def _give_back(self, message: Message) -> None:
        with self._context.journal.together():
            self._context.journal.returned(message)
            self._context.mailbox.return_(message)

    def _note_pull(self, message: Message, task: Task, lease: int, asked: int) -> None:
        """A message that was pulled, and is with no task, could not come any more: both are written down, or none."""
        with self._context.journal.together():
            self._context.mailbox.sessions.note_pull(message.key)
            lease = 0 if message.small_body() is not None else lease
            self._context.journal.handed(message, task.attach.client, lease, asked)

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


def incomplete_error(message: Message) -> GatewayError:
    """The error for a task that gets a message with holes, and does not expect them."""
    missing = sum(length for _, length in message.missing)
    return GatewayError(
        ErrorCode.MESSAGE_INCOMPLETE,
        f"{missing} of {message.total_bytes} bytes of {message.key} are missing, as this task has let them be.",
        "Get it inside `with federation.tolerating(...)`, as was said before.",
    )


def stopping_error(context: GatewayContext) -> StoppingError:
    """The error for tasks of a gateway that is going away."""
    error = StoppingError(
        ErrorCode.GATEWAY_STOPPING,
        f"the gateway of {context.config.site} is stopping.",
        "Start it again, then run the job again.",
    )
    error.next_run = context.leaves_to_next
    return error
