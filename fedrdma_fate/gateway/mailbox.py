"""Messages that have arrived and wait to be pulled, and pulls that wait for their message."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.memory.spill import Spilled
from fedrdma_fate.ports import Region
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, error_from_code
from fedrdma_fate.wire.frames import MessageKey, MessageKind, Party

logger = logging.getLogger(__name__)

REMEMBERED_CLOSED = 4096
"""Parties that left a session and are still remembered, so that what comes late for them is dropped."""


@dataclasses.dataclass(slots=True, eq=False)
class Message:
    """A payload that is here, whole: inline, in a slot, or spilled to disk.

    Attributes:
        key: the message.
        kind: what the payload holds.
        total_bytes: its length.
        body: the payload when it came inline.
        lease: holds the slot it lies in.
        payload_at: where in the slot it starts.
        spilled: the file it was moved to.
        spilling: set while it is being moved.
    """

    key: MessageKey
    kind: MessageKind
    total_bytes: int
    body: bytes | None = None
    lease: Lease | None = None
    payload_at: int = 0
    spilled: Spilled | None = None
    spilling: asyncio.Task[None] | None = None

    @property
    def place(self) -> tuple[Path, int]:
        """File and offset of the payload, for a task to map."""
        if self.spilled is not None:
            return self.spilled.path, 0
        assert self.lease is not None
        slot = self.lease.slot
        return slot.region.path, slot.offset + self.payload_at

    def discard(self) -> None:
        """Give its memory or file back."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None
        if self.spilled is not None:
            self.spilled.discard()
            self.spilled = None


class _SessionState:
    """What one federation session has pushed and pulled at this gateway."""

    def __init__(self) -> None:
        self.pushed: set[MessageKey] = set()
        self.pulled: set[MessageKey] = set()
        self.failures: dict[Party, list[FedRDMAError]] = {}


class Mailbox:
    """Everything that waits at this gateway. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._messages: dict[MessageKey, Message] = {}
        self._failed: dict[MessageKey, FedRDMAError] = {}
        self._waiting: dict[MessageKey, asyncio.Future[Message]] = {}
        self._sessions: dict[str, _SessionState] = {}
        self._closed: OrderedDict[tuple[str, Party], None] = OrderedDict()

    # -- sessions -------------------------------------------------------------------------------------------------

    def join(self, session: str, party: Party) -> None:
        """A task of this party attached."""
        self._closed.pop((session, party), None)
        self._sessions.setdefault(session, _SessionState())

    def leave(self, session: str, party: Party) -> int:
        """The party left: drop what waits for it, refuse what it waits for; how many messages were dropped."""
        self._closed[session, party] = None
        while len(self._closed) > REMEMBERED_CLOSED:
            self._closed.popitem(last=False)
        gone = [key for key in self._messages if key.session == session and key.destination == party]
        for key in gone:
            self._drop(self._messages.pop(key))
        for key in [key for key in self._failed if key.session == session and key.destination == party]:
            del self._failed[key]
        closed = GatewayError(ErrorCode.SESSION_CLOSED, f"{party} has left the session {session}.")
        for key, future in list(self._waiting.items()):
            if key.session == session and key.destination == party and not future.done():
                future.set_exception(closed)
        state = self._sessions.get(session)
        if state is not None:
            state.pushed = {key for key in state.pushed if key.source != party}
            state.pulled = {key for key in state.pulled if key.destination != party}
            state.failures.pop(party, None)
            if not state.pushed and not state.pulled:
                del self._sessions[session]
        return len(gone)

    def is_closed(self, session: str, party: Party) -> bool:
        """Whether this party has left the session."""
        return (session, party) in self._closed

    # -- pushing --------------------------------------------------------------------------------------------------

    def register_push(self, keys: tuple[MessageKey, ...]) -> None:
        """Note that these messages are being pushed.

        Raises:
            GatewayError: DUPLICATE_PUSH when one of them was already; then none is noted.
        """
        for key in keys:
            if key in self._state(key.session).pushed:
                raise GatewayError(
                    ErrorCode.DUPLICATE_PUSH,
                    f"{key} was pushed before.",
                    "A name and tag can be pushed once to each party; the first message is kept.",
                )
        for key in keys:
            self._state(key.session).pushed.add(key)

    def push_failed(self, key: MessageKey, error: FedRDMAError) -> None:
        """A push could not be delivered: its party is told at its next call."""
        if not self.is_closed(key.session, key.source):
            self._state(key.session).failures.setdefault(key.source, []).append(error)

    def raise_push_failure(self, session: str, party: Party) -> None:
        """Raise, once, that an earlier push of this party failed.

        Raises:
            FedRDMAError: why it failed.
        """
        state = self._sessions.get(session)
        if state is not None and state.failures.get(party):
            raise state.failures[party].pop(0)

    # -- arriving -------------------------------------------------------------------------------------------------

    def deliver(self, message: Message) -> bool:
        """Keep a message for its destination; False when it is a second one or nobody is left to pull it."""
        key = message.key
        closed = self.is_closed(key.session, key.destination)
        if closed or key in self._messages or key in self._state(key.session).pulled:
            logger.info("dropped %s: %s", key, "its party has left" if closed else "it is here already")
            message.discard()
            return False
        self._failed.pop(key, None)
        future = self._waiting.get(key)
        if future is not None and not future.done():
            future.set_result(message)
        else:
            self._messages[key] = message
        return True

    def fail(self, key: MessageKey, code: str, reason: str) -> None:
        """A message will never come: tell whoever waits for it, or will."""
        if self.is_closed(key.session, key.destination) or key in self._messages:
            return
        error = error_from_code(code, f"{key} will not come: {reason}")
        future = self._waiting.get(key)
        if future is not None and not future.done():
            future.set_exception(error)
        else:
            self._failed[key] = error

    # -- pulling --------------------------------------------------------------------------------------------------

    async def take(self, key: MessageKey, timeout: float | None) -> Message:
        """The message, as soon as it is here; it then belongs to the caller.

        Raises:
            GatewayError: DUPLICATE_PULL, PULL_TIMEOUT after `timeout` seconds, SESSION_CLOSED.
            FedRDMAError: why it will not come.
        """
        state = self._state(key.session)
        if key in state.pulled or key in self._waiting:
            raise GatewayError(ErrorCode.DUPLICATE_PULL, f"{key} was pulled before.", "Pull each message once.")
        if (failed := self._failed.pop(key, None)) is not None:
            raise failed
        message = self._messages.pop(key, None)
        if message is None:
            message = await self._wait(key, timeout)
        state.pulled.add(key)
        if message.spilling is not None:
            await message.spilling
        return message

    async def _wait(self, key: MessageKey, timeout: float | None) -> Message:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise GatewayError(
                ErrorCode.PULL_TIMEOUT,
                f"{key} did not come within {timeout:g} s.",
                "See in `fedrdma status` whether its peer is connected, and in the other site's log whether it was "
                "pushed.",
            ) from None
        except asyncio.CancelledError:
            # the task went away just when its message came: keep it
            if future.done() and not future.cancelled() and future.exception() is None:
                self._messages[key] = future.result()
            raise
        finally:
            del self._waiting[key]

    def refuse_all(self, error: FedRDMAError) -> None:
        """The gateway stops: refuse everybody who waits."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    # -- looking --------------------------------------------------------------------------------------------------

    def in_region(self, region: Region) -> Iterator[Message]:
        """Messages in this region that nobody has pulled and that could be spilled, the longest waiting first."""
        return (
            message
            for message in self._messages.values()
            if message.lease is not None and message.spilling is None and message.lease.slot.region is region
        )

    def summary(self) -> dict[str, int]:
        """Counts and bytes, for status."""
        spilled = [m.total_bytes for m in self._messages.values() if m.spilled is not None]
        return {
            "messages": len(self._messages),
            "message_bytes": sum(m.total_bytes for m in self._messages.values()),
            "spilled_messages": len(spilled),
            "spilled_bytes": sum(spilled),
            "waiting_pulls": len(self._waiting),
            "sessions": len(self._sessions),
        }

    def discard_all(self) -> None:
        """Drop every message: the gateway is going away."""
        for message in self._messages.values():
            self._drop(message)
        self._messages.clear()

    def _drop(self, message: Message) -> None:
        if message.spilling is not None:
            message.spilling.add_done_callback(lambda _: message.discard())
        else:
            message.discard()

    def _state(self, session: str) -> _SessionState:
        return self._sessions.setdefault(session, _SessionState())
