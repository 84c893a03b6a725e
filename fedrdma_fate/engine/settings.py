"""Parameters of a link."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fedrdma_fate.core.held import Ranges
from fedrdma_fate.core.x.controller import MakeController
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.repair_memory import MakeRegion
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.frames import PROBE_TRANSFERS_FROM, Frame, MessageKey, Offer

Kept = Callable[[Offer, Slot, int, Ranges], bool]
"""See `LinkSettings.kept`."""


@dataclasses.dataclass(frozen=True, slots=True)
class LinkSettings:
    """Parameters of a link.

    Attributes:
        transport: name of its data path.
        poll_headers: find headers by looking at the slots (`notify: poll`) instead of by completion events.
        idle_timeout: seconds without progress after which a transfer fails.
        connect_timeout: seconds for connecting the data path.
        poll_interval: seconds between two looks at the slots.
        known: of the path, from an earlier run.
        make_controller: makes what finds the rate of a `fedrdma-x` transfer; another for comparison, in the simulator.
        window_bytes: most bytes of a `fedrdma-x` transfer in flight, where that was set by hand.
        sealing_region: makes memory for what is sealed before it is posted; None: no data path that wants it is used.
        repair_region: makes memory for repair chunks; None: there are to be none.
        admits: whether a datagram of the peer may be acted upon, by the messages that it names; others are dropped.
            Called on the link's thread. Control frames have been looked at before they come to the link.
        kept: called with an offer, the slot that it lies in, where in it, and what is missing of it, on the link's
            thread: a payload is here, and the peer is about to be told that it is kept. False: it is kept in another
            slot, and this one goes back.
        bounds_loss: whether the peer knows offers of which something may be missing; called on the link's thread.
        loss_share: how much of what may be missing of a message our task lets be so; called on the link's thread.
        spend_holes: whether it may be, besides what is missing of others, and then it is; called on the link's thread.
        is_late: whether a message is not waited for any more, once what is missing of it may be; called on the link's
            thread.
        tells_digests: whether the peer tells the digests of chunks when it is asked; called on the link's thread.
        continues: whether the peer knows grants that continue others; called on the link's thread.
        knows_tags: whether the peer knows ChunkTags; called on the link's thread.
        leaves_room_for_tags: whether another data path to the peer wants a table of tags in the slot, for a transfer
            may go on there, and the peer can grant one of this length; called on the link's thread.
        notes_arrivals: whether its owner wants to know from time to time what has come, to write it down.
        tells_landed: whether its owner wants to know how far a payload lies in its slot, while it comes.
        confirms: whether the link tells the peer at once that a payload is kept; else its owner does, later. Probes are
            always confirmed.
        complaints: about what the peer sends.
        site: name of the peer's, for complaints.
    """

    transport: str
    poll_headers: bool = False
    idle_timeout: float = 60.0
    connect_timeout: float = 10.0
    poll_interval: float = 0.0005
    known: KnownPath | None = None
    make_controller: MakeController = RateController
    window_bytes: int | None = None
    repair_region: MakeRegion | None = None
    sealing_region: MakeRegion | None = None
    admits: Callable[[Frame], bool] = lambda _frame: True
    kept: Kept = lambda _offer, _slot, _payload_at, _missing: True
    bounds_loss: Callable[[], bool] = lambda: False
    loss_share: Callable[[MessageKey], float] = lambda _key: 0.0
    spend_holes: Callable[[MessageKey, int, int, Ranges], bool] = lambda _key, _whole, _total, _ranges: True
    is_late: Callable[[MessageKey], bool] = lambda _key: False
    tells_digests: Callable[[], bool] = lambda: False
    continues: Callable[[], bool] = lambda: False
    knows_tags: Callable[[], bool] = lambda: False
    leaves_room_for_tags: Callable[[int], bool] = lambda _slot_bytes: False
    notes_arrivals: bool = False
    tells_landed: bool = False
    confirms: bool = True
    complaints: Complaints = dataclasses.field(default_factory=Complaints)
    site: str = "peer"

    @property
    def continues_sealed(self) -> bool:
        """Whether transfers go on, with this peer, where chunks lie sealed."""
        return self.continues() and self.knows_tags()

    def tells_delivered(self, transfer: int) -> bool:
        """Whether the link tells the peer that it has this one."""
        return self.confirms or transfer >= PROBE_TRANSFERS_FROM
