"""How a FATE task talks to its site's gateway: blocking calls over a unix socket, payloads through shared memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Literal

import msgspec

from fedrdma_fate.client.access import TaskAccess
from fedrdma_fate.client.address import socket_path
from fedrdma_fate.client.connections import Membership
from fedrdma_fate.client.protocol import (
    AskStatus,
    Begun,
    Commit,
    Done,
    ExpectSum,
    Forget,
    Get,
    GotInline,
    GotSlot,
    Leased,
    LeaseSlot,
    Leave,
    NotSummed,
    NotYet,
    PutInline,
    Request,
    StatusReport,
    Sum,
    Summed,
    Tolerate,
    Written,
)
from fedrdma_fate.client.remote import AnyConnections, connections_of
from fedrdma_fate.client.rpc import AnyReply, call_once, expect, expect_with_descriptor
from fedrdma_fate.memory.mapping import map_copy_on_write
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKind, Mode, Party

_STATUS_SECONDS = 10.0
"""For the status, which a gateway that is well gives at once: its event loop does nothing that takes long."""


class Received:
    """A message that was waited for.

    Attributes:
        kind: what the payload holds.
        buffer: the payload: writable, private to this process, and a view: nothing was copied. The receive slot goes
            back to the gateway when the last view of the buffer has died.
        missing: what has not come of it and is zeros, from one byte of the buffer to before another.
    """

    def __init__(self, kind: MessageKind, buffer: memoryview, missing: Sequence[tuple[int, int]] = ()) -> None:
        self.kind: MessageKind = kind
        self.buffer = buffer
        self.missing = missing


@dataclasses.dataclass(frozen=True, slots=True)
class LossTolerance:
    """What may be missing of a payload in the end.

    Attributes:
        share: of what lies behind `whole_bytes`; 0: nothing.
        whole_bytes: from the start of the payload, that have to come.
    """

    share: float = 0.0
    whole_bytes: int = 0


WHOLE = LossTolerance()
"""Nothing may be missing."""


class ReceivedSum:
    """A sum of what some parties sent.

    Attributes:
        parties_in: who is in it, as numbers of the parties that were asked for.
        weight: the sum of their weights; None where they have none.
        shapes: of the arrays; each has two planes in `buffer`, see `wire.summand.planes_of`.
        buffer: the planes: writable, private to this process, and a view as in `Received`.
        reason: why not everybody is in it, or empty.
        unfinished: what no worker could do, and is still to be done to `accumulator`.
        accumulator: what the planes lie in, where something is.
    """

    def __init__(self, summed: Summed, mapped: memoryview) -> None:
        self.parties_in = summed.parties_in
        self.weight = summed.weight
        self.shapes = summed.shapes
        self.reason = summed.reason
        self.unfinished = summed.unfinished
        self.accumulator = mapped
        self.buffer = mapped[summed.before :]


class SendLease:
    """A leased send slot: write the payload into `buffer`, then `commit` it, in the process that leased it.

    Attributes:
        digests_wanted: whether `written` had better tell digests; known after `commit_unfinished`.
    """

    def __init__(self, connections: AnyConnections, lease: int, buffer: memoryview) -> None:
        self._connections = connections
        self._lease: int | None = lease
        self._buffer = buffer
        self.digests_wanted = True
        self._begun: tuple[str, Commit] | None = None

    @property
    def buffer(self) -> memoryview:
        """Exactly as long as was asked for, page-aligned, in shared memory.

        Raises:
            MemoryPoolError: LEASE_UNKNOWN when the slot was given away, or belongs to another process.
        """
        self._held()
        return self._buffer

    def commit(
        self,
        name: str,
        tag: str,
        destinations: Sequence[Party],
        kind: MessageKind,
        *,
        keep: bool = False,
        loss: LossTolerance = WHOLE,
    ) -> None:
        """Hand the payload to the gateway, which sends it to every destination; returns at once, unless very many
        wait for one of them already.

        With `keep` the slot stays leased and its bytes must not change: it can be committed again, to others. `loss` is
        what may be missing of it in the end.

        Raises:
            GatewayError: DUPLICATE_PUSH, WRONG_PARTY, SESSION_CLOSED, GATEWAY_STOPPING or GATEWAY_UNREACHABLE.
            MemoryPoolError: LEASE_UNKNOWN when it was given away before or belongs to another process,
                PAYLOAD_TOO_LARGE when a destination cannot hold it.
            FedRDMAError: an earlier push of this party could not be delivered, and why.
        """
        to = tuple(destinations)
        request = Commit(self._held(), name, tag, to, kind, keep, False, loss.share, loss.whole_bytes)
        if not keep:
            self._let_go()
        try:
            expect(self._connections.call(request), Done)
        finally:
            if not keep:
                self._connections.given_away(request.lease)

    def commit_unfinished(
        self, name: str, tag: str, destinations: Sequence[Party], kind: MessageKind, *, loss: LossTolerance = WHOLE
    ) -> Literal["committed", "digests-wanted", "later"]:
        """Hand over a payload that will be written from its end to its start, so that sending can begin meanwhile.

        The slot stays leased. Tell of all that is written by `written`, down to 0, and then release the slot, or keep
        it as after `commit`; released before, the message fails at its destinations.

        Returns:
            `committed`, or else nothing was: `commit` it when it is written; `digests-wanted` says that `written` is of
            use all the same.

        Raises:
            As `commit` does.
        """
        request = Commit(
            self._held(),
            name,
            tag,
            tuple(destinations),
            kind,
            keep=True,
            loss_share=loss.share,
            whole_bytes=loss.whole_bytes,
        )
        run = self._connections.incarnation
        reply = self._connections.call(msgspec.structs.replace(request, unfinished=True))
        if isinstance(reply, NotYet):
            self.digests_wanted = reply.digests
            return "digests-wanted" if reply.digests else "later"
        self.digests_wanted = expect(reply, Begun).digests
        self._begun = run, request
        return "committed"

    def written(self, written_from: int, block_digests: Sequence[int]) -> None:
        """Everything lies in `buffer` from this offset on, with these digests of blocks; see `protocol.Written`.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE, CLIENT_PROTOCOL when that is more than before.
            MemoryPoolError: LEASE_UNKNOWN.
        """
        lease = self._held()
        begun = self._begun
        if begun is None or begun[0] == self._connections.incarnation:
            try:
                expect(self._connections.call(Written(lease, written_from, tuple(block_digests))), Done)
            except FedRDMAError:
                if begun is None or begun[0] == self._connections.incarnation:
                    raise
        if begun is not None and not written_from and begun[0] != self._connections.incarnation:
            # the gateway was killed meanwhile, and the next one sends nothing of this before it is whole
            expect(self._connections.call(msgspec.structs.replace(begun[1], again=True)), Done)

    def release(self) -> None:
        """Give a slot back that was not committed, or was kept. May be repeated; in a forked child it does nothing."""
        lease = self._lease
        if lease is not None:
            self._let_go()
            self._connections.release(lease)

    def _held(self) -> int:
        if self._lease is None or not self._connections.of_this_process:
            raise MemoryPoolError(
                ErrorCode.LEASE_UNKNOWN, "this send slot was given away, or belongs to the parent of this process."
            )
        return self._lease

    def _let_go(self) -> None:
        self._lease = None
        # an array may still view it; what it writes from now on is its own fault
        with contextlib.suppress(BufferError):
            self._buffer.release()


class GatewayClient:
    """A task's connection to its gateway. Usable from several threads, and in forked children (which attach anew)."""

    def __init__(
        self,
        address: str,
        session: str,
        party: Party,
        *,
        mode: Mode | None = None,
        parties: Sequence[Party] | None = None,
        connect_timeout: float = 30.0,
        brief: bool = False,
        access: TaskAccess | None = None,
    ) -> None:
        """Attach to the gateway at `unix:///path`, or, with access, to one on another host.

        Args:
            address: of the gateway's socket.
            session: federation session.
            party: the party the task runs for.
            mode: transfer mode that this job asks for, or None for the gateway's.
            parties: everybody in the session, who alone can send messages of it; None where that is not known.
            connect_timeout: seconds to wait for a gateway that is not there yet.
            brief: for a message or two by one thread: attaches once, and a second time when something may be released.
            access: how to get to a gateway on another host; then the address is of no use.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE after `connect_timeout` seconds, WRONG_PARTY, CLIENT_PROTOCOL.
            ConfigError: CONFIG_BAD_VALUE when the address is not of that form.
        """
        names = None if parties is None else tuple(parties)
        self._membership = Membership(socket_path(address), session, party, mode, connect_timeout, names, brief, access)
        self._connections: AnyConnections | None = connections_of(self._membership)

    @property
    def party(self) -> Party:
        return self._membership.party

    def lease(self, total_bytes: int, *, timeout: float | None = None) -> SendLease:
        """Lease a send slot; waits while the send region is full.

        Args:
            total_bytes: length of the payload.
            timeout: seconds to wait for room; None for the gateway's `timeouts.put`.

        Raises:
            MemoryPoolError: POOL_TIMEOUT, or PAYLOAD_TOO_LARGE when the region will never hold it.
            GatewayError: SESSION_CLOSED, GATEWAY_STOPPING or GATEWAY_UNREACHABLE.
            FedRDMAError: an earlier push of this party could not be delivered, and why.
        """
        own = self._own()
        reply = expect(own.call(LeaseSlot(total_bytes, timeout)), Leased)
        try:
            return SendLease(own, reply.lease, own.slot(reply, total_bytes))
        except BaseException:
            own.release(reply.lease)
            raise

    def put_inline(self, name: str, tag: str, destinations: Sequence[Party], kind: MessageKind, body: bytes) -> None:
        """Send a message of up to INLINE_LIMIT_BYTES.

        Raises:
            GatewayError: as for `SendLease.commit`.
            FedRDMAError: likewise.
            ValueError: the body is longer.
        """
        if len(body) > INLINE_LIMIT_BYTES:
            raise ValueError(f"{len(body)} bytes do not ride inline, {INLINE_LIMIT_BYTES} is the limit")
        self._call(PutInline(name, tag, tuple(destinations), kind, body), Done)

    def tolerate(
        self,
        name: str,
        tag: str,
        sources: Sequence[Party],
        share: float,
        *,
        jointly: bool = False,
        straggler_wait: float | None = None,
    ) -> None:
        """Let something be missing of messages that are to be got, each by a `get` that `tolerates` it.

        Args:
            name: FATE's message name.
            tag: FATE's tag.
            sources: the parties they come from.
            share: how much of what their senders let be missing may be so, of each.
            jointly: not of each, but of all together: what is missing of one is of no use of the others.
            straggler_wait: how much longer than the others the last of them is waited for, once what is missing of it
                may be, as a share of the median time of the others' transfers; None: until all of it was sent.

        Raises:
            GatewayError: WRONG_PARTY, GATEWAY_STOPPING or GATEWAY_UNREACHABLE.
        """
        self._call(Tolerate(name, tag, tuple(sources), share, jointly, straggler_wait), Done)

    def get(
        self,
        name: str,
        tag: str,
        source: Party,
        *,
        timeout: float | None = None,
        tolerates: bool = False,
        keeps: bool = False,
    ) -> Received:
        """Wait for a message and map it.

        Args:
            name: FATE's message name.
            tag: FATE's tag.
            source: the party it comes from.
            timeout: seconds to wait; None waits for ever.
            tolerates: see `tolerate`.
            keeps: it can be got again when nothing of it is held any more, until `forget`.

        Raises:
            GatewayError: PULL_TIMEOUT, MESSAGE_INCOMPLETE, DUPLICATE_PULL, WRONG_PARTY, SESSION_CLOSED,
                GATEWAY_STOPPING or GATEWAY_UNREACHABLE.
            MemoryPoolError: REGION_UNAVAILABLE where there is no descriptor or no memory for it, there or here;
                then it waits for another get.
            FedRDMAError: the message was pushed and could not be delivered; the code says why.
        """
        own = self._own()
        number = own.new_get()
        reply, descriptors = own.call_for_descriptors(Get(name, tag, source, timeout, tolerates, number, keeps))
        if isinstance(reply, GotInline):
            return Received(reply.kind, memoryview(bytearray(reply.body)))
        try:
            slot, descriptor = expect_with_descriptor(reply, descriptors, GotSlot)
            whole = slot.place != "spilled"
            buffer = _mapped(own, descriptor, slot.lease, slot.offset, slot.total_bytes, prefault=whole)
        except BaseException:
            if isinstance(reply, GotSlot):
                own.not_got(number, reply.lease)
            raise
        if slot.place == "region":
            own.received(slot.lease, buffer)
        return Received(slot.kind, buffer, slot.missing)

    def forget(self, prefix: str, tag: str, source: Party) -> None:
        """Messages whose names begin so, and that were got to be kept, are not wanted any more.

        Raises:
            GatewayError: WRONG_PARTY, GATEWAY_STOPPING or GATEWAY_UNREACHABLE.
        """
        self._call(Forget(prefix, tag, source), Done)

    def get_sum(
        self, name: str, tag: str, sources: Sequence[Party], *, timeout: float | None = None
    ) -> ReceivedSum | NotSummed:
        """Wait for the sum of what these parties send, and map it. Who is not in it is to be got by `get`.

        Args:
            name: FATE's message name.
            tag: FATE's tag.
            sources: the parties, in the order of their ranks.
            timeout: seconds to wait; None waits for ever.

        Raises:
            GatewayError: as `get`, and SUM_LOST where something of an earlier run of the gateway still writes to it.
            MemoryPoolError: REGION_UNAVAILABLE where there is no descriptor or no memory for it, there or here;
                then it waits for another `get_sum` of the same.
            FedRDMAError: the message of one of them will not come; the code says why.
        """
        own = self._own()
        number = own.new_get()
        reply, descriptors = own.call_for_descriptors(Sum(name, tag, tuple(sources), timeout, number))
        if isinstance(reply, NotSummed):
            return reply
        try:
            summed, descriptor = expect_with_descriptor(reply, descriptors, Summed)
        except MemoryPoolError:
            if isinstance(reply, Summed):
                own.not_got(number, reply.lease)
            raise
        if summed.unfinished is None:
            summed = msgspec.structs.replace(summed, before=0)
        start, length = summed.offset - summed.before, summed.before + summed.total_bytes
        try:
            mapped = _mapped(own, descriptor, summed.lease, start, length, prefault=True)
        except BaseException:
            own.not_got(number, summed.lease)
            raise
        own.received(summed.lease, mapped)
        return ReceivedSum(summed, mapped)

    def expect_sum(self, name: str, sources: Sequence[Party]) -> None:
        """Sums of what these parties send under this name will be asked for, so that their sites know before they send.

        Args:
            name: FATE's message name.
            sources: the parties, in the order of their ranks.

        Raises:
            GatewayError: WRONG_PARTY, GATEWAY_STOPPING or GATEWAY_UNREACHABLE.
        """
        self._call(ExpectSum(name, tuple(sources)), Done)

    def leave(self) -> None:
        """The party leaves the session: what is still waiting for it is dropped."""
        self._call(Leave(), Done)

    def status(self) -> dict[str, object]:
        """The gateway's status document."""
        return _document(self._call(AskStatus(), StatusReport))

    def close(self) -> None:
        """Close all connections; leases still held go back, also those of received buffers. May be repeated."""
        own, self._connections = self._connections, None
        if own is not None:
            own.close()

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _call(self, request: Request, expected: type[AnyReply]) -> AnyReply:
        return expect(self._own().call(request), expected)

    def _own(self) -> AnyConnections:
        """This process's connections: a forked child leaves its parent's alone."""
        own = self._connections
        if own is not None and not own.of_this_process:
            own.close()
            own = None
        if own is None:
            own = self._connections = connections_of(self._membership)
        return own


def ask_status(address: str) -> dict[str, object]:
    """The status document of the gateway at `unix:///path`, without attaching to a session.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE; CLIENT_PROTOCOL where the answer is none.
    """
    return _document(expect(call_once(socket_path(address), AskStatus(), _STATUS_SECONDS), StatusReport))


def _mapped(
    own: AnyConnections, descriptor: int, lease: int, offset: int, length: int, *, prefault: bool
) -> memoryview:
    """What lies there, mapped; the descriptor is closed."""
    try:
        released = functools.partial(own.release, lease)
        return map_copy_on_write(descriptor, offset, length, released, prefault=prefault)
    finally:
        os.close(descriptor)


def _document(report: StatusReport) -> dict[str, object]:
    try:
        return msgspec.json.decode(report.document, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GatewayError(
            ErrorCode.CLIENT_PROTOCOL,
            f"the gateway's answer is no status: {error}.",
            "See what listens at its socket; run the same fedrdma-fate version here and there.",
        ) from error
