"""The sending half of `fedrdma-x`: how much is in flight, and what goes more than once before its loss can be known."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from random import Random

import pytest

from fedrdma_fate.core.actions import Action, ComputeDigest, Failed, PostChunk, PostRepair, WriteHeader
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.core.x.estimators import MOST_RATE
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.repair_code import RepairPlan
from fedrdma_fate.core.x.sender import MOST_COPIED_BYTES, XSender, XSendSettings
from fedrdma_fate.core.x.short_path import FIRST_WINDOW_BYTES
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Report

CHUNK = 16 * 1024
COUNT = 256
FAST = PathState(rate=1.25e9, min_rtt=0.02, loss=0.0)
RELIABLE = XSendSettings(tag=1, reliable=True)


def posted(actions: list[Action]) -> list[PostChunk]:
    return [action for action in actions if isinstance(action, PostChunk)]


def most_under_way(settings: XSendSettings) -> int:
    """Chunks that were under way at once at most; each arrives a round trip after it was sent."""
    sender = XSender(1, ChunkPlan(COUNT * CHUNK, CHUNK), settings, RateController(FAST))
    under_way, most, now = [(0.0, post) for post in posted(sender.start(0.0))], 0, 0.0
    while sender.arrived_bytes < COUNT * CHUNK:
        most = max(most, len(under_way))
        arrives = under_way[0][0] + FAST.min_rtt if under_way else math.inf
        due = sender.timer()
        if due is not None and due < arrives:
            now = max(now, due)
            actions = sender.on_timer(now)
        else:
            now = max(now, arrives)
            actions = sender.on_write_done(under_way.pop(0)[1].work_request, now)
        under_way += [(now, post) for post in posted(actions)]
    return most


@pytest.mark.parametrize("service", [RELIABLE, dataclasses.replace(RELIABLE, paced=False, window_bytes=1 << 30)])
def test_no_more_chunks_are_sent_than_the_queue_pairs_take(service: XSendSettings) -> None:
    assert most_under_way(service) > 128
    assert most_under_way(dataclasses.replace(service, most_chunks=128)) == 128


def test_a_window_that_was_set_by_hand_is_kept_to() -> None:
    assert most_under_way(dataclasses.replace(RELIABLE, window_bytes=10 * CHUNK)) == 10


def test_a_window_below_one_chunk_lets_one_go_at_a_time() -> None:
    assert most_under_way(dataclasses.replace(RELIABLE, window_bytes=1)) == 1


def positions(sender: XSender, actions: list[Action]) -> list[int]:
    """The chunks that are posted, in order of sending; counted from the last chunk of the payload."""
    return [sender.plan.count - 1 - action.chunk.index for action in actions if isinstance(action, PostChunk)]


@pytest.mark.parametrize(
    ("found", "if_lossy", "sent"), [(0.01, True, 6), (0.0, True, 0), (0.0, False, 6), (0.01, False, 6)]
)
def test_repair_chunks_for_a_loss_that_is_only_supposed_go_where_the_transfer_has_found_one(
    found: float, if_lossy: bool, sent: int
) -> None:
    plan = ChunkPlan(40_000, 1000)
    settings = XSendSettings(tag=1, mtu_bytes=1000, repairs=RepairPlan(plan, 40, 6), repairs_if_lossy=if_lossy)
    sender = XSender(1, plan, settings, RateController(PathState(1e9, 0.02, found), proved=True))
    actions = sender.start(0.0)
    for tick in range(1, 100):
        actions += sender.on_timer(tick * 1e-4)
    assert len(posted(actions)) >= 40
    assert sum(isinstance(action, PostRepair) for action in actions) == sent


@pytest.mark.parametrize(("loss", "twice"), [(0.01, [14, 15, 16, 17, 18, 19]), (0.0, []), (None, [])])
def test_the_last_chunks_go_twice_on_a_path_that_loses_for_too_few_follow_to_betray_a_loss(
    loss: float | None, twice: list[int]
) -> None:
    settings = XSendSettings(tag=1, queue_pairs=2, mtu_bytes=1000)
    sender = XSender(1, ChunkPlan(20_000, 1000), settings, RateController(PathState(1e9, 0.02, loss), proved=True))
    sent = positions(sender, sender.start(0.0))
    for tick in range(1, 100):
        sent += positions(sender, sender.on_timer(tick * 1e-4))
    assert sorted(sent) == sorted([*range(20), *twice])
    assert sender.resent_bytes == 1000 * len(twice)


def test_reliable_queue_pairs_get_everything_once() -> None:
    settings = XSendSettings(tag=1, reliable=True, paced=False, window_bytes=1 << 20)
    sender = XSender(1, ChunkPlan(20_000, 1000), settings, RateController(PathState(1e9, 0.02, 0.01), proved=True))
    assert positions(sender, sender.start(0.0)) == list(range(20))


def test_on_the_next_path_what_its_receiver_was_not_told_goes_again_though_the_last_path_had_acknowledged_it() -> None:
    settings = XSendSettings(tag=1, reliable=True, paced=False, window_bytes=1 << 20)
    sender = XSender(1, ChunkPlan(20_000, 1000), settings, RateController(PathState(1e9, 0.02, 0.0), proved=True))
    for post in posted(sender.start(0.0))[:10]:
        sender.on_write_done(post.work_request, 0.02)
    sender.pause()
    # of the ten that were acknowledged the receiver had heard of seven when the path ended
    assert not sender.on_report(Report(1, 0, 7, b"", 6, 0.02, 0.0, 7000), 0.1)
    assert sender.arrived_bytes == 7000
    assert positions(sender, sender.resume(0.1, same_slot=True)) == list(range(7, 20))


FIFTH = immediate_of(1, 40 - 1 - 4)


def lossy_transfer(nack: int | None, of: int = FIFTH) -> tuple[XSender, list[int]]:
    """A sender whose fifth chunk was lost, of which so many bytes are missing; what it posts when it hears of that."""
    settings = XSendSettings(tag=1, mtu_bytes=1000)
    sender = XSender(1, ChunkPlan(40 * CHUNK, CHUNK), settings, RateController(PathState(1e8, 0.02, 0.0), proved=True))
    sent = positions(sender, sender.start(0.0))
    now = 0.0
    while len(sent) < 12:
        now += 1e-4
        sent += positions(sender, sender.on_timer(now))
    if nack is not None:
        sender.on_chunk_nack(of, nack)
    now += 0.02
    report = Report(1, 0, 4, bytes([0b1111110]), 10, now, 0.0, 10 * CHUNK)
    return sender, positions(sender, sender.on_report(report, now))


@pytest.mark.parametrize(
    ("nack", "again"), [(None, CHUNK), (1000, 1000), (0, 1), (1 << 40, CHUNK)], ids=["none", "one", "zero", "absurd"]
)
def test_a_chunk_of_which_the_peer_has_some_pieces_costs_the_others(nack: int | None, again: int) -> None:
    sender, posted_again = lossy_transfer(nack)
    assert posted_again[0] == 4
    assert sender.resent_bytes == again


def test_on_another_path_a_chunk_of_which_the_last_one_had_only_to_send_a_part_costs_all_of_it() -> None:
    """That one has been told nothing of what the receiver has, and sends it whole."""
    sender, posted = lossy_transfer(1000)
    sender.pause()
    before = sender.resent_bytes
    again = positions(sender, sender.resume(0.1, same_slot=True))
    assert 4 in again
    assert sender.resent_bytes - before == CHUNK * sum(position < 12 or position in posted for position in again)


@pytest.mark.parametrize(
    ("tag", "index"), [(2, 35), (1, 40), (1, (1 << 20) - 1)], ids=["of-another-transfer", "beyond", "far-beyond"]
)
def test_what_is_missing_of_other_chunks_is_ignored(tag: int, index: int) -> None:
    sender, again = lossy_transfer(1000, immediate_of(tag, index))
    assert again[0] == 4
    assert sender.resent_bytes == CHUNK


def test_what_a_receiver_says_to_have_that_was_never_sent_does_not_count_as_delivered() -> None:
    plan = ChunkPlan(COUNT * CHUNK, CHUNK)
    sender = XSender(1, plan, XSendSettings(tag=1, window_bytes=4 * CHUNK), RateController(FAST))
    sent = len(posted(sender.start(0.0)))
    assert 0 < sent < plan.count
    sender.on_report(Report(1, 0, plan.count, b"", plan.count - 1, 1.0, 0.0, plan.total_bytes), 0.1)
    assert sender.arrived_bytes == plan.total_bytes
    assert sender.delivered_bytes == sent * CHUNK


def test_of_a_chunk_that_was_never_sent_nothing_can_be_there() -> None:
    settings = XSendSettings(tag=1, mtu_bytes=1000)
    known = RateController(PathState(1e8, 0.02, 0.0), proved=True)
    sender = XSender(1, ChunkPlan(40 * CHUNK, CHUNK), settings, known)
    sent = positions(sender, sender.start(0.0))
    burst = len(sent)
    for position in range(burst, 40):
        sender.on_chunk_nack(immediate_of(1, 39 - position), 1)
    now = 0.0
    while len(sent) < 12:
        now += 1e-6
        sent += positions(sender, sender.on_timer(now))
    assert now * 1e8 >= 0.9 * CHUNK * (12 - burst)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_receiver_reports_the_sender_goes_on_and_believes_in_a_rate_that_a_path_can_have(seed: int) -> None:
    random = Random(seed)
    known = random.choice([None, PathState(1e8, 0.02, 0.0)])
    plan = ChunkPlan(512 * CHUNK, CHUNK)
    sender = XSender(1, plan, XSendSettings(tag=1, queue_pairs=2, mtu_bytes=1000), RateController(known))
    now, arrived_at, received, complete = 1.0, 0.0, 0, 0
    sender.start(now)
    for _ in range(400):
        now += random.choice([0.0005, 0.002, 0.01])
        arrived_at += random.choice([0.002, 1e-9, 1e-300, -1.0, 1e9])
        received += random.choice([CHUNK, 1 << 20, 1 << 52])
        complete = min(complete + random.randrange(3), 511)
        held = random.choice([0.0, 0.001, -1e12, 1e12])
        sender.on_report(Report(1, 0, complete, b"", max(0, complete - 1), arrived_at, held, received), now)
        due = sender.timer()
        if due is not None and due <= now:
            sender.on_timer(now)
    state = sender.control.state()
    assert state is not None
    assert 0 < state.rate <= MOST_RATE
    assert 0 < state.min_rtt < 3600


def test_a_receiver_that_says_to_have_held_its_report_for_ever_has_no_chunk_taken_for_lost_as_soon_as_it_is_sent() -> (
    None
):
    chunks, rtt = 4096, 0.02
    settings = XSendSettings(tag=1, rtt_hint=rtt)
    sender = XSender(1, ChunkPlan(chunks * CHUNK, CHUNK), settings, RateController(PathState(1e7, rtt, 0.0)))
    now, complete = 0.02, 1
    sender.start(0.0)
    sender.on_timer(now)
    sender.on_report(Report(1, 0, complete, b"", 0, now, 1e12, CHUNK), now)
    # then it reports what has gone twice, and nothing from which a round trip can be told
    for _ in range(30):
        until = now + 0.1
        while (due := sender.timer()) is not None and due < until:
            now = max(now, due)
            sender.on_timer(now)
        now, complete = until, complete + 16
        sender.on_report(Report(1, 0, complete, b"", -1, now, 0.0, complete * CHUNK), now)
    sent, silent_since = 0, now
    while now < silent_since + 2.0:
        now = max(now, sender.timer() or math.inf)
        sent += len(posted(sender.on_timer(now)))
    assert sent < 200, "at the full rate there were 1200 chunks for which nobody answers"


def test_what_the_receiver_lets_through_bounds_the_rate_and_says_nothing_of_the_path() -> None:
    chunk, rtt, bound = 1000, 0.02, 4e6
    settings, known = XSendSettings(tag=1, mtu_bytes=1000), PathState(1e7, rtt, 0.0)
    sender = XSender(1, ChunkPlan(8000 * chunk, chunk), settings, RateController(known))
    sender.bound_rate(bound, 0.0)
    sent = len(posted(sender.start(0.0)))
    for tick in range(1, 4000):
        now = tick * 0.00025
        sent += len(posted(sender.on_timer(now)))
        there = max(0, int((now - rtt) * bound / chunk))
        report = Report(1, 0, there, b"", there - 1, max(now - rtt, 0.0), 0.0, there * chunk)
        sent += len(posted(sender.on_report(report, now)))
    assert 0.9 * bound < sent * chunk / now < 1.1 * bound
    state = sender.control.state()
    assert state is not None
    assert state.rate >= 0.9 * known.rate


def test_a_rate_below_what_the_receiver_lets_through_rises_to_that() -> None:
    chunk, rtt, known, bound = 1440, 0.002, PathState(1.35e5, 0.002, 0.0), 1.5e5
    settings = XSendSettings(tag=1, mtu_bytes=1500, repairs_packets=True)
    sender = XSender(1, ChunkPlan(2000 * chunk, chunk), settings, RateController(known, proved=False))
    sender.bound_rate(bound, 0.0)
    there, sent = 0, len(posted(sender.start(0.0)))
    sent_at = deque([0.0] * sent)
    for tick in range(1, 16_000):
        now = tick * 0.0005
        count = len(posted(sender.on_timer(now)))
        came = 0
        while sent_at and sent_at[0] <= now - rtt:
            sent_at.popleft()
            came += 1
        if came:
            there += came
            count += len(
                posted(sender.on_report(Report(1, 0, there, b"", there - 1, now - rtt / 2, 0.0, there * chunk), now))
            )
        sent_at.extend([now] * count)
    assert 0.96 * bound < sender.control.bandwidth <= 1.01 * bound


def test_a_receiver_that_lacks_the_same_chunk_for_ever_is_given_up_however_often_it_reports() -> None:
    settings = XSendSettings(tag=1, idle_timeout=20.0, repairs_packets=True)
    sender = XSender(1, ChunkPlan(COUNT * CHUNK, CHUNK), settings, RateController(FAST))
    sender.start(0.0)
    now, actions = 0.0, list[Action]()
    while not sender.finished:
        now += 0.01
        assert now < 21.0
        sender.on_chunk_nack(immediate_of(1, COUNT - 6), 1)
        # of six chunks five arrive, in the first moment
        report = Report(1, 0, 5, b"", 4, now - 0.005, 0.0, 5 * CHUNK)
        actions = sender.on_report(report, now) + sender.on_timer(now)
    *_, failed = actions
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.IDLE_TIMEOUT


@pytest.mark.parametrize("chunks", [(), (0,)], ids=["header", "everything"])
def test_a_receiver_that_has_everything_sent_for_ever_is_given_up_though_it_arrives_each_time(
    chunks: tuple[int, ...],
) -> None:
    plan = ChunkPlan(4 * CHUNK, CHUNK)
    sender = XSender(1, plan, dataclasses.replace(RELIABLE, max_resends=5), RateController(FAST))
    actions = sender.start(0.0)
    for number in range(6):
        assert not sender.finished
        for post in posted(actions):
            actions += sender.on_write_done(post.work_request, float(number))
        actions = sender.on_resend(chunks, float(number))
    *_, failed = actions
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.UNEXPECTED_EVENT


REPAIRS = XSendSettings(tag=1, mtu_bytes=1000, repairs_packets=True)
SHORT = PathState(rate=1e6, min_rtt=0.0002, loss=0.0)


def test_on_a_short_path_a_window_is_under_way_whatever_rate_was_seen() -> None:
    sender = XSender(1, ChunkPlan(COUNT * CHUNK, CHUNK), REPAIRS, RateController(SHORT))
    assert len(posted(sender.start(0.0))) == FIRST_WINDOW_BYTES // CHUNK, "from the start, before any is told"
    first = Report(1, 0, 1, b"", 0, 0.0001, 0.0, CHUNK)
    assert len(posted(sender.on_report(first, 0.0002))) == 2, "as much as has arrived, and once more, for it grows"


def test_on_a_short_path_that_has_lost_a_report_that_was_waited_for_lets_no_whole_window_go_at_once() -> None:
    known = dataclasses.replace(SHORT, window_bytes=8 * FIRST_WINDOW_BYTES, window_found=True)
    sender = XSender(1, ChunkPlan(COUNT * CHUNK, CHUNK), REPAIRS, RateController(known))
    sent = len(posted(sender.start(0.0)))
    assert sent == FIRST_WINDOW_BYTES // CHUNK
    due = sender.timer()
    assert due == pytest.approx(SHORT.min_rtt / 4)
    while (due := sender.timer()) is not None and due < SHORT.min_rtt:
        sent += len(posted(sender.on_timer(due)))
    assert sent == 4 * FIRST_WINDOW_BYTES // CHUNK


def test_on_a_short_path_the_last_chunks_are_missed_sooner_than_others_for_nothing_follows_them() -> None:
    def waited(chunks: int) -> float:
        sender = XSender(1, ChunkPlan(chunks * CHUNK, CHUNK), REPAIRS, RateController(SHORT))
        for post in posted(sender.start(0.0)):
            sender.on_write_done(post.work_request, 0.0)
        due = sender.timer()
        assert due is not None
        return due

    assert waited(4) < 0.01 < waited(COUNT)


def test_what_the_transport_has_not_sent_is_not_sent_again_however_long_it_takes() -> None:
    sender = XSender(1, ChunkPlan(2 * CHUNK, CHUNK), REPAIRS, RateController(dataclasses.replace(FAST, rate=1e8)))
    first, second = posted(sender.start(0.0))
    assert posted(sender.on_timer(1.0)) == []
    sender.on_write_done(first.work_request, 1.0)
    due = sender.timer()
    assert due is not None
    assert 1.0 < due < 1.1
    assert {post.chunk for post in posted(sender.on_timer(due))} == {first.chunk}
    assert second.chunk != first.chunk


LOOK_SECONDS = 0.01
"""Between two looks of a busy receiver."""


def trains_found_at_once(settings: XSendSettings, size: int, until: float) -> tuple[XSender, list[int]]:
    """A fast path of which nothing is known, to a receiver that finds all that comes between two looks at one moment:
    the sender, and how many chunks went in each interval in which any did."""
    sender = XSender(1, ChunkPlan(size, CHUNK), settings, RateController())
    under_way, arrived, now = len(posted(sender.start(0.0))), 0, 0.0
    sent = [under_way]
    while now < until and arrived < sender.plan.count:
        now += 2 * LOOK_SECONDS
        arrived, under_way = arrived + under_way, 0
        looked_at = now - LOOK_SECONDS / 2
        report = Report(1, 0, arrived, b"", arrived - 1, looked_at, LOOK_SECONDS / 4, arrived * CHUNK)
        under_way += len(posted(sender.on_report(report, now)))
        while (due := sender.timer()) is not None and due < now + LOOK_SECONDS:
            under_way += len(posted(sender.on_timer(due)))
        sent.append(under_way)
    return sender, sent


def test_a_train_that_was_found_at_one_moment_is_followed_by_one_twice_as_long_and_not_by_single_chunks() -> None:
    # a chunk in each round trip arrived at 0.8 MB/s, which was then taken for the path's rate
    sender, sent = trains_found_at_once(XSendSettings(tag=1, is_probing=True), 64 * COUNT * CHUNK, 0.25)
    assert sent[:6] == [16, 32, 64, 128, 256, 256], "no longer than the longest train"
    assert not sender.control.known, "nothing tells a rate, and the pause between two trains is none"


def test_a_train_of_which_nothing_came_is_followed_by_shorter_ones_however_long_it_was() -> None:
    sender, _ = trains_found_at_once(XSendSettings(tag=1, is_probing=True), 64 * COUNT * CHUNK, 0.1)
    due, again = sender.timer(), 0
    while due is not None and not again:
        again, due = len(posted(sender.on_timer(due))), sender.timer()
    assert again == 16 // 4


def cut_burst(came: int, count: int = COUNT) -> tuple[XSender, dict[int, list[float]]]:
    """Of a burst that goes whole the first so many chunks come a round trip later, and then nothing: when each of the
    others goes again, until a second round trip after the first of them is over; from the first sent."""
    sender = XSender(1, ChunkPlan(count * CHUNK, CHUNK), XSendSettings(tag=1), RateController(FAST))
    sent: dict[int, list[float]] = {}

    def note(actions: list[Action], now: float) -> None:
        for position in positions(sender, actions):
            sent.setdefault(position, []).append(now)

    note(sender.start(0.0), 0.0)
    told, until = 0, 1.0
    while (due := sender.timer()) is not None and due < until:
        arrived = min(came, len(sent))
        if told < arrived and due > sent[arrived - 1][0] + FAST.min_rtt:
            told, now = arrived, sent[arrived - 1][0] + FAST.min_rtt
            note(sender.on_report(Report(1, 0, told, b"", told - 1, now - 0.01, 0.0, told * CHUNK), now), now)
            continue
        note(sender.on_timer(due), due)
        if any(len(times) > 1 for times in sent.values()):
            until = min(until, due + FAST.min_rtt)
    return sender, sent


def test_of_a_burst_that_came_until_somewhere_all_that_is_lost_goes_again_after_one_time_out() -> None:
    _, sent = cut_burst(64)
    assert all(len(sent[position]) == 1 for position in range(64))
    # 16 KiB take 13 us, and what waits on the pace goes out in turn
    assert all(sent[position][1] - sent[position][0] < 0.035 for position in range(64, COUNT))


def test_of_a_burst_of_which_nothing_has_come_yet_only_the_first_go_again_for_the_path_may_have_become_longer() -> None:
    _, sent = cut_burst(0)
    assert 0 < sum(len(times) > 1 for times in sent.values()) <= COUNT // 8


def test_of_what_a_full_buffer_lost_no_copies_go_but_of_the_last() -> None:
    _, sent = cut_burst(64)
    copied = [position for position, times in sent.items() if len(times) > 2]
    assert copied == list(range(COUNT - 1 - MOST_COPIED_BYTES // CHUNK, COUNT)), "behind which no more waits"


def test_of_few_that_are_lost_copies_go_with_each() -> None:
    _, sent = cut_burst(60, count=64)
    assert [len(sent[position]) for position in range(60, 64)] == [3, 3, 3, 3]


@pytest.mark.parametrize("kept", [10, 39, 40])
def test_what_a_receiver_has_from_before_is_not_sent_and_the_header_speaks_for_it(kept: int) -> None:
    plan = ChunkPlan(40_000, 1000)
    settings = XSendSettings(tag=1, window_bytes=2000, mtu_bytes=1000)
    sender = XSender(1, plan, settings, RateController(PathState(1e5, 0.02, 0.0), proved=True))
    todo, now, complete, sent, wanted, has_header = sender.start(0.0), 0.0, kept, set[int](), set[int](), False
    while not has_header and now < 60.0:
        wanted |= {action.chunk.index for action in todo if isinstance(action, ComputeDigest)}
        sent |= set(positions(sender, todo))
        has_header = any(isinstance(action, WriteHeader) for action in todo)
        answers = [
            more for each in todo if isinstance(each, ComputeDigest) for more in sender.on_digest(each.chunk.index, 1)
        ]
        has_header = has_header or any(isinstance(action, WriteHeader) for action in answers)
        now += 0.01
        while complete in sent:
            complete += 1
        due = sender.timer()
        todo = sender.on_report(Report(1, 0, complete, b"", complete - 1, now - 0.01, 0.0, complete * 1000), now)
        todo += sender.on_timer(now) if due is not None and due <= now else []
    assert has_header
    assert wanted == set(range(plan.count))
    assert len(sent) < plan.count


@pytest.mark.parametrize("settings", [{"tells_arrivals": True}, {}])
def test_of_what_is_sealed_later_or_not_written_yet_no_digest_is_wanted(settings: dict[str, bool]) -> None:
    plan = ChunkPlan(40_000, 1000)
    written_from = 0 if settings else 35_000
    details = XSendSettings(tag=1, window_bytes=2000, mtu_bytes=1000, **settings)
    control = RateController(PathState(1e5, 0.02, 0.0), proved=True)
    sender = XSender(1, plan, details, control, written_from)
    sent = {action.chunk.index for action in sender.start(0.0) if isinstance(action, ComputeDigest)}
    told = sender.on_report(Report(1, 0, plan.count, b"", plan.count - 1, 0.01, 0.0, 40_000), 0.02)
    wanted = {action.chunk.index for action in told if isinstance(action, ComputeDigest)} | sent
    assert wanted == (sent if settings else set(range(35, 40)))


@pytest.mark.parametrize(("mebibytes", "believed"), [(64, False), (4, True)], ids=["long", "short"])
def test_a_rate_that_was_only_estimated_is_corrected_by_short_samples_where_a_payload_is_too_short_for_others(
    mebibytes: int, believed: bool
) -> None:
    estimated, rtt, spacing = 1.2e9, 0.004, 0.0002
    control = RateController(PathState(estimated, rtt, None), proved=False)
    settings = XSendSettings(tag=1, mtu_bytes=4096, repairs_packets=True)
    sender = XSender(1, ChunkPlan(mebibytes << 20, CHUNK), settings, control)
    sender.start(0.0)
    for tick in range(1, 200):
        sender.on_timer(tick * rtt / 200)
    # the path gives what was estimated; in a fifth of a millisecond two packets more are seen, which is 3 %
    for number in range(1, 9):
        since = number * spacing
        came = int(since * estimated) + (2 * 4096 if number > 1 else 0)
        chunks = came // CHUNK
        sender.on_report(Report(1, 0, chunks, b"", chunks - 1, since, 0.0, came), rtt + since)
    assert (control.bandwidth > 1.02 * estimated) is believed
