"""A granted slot goes back to its owner when its key is dead, and not before, whatever ends the grant."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.engine.events import LinkEvent, PayloadReceived, ReceiveFailed, SlotsReturned, SlotsStillOpen
from fedrdma_fate.engine.link import Link
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import EndpointAddress, RemoteSlot, Slot
from fedrdma_fate.wire.frames import Abort, GrantReturn, Offer, Refused
from tests.support.endpoints import HeapRegion, MemoryEndpoint, MemoryWire
from tests.support.engine import DATAGRAM_KEYS, KEY, Recorded

SLOT_BYTES = 64 * 1024
CREDIT, ASKED, ANNOUNCED = 1, 2, 3
OFFER = Offer("memory", 9, KEY, "bytes", 20_000, "fedrdma-e", ANNOUNCED, 1000, 0)


class Receiver:
    """A receiving link with three granted slots, one of them in use, which looks at the keys when a slot comes back.

    Attributes:
        too_early: slots that came back while their keys were alive.
        back: all that came back.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.wire = MemoryWire()
        self.end: MemoryEndpoint = self.wire.ends[1]
        self.recorded = Recorded()
        self.too_early: list[Slot] = []
        self.back: list[Slot] = []
        self.events: list[LinkEvent] = []
        settings = LinkSettings("memory", idle_timeout=10.0)
        self.link = Link("peer", settings, self._on_event, lambda: self.now)
        self.link.connect(self, {}, 1, DATAGRAM_KEYS)
        self.slots = {grant: HeapRegion(SLOT_BYTES).slot() for grant in (CREDIT, ASKED, ANNOUNCED)}
        self.turn(lambda link: [link.grant(grant, slot, grant == ASKED) for grant, slot in self.slots.items()])
        self.turn(lambda link: link.frame(OFFER))
        assert self.end.exposed == {CREDIT, ASKED, ANNOUNCED}

    # the draft of its own data path
    address: EndpointAddress = {}  # noqa: RUF012

    def connect(self, peer: EndpointAddress, timeout: float) -> MemoryEndpoint:
        del peer, timeout
        return self.end

    def close(self) -> None: ...

    def turn(self, *commands: Callable[[Link], object]) -> None:
        self.link.turn(deque(commands))  # type: ignore[arg-type]

    def _on_event(self, event: LinkEvent) -> None:
        self.events.append(event)
        slots: tuple[Slot, ...] = ()
        match event:
            case SlotsReturned(slots):
                pass
            case PayloadReceived(_, slot) | ReceiveFailed(_, slot):
                slots = (slot,)
        alive = [] if self.end.closed else [slot for _, slot in self.end._exposed.values()]
        self.too_early += [slot for slot in slots if slot in alive]
        self.back += slots


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    for end in made.wire.ends:
        end.close()


def break_the_path(receiver: Receiver) -> None:
    """The link is lost with writes under way."""
    key = next(key for key, (grant, _) in receiver.end._exposed.items() if grant == ANNOUNCED)
    receiver.wire.ends[0].post_write(1, HeapRegion(1000).slot(), RemoteSlot(key, 0, SLOT_BYTES), 0)
    receiver.wire.break_down("the test cut it")
    receiver.turn()


def let_it_stall(receiver: Receiver) -> None:
    receiver.turn()
    receiver.wire.break_down("the test cut it")
    receiver.turn()
    receiver.now += 11.0
    receiver.turn()


def renew(receiver: Receiver) -> None:
    old, receiver.wire = receiver.end, MemoryWire()
    receiver.end = receiver.wire.ends[1]
    receiver.turn(lambda link: link.connect(receiver, {}, 2, DATAGRAM_KEYS))
    assert old.closed


def fail(receiver: Receiver) -> None:
    def bug(link: Link) -> None:
        raise KeyError(link)

    receiver.turn(bug)


WAYS: dict[str, tuple[Callable[[Receiver], None], set[int]]] = {
    "the peer returns it": (lambda made: made.turn(lambda link: link.frame(GrantReturn("memory", CREDIT))), {CREDIT}),
    "the peer returns it in the middle": (
        lambda made: made.turn(lambda link: link.frame(GrantReturn("memory", ANNOUNCED))),
        {ANNOUNCED},
    ),
    "its offer is declined": (
        lambda made: made.turn(lambda link: link.decline(_offer_of(CREDIT), Refused(9, "FR602", "no"))),
        {CREDIT},
    ),
    "its offer cannot be": (
        lambda made: made.turn(lambda link: link.frame(_offer_of(CREDIT, total_bytes=1 << 30))),
        {CREDIT},
    ),
    "the peer aborts before": (lambda made: made.turn(lambda link: link.frame(Abort(1, "FR303", "no"))), {ASKED}),
    "the peer aborts in the middle": (
        lambda made: made.turn(lambda link: link.frame(Abort(9, "FR303", "no"))),
        {ANNOUNCED},
    ),
    "the path breaks": (break_the_path, {CREDIT, ASKED}),
    "the path breaks and stays away": (let_it_stall, {CREDIT, ASKED, ANNOUNCED}),
    "the path is renewed": (renew, {CREDIT, ASKED}),
    "the control channel is lost": (lambda made: made.turn(lambda link: link.suspend("gone")), {CREDIT, ASKED}),
    "a bug of ours": (fail, {CREDIT, ASKED, ANNOUNCED}),
    "the link ends": (lambda made: made.link.end(deque()), {CREDIT, ASKED, ANNOUNCED}),
}


def _offer_of(grant: int, total_bytes: int = 20_000) -> Offer:
    return Offer("memory", 10, KEY, "bytes", total_bytes, "fedrdma-e", grant, 1000, 0)


@pytest.mark.parametrize(("way", "expected"), WAYS.values(), ids=WAYS)
def test_a_slot_comes_back_when_its_key_is_dead(
    receiver: Receiver, way: Callable[[Receiver], None], expected: set[int]
) -> None:
    way(receiver)
    assert receiver.back == [receiver.slots[grant] for grant in sorted(expected)]
    assert receiver.too_early == []


def test_a_slot_that_cannot_be_closed_to_the_peer_is_told_of_before_it_comes_back(receiver: Receiver) -> None:
    receiver.end.stuck = {CREDIT}
    receiver.turn(lambda link: link.frame(GrantReturn("memory", CREDIT)))
    kinds = [type(event) for event in receiver.events if isinstance(event, SlotsStillOpen | SlotsReturned)]
    assert kinds == [SlotsStillOpen, SlotsReturned]
    assert receiver.events[-2:] == [SlotsStillOpen((receiver.slots[CREDIT],)), SlotsReturned((receiver.slots[CREDIT],))]


def test_of_a_path_that_is_lost_the_slots_that_stay_open_are_given_up_with_their_transfers(receiver: Receiver) -> None:
    receiver.end.stuck = {ANNOUNCED, CREDIT, 77}
    receiver.wire.break_down("the test cut it")
    receiver.turn()
    (told,) = [event for event in receiver.events if isinstance(event, SlotsStillOpen)]
    assert set(map(id, told.slots)) == {id(receiver.slots[CREDIT]), id(receiver.slots[ANNOUNCED])}
    assert receiver.link.progress() == [], "it begins anew in another slot"
    assert len(receiver.back) == 3


def test_a_slot_that_was_closed_is_not_told_of(receiver: Receiver) -> None:
    receiver.link.end(deque())
    assert not any(isinstance(event, SlotsStillOpen) for event in receiver.events)
