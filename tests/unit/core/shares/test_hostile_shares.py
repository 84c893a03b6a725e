"""Whatever peers do and report, shares stay what the link carries, fair, and looked at again."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.shares.receive_shares import TOLD_SHARE, ReceiveShares
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.core.shares.windows import LEAST_PART
from fedrdma_fate.core.x.controller import LEAST_SHARED_RATE

LINK = 1e8
RTT = 0.02
PEERS = 6

Step = tuple[str, int, float]


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """What happens to which peer, and how much."""
    kinds = st.sampled_from(
        ["begin", "begin", "end", "join", "leave", "run", "run", "run", "report", "path", "joint", "expect"]
    )
    return draw(st.lists(st.tuples(kinds, st.integers(0, PEERS - 1), st.floats(0, 1)), min_size=5, max_size=60))


class Site:
    """A site whose peers take what they are given, but for what a step says, and a link that carries LINK."""

    def __init__(self, *, gathers: bool, path_rate: float = LINK) -> None:
        self.gathers = gathers
        self.shares = ReceiveShares(gathers=gathers)
        self.now = 1.0
        self.came = [0.0] * PEERS
        self.transfers: list[list[int]] = [[] for _ in range(PEERS)]
        self.told: dict[str, float] = {}
        self.numbers = iter(range(10**6))
        for number in range(PEERS):
            self.shares.join(str(number), self.now, RTT)
            self.shares.on_path(str(number), self.now, path_rate, RTT)
        self.shares.settle(self.now)

    def take(self, step: Step) -> None:
        """One thing happens."""
        kind, number, how_much = step
        shares, name = self.shares, str(number)
        if kind == "begin":
            self.transfers[number].append(next(self.numbers))
            shares.on_begin(name, self.transfers[number][-1], self.now, int(how_much * 1e9))
        elif kind == "end" and self.transfers[number]:
            shares.on_end(name, self.transfers[number].pop(), self.now)
        elif kind == "join":
            self.transfers[number].clear()
            shares.join(name, self.now, how_much / 10)
        elif kind == "leave":
            self.transfers[number].clear()
            shares.leave(name, self.now)
        elif kind == "path":
            shares.on_path(name, self.now, LINK * (0.01 + how_much), RTT)
        elif kind == "joint" and not self.gathers:
            shares.on_joint_train(2 * LINK * how_much, self.now)
        elif kind == "expect":
            shares.expect([str(each) for each in range(int(how_much * (PEERS + 1)))], self.now)
        elif kind == "report":
            # of more than was ever sent, at a moment that is none
            shares.on_arrivals(name, Arrivals(int(self.came[number] + how_much * 1e12), 0, self.now + how_much - 0.5))
        elif kind == "run":
            self.run(how_much)
        self.told |= shares.take_told()

    def run(self, seconds: float) -> None:
        """Time passes, in which all that send get their part of the link through."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.005
            sending = {
                number: min(self.told.get(str(number), math.inf), LINK)
                for number in range(PEERS)
                if self.transfers[number] and str(number) in self.shares.senders
            }
            fits = min(1.0, LINK / max(sum(sending.values()), 1.0))
            for number, rate in sending.items():
                self.came[number] += rate * fits * 0.005
                self.shares.on_arrivals(str(number), Arrivals(int(self.came[number]), 0, self.now))
            due = self.shares.timer()
            if due is not None and due <= self.now:
                self.shares.on_timer(self.now)
            self.told |= self.shares.take_told()


@pytest.mark.parametrize("gathers", [True, False])
@settings(max_examples=150, derandomize=True)
@given(steps())
def test_whatever_happens_shares_are_of_what_is_known_and_somebody_looks_again(
    gathers: bool, happens: list[Step]
) -> None:
    site = Site(gathers=gathers)
    for step in happens:
        site.take(step)
        shares = site.shares
        link = shares.link
        if shares.under_way and len(shares.senders) >= 2:
            assert shares.timer() is not None
        assert link.rate is not None
        assert 0 < link.rate < math.inf
        assert link.gain == 1 or 0.9 < link.gain <= 2
    site.run(0.1)
    active = {name: sender for name, sender in site.shares.senders.items() if sender.active}
    bounded = [sender.share for sender in active.values() if math.isfinite(sender.share)]
    if bounded:
        assert len(bounded) == len(active)
        total = site.shares.link.shared_out
        assert total is not None
        assert sum(bounded) <= (1 + 2 * TOLD_SHARE) * total + len(active) * (LEAST_SHARED_RATE + LEAST_PART * total)
    if not site.shares.under_way:
        site.run(1.0)
        assert site.shares.timer() is None


@pytest.mark.parametrize("gathers", [True, False])
@settings(max_examples=40, derandomize=True)
@given(steps())
def test_when_all_are_honest_again_the_link_is_used_and_shared_evenly(gathers: bool, happens: list[Step]) -> None:
    site = Site(gathers=gathers)
    for step in happens:
        site.take(step)
    for number in range(PEERS):
        site.take(("join", number, RTT * 10))
        site.shares.on_path(str(number), site.now, LINK, RTT)
        site.take(("begin", number, 1.0))
    site.run(10.0)
    before = list(site.came)
    site.run(1.0)
    got = [after - then for after, then in zip(site.came, before, strict=True)]
    assert sum(got) >= 0.85 * LINK
    assert max(got) <= 1.3 * min(got)


@pytest.mark.parametrize("sends", [True, False])
@settings(max_examples=20, derandomize=True)
@given(st.floats(0, 20.0))
def test_one_that_says_it_is_far_away_does_not_keep_the_others_at_what_trains_have_told(
    sends: bool, round_trip: float
) -> None:
    site, liar = Site(gathers=True, path_rate=LINK / PEERS), PEERS - 1
    site.shares.join(str(liar), site.now, round_trip)
    for number in range(PEERS):
        site.take(("begin", number, 10.0))
    if not sends:
        site.transfers[liar].clear()
    site.run(8.0)
    before = list(site.came)
    site.run(1.0)
    got = sum(site.came[:liar]) - sum(before[:liar])
    assert got >= 0.9 * LINK * (PEERS - 1) / PEERS
