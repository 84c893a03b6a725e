"""What the driver sees of a transfer's state machine, whatever its mode. Times are in seconds of one clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedrdma_fate.core.actions import Action
from fedrdma_fate.core.held import Held, Ranges
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.core.receiver import ReceiverState
from fedrdma_fate.core.sender import SenderState
from fedrdma_fate.core.x.bounded_loss import SpendHoles
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Report


class SendingMachine(Protocol):
    """The sending half of a transfer: `Sender`, or `XSender` for mode `fedrdma-x`.

    Every method returns the actions to carry out, in order. What is of another mode is ignored.
    """

    transfer: int
    plan: ChunkPlan
    state: SenderState
    resent_bytes: int
    told_digests: bool

    @property
    def arrived_bytes(self) -> int:
        """Payload bytes known to lie in the receiver's slot."""
        ...

    @property
    def waiting_since(self) -> float | None:
        """Since when chunks are under way, or lost, and none has arrived, seconds; None where nobody waits for one."""
        ...

    @property
    def arrived_ranges(self) -> Ranges:
        """Which bytes of the payload those are."""
        ...

    def note_held(self, ranges: Ranges) -> None:
        """Before the start: these bytes lie in the slot, and are not sent."""
        ...

    def start(self, now: float) -> list[Action]:
        """Begin. The offer has been sent and the slot was granted."""
        ...

    def on_written(self, written_from: int, now: float) -> list[Action]:
        """The payload, which is still being written, lies there from here on."""
        ...

    def on_digest(self, index: int, value: int) -> list[Action]:
        """The answer to ComputeDigest."""
        ...

    def on_write_done(self, work_request: int, now: float) -> list[Action]:
        """A write has completed."""
        ...

    def on_chunk_ack(self, index: int, now: float) -> list[Action]:
        """The receiver has taken a chunk in."""
        ...

    def on_chunk_nack(self, immediate: int, missing_bytes: int) -> None:
        """Of the chunk of this immediate only so many bytes are missing, and only they would go again."""
        ...

    def on_report(self, report: Report, now: float) -> list[Action]:
        """The receiver says what it has."""
        ...

    def on_resend(self, chunks: Iterable[int], now: float) -> list[Action]:
        """The receiver found damage."""
        ...

    def on_digest_request(self) -> list[Action]:
        """The receiver has all of it, with a wrong digest, and asks which those of its chunks are."""
        ...

    def on_delivered(self, now: float) -> list[Action]:
        """The receiver has the payload, whole."""
        ...

    def on_refused(self, code: ErrorCode, reason: str) -> list[Action]:
        """The receiver will not deliver it."""
        ...

    def pause(self) -> None:
        """The data path is gone."""
        ...

    def resume(self, now: float, *, same_slot: bool) -> list[Action]:
        """The data path is back."""
        ...

    def cancel(self, code: ErrorCode, reason: str) -> list[Action]:
        """Give up, and tell the peer."""
        ...

    @property
    def fails_at(self) -> float | None:
        """When it fails as nothing arrives, unless bytes are seen to move (`on_moving`); None: nobody is to look."""
        ...

    def on_moving(self, now: float) -> None:
        """Bytes move on its way, though nothing has arrived whole."""
        ...

    def timer(self) -> float | None:
        """When to call `on_timer`, or None."""
        ...

    def on_timer(self, now: float) -> list[Action]:
        """Do what is due."""
        ...


class ReceivingMachine(Protocol):
    """The receiving half of a transfer: `Receiver`, or `XReceiver` for mode `fedrdma-x`.

    Every method returns the actions to carry out, in order. What is of another mode is ignored.
    """

    transfer: int
    plan: ChunkPlan
    layout: SlotLayout
    state: ReceiverState

    @property
    def placed_bytes(self) -> int:
        """Payload bytes known to lie at their place."""
        ...

    @property
    def landed(self) -> tuple[int, int]:
        """Bytes of the payload that lie at their place, from one offset to another, as they come: a stretch that grows.

        A hint, where nothing has vouched for them yet; what has to come again leaves it as it is.
        """
        ...

    @property
    def landed_again(self) -> int:
        """How many chunks were written over with what came again for them."""
        ...

    def on_landed(self, offset: int, length: int, digest: int | None = None) -> list[Action]:
        """A hint that a chunk without immediate has landed, perhaps with its digest."""
        ...

    def on_chunk(
        self,
        immediate: int,
        arrived_at: float,
        now: float,
        digest: int | None = None,
        place: tuple[int, int] | None = None,
        received_bytes: int | None = None,
    ) -> list[Action]:
        """A chunk with immediate has landed whole, now or (before the offer came) earlier.

        Perhaps with its digest, where it was written: offset in the slot, and length; and the bytes of all that has
        come by then, chunks that are not whole included.
        """
        ...

    def on_announced(self, raw: bytes | memoryview) -> list[Action]:
        """The header's immediate came."""
        ...

    def on_digest(self, index: int, value: int) -> list[Action]:
        """The answer to ComputeDigest."""
        ...

    def on_chunk_digests(self, told: bytes) -> list[Action]:
        """The sender tells the digests of its chunks, 64 bits each, little-endian."""
        ...

    @property
    def held(self) -> Held:
        """What it could go on from in the same slot, on another data path."""
        ...

    def adopt(self, held: Held) -> list[Action]:
        """This lies in the slot already, from another data path. To be called before anything comes."""
        ...

    @property
    def is_bounded(self) -> bool:
        """Whether something of it may be missing in the end."""
        ...

    def let_miss(self, share: float, spend: SpendHoles, *, is_late: bool = False) -> None:
        """How much of what may be missing the receiver's task lets be so, and what is asked before it is.

        Of one that `is_late`, what is still to be sent is not waited for either.
        """
        ...

    def on_digest_run(self, first: int, digests: bytes) -> None:
        """The sender tells digests of chunks that may be missing."""
        ...

    def restart(self, *, same_slot: bool = True) -> list[Action]:
        """The sender resumes on a new data path."""
        ...

    def on_abort(self, code: ErrorCode, reason: str) -> list[Action]:
        """The sender gave up."""
        ...

    def timer(self) -> float | None:
        """When to call `on_timer`, or None."""
        ...

    def on_timer(self, now: float) -> list[Action]:
        """Do what is due."""
        ...
