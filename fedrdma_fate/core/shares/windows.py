"""What windows of time show: what comes of each sender, whether it uses its share, and what the link carries of all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence

from fedrdma_fate.core.shares.link_rate import LinkRate
from fedrdma_fate.core.shares.share_sender import Sender
from fedrdma_fate.core.shares.window import Window
from fedrdma_fate.core.x.chunking import SLOW_PATH_RATE

LEAST_WINDOW_SECONDS = 0.02
"""What is judged is what has come in this time at least, or in a round trip: ten reports' worth."""

WINDOW_CHUNKS = 4
"""And so many chunks of each at its share, of which the spacing of the first and the last tells the rate, as for a
single flow (`LEAST_DELIVERY_CHUNKS`)."""

CHUNK_BYTES = 16 * 1024
"""That shares are made for: the smallest chunk of fast paths."""

SLOW_CHUNK_BYTES = 4 * 1024
"""Where all are known to be reached by slow paths, on which a chunk is as few packets as can be."""

USED_SHARE = 0.85
"""Who uses so much of its share could use more."""

HELD_UP_SHARE = 0.01
"""Who usually leaves so much more of its share unused than the lower median is held up on its own way, by a foreign
flow: by it the link is not judged where letting less through has found nothing. Where the link is full, all leave as
much."""

UNUSED_GAIN = 0.25
"""Weight of a window in what one usually leaves, as in the usual loss (`LOSS_GAIN`)."""

HEADROOM = 1.5
"""Who does not may have so many times what it uses, and so has room to grow; with that it uses two thirds."""

LEAST_PART = 1 / 32
"""Of an equal part stays for who uses nothing: it is seen to begin by what comes then."""

SILENT_SECONDS = 0.25
"""So long nothing may come of one that has begun, and four round trips: all that it sent may have been lost. After that
it is one that does not send, until something comes."""

SILENT_ROUNDS = 4
"""See SILENT_SECONDS."""

IGNORED_FACTOR = 1.25
"""Who sends so many times its share does not keep to it: what it takes is not there for others."""


class Windows:
    """They follow each other while anybody sends.

    Attributes:
        ends: when the one under way does, seconds; None: there is none.
    """

    def __init__(self, link: LinkRate, *, by_reports: bool) -> None:
        """
        Args:
            link: is told what each has shown.
            by_reports: whether peers report what has come, and not this host sees it come.
        """
        self.ends: float | None = None
        self._link = link
        self._by_reports = by_reports
        self._began = 0.0
        self._measured: list[Sender] = []
        self._window: Window | None = None

    def stop(self) -> None:
        """Nobody sends."""
        self.ends = None

    def start(self, senders: Collection[Sender], crowd: int, round_trip: float, now: float) -> None:
        """One begins.

        Args:
            senders: who may send.
            crowd: how many have sent at once since the last rest.
            round_trip: the longest of those that send, seconds.
            now: seconds.
        """
        total = self._link.shared_out
        chunk_bytes = CHUNK_BYTES
        if all(sender.known_rate <= SLOW_PATH_RATE for sender in senders):
            chunk_bytes = SLOW_CHUNK_BYTES
        chunks = 0.0 if not total else WINDOW_CHUNKS * chunk_bytes * crowd / total
        self._began, self.ends = now, now + max(LEAST_WINDOW_SECONDS, round_trip, min(chunks, 1.0))
        for sender in senders:
            sender.come_before = sender.come if sender.active else None

    def judge(
        self,
        active: Sequence[Sender],
        settled_at: float,
        round_trip: float,
        now: float,
        trip_of: Callable[[Sender], float] = lambda _sender: 0.0,
    ) -> bool:
        """One is over; whether anybody counts as one that does not send any more. `tell` is to follow.

        Args:
            active: who sends.
            settled_at: since when nobody has begun or ended, and all have known their shares for a round trip.
            round_trip: the longest of theirs, seconds.
            now: seconds.
            trip_of: the round trip of one that may be farther away.
        """
        self._measured = [sender for sender in active if sender.come_before is not None]
        for sender in self._measured:
            self._measure(sender, now)
        in_turn = [sender for sender in self._measured if sender.in_turn]
        self._window = _window_of(in_turn, now - self._began) if self._began >= settled_at else None
        is_overrun = self._window is not None and self._link.is_overrun(self._window)
        part = (self._link.shared_out or math.inf) / max(len(active), 1)
        for sender in self._measured:
            self._judge_one(sender, part, max(round_trip, trip_of(sender)), now, is_overrun=is_overrun)
        return any(sender.silent for sender in self._measured)

    def tell(self, count: int) -> None:
        """Tell the link what the latest one, in which so many sent, has shown of it."""
        window = self._window
        if self._link.rate is not None or window is not None:
            self._link.on_arrived(sum(self._least_of(sender) for sender in self._measured if sender.is_exact))
        if window is None or not len(self._measured) == count > 1:
            return
        if self._link.gain == 1 and math.isfinite(window.allowed):
            for sender in self._measured:
                if sender.in_turn:
                    sender.usual_unused += (sender.unused - sender.usual_unused) * UNUSED_GAIN
        self._link.on_window(window)

    def _measure(self, sender: Sender, now: float) -> None:
        began, latest = sender.come_before, sender.come
        if began is None:
            return
        window = now - self._began
        # from arrival to arrival, for a window begins and ends between two; not of what was silent before, or is
        sender.is_exact = now - began.at < 1.5 * window and latest.at - began.at > window / 2
        seconds = latest.at - began.at if sender.is_exact else window
        sender.arrived_rate = (latest.received_bytes - began.received_bytes) / seconds
        if self._by_reports:
            # a report may be late, and tell of more than went: nobody sends more than it may by its own gateway
            sender.arrived_rate = min(sender.arrived_rate, sender.share)
        sender.lost_rate = max(latest.lost_bytes - began.lost_bytes, 0) / seconds

    def _least_of(self, sender: Sender) -> float:
        """What the link carries of it, at least; where a peer reports that, no more than it is known to take."""
        return min(sender.arrived_rate, sender.path_rate) if self._by_reports else sender.arrived_rate

    def _judge_one(self, sender: Sender, part: float, round_trip: float, now: float, *, is_overrun: bool) -> None:
        """Whether it uses its share; `part` is an equal part of the link."""
        if is_overrun:
            sender.usable = math.inf
            return
        if max(sender.begun_at, sender.changed_at) > self._began - round_trip:
            # its share was another for a part of the time
            if sender.arrived_rate >= USED_SHARE * sender.least_share:
                sender.usable = math.inf
            return
        if not sender.arrived_rate:
            silence = now - max(sender.begun_at, sender.come.at)
            if silence > max(SILENT_SECONDS, SILENT_ROUNDS * round_trip):
                sender.silent, sender.begun_at = True, now
            return
        if not math.isfinite(sender.share) or not sender.in_turn:
            return
        sender.ignores = sender.arrived_rate > IGNORED_FACTOR * sender.share
        if sender.arrived_rate + sender.lost_rate >= USED_SHARE * sender.share:
            sender.usable, sender.lately_unused = math.inf, False
            return
        if sender.come.lost_bytes and not sender.lately_unused:
            # of few chunks chance may have taken the last ones, which nothing has overtaken yet
            sender.lately_unused = True
            return
        sender.usable = max(HEADROOM * sender.arrived_rate, LEAST_PART * part)


def _window_of(senders: list[Sender], seconds: float) -> Window:
    """What one so long has shown of those that use their shares, or where most do not, of all."""
    # as they did before: of those that a trial overruns, who has lost nothing would show that it succeeds
    using = [each for each in senders if math.isinf(each.usable)]
    if len(using) * 2 < len(senders):
        using = senders
    most_unused = HELD_UP_SHARE + statistics.median_low(each.usual_unused for each in using) if using else 0.0
    free = [each for each in using if each.usual_unused <= most_unused]
    # who loses what it sends does not use its share either: what is lost counts of all
    all_arrived = sum(sender.arrived_rate for sender in senders)
    lost = sum(sender.lost_rate for sender in senders)
    return Window(
        allowed=sum(sender.allowed for sender in using),
        arrived=sum(sender.arrived_rate for sender in using),
        all_arrived=all_arrived,
        lost_share=lost / (all_arrived + lost) if lost else 0.0,
        common_loss=_common_loss(senders),
        free_missing_share=_missing_share(free),
        others_lost_share=_others_lost_share(senders),
        chunks=(all_arrived + lost) * seconds / CHUNK_BYTES,
        seconds=seconds,
        sent_chunks=_sent_chunks(senders, seconds),
    )


def _sent_chunks(senders: list[Sender], seconds: float) -> float:
    """How many chunks all have sent; 0 where the size of somebody's is not known."""
    if not all(sender.come.chunk_bytes for sender in senders):
        return 0.0
    return sum((sender.arrived_rate + sender.lost_rate) / sender.come.chunk_bytes for sender in senders) * seconds


def _missing_share(senders: list[Sender]) -> float:
    """What did not come of what was let through to these; all, where there are none."""
    allowed = sum(sender.allowed for sender in senders)
    return 1 - sum(sender.arrived_rate for sender in senders) / allowed if senders else 1.0


def _others_lost_share(senders: list[Sender]) -> float:
    """What did not come at its turn of what all have sent, but of the one that lost most."""
    others = sorted(senders, key=lambda each: each.lost_rate)[:-1]
    lost = sum(each.lost_rate for each in others)
    return lost / (lost + sum(each.arrived_rate for each in others)) if lost else 0.0


def _common_loss(senders: list[Sender]) -> float:
    """The lower median of what each has lost of what it sent; of one of which nothing came that is not known."""
    shares = [each.lost_rate / (each.arrived_rate + each.lost_rate) for each in senders if each.arrived_rate]
    return statistics.median_low(shares) if shares else 1.0
