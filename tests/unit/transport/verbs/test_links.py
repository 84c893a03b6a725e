"""Links of the verbs transport over fake devices: how they meet, what breaks them, and that nothing strays or stays."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedrdma_fate.core.x.chunking import TAGS, immediate_of
from fedrdma_fate.ports import CompletionKind, EndpointAddress, RemoteSlot
from fedrdma_fate.transport.verbs.interface import EventKind, Piece, Target
from fedrdma_fate.transport.verbs.link_messages import LinkMessageKind
from fedrdma_fate.transport.verbs.queue_pairs import STAGE_BYTES
from fedrdma_fate.transport.verbs.transport import VerbsSettings
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES, PADDED_DATAGRAM_BYTES
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransferError, TransportError
from tests.support.verbs_links import FakeLink, FakeSide, unconnected

GRANT = 7
SLOT_AT, SLOT_BYTES = 4096, 8192


@pytest.fixture
def link() -> Iterator[FakeLink]:
    """Two sides that are connected; nothing may be left in the end."""
    made = unconnected()
    made.connect()
    yield made
    made.close()
    assert (made.active.device.left, made.passive.device.left) == ([], [])


def lost(side: FakeSide, step: Callable[[], None] | None = None) -> str:
    """Why a side's link is lost, which some steps show at the latest."""

    def steps() -> None:
        for _ in range(5):
            (step or side.progress)()

    with pytest.raises(TransportError) as error:
        steps()
    assert error.value.code is ErrorCode.LINK_LOST
    return error.value.message


def refused_by(
    made: FakeLink,
    spoil: Callable[[EndpointAddress], EndpointAddress] = lambda address: address,
    timeout: float = 0.3,
) -> TransportError:
    """The error with which the active side does not connect in this time; nothing is left of the attempt."""
    with pytest.raises(TransportError) as error:
        made.connect(timeout, spoil)
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    made.close()
    assert (made.active.device.left, made.passive.device.left) == ([], [])
    return error.value


# --- meeting ---


@pytest.mark.parametrize("reduced", ["active", "passive"])
def test_of_unequal_mtus_both_sides_use_the_smaller_one(reduced: str) -> None:
    made = unconnected(**{reduced: {"mtu": 1024}})
    made.connect()
    assert {pair.mtu for side in (made.active, made.passive) for pair in side.data_pairs} == {1024}
    made.close()


def test_of_unequal_numbers_of_queue_pairs_both_sides_use_the_smaller_one() -> None:
    made = unconnected(active={"queue_pairs": 5}, passive={"queue_pairs": 3})
    made.connect()
    # behind them those for chunks, and one for datagrams
    chunk_pairs = VerbsSettings().chunk_queue_pairs + 1
    assert [len(side.data_pairs) for side in (made.active, made.passive)] == [3 + chunk_pairs, 3 + chunk_pairs]
    made.close()


def test_a_completion_queue_as_short_as_soft_roce_s_has_room_for_as_many_chunk_queue_pairs_as_there_may_be() -> None:
    most: dict[str, object] = {"chunk_queue_pairs": 64}
    made = unconnected(active=most, passive=most)
    made.connect()
    assert made.active.end.chunk_service.queue_pairs == 64
    made.close()


def test_a_completion_queue_that_is_too_short_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = unconnected()
    monkeypatch.setattr(made.active.device, "most_completions", 100)
    with pytest.raises(TransportError, match="cannot make a completion queue"):
        made.active.transport.open("active")
    made.close()


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("mtu", 1500, "'mtu'"),
        ("mtu", 0, "'mtu'"),
        ("gid", "not an address", "'gid'"),
        ("pairs", "", "'pairs'"),
        ("pairs", "17,x", "'pairs'"),
        ("pairs", "17,99999999", "'pairs'"),
        ("pairs", ",".join(["17"] * 65), "'pairs'"),
        ("psn", 1 << 24, "'psn'"),
        ("signal", -1, "'signal'"),
        ("token", "xyz", "'token'"),
    ],
)
def test_an_address_that_cannot_be_is_refused_by_the_field(field: str, value: str | int, complaint: str) -> None:
    assert complaint in refused_by(unconnected(), lambda address: {**address, field: value}).message


def test_somebody_else_at_the_peers_queue_pair_is_not_taken_for_the_peer() -> None:
    made = unconnected()
    error = refused_by(made, lambda address: {**address, "token": "00" * 16})
    # or the other side has noticed first, and ended its queue pairs
    said = ("not heard within", "somebody else", "the link test failed")
    assert any(each in error.message for each in said)


def test_a_peer_that_does_not_acknowledge_fails_the_link_test_and_the_error_names_both_gids() -> None:
    made = unconnected()
    error = refused_by(made, lambda address: {**address, "signal": 9999})
    assert "::ffff:127.0.0.1 and ::ffff:127.0.0.1: the link test failed: retry exceeded" in error.message
    assert "4791" in error.remedy


def test_one_queue_pair_that_carries_nothing_fails_the_link_test() -> None:
    def with_one_dead(address: EndpointAddress) -> EndpointAddress:
        return {**address, "pairs": f"{str(address['pairs']).split(',')[0]},9999"}

    # time enough to meet on a busy host: the link test comes after that
    error = refused_by(unconnected(), with_one_dead, timeout=3.0)
    assert "link test failed" in error.message


def test_a_device_without_queue_pairs_left_says_so_and_keeps_nothing() -> None:
    made = unconnected()
    made.active.device.most_pairs = 2
    before = list(made.active.device.left)
    with pytest.raises(TransportError, match="cannot make a queue pair") as error:
        made.active.transport.open("active")
    assert "queue pairs left" in error.value.remedy
    assert made.active.device.left == before
    made.close()


def test_memory_for_notices_that_cannot_be_registered_is_a_matter_of_memlock() -> None:
    made = unconnected()
    made.active.device.registration_errno = errno.ENOMEM
    before = list(made.active.device.left)
    with pytest.raises(TransportError, match="memlock limit is too small"):
        made.active.transport.open("active")
    assert made.active.device.left == before
    made.close()


def test_an_immediate_that_came_during_the_link_test_is_not_lost() -> None:
    made = unconnected()
    made.connect()
    made.active.end.close()
    made.passive.end.close()
    draft, other = made.active.transport.open("active"), made.passive.transport.open("passive")
    receiver = made.active.data_pairs[0]
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(other.connect, draft.address, 2)
        receiver.consume_receive(0, GRANT)
        made.active.endpoint = draft.connect(other.address, 2)
        made.passive.endpoint = waiting.result()
    made.active.progress()
    assert made.active.of(CompletionKind.IMMEDIATE) == [GRANT]
    made.close()


# --- writes, good and bad ---


def test_a_write_lands_in_the_granted_slot_and_completes(link: FakeLink) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    link.active.write(1, b"w" * 100, target, at=10)
    link.active.end.post_bytes(2, b"header", target, 0, GRANT)
    link.settle()
    assert bytes(link.passive.region.view[SLOT_AT : SLOT_AT + 6]) == b"header"
    assert bytes(link.passive.region.view[SLOT_AT + 10 : SLOT_AT + 110]) == b"w" * 100
    assert link.active.of(CompletionKind.WRITE_DONE) == [1, 2]
    assert link.passive.of(CompletionKind.IMMEDIATE) == [GRANT]


@pytest.mark.parametrize(("at", "length"), [(0, SLOT_BYTES + 1), (SLOT_BYTES, 1), (SLOT_BYTES - 9, 10), (-1, 10)])
def test_more_bytes_than_the_slot_are_refused_before_they_are_posted(link: FakeLink, at: int, length: int) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    posted = len(link.network.writes)
    with pytest.raises(TransferError) as error:
        link.active.write(1, b"w" * length, target, at)
    assert error.value.code is ErrorCode.GRANT_VIOLATION
    assert len(link.network.writes) == posted
    link.settle()
    assert link.passive.untouched


def wrong_key(target: RemoteSlot) -> RemoteSlot:
    return RemoteSlot(target.key + 1000, target.address, target.length)


def wrong_address(target: RemoteSlot) -> RemoteSlot:
    return RemoteSlot(target.key, target.address + target.length, target.length)


def wrong_length(target: RemoteSlot) -> RemoteSlot:
    return RemoteSlot(target.key, target.address, target.length + 4096)


@pytest.mark.parametrize("granted", [wrong_key, wrong_address, wrong_length])
def test_a_peer_that_grants_what_is_not_there_costs_the_link_and_nothing_is_written(
    link: FakeLink, granted: Callable[[RemoteSlot], RemoteSlot]
) -> None:
    target = granted(link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES))
    link.active.write(1, b"w" * 100, target, target.length - 100)
    assert "a write named a key that was never granted" in lost(link.active)
    assert "the peer broke the protocol" in lost(link.passive)
    assert link.passive.untouched
    assert not link.active.of(CompletionKind.WRITE_DONE)


def test_a_key_that_no_device_can_have_is_never_posted_and_the_peer_is_told(link: FakeLink) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    link.active.write(1, b"w", RemoteSlot(1 << 32, target.address, target.length))
    assert "granted the key 0x100000000" in lost(link.active)
    assert "the peer says: the peer granted the key" in lost(link.passive)
    assert link.passive.untouched


def test_a_write_after_its_grant_was_withdrawn_writes_nothing(link: FakeLink) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    link.passive.end.withdraw(GRANT)
    link.active.write(1, b"w" * 100, target)
    lost(link.active)
    assert link.passive.untouched


def test_an_immediate_that_names_no_slot_is_reported_as_it_came_and_breaks_nothing(link: FakeLink) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    link.active.end.post_bytes(1, b"", target, 0, 4_000_000_000)
    link.settle()
    assert link.passive.of(CompletionKind.IMMEDIATE) == [4_000_000_000]
    assert link.passive.untouched
    link.active.end.post_bytes(2, b"x", target, 0, GRANT)
    link.settle()
    assert link.passive.of(CompletionKind.IMMEDIATE)[-1] == GRANT


def test_of_a_chunk_as_many_bytes_count_as_were_written_whatever_its_immediate_says(link: FakeLink) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    for request, length in enumerate([100, 0, 1]):
        source = link.active.region.slot(0, length)
        link.active.end.post_chunk(request, source, target, 0, 0, immediate_of(GRANT, 3))
    link.active.end.post_chunk(3, link.active.region.slot(0, 10), target, 0, 0, immediate_of(GRANT + 1, 3))
    link.settle()
    came = [each for each in link.passive.completions if each.kind is CompletionKind.CHUNK_IMMEDIATE]
    assert [each.received_bytes for each in came] == [100, 100, 101, None]
    link.passive.end.withdraw(GRANT)
    target = link.passive.expose(GRANT + TAGS, SLOT_AT, SLOT_BYTES)
    link.active.end.post_chunk(4, link.active.region.slot(0, 7), target, 0, 0, immediate_of(GRANT, 0))
    link.settle()
    assert link.passive.completions[-1].received_bytes == 7


def test_inline_bytes_beyond_their_staging_place_are_refused(link: FakeLink) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    with pytest.raises(ValueError, match="do not go inline"):
        link.active.end.post_bytes(1, b"x" * (STAGE_BYTES + 1), target, 0, GRANT)


def test_a_peer_that_writes_past_its_window_by_hand_is_refused_and_found_out(link: FakeLink) -> None:
    """Its own check is left out: what the receiver's device refuses must be known here as the peer's fault."""
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    source = link.active.region
    link.active.data_pairs[0].write(
        5, Piece(source.address, 200, 0), Target(target.address + SLOT_BYTES - 100, target.key), signalled=True
    )
    assert "the peer broke the protocol" in lost(link.passive)
    assert link.passive.untouched


# --- what breaks a link ---


@pytest.mark.parametrize(
    ("kind", "reason"), [(EventKind.PORT_DOWN, "its port went down"), (EventKind.DEVICE_GONE, "the device is gone")]
)
def test_a_device_that_reports_its_end_breaks_the_link(link: FakeLink, kind: EventKind, reason: str) -> None:
    link.active.device.report(kind)
    assert reason in lost(link.active)


def test_events_of_no_consequence_change_nothing(link: FakeLink) -> None:
    link.active.device.report(EventKind.OTHER)
    link.settle()


def test_a_queue_pair_in_the_error_state_breaks_the_link_and_is_named(link: FakeLink) -> None:
    pair = link.active.data_pairs[0]
    pair.fail()
    assert f"queue pair {pair.number} is in the error state (flushed)" in lost(link.active)


def test_a_peer_that_acknowledges_nothing_is_gone(link: FakeLink) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    for pair in link.active.data_pairs:
        pair.deaf = True
    link.active.write(1, b"w", target)
    assert "the peer is gone" in lost(link.active)


def test_a_peer_that_closes_says_so(link: FakeLink) -> None:
    link.passive.end.close()
    assert "the peer closed the link" in lost(link.active)


def test_a_notice_of_an_unknown_kind_is_a_breach(link: FakeLink) -> None:
    notices = link.passive.device.pairs[1]
    body = link.passive.region
    body.view[:1] = bytes([max(LinkMessageKind) + 1])
    notices.send(20, Piece(body.address, 1, 0), signalled=False)
    assert "a notice of unknown kind" in lost(link.active)


def test_a_window_that_the_device_does_not_bind_costs_the_link(link: FakeLink) -> None:
    link.passive.device.binds = False
    message = lost(link.passive, lambda: (link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES), None)[1])
    assert "does not bind a memory window" in message


def test_a_grant_cannot_be_exposed_twice(link: FakeLink) -> None:
    link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    with pytest.raises(ValueError, match="exposed already"):
        link.passive.expose(GRANT, 0, 4096)


def test_after_a_loss_no_slot_is_open_and_no_queue_pair_for_writes_is_left(link: FakeLink) -> None:
    link.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    link.passive.device.report(EventKind.PORT_DOWN)
    lost(link.passive)
    assert link.passive.device.windows == {}
    assert link.passive.data_pairs == []


def test_an_empty_slot_opens_nothing_and_takes_an_immediate(link: FakeLink) -> None:
    target = link.passive.expose(GRANT, SLOT_AT, 0)
    link.active.end.post_bytes(1, b"", target, 0, GRANT)
    link.settle()
    assert link.passive.of(CompletionKind.IMMEDIATE) == [GRANT]


# --- the device and its memory ---


def test_each_region_is_registered_once_however_many_links_there_are() -> None:
    made = unconnected()
    for _ in range(5):
        made.connect()
        target = made.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
        made.active.write(1, b"w" * 100, target)
        made.settle()
        made.active.end.close()
        made.passive.end.close()
    assert [side.transport.registrations for side in (made.active, made.passive)] == [1, 1]
    assert [len(side.device.regions) for side in (made.active, made.passive)] == [1, 1]
    made.close()


def test_a_device_that_was_gone_is_opened_anew_and_its_regions_are_registered_again() -> None:
    made = unconnected()
    made.connect()
    first = made.active.device
    first.report(EventKind.DEVICE_GONE)
    lost(made.active)
    made.active.end.close()
    made.passive.end.close()
    made.connect()
    assert made.active.device is not first
    assert (first.closed, first.left) == (True, [])
    assert made.active.transport.registrations == 2
    assert made.passive.transport.registrations == 1
    target = made.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    made.active.write(1, b"w" * 100, target)
    made.settle()
    assert made.active.of(CompletionKind.WRITE_DONE) == [1]
    made.close()
    assert made.active.device.left == []


def test_a_device_that_is_gone_while_nobody_uses_it_is_noticed_when_a_link_is_wanted() -> None:
    made = unconnected()
    made.active.device.report(EventKind.DEVICE_GONE)
    infos, made.active.verbs.infos = made.active.verbs.infos, []
    for _ in range(2):
        with pytest.raises(TransportError, match="no RDMA device") as error:
            made.active.transport.open("active")
        assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    made.active.verbs.infos = infos
    made.connect()
    made.close()


def test_a_port_that_was_down_does_not_cost_the_registration() -> None:
    made = unconnected()
    made.connect()
    made.active.device.report(EventKind.PORT_DOWN)
    lost(made.active)
    made.active.end.close()
    made.passive.end.close()
    made.connect()
    assert made.active.transport.registrations == 1
    made.close()


def test_a_link_that_outlives_its_transport_keeps_the_device_open() -> None:
    made = unconnected()
    made.connect()
    made.active.transport.close()
    assert not made.active.device.closed
    target = made.passive.expose(GRANT, SLOT_AT, SLOT_BYTES)
    made.active.write(1, b"w", target)
    made.settle()
    assert made.active.of(CompletionKind.WRITE_DONE) == [1]
    made.active.end.close()
    assert made.active.device.closed
    made.close()


def test_a_closed_transport_opens_nothing() -> None:
    made = unconnected()
    made.close()
    with pytest.raises(FedRDMAError, match="is closed"):
        made.active.transport.open("active")


# --- datagrams ---

PADDING = PADDED_DATAGRAM_BYTES - DATAGRAM_BYTES


def test_a_padded_datagram_arrives_without_its_padding_and_touches_no_other(link: FakeLink) -> None:
    long, short = b"l" * DATAGRAM_BYTES, b"short"
    assert link.active.end.post_datagram(short)
    assert link.active.end.post_datagram(long, 3, PADDING)
    assert link.active.end.post_datagram(short)
    link.settle()
    arrived = [entry.data for entry in link.passive.completions if entry.kind is CompletionKind.DATAGRAM]
    assert arrived == [short, long, long, long, short]
    assert link.passive.untouched


@pytest.mark.parametrize(
    ("data", "padding"),
    [pytest.param(b"short", 1, id="behind a short one"), pytest.param(bytes(DATAGRAM_BYTES), PADDING + 1, id="longer")],
)
def test_padding_that_would_be_taken_for_data_or_does_not_fit_is_not_sent(
    link: FakeLink, data: bytes, padding: int
) -> None:
    assert not link.active.end.post_datagram(data, 1, padding)
    link.settle()
    assert link.passive.completions == []
