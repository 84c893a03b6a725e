"""What `fedrdma-x` sends more than once before it can know that it was lost: how often, and when."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.actions import Action, PostChunk
from fedrdma_fate.core.backoff import LONGEST_GAP_SECONDS, Repeats
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.estimators import chunk_loss
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.repair_code import MOST_COPIES, copies_of_last, copies_of_repeat
from fedrdma_fate.core.x.sender import XSender, XSendSettings


def positions(sender: XSender, actions: list[Action]) -> list[int]:
    """The chunks that are posted, in order of sending; counted from the last chunk of the payload."""
    return [sender.plan.count - 1 - action.chunk.index for action in actions if isinstance(action, PostChunk)]


def moments(repeats: Repeats, until: float) -> list[float]:
    """When it goes again."""
    times = []
    while (due := repeats.timer()) is not None and due <= until:
        assert not repeats.on_timer(due - 1e-6)
        assert repeats.on_timer(due)
        times.append(round(due, 6))
    return times


def test_each_repeat_waits_for_twice_as_long_and_their_number_is_bounded() -> None:
    assert moments(Repeats(0.0, 3), 100.0) == [0.002, 0.006, 0.014]
    assert Repeats(0.0, 0).timer() is None
    assert not Repeats(0.0, 0).on_timer(100.0)


def test_unbounded_repeats_go_on_at_a_steady_pace() -> None:
    times = moments(Repeats(1.0), 3.0)
    assert times[-1] - times[-2] == pytest.approx(LONGEST_GAP_SECONDS)


def test_the_likelier_a_loss_the_more_copies_of_what_was_lost_go_at_once() -> None:
    assert [copies_of_repeat(lost) for lost in (0.0, 0.008, 0.04, 0.08, 0.3, 1.0)] == [2, 2, 3, 3, 3, MOST_COPIES]
    assert [copies_of_last(lost) for lost in (0.0, 0.0005, 0.008, 0.5)] == [1, 1, 2, 2]
    assert chunk_loss(0.01, 4) == pytest.approx(0.0394, abs=1e-4)
    assert (chunk_loss(-1.0, 4), chunk_loss(2.0, 4)) == (0.0, 1.0)


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
