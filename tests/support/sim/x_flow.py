"""`fedrdma-x` transfers of one link after the other, on a bottleneck that others may share."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable

from fedrdma_fate.core.actions import Failed, Finished
from fedrdma_fate.core.held import Ranges
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.core.x.controller import MakeController
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.engine.events import (
    FrameToSend,
    LinkEvent,
    PayloadReceived,
    PayloadSent,
    ReceiveFailed,
    SendFailed,
    TransferAnnounced,
    TransferStats,
)
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.frames import ControlFrame, MessageKey, Offer, Party
from tests.support.engine import DATAGRAM_KEYS
from tests.support.sim.bottleneck import Bottleneck, DelayLine, Nic
from tests.support.sim.busy import Busy, Turns
from tests.support.sim.clock import VirtualClock
from tests.support.sim.endpoint import BottleneckEndpoint, PayloadOfZeros, SparseRegion
from tests.support.sim.host import SimHost

_KEY = MessageKey("s", "payload", "0", Party("guest", "1"), Party("host", "2"))
_ROOM_FOR_REPAIRS = 2
"""Of the slots that are granted where there are repair chunks."""


class XFlow:
    """A sending and a receiving link, without payload memory: only time and arrivals count.

    Offers, grants, reports and headers take half a round trip, and are not lost here.

    Attributes:
        way: the bottleneck, which others may use, too.
        outcome: how the latest transfer ended at the sender, None while it has not.
        ended_at: when, seconds.
        stats: of the latest transfer that was delivered.
        on_end: called when a transfer has ended at the sender.
        on_announced: called with the number of a transfer when the receiver hears of it, once or twice.
        on_received: the same when it is there, or will not come.
        missing: what did not come of the latest transfer, which may be so.
        arrivals: (time, bytes) of every chunk that landed, the repeated ones too.
    """

    def __init__(
        self,
        clock: VirtualClock,
        link: Bottleneck,
        plan: ChunkPlan,
        path: PathState | None = None,
        *,
        proved: bool = True,
        reliable: bool = False,
        recut: bool = False,
        repairs: bool = False,
        probed: bool = False,
        make_controller: MakeController = RateController,
        nic_bps: float | None = None,
        loss_share: float = 0.0,
        nic: Nic | None = None,
        busy: Busy | None = None,
        packets: bool = False,
    ) -> None:
        """
        Args:
            clock: virtual time.
            link: the bottleneck.
            plan: how each payload is cut.
            path: what is known of the path to begin with.
            proved: whether a transfer has found it, or only a probe.
            reliable: whether the queue pairs lose nothing.
            recut: whether the link is to cut payloads anew for what it knows of the path, as it does for gateways.
            repairs: whether there may be repair chunks.
            probed: whether the path probe's trains get through, when the data path is new.
            make_controller: makes what finds the rate.
            nic_bps: of the sender's card; None: that of the bottleneck's profile.
            nic: the sender's card, where others share it.
            loss_share: of each payload that may be missing in the end.
            busy: how both hosts are; None: idle.
            packets: as over `udp`: one way for all chunks, a report for so many bytes as well, and packets are counted.
        """
        self.missing: Ranges = ()
        self.outcome: Finished | Failed | None = None
        self.ended_at = 0.0
        self.stats: TransferStats | None = None
        self.on_end: Callable[[], None] = lambda: None
        self.on_announced: Callable[[int], None] = lambda _: None
        self.on_received: Callable[[int], None] = lambda _: None
        self.arrivals: list[tuple[float, int]] = []
        self._clock = clock
        self.way = link
        self._plan = plan
        self._offers = DelayLine(clock, link.profile, random.Random(4))
        self._recut = recut
        self._slot_bytes = SlotLayout(plan, "fedrdma-x").slot_bytes * (_ROOM_FOR_REPAIRS if repairs else 1)
        self._transfers = self._grants = 0
        self._is_setting_up = True
        known = None if path is None else KnownPath(path, "measured" if proved else "probed")
        region = SparseRegion if repairs else None
        settings = LinkSettings(
            "sim",
            known=known,
            repair_region=region,
            make_controller=make_controller,
            bounds_loss=lambda: True,
        )
        if repairs:
            # else it is loaded beside, by the clock on the wall
            importlib.import_module("numpy")
        self._loss_share = loss_share
        theirs = LinkSettings("sim", loss_share=lambda _key: loss_share)

        def turns(seed: int) -> Turns | None:
            return None if busy is None else Turns(busy, random.Random(seed))

        self._sender = SimHost(clock, "receiver", settings, self._on_sender_event, turns(2))
        self._receiver = SimHost(clock, "sender", theirs, self._on_receiver_event, turns(3))
        mtu_bytes, pairs = link.profile.mtu_bytes, 1 if packets else 4
        service = ChunkService(
            reliable, self_paced=False, queue_pairs=pairs, mtu_bytes=mtu_bytes, repairs_packets=packets
        )
        near = BottleneckEndpoint(clock, link, service, self._half_trip, nic or Nic(nic_bps))
        # the other direction is a link of its own, where only trains go
        back = Bottleneck(clock, link.profile, random.Random(1))
        far = BottleneckEndpoint(clock, back, service, self._half_trip_back)
        near.peer, far.peer = far, near
        near.carries_trains = far.carries_trains = probed
        near.on_arrival = lambda length: self.arrivals.append((clock.now, length))
        self._set_up(near, far)

    def start(self) -> None:
        """Send a payload now."""
        self._transfers += 1
        self.outcome = None
        payload = PayloadOfZeros(self._plan.total_bytes)
        share = self._loss_share
        outgoing = Outgoing(self._transfers, _KEY, "bytes", payload, self._plan, "fedrdma-x", self._recut, share)
        self._sender.do(lambda link: link.send(outgoing))

    @property
    def sender(self) -> SimHost:
        """The sending end."""
        return self._sender

    @property
    def receiver(self) -> SimHost:
        """The receiving end."""
        return self._receiver

    @property
    def path(self) -> PathState | None:
        """What is known of the path, after the latest transfer."""
        known = self._sender.link.known_path
        return None if known is None else known.state

    @property
    def arrived_bytes(self) -> int:
        """Payload bytes of the transfer under way that the sender knows to have arrived."""
        return sum(transfer.done_bytes for transfer in self._sender.link.progress())

    def goodput_bps(self, since: float, until: float) -> float:
        """Bits a second that landed in a span of time."""
        return sum(length for at, length in self.arrivals if since <= at < until) * 8 / (until - since)

    def _half_trip(self) -> float:
        return 0.0 if self._is_setting_up else self._offers.half_trip()

    def _half_trip_back(self) -> float:
        return 0.0 if self._is_setting_up else self.way.answers.half_trip()

    def _set_up(self, near: BottleneckEndpoint, far: BottleneckEndpoint) -> None:
        """The data path is there and a slot is granted when the flow begins, at once."""
        self._receiver.connect(far, DATAGRAM_KEYS.reversed)
        self._sender.connect(near, DATAGRAM_KEYS)
        self._grant()
        self._clock.run(self._clock.now)
        self._is_setting_up = False

    def _grant(self) -> None:
        self._grants += 1
        grant, slot = self._grants, SparseRegion(self._slot_bytes).slot()
        self._receiver.do(lambda link: link.grant(grant, slot))

    def _on_sender_event(self, event: LinkEvent) -> None:
        match event:
            case FrameToSend(frame):
                self._clock.after(self._half_trip(), lambda: self._take_to_receiver(frame))
            case PayloadSent(_, stats):
                self.stats = stats
                self._end(Finished())
            case SendFailed(_, code, reason):
                self._end(Failed(code, reason))
            case _:
                pass

    def _take_to_receiver(self, frame: ControlFrame) -> None:
        if isinstance(frame, Offer):
            self.on_announced(frame.transfer)
        self._receiver.do(lambda link: link.frame(frame))

    def _end(self, outcome: Finished | Failed) -> None:
        self.outcome, self.ended_at = outcome, self._clock.now
        self.on_end()

    def _on_receiver_event(self, event: LinkEvent) -> None:
        match event:
            case FrameToSend(frame):
                self._clock.after(self._half_trip_back(), lambda: self._sender.do(lambda link: link.frame(frame)))
            case TransferAnnounced(offer):
                self.on_announced(offer.transfer)
                self._receiver.do(lambda link: link.begin_early(offer))
            case PayloadReceived(offer) | ReceiveFailed(offer):
                self.missing = event.missing if isinstance(event, PayloadReceived) else ()
                self._grant()
                self.on_received(offer.transfer)
            case _:
                pass
