"""What a link tells its owner: events as data, and how far its transfers are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

from fedrdma_fate.core.held import Piece, Ranges
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.ports import LentRegion, Slot
from fedrdma_fate.security.sealing import PathOpener, SealFault
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ControlFrame, GrantRequest, MessageKey, Mode, Offer

DatagramFault = Literal["forged", "replayed", "malformed", "stray"]
"""Why a datagram was dropped: its tag is wrong; it has come before; the peer itself has sent nonsense."""


@dataclasses.dataclass(frozen=True, slots=True)
class TransferStats:
    """How a transfer went: seconds from its start on the data path to its end, and bytes sent again."""

    seconds: float
    resent_bytes: int
    writes: int


@dataclasses.dataclass(frozen=True, slots=True)
class TransferProgress:
    """A transfer in progress, for people to look at."""

    transfer: int
    key: MessageKey
    direction: Literal["send", "receive"]
    mode: Mode
    state: str
    total_bytes: int
    done_bytes: int
    started: float


@dataclasses.dataclass(frozen=True, slots=True)
class FrameToSend:
    """Send this frame to the peer, in order."""

    frame: ControlFrame


@dataclasses.dataclass(frozen=True, slots=True)
class PathConnected:
    """The data path is connected, by this attempt.

    Attributes:
        attempt: which one.
        lent_region: see `Endpoint.lent_region`.
    """

    attempt: int
    lent_region: LentRegion | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PathLost:
    """What this attempt connected is gone, or it was in vain; transfers are paused until there is a new one.

    Attributes:
        attempt: which one.
        reason: why.
        code: of the error; None where there was none.
    """

    attempt: int
    reason: str
    code: ErrorCode | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PathStalled:
    """What this attempt connected is up, and carries nothing that it should. It is for the owner to leave it.

    Attributes:
        attempt: which one.
        reason: what was found.
        silent: nothing at all comes by it, so that the way itself may be gone; else it carries short messages.
    """

    attempt: int
    reason: str
    silent: bool


@dataclasses.dataclass(frozen=True, slots=True)
class TransferAnnounced:
    """A datagram announces a transfer, perhaps late: it may `begin_early`."""

    offer: Offer


@dataclasses.dataclass(frozen=True, slots=True)
class DatagramsDropped:
    """Datagrams were dropped: how many, and why."""

    counts: Mapping[DatagramFault, int]


@dataclasses.dataclass(frozen=True, slots=True)
class RecordsRefused:
    """Sealed records were refused: how many, and why."""

    counts: Mapping[SealFault, int]


@dataclasses.dataclass(frozen=True, slots=True)
class GrantRequested:
    """The peer asks for a slot, after everything it has given back before.

    Attributes:
        request: what it asks for.
        early: by a datagram, perhaps late: there is a frame that asks as well.
    """

    request: GrantRequest
    early: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadReceived:
    """A payload lies in its slot, from `payload_at` on; the slot now belongs to the owner.

    Attributes:
        offer: what announced it.
        slot: where it lies.
        payload_at: where in the slot it starts.
        stats: how it went.
        missing: what has not come of it, which may be so, and is zeros there.
    """

    offer: Offer
    slot: Slot
    payload_at: int
    stats: TransferStats
    missing: Ranges = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ReceiveFailed:
    """An announced payload will not come; its slot now belongs to the owner."""

    offer: Offer
    slot: Slot
    code: ErrorCode
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class SlotsReturned:
    """Granted slots that are no longer granted."""

    slots: tuple[Slot, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SlotsStillOpen:
    """Slots that the peer may write into though they are not granted any more: nobody else may ever have them.

    Comes before what gives them to the owner.
    """

    slots: tuple[Slot, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TransferKept:
    """A link has ended in the middle of a transfer, which may go on in its slot by another; nobody writes there now."""

    kept: KeptSlot


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadLanded:
    """Bytes of a payload that is still coming lie in its slot, from `start` to `end` of it; see `Landing`.

    Attributes:
        offer: what announced it.
        slot: where it comes.
        payload_at: where in the slot the payload starts.
        start: where in the payload they begin.
        end: where they end; 0: what was told of it before is not to be counted on.
    """

    offer: Offer
    slot: Slot
    payload_at: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class TransferNoted:
    """What has come so far of a transfer, besides what was told of it before; see `ArrivalNotes`.

    Attributes:
        offer: what announced it.
        slot: where it comes.
        payload_at: where in the slot the payload starts.
        tagged: a tag has vouched for these bytes.
        digested: their digests are told.
        pieces: which they are.
    """

    offer: Offer
    slot: Slot
    payload_at: int
    tagged: bool
    digested: bool
    pieces: tuple[Piece, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TransferSealed:
    """A transfer begins whose chunks lie in its slot as sealed until all of it has come.

    Attributes:
        offer: what announced it.
        slot: where it comes.
        opener: opens it.
        adopted: what lay there open when it began.
    """

    offer: Offer
    slot: Slot
    opener: PathOpener
    adopted: Ranges = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadSent:
    """The peer has the payload, and nothing reads its slot any more."""

    outgoing: Outgoing
    stats: TransferStats


@dataclasses.dataclass(frozen=True, slots=True)
class SendFailed:
    """The peer will not get the payload, and nothing reads its slot any more."""

    outgoing: Outgoing
    code: ErrorCode
    reason: str


LinkEvent = (
    FrameToSend
    | PathConnected
    | PathLost
    | PathStalled
    | TransferAnnounced
    | DatagramsDropped
    | RecordsRefused
    | GrantRequested
    | PayloadReceived
    | ReceiveFailed
    | SlotsReturned
    | SlotsStillOpen
    | TransferKept
    | TransferNoted
    | PayloadLanded
    | TransferSealed
    | PayloadSent
    | SendFailed
)
"""What a link tells its owner, in the order in which it happened."""

Emit = Callable[[LinkEvent], None]
"""Told on the thread that drives the link; must return at once, and raise nothing. SlotsReturned may also come on
another thread: the one that tries to grant on a link that has ended."""
