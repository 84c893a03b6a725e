"""The sending side of a task: leases, one serialisation for several destinations, back-pressure that is seen."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from fedrdma_fate.client.client import WHOLE, LossTolerance, SendLease
from fedrdma_fate.fate.gateway_client import Client, Connector
from fedrdma_fate.fate.leasing import lease_visibly, tell_digests, wants_digests
from fedrdma_fate.fate.serialise import ObjectPlan
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKind, Party

EARLY_FROM_BYTES = 16 * 2**20
"""Objects from this size on are sent while they are being written."""


@dataclasses.dataclass
class _Pushed:
    """An object in its send slot: what it is called, what of it may be missing, and who was sent it.

    Kept, it can go to further parties.
    """

    lease: SendLease
    name: str
    tag: str
    loss: LossTolerance = WHOLE
    sent_to: set[Party] = dataclasses.field(default_factory=set)


class Outbox:
    """Puts of one task. Threads take turns.

    Attributes:
        serialised: how many large objects were written into a slot.
        reused: how often a written slot was sent again to further parties.
    """

    def __init__(self, client: Client, connector: Connector, put_timeout: float | None) -> None:
        self.serialised = 0
        self.reused = 0
        self._client = client
        self._everybody = {party for party in connector.parties if party != connector.party}
        self._put_timeout = put_timeout
        self._kept: _Pushed | None = None
        self._turn = threading.Lock()

    def put_object(
        self, plan: ObjectPlan, name: str, tag: str, destinations: Sequence[Party], loss_share: float = 0.0
    ) -> bool:
        """Send an object, of which so much may be missing in the end; whether it had to be written anew.

        Raises:
            MemoryPoolError: POOL_TIMEOUT or PAYLOAD_TOO_LARGE.
            GatewayError: the gateway refuses it.
        """
        with self._turn:
            if plan.total_bytes <= INLINE_LIMIT_BYTES:
                self._drop_kept()
                body = bytearray(plan.total_bytes)
                plan.write_into(memoryview(body))
                self._client.put_inline(name, tag, destinations, "object", bytes(body))
                return True
            loss = LossTolerance(loss_share, plan.whole_bytes) if loss_share else WHOLE
            if self._put_again(plan, name, tag, destinations, loss):
                self.reused += 1
                return False
            self._drop_kept()
            self._put_anew(plan, name, tag, destinations, loss)
            self.serialised += 1
            return True

    def put_bytes(self, body: bytes, kind: MessageKind, name: str, tag: str, destinations: Sequence[Party]) -> None:
        """Send bytes as they are.

        Raises:
            MemoryPoolError: POOL_TIMEOUT or PAYLOAD_TOO_LARGE.
            GatewayError: the gateway refuses them.
        """
        with self._turn:
            self._drop_kept()
            if len(body) <= INLINE_LIMIT_BYTES:
                self._client.put_inline(name, tag, destinations, kind, body)
                return
            lease = lease_visibly(self._client, len(body), self._put_timeout, name)
            try:
                lease.buffer[:] = body
                tell_digests(lease, len(body))
                lease.commit(name, tag, destinations, kind)
            except BaseException:
                lease.release()
                raise

    def settle(self) -> None:
        """Let a kept slot go, unless a put is going on, which sees to it itself."""
        if self._turn.acquire(blocking=False):
            try:
                self._drop_kept()
            finally:
                self._turn.release()

    def _put_again(
        self, plan: ObjectPlan, name: str, tag: str, destinations: Sequence[Party], loss: LossTolerance
    ) -> bool:
        kept = self._kept
        if kept is None or (kept.name, kept.tag, kept.loss) != (name, tag, loss):
            return False
        if not plan.matches(kept.lease.buffer):
            return False
        self._commit(kept, destinations)
        return True

    def _put_anew(
        self, plan: ObjectPlan, name: str, tag: str, destinations: Sequence[Party], loss: LossTolerance
    ) -> None:
        lease = lease_visibly(self._client, plan.total_bytes, self._put_timeout, name)
        pushed = _Pushed(lease, name, tag, loss)
        try:
            committed = self._write(plan, pushed, destinations)
        except BaseException:
            lease.release()
            raise
        if not committed:
            self._commit(pushed, destinations)
        elif self._anybody_left(pushed, destinations):
            self._kept = pushed
        else:
            lease.release()

    def _write(self, plan: ObjectPlan, pushed: _Pushed, destinations: Sequence[Party]) -> bool:
        """Write an object into its slot, a large one while it is being sent already; whether it was committed."""
        lease = pushed.lease
        if plan.total_bytes < EARLY_FROM_BYTES:
            if not wants_digests(plan.total_bytes):
                plan.write_into(lease.buffer)
                return False
            blocks: list[int] = []

            def note(_written_from: int, digests: Sequence[int]) -> None:
                blocks[:0] = digests

            plan.write_into(lease.buffer, note)
            lease.written(0, blocks)
            return False
        answer = lease.commit_unfinished(pushed.name, pushed.tag, destinations, "object", loss=pushed.loss)
        plan.write_into(lease.buffer, None if answer == "later" else lease.written, digests=lease.digests_wanted)
        return answer == "committed"

    def _commit(self, pushed: _Pushed, destinations: Sequence[Party]) -> None:
        """Send a written object, and keep its slot while there is somebody left who may be sent the same."""
        self._kept = None
        keep = self._anybody_left(pushed, destinations)
        try:
            pushed.lease.commit(pushed.name, pushed.tag, destinations, "object", keep=keep, loss=pushed.loss)
        except BaseException:
            pushed.lease.release()
            raise
        if keep:
            self._kept = pushed

    def _anybody_left(self, pushed: _Pushed, destinations: Sequence[Party]) -> bool:
        """Whether, after these destinations, there is somebody left who may be sent the same."""
        pushed.sent_to.update(destinations)
        return bool(self._everybody - pushed.sent_to)

    def _drop_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.lease.release()
