"""The FATE tasks of this site: who is attached, who waits, and what is told to them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol

from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    Attach,
    Notice,
)
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.sessions import Engine
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.routing import not_served
from fedrdma_fate.gateway.tasks.conversation import TaskConversation
from fedrdma_fate.gateway.tasks.given_back import give_back
from fedrdma_fate.gateway.tasks.held_memory import HeldMemory, told_of_peers
from fedrdma_fate.gateway.tasks.pushing import Pushing
from fedrdma_fate.gateway.tasks.returning import TASKS_LOOK_SECONDS, Had
from fedrdma_fate.gateway.tasks.session_ends import SessionEnds
from fedrdma_fate.gateway.tasks.session_list import sessions_document
from fedrdma_fate.gateway.tasks.site_sums import SiteSums
from fedrdma_fate.gateway.tasks.stopping import stopping_error
from fedrdma_fate.gateway.tasks.sums import Sums
from fedrdma_fate.gateway.tasks.task import Task
from fedrdma_fate.gateway.tasks.users import TaskUsers, refused
from fedrdma_fate.memory.shared_slots import place_is_held
from fedrdma_fate.obs.complaints import EACH_TELLS
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party

logger = logging.getLogger(__name__)


_PLACE_BITS = 48
"""Of the place that the first task gets: a file can have locks up to 2**63, and no run has 2**48 tasks."""


class MakeStatus(Protocol):
    """Makes the status document."""

    def __call__(self, may_know: Callable[[Party], bool]) -> dict[str, object]:
        """For somebody who may know of the transfers of these parties of the site, and of no others."""
        ...


@dataclasses.dataclass(slots=True)
class _Wait:
    """A request that waits: whether it is a put, and whether its task was told what for."""

    put: bool
    told: bool = False


class TaskServer:
    """Belongs to the event loop's thread.

    Attributes:
        has_new_memory: whether tasks of an earlier run have another send region than this one has.
        why_unknown: why tasks of the earlier run are not known, where something of it is missing.
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
        self.site_sums = SiteSums(context, self.sums.workers, peers)
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
        self.why_unknown = ""

    @property
    def task_count(self) -> int:
        """Task processes attached."""
        return len(self._tasks)

    def admits(self, user: int) -> bool:
        """Whether tasks of this user of the host may connect."""
        return self.users.admits(user)

    def begin(self, user: int, engine: Engine = "fedrdma") -> TaskConversation:
        """A task of this user has connected, and exchanges messages by this engine."""
        return TaskConversation(self, user, engine)

    def close(self) -> None:
        """Nobody is waited for any more."""
        self.sessions.close()
        self.sums.close()

    def attach(self, attach: Attach, user: int, engine: Engine = "fedrdma") -> Task:
        """The task behind a new connection of this user.

        Raises:
            GatewayError: CLIENT_PROTOCOL, WRONG_PARTY, LIMIT_REACHED, SESSION_ENDED, ENGINES_MIXED or
                GATEWAY_STOPPING.
        """
        self._check_attach(attach, user, engine)
        self.sessions.check_open(attach.session, attach.parties)
        task = self._tasks.get(attach.client)
        if task is None:
            if not self.users.is_own(user):
                self.sessions.users.join(user, attach.session, attach.party)
            self.context.mailbox.join(attach.session, attach.party, attach.parties, engine)
            self._places += 1
            journal = self.context.journal
            task = self._tasks[attach.client] = Task(attach, user, self.pushing.abandon, journal, self._places)
            task.note_came()
            self.sessions.arrive(attach.session, attach.party)
        elif task.is_awaited:
            self.context.mailbox.join(attach.session, attach.party, attach.parties, engine)
        task.connections += 1
        return task

    def forgotten(self, task: Task) -> None:
        """One goes on after an earlier run of the gateway, and no journal knows it.

        Where other users are in its session, too, it may be one that only says so.
        """
        session = task.attach.session
        if all(each.user == task.user for each in self._tasks.values() if each.attach.session == session):
            self.sessions.forgotten_here(session)

    def expect(self, had: Sequence[Had]) -> None:
        """Tasks of an earlier run may come back, and have this."""
        for each in had:
            task = Task.of_earlier_run(each, self.pushing.abandon, self.context.journal)
            # whose pop it was has an error, for the gateway was killed before all had gone to it, and pops again
            popped, pulls = task.take_popped()
            for message in popped:
                give_back(self.context, message)
            for key in pulls:
                self.context.mailbox.settle(key, got=False)
            attach = task.attach
            if not self.users.is_own(task.user):
                with contextlib.suppress(GatewayError):
                    self.sessions.users.join(task.user, attach.session, attach.party)
            self._tasks[attach.client] = task
            self.sessions.expect(attach.session, attach.party)
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
        self.context.sum_orders.gone(attach.client)
        held = task.release_all()
        for key, got in task.take_pulls():
            # whether or not it has got them, it has pulled them, and nobody else does
            self.context.mailbox.settle(key, got=got)
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

    def _check_attach(self, attach: Attach, user: int, engine: Engine) -> None:
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
        routes = self.context.routes
        # what comes from an OSX broker is pushed here in the name of its parties
        if not routes.is_local(attach.party) and not (engine == "osx" and routes.broker_of(attach.party)):
            raise not_served(attach.party, self.context.config, " Point the task at its own site's gateway.")
        self.users.check(user, attach.party)
        if self.stopping:
            raise stopping_error(self.context)
