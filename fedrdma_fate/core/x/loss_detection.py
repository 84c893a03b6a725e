"""Which of the chunks in flight are lost: overtaken by later ones, or overdue (RFC 9002, section 6)."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Sequence

from fedrdma_fate.core.x.flight_recorder import FlightRecorder, Snapshot

REORDERING_THRESHOLD_CHUNKS = 3
"""A chunk is lost when one this much later by the same queue pair was acknowledged: kPacketThreshold, RFC 9002,
section 6.1.1."""

UNCERTAIN_IN_A_ROW = 16
"""So many chunks of which nobody can tell which sending has come, and none besides: the time-out is too short for any
to come in time. Of fewer, at the end of what was sent, all may have been lost. Ours."""

SPURIOUS_SHARE = 0.75
"""Of the least round trip: what comes sooner than this after it went again is an earlier sending. The least that is
known may be more than the path's, for what told of it had queued a little, or waited for a report. Ours."""

USUAL_TRIPS = 2
"""Times the least round trip that one takes. Ours: with a queue that holds as much again."""

EARLY_RETURNS = 8
"""So many chunks that came sooner than the least round trip after they went again, each long after its earlier
sendings, and none besides: the path is shorter than is known. Fewer may have been held up somewhere. Ours."""

EARLY_RETURN_TRIPS = 2
"""And over so many times that round trip: what was held up comes at one moment."""

MOST_EARLIER = 8
"""Sendings of a chunk that are remembered while any of them may come: the time-out has doubled as far as it does by
then, and of more the first and the latest tell enough. Ours."""

_CLOCK_SLACK_SECONDS = 1e-9
"""A timer that is set for a sum of times may ring this much before a comparison of the same times says so: doubles."""


@dataclasses.dataclass(slots=True)
class SentChunk:
    """One sending of the chunk at a position.

    Attributes:
        position: of the chunk, in the order of sending.
        length: bytes.
        queue_pair: it went by.
        sent_at: when, seconds.
        is_retransmission: the chunk had been sent before, so that its arrival may be that of an earlier sending.
        number: counts the sendings of its queue pair, as a packet number does.
        is_resolved: it is known to have arrived, or was declared lost.
        left_at: when it left this host, where that is told: infinity before. None: when it was sent.
        snapshot: what was known when it went out, where that is recorded.
        earlier: sendings of the same chunk that were overdue when this one went out, and may have arrived, by age.
        repeats: when the sending went that this one repeats, seconds; minus infinity where that was on another path.
    """

    position: int
    length: int
    queue_pair: int
    sent_at: float
    is_retransmission: bool
    number: int = 0
    is_resolved: bool = False
    left_at: float | None = None
    snapshot: Snapshot | None = None
    earlier: tuple[SentChunk, ...] = ()
    repeats: float = -math.inf

    @property
    def under_way_since(self) -> float:
        """When the network had it, seconds; infinity while it waits on this host."""
        return self.sent_at if self.left_at is None else self.left_at


class EarlyReturns:
    """Chunks that went again and came sooner than any round trip that is known, long after their earlier sendings.

    What told of the round trip had queued, as the first chunks of a path that nothing was known of do. Where so many
    are lost that each has gone more than once, no other tells of it any more (Karn), and all that comes looks like
    what was sent before: then nothing is found lost but by time-outs.
    """

    def __init__(self) -> None:
        self._count = 0
        self._longest_trip = 0.0
        self._first_at = 0.0

    def note(self, trip: float, now: float, min_rtt: float) -> float | None:
        """One more, which took so long; what a round trip takes at most, once that is sure. All in seconds."""
        if not self._count:
            self._first_at = now
        self._count += 1
        self._longest_trip = max(self._longest_trip, trip)
        if self._count < EARLY_RETURNS or now < self._first_at + EARLY_RETURN_TRIPS * min_rtt:
            return None
        longest = self._longest_trip
        self.forget()
        return longest

    def forget(self) -> None:
        """A chunk has come that tells of the round trip."""
        self._count, self._longest_trip = 0, 0.0


class InFlight:
    """Every sending that was neither acknowledged nor declared lost (RFC 9002, appendix A.1: `sent_packets`).

    Attributes:
        bytes_in_flight: sum of their lengths.
        recorder: makes rate samples, where these are wanted.
        spurious_trip: how long at most chunks took, seconds, that went again for nothing; None: none has, since it was
            None.
        shorter_trip: what a round trip takes at most, seconds, where it is less than was known; None: the same.
    """

    def __init__(self, queue_pairs: int, recorder: FlightRecorder | None = None) -> None:
        self.bytes_in_flight = 0
        self.recorder = recorder
        self.spurious_trip: float | None = None
        self.shorter_trip: float | None = None
        self._early_returns = EarlyReturns()
        self._uncertain = 0
        self._least_uncertain_trip = math.inf
        self._by_position: dict[int, SentChunk] = {}
        self._overdue: dict[int, SentChunk] = {}
        self._lost_sent_at: dict[int, float] = {}
        self._sent_by_pair: list[deque[SentChunk]] = [deque() for _ in range(queue_pairs)]
        self._last_number = [0] * queue_pairs
        self._largest_acknowledged = [0] * queue_pairs
        self._earlier_come_late = False
        # by the first sendings that may have come, as the reports before told, and with the one that is taken in
        self._largest_first = [0] * queue_pairs
        self._largest_first_told = [0] * queue_pairs

    def __len__(self) -> int:
        return len(self._by_position)

    @property
    def oldest_sent_at(self) -> float | None:
        """When the oldest sending in flight left this host, seconds; None when there is none that has."""
        # asked for at each turn of a link: one loop
        oldest = math.inf
        for sent_chunks in self._sent_by_pair:
            while sent_chunks and sent_chunks[0].is_resolved:
                sent_chunks.popleft()
            if sent_chunks and (since := sent_chunks[0].under_way_since) < oldest:
                oldest = since
        return oldest if oldest < math.inf else None

    def on_sent(self, sent: SentChunk) -> None:
        """A chunk goes out; it gets its number."""
        self._last_number[sent.queue_pair] += 1
        sent.number = self._last_number[sent.queue_pair]
        if self.recorder is not None:
            sent.snapshot = self.recorder.on_sent(sent.length, self.bytes_in_flight, sent.sent_at)
        sent.earlier = self._may_have_come(self._overdue.pop(sent.position, None))
        sent.repeats = self._lost_sent_at.pop(sent.position, -math.inf)
        self._by_position[sent.position] = sent
        self._sent_by_pair[sent.queue_pair].append(sent)
        self.bytes_in_flight += sent.length

    def on_acknowledged(self, position: int, now: float, min_rtt: float) -> SentChunk | None:
        """The chunk at this position has arrived; its sending, if it was this one that has brought it for sure.

        A queue pair keeps the order. So an earlier sending that was overdue is known to be lost when something that
        went after it by the same queue pair has arrived; until then, what arrives is taken for that one (what Karn's
        algorithm is for, RFC 6298, section 3). Taken for the later one, all that went between would look overtaken.

        Which of a report's chunks came first is not told. What comes as soon as one does after it went again mostly is
        that, for most of a burst was lost: then an earlier sending is lost, too, where the same report tells of
        something that went behind it. Else, and where time-outs were seen to be too short, earlier sendings come late,
        and in their order: then only what the reports before told says of one that it is lost.

        Args:
            position: of the chunk.
            now: seconds.
            min_rtt: least round trip of the path, seconds: a retransmission that is acknowledged sooner was not needed.
        """
        overdue, sent = self._overdue.pop(position, None), self._by_position.pop(position, None)
        self._lost_sent_at.pop(position, None)
        is_sooner = False
        if sent is not None:
            self._resolve(sent)
            if self.recorder is not None and sent.snapshot is not None:
                self.recorder.on_acknowledged(sent.snapshot, sent.length, now)
            is_sooner = sent.is_retransmission and now - sent.sent_at < min_rtt
            self._note_round_trip(sent, now, min_rtt, is_sooner=is_sooner)
        latest = sent or overdue
        if latest is None:
            return None
        first: SentChunk | None = latest
        came = first
        if sent is None or sent.earlier:
            gone_before = -math.inf if sent is None else _gone_before(sent, now, min_rtt)
            came = first = _first_of(latest, gone_before, self._largest_first, overdue=sent is None)
            if not self._earlier_come_late and _is_as_usual(now - latest.sent_at, min_rtt):
                came = _first_of(latest, gone_before, self._largest_acknowledged, overdue=sent is None)
        if came is None or (came is sent and is_sooner):
            # spurious, where it is sooner: an earlier sending, declared lost, arrived after all
            return None
        _note_largest(self._largest_first_told, first or came)
        if not self._earlier_come_late:
            _note_largest(self._largest_acknowledged, came)
        # of one that was overdue and had not gone again there is no doubt
        if came is latest:
            self._uncertain, self._least_uncertain_trip = 0, math.inf
            return came
        is_spurious = sent is not None and now - sent.sent_at < SPURIOUS_SHARE * min_rtt
        self._note_uncertain(now - came.sent_at, is_spurious=is_spurious)
        return None

    def _note_round_trip(self, sent: SentChunk, now: float, min_rtt: float, *, is_sooner: bool) -> None:
        if not is_sooner:
            if not sent.is_retransmission:
                self._early_returns.forget()
                self._earlier_come_late = False
        elif now - sent.repeats > _longest_seconds(min_rtt):
            trip = self._early_returns.note(now - sent.sent_at, now, min_rtt)
            self.shorter_trip = trip if trip is not None else self.shorter_trip

    def _note_uncertain(self, trip: float, *, is_spurious: bool) -> None:
        """What has come may be an earlier sending that was overdue: then it took so long."""
        self._uncertain += 1
        self._least_uncertain_trip = min(self._least_uncertain_trip, trip)
        if is_spurious or self._uncertain >= UNCERTAIN_IN_A_ROW:
            self.spurious_trip = self._least_uncertain_trip
            self._earlier_come_late = True

    def detect_lost(self) -> list[int]:
        """All of a report is taken in: positions now declared lost by the reordering threshold of their queue pair."""
        self._largest_first[:] = self._largest_first_told
        if self._earlier_come_late:
            self._largest_acknowledged[:] = self._largest_first
        lost: list[int] = []
        for sent_chunks, largest in zip(self._sent_by_pair, self._largest_acknowledged, strict=True):
            while sent_chunks and (
                sent_chunks[0].is_resolved or sent_chunks[0].number + REORDERING_THRESHOLD_CHUNKS <= largest
            ):
                sent = sent_chunks.popleft()
                if not sent.is_resolved:
                    lost.append(self._declare_lost(sent))
        return lost

    def detect_overdue(self, sent_until: float) -> list[int]:
        """Positions now declared lost because they were sent no later than this moment, in seconds."""
        lost: list[int] = []
        for sent_chunks in self._sent_by_pair:
            while sent_chunks and (
                sent_chunks[0].is_resolved or sent_chunks[0].under_way_since <= sent_until + _CLOCK_SLACK_SECONDS
            ):
                sent = sent_chunks.popleft()
                if not sent.is_resolved:
                    lost.append(self._declare_lost(sent))
                    self._overdue[sent.position] = sent
        return lost

    def clear(self) -> Iterable[int]:
        """The data path is gone; the positions that were in flight."""
        positions = list(self._by_position)
        self._by_position.clear()
        self._overdue.clear()
        self._lost_sent_at.clear()
        for sent_chunks in self._sent_by_pair:
            sent_chunks.clear()
        self.bytes_in_flight = 0
        return positions

    def _declare_lost(self, sent: SentChunk) -> int:
        del self._by_position[sent.position]
        self._lost_sent_at[sent.position] = sent.sent_at
        self._resolve(sent)
        if self.recorder is not None and sent.snapshot is not None:
            self.recorder.on_lost(sent.snapshot, sent.length)
        return sent.position

    def _may_have_come(self, sent: SentChunk | None) -> tuple[SentChunk, ...]:
        """Of this sending and those before it the ones that may have arrived, or may still, by age."""
        if sent is None:
            return ()
        largest = self._largest_first
        sendings = [each for each in (*sent.earlier, sent) if each.number > largest[each.queue_pair]]
        sent.earlier = ()
        if len(sendings) > MOST_EARLIER:
            del sendings[1]
        return tuple(sendings)

    def _resolve(self, sent: SentChunk) -> None:
        sent.is_resolved = True
        self.bytes_in_flight -= sent.length


def _first_of(latest: SentChunk, gone_before: float, largest: Sequence[int], *, overdue: bool) -> SentChunk | None:
    """Of the sendings of a chunk the first that may have brought it; None: all were overdue, and are lost.

    Args:
        latest: sending.
        gone_before: what went before this moment will not come any more, seconds.
        largest: numbers that have come by each queue pair: what went before them will not, either.
        overdue: the latest was, too.
    """
    for each in latest.earlier:
        if each.sent_at >= gone_before and each.number > largest[each.queue_pair]:
            return each
    is_lost = overdue and latest.number <= largest[latest.queue_pair]
    return None if is_lost else latest


def _note_largest(largest: list[int], came: SentChunk) -> None:
    largest[came.queue_pair] = max(largest[came.queue_pair], came.number)


def _gone_before(sent: SentChunk, now: float, min_rtt: float) -> float:
    """Before which moment a chunk's earlier sendings went of which it was none that has come just now, seconds.

    It is this one that came, where it took as long as one takes, and the path would have become that much longer for
    one of those; of a path that has, what comes is not as old, time after time, as one round trip was.
    """
    return now - _longest_seconds(min_rtt) if _is_as_usual(now - sent.sent_at, min_rtt) else -math.inf


def _is_as_usual(took: float, min_rtt: float) -> bool:
    """Whether a chunk of a path with this least round trip takes so long, both in seconds."""
    return 0 < min_rtt <= took <= USUAL_TRIPS * min_rtt + REPORT_SLACK_SECONDS


def _longest_seconds(min_rtt: float) -> float:
    """What a time-out backs off to: that an earlier sending comes after that is not to be expected."""
    return LARGEST_BACKOFF * _base_seconds(min_rtt)


RTT_FACTOR = 1.25
"""A chunk may be in flight for so many times the latest round trip. Ours, in place of the variation that QUIC's probe
time-out adds four times (RFC 9002, section 6.2.1), and which is not kept here."""

REPORT_SLACK_SECONDS = 0.006
"""And for so much longer, as max_ack_delay does there: three times the 2 ms from report to report."""

UNKNOWN_RTT_SECONDS = 0.2
"""What takes the place of a round trip that is not known, as kInitialRtt does (RFC 9002, section 6.2.2). Ours: longer
than most paths between two sites."""

LARGEST_BACKOFF = 16
"""The time-out doubles up to so many times its base, 4.1 s at a round trip of 0.2 s: a path that comes back is found
within that time, long before a transfer is given up. Ours."""


SHORTER_SHARE = 0.5
"""Of what chunks took that went again for nothing: one that comes in less says that the queue has gone in which those
were, or that they were others than was thought. Ours."""

UNCERTAIN_BACKOFF = 2
"""And no more than so many times while it is not known which sending has come: enough for a queue that makes the round
trip two and a half times as long. After an outage all that comes went several times, and the window has to open."""


class RetransmitTimeout:
    """How long a chunk may be in flight; doubles while nothing new arrives (RFC 9002, section 6.2.1).

    Attributes:
        last_progress: when something new arrived, or the waiting began, seconds.
        backoff: what the time-out of a chunk is multiplied by.
    """

    def __init__(self) -> None:
        self.last_progress = 0.0
        self.backoff = 1
        self._backed_off_at = -math.inf
        self._spurious_trip = 0.0

    def on_progress(self, now: float, *, certain: bool = True) -> None:
        """Something new arrived.

        Args:
            now: seconds.
            certain: it is known which sending it was. While it is not, the time-out may be too short: of what it has
                backed off to, UNCERTAIN_BACKOFF stays (RFC 6298, section 5.7, keeps all of it).
        """
        self.last_progress = now
        self.backoff = 1 if certain else min(self.backoff, UNCERTAIN_BACKOFF)

    def on_first_sending(self) -> None:
        """A chunk has come that had not gone again: round trips are told, and the time-out is long enough."""
        self._spurious_trip = 0.0

    def on_trip(self, trip: float) -> None:
        """A chunk that went again has come for sure, in so many seconds: that others took far longer is over."""
        if trip < SHORTER_SHARE * self._spurious_trip:
            self._spurious_trip = 0.0

    def on_spurious(self, trip: float, round_trip: float) -> None:
        """What was sent again for nothing had taken so long at most: no chunk is overdue before that.

        Args:
            trip: seconds.
            round_trip: that the time-out was made for, seconds.
        """
        self._spurious_trip = min(trip, LARGEST_BACKOFF * _base_seconds(round_trip or UNKNOWN_RTT_SECONDS))

    def base_seconds(self, round_trip: float) -> float:
        """The time-out without the backoff.

        Args:
            round_trip: seconds; 0 while it is unknown.
        """
        return _base_seconds(max(round_trip or UNKNOWN_RTT_SECONDS, self._spurious_trip))

    def seconds(self, round_trip: float) -> float:
        """The time-out: tail loss is detected by this alone."""
        return self.base_seconds(round_trip) * self.backoff

    def deadline(self, sent_at: float, round_trip: float) -> float:
        """When a chunk is overdue."""
        return sent_at + self.seconds(round_trip)

    def is_over(self, sent_at: float, round_trip: float, now: float) -> bool:
        """Whether a chunk is overdue."""
        return now >= self.deadline(sent_at, round_trip) - _CLOCK_SLACK_SECONDS

    def on_timeout(self, now: float, round_trip: float) -> None:
        """Chunks were declared lost by it: twice as long from now on, once for all that went out together."""
        if now >= self._backed_off_at + self.seconds(round_trip):
            self.backoff, self._backed_off_at = min(self.backoff * 2, LARGEST_BACKOFF), now


def _base_seconds(round_trip: float) -> float:
    return RTT_FACTOR * round_trip + REPORT_SLACK_SECONDS
