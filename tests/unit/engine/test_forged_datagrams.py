"""Whoever can send packets in a peer's name can have no datagram believed, and none of the peer's a second time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.core.path_probe import TRAIN_DATAGRAMS
from fedrdma_fate.engine.events import DatagramsDropped, LinkEvent
from fedrdma_fate.engine.link import Link
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind
from fedrdma_fate.security.datagram_tags import DatagramSealer
from fedrdma_fate.wire.datagrams import Datagram, Header, PathProbe, encode_datagram
from fedrdma_fate.wire.frames import Delivered, Grant, GrantRequest, GrantReturn, Offer, Report
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import DATAGRAM_KEYS, Pair, datagram_in, outgoing

BODY = random.Random(4).randbytes(20_000)
LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500)


class Watched(Pair):
    """One that keeps the datagrams of both sides as they are on the wire, and may keep them from arriving.

    Attributes:
        seen: those that came, sealed.
        lost: kinds that do not arrive.
        dropped: why, and how many, by both links.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []
        self.lost: set[type[Datagram]] = set()
        self.dropped: Counter[str] = Counter()
        for link, recorded in ((self.sender, self.sending), (self.receiver, self.receiving)):
            link._emit = self._noting(recorded.emit)
        wire = MemoryWire()
        wire.chunk_service, wire.has_datagrams = LOSSY, True
        self.connect(wire)

    def _noting(self, emit: Callable[[LinkEvent], None]) -> Callable[[LinkEvent], None]:
        def note(event: LinkEvent) -> None:
            if isinstance(event, DatagramsDropped):
                self.dropped.update(event.counts)
            emit(event)

        return note

    def lets_through(self, completion: Completion) -> bool:
        if completion.kind is CompletionKind.DATAGRAM:
            self.seen.append(completion.data)
            return type(datagram_in(completion.data)) not in self.lost
        return True

    def inject(self, link: Link, data: bytes) -> None:
        """A datagram comes that the peer's link has not sent, or not now."""
        link._take_in([Completion(CompletionKind.DATAGRAM, data=data)])

    def send(self, transfer: int = 1) -> None:
        """A message is on its way."""
        self.grant(HeapRegion(100_000).slot())
        self.progress()
        self.outgoing.submit(outgoing(BODY, transfer, "fedrdma-x", 1000), self.now)

    def pass_time(self, seconds: float) -> None:
        ends_at = self.now + seconds
        while self.now < ends_at:
            self.now += 0.001
            for half in (self.outgoing, self.incoming):
                due = half.timer()
                if due is not None and self.now >= due:
                    half.on_timer(self.now)
            self.progress()


@pytest.fixture
def pair() -> Iterator[Watched]:
    made = Watched()
    yield made
    for end in made.wire.ends:
        end.close()


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "without a seal": lambda body: body,
    "with a seal of nothing": lambda body: bytes(8) + body + bytes(16),
    "under a key of the forger's": lambda body: DatagramSealer(b"f" * 32).seal(body),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_delivered_frees_no_slot_and_the_message_arrives_all_the_same(
    pair: Watched, forge: Callable[[bytes], bytes]
) -> None:
    pair.lost = {Header}
    pair.send()
    pair.inject(pair.sender, forge(encode_datagram(Delivered(1))))
    pair.pass_time(0.1)
    assert pair.sending.sent_messages == [], "the peer has not got the header"
    assert len(pair.outgoing.progress()) == 1
    assert pair.dropped == {"forged": 1}
    pair.lost = set()
    pair.pass_time(0.1)
    assert len(pair.sending.sent_messages) == len(pair.receiving.received_offers) == 1


def test_forged_offers_headers_grants_requests_and_reports_begin_and_end_nothing(pair: Watched) -> None:
    pair.lost = {Offer, Header, Report, Delivered}
    pair.send()
    pair.pass_time(0.05)
    offer = next(frame for frame in pair.sending.frames if isinstance(frame, Offer))
    forged: list[tuple[Link, Datagram]] = [
        (pair.receiver, offer),
        (pair.receiver, Header(offer.grant, b"x" * 64)),
        (pair.receiver, GrantRequest("memory", 2, 1 << 20)),
        (pair.receiver, GrantReturn("memory", offer.grant)),
        (pair.sender, Grant("memory", 99, 1, 0, 1 << 20, 0)),
        (pair.sender, Report(1, 0, 20, b"", 19, 0.0, 0.0, len(BODY))),
    ]
    for link, datagram in forged:
        pair.inject(link, DatagramSealer(b"f" * 32).seal(encode_datagram(datagram)))
    assert pair.incoming.progress() == []
    assert pair.receiving.offers == []
    assert (pair.receiving.wanted_early, pair.receiving.returned) == ([], [])
    assert pair.sending.sent_messages == []
    assert pair.dropped == {"forged": len(forged)}


def test_a_delivered_that_comes_again_ends_no_later_transfer_of_that_number(pair: Watched) -> None:
    pair.send()
    pair.pass_time(0.1)
    delivered = next(each for each in pair.seen if datagram_in(each) == Delivered(1))
    assert len(pair.sending.sent_messages) == 1
    pair.lost = {Report, Delivered, Header, Offer}
    pair.send(transfer=1)
    pair.inject(pair.sender, delivered)
    assert len(pair.sending.sent_messages) == 1
    assert pair.dropped == {"replayed": 1}


def test_a_datagram_that_is_sent_back_to_its_sender_is_not_the_peers(pair: Watched) -> None:
    pair.send()
    pair.pass_time(0.1)
    before = pair.dropped.copy()
    for sealed in pair.seen:
        of_the_receiver = isinstance(datagram_in(sealed), Report | Delivered | Grant)
        pair.inject(pair.receiver if of_the_receiver else pair.sender, sealed)
    assert pair.dropped - before == {"forged": len(pair.seen)}


def test_a_datagram_of_an_earlier_data_path_is_nothing_on_the_next(pair: Watched) -> None:
    pair.send()
    pair.pass_time(0.1)
    sealed = next(each for each in pair.seen if isinstance(datagram_in(each), Delivered))
    pair.sender._datagrams.path_up(pair.wire.ends[0], DATAGRAM_KEYS._replace(receive=b"n" * 32))
    pair.inject(pair.sender, sealed)
    assert pair.dropped == {"forged": 1}


def test_datagrams_that_are_lost_or_come_out_of_order_cost_nothing_but_time(pair: Watched) -> None:
    pair.wire.trouble = random.Random(3)
    for transfer in range(1, 6):
        pair.send(transfer)
        pair.pass_time(0.5)
        pair.run()
    pair.pass_time(1.0)
    assert [bytes(slot.part(at, len(BODY)).view) for _, slot, at in pair.receiving.received_offers] == [BODY] * 5
    assert len(pair.sending.sent_messages) == 5
    assert set(pair.dropped) == {"replayed"}, "those that the wire doubled"


def test_a_dropped_datagram_is_no_sign_of_life(pair: Watched) -> None:
    heard_at = pair.sender.heard_at
    pair.now += 100.0
    pair.inject(pair.sender, b"x" * 100)
    assert pair.sender.heard_at == heard_at
    sealed = DatagramSealer(DATAGRAM_KEYS.receive).seal(encode_datagram(Delivered(7)))
    pair.inject(pair.sender, sealed)
    assert pair.sender.heard_at == pair.now


def test_many_forgeries_are_counted_and_logged_once(pair: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1000):
        pair.inject(pair.sender, b"x" * 100)
    assert pair.dropped == {"forged": 1000}
    assert [record.message for record in caplog.records] == [
        "link to receiver: dropped a datagram, and counts further ones: its tag is wrong: somebody else has sent or "
        "changed it"
    ]


def test_of_a_train_as_many_count_as_it_has_and_then_it_is_a_replay(pair: Watched) -> None:
    sealed = DatagramSealer(DATAGRAM_KEYS.receive).seal(encode_datagram(PathProbe(1, TRAIN_DATAGRAMS, b"")))
    datagrams = pair.sender._datagrams
    assert [datagrams.open(sealed) for _ in range(TRAIN_DATAGRAMS)].count(None) == 0
    assert datagrams.open(sealed) is None
    assert datagrams.take_dropped() == {"replayed": 1}


def test_what_the_peer_itself_sends_that_means_nothing_is_dropped(pair: Watched) -> None:
    pair.inject(pair.sender, DatagramSealer(DATAGRAM_KEYS.receive).seal(b"\xc1"))
    assert pair.dropped == {"malformed": 1}
