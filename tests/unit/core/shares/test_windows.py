"""What a window shows of a link: all who use their shares count, whatever becomes of what they send."""

from __future__ import annotations

import math

from fedrdma_fate.core.shares.link_rate import LinkRate
from fedrdma_fate.core.shares.share_sender import Arrivals, Sender
from fedrdma_fate.core.shares.trials import FIRST_GAIN
from fedrdma_fate.core.shares.windows import HEADROOM, Windows

ROUND_TRIP = 0.02
LINK = 100e6


class Four:
    """Four who send, each its share or less, and the windows that look at them."""

    def __init__(self) -> None:
        self.link = LinkRate()
        self.link.on_probed(LINK)
        self.windows = Windows(self.link, by_reports=False)
        self.senders = [Sender(0.0, ROUND_TRIP, transfers={1}) for _ in range(4)]
        self.now = 1.0

    def window(self, *arrives: float, lost_bytes: int = 0) -> None:
        """Of what each may send, such a part comes, and so much has been lost of it so far."""
        share = (self.link.shared_out or 0.0) / 4
        for sender in self.senders:
            sender.share = sender.least_share = share
            sender.come = sender.come._replace(at=self.now)
        self.windows.start(self.senders, 4, ROUND_TRIP, self.now)
        assert self.windows.ends is not None
        seconds, self.now = self.windows.ends - self.now, self.windows.ends
        for sender, part in zip(self.senders, arrives, strict=True):
            before = sender.come
            sender.come = Arrivals(before.received_bytes + int(part * share * seconds), lost_bytes, self.now)
        assert not self.windows.judge(self.senders, -math.inf, ROUND_TRIP, self.now)
        self.windows.tell(4)


def test_a_trial_that_overruns_some_has_not_succeeded_because_the_others_lost_nothing() -> None:
    four = Four()
    while four.link.gain == 1:
        four.window(1, 1, 1, 1)
    assert four.link.gain == FIRST_GAIN
    # what two of them sent did not fit the buffer; that it is lost is told later
    four.window(1, 1, 0.8, 0.8)
    assert four.link.rate == LINK


def test_who_leaves_a_part_of_its_share_unused_takes_no_part_in_judging_the_link_from_the_next_window_on() -> None:
    four = Four()
    four.window(1, 1, 1, 0.5)
    assert four.senders[3].usable == HEADROOM * four.senders[3].arrived_rate
    for _ in range(8):
        if four.link.gain > 1:
            break
        four.window(1, 1, 1, 0.5)
    # nothing is missing of what the others were let send
    assert four.link.gain == FIRST_GAIN


def test_of_whom_chance_has_taken_something_one_window_does_not_show_that_it_uses_less_than_its_share() -> None:
    four = Four()
    four.window(1, 1, 1, 1, lost_bytes=1000)
    four.window(1, 1, 1, 0.8, lost_bytes=1000)
    assert math.isinf(four.senders[3].usable)
    four.window(1, 1, 1, 1, lost_bytes=1000)
    four.window(1, 1, 1, 0.8, lost_bytes=1000)
    assert math.isinf(four.senders[3].usable)
    # but two in a row do
    four.window(1, 1, 1, 0.8, lost_bytes=1000)
    assert four.senders[3].usable == HEADROOM * four.senders[3].arrived_rate
