"""What `fedrdma-x` knows of a path, kept from transfer to transfer, and what each report of a transfer teaches."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.x.flight_recorder import RateSample


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """What is remembered of a path between transfers.

    Attributes:
        rate: of the bottleneck, payload bytes a second.
        min_rtt: least round trip seen, seconds.
        loss: probability that a packet is lost, None while nothing is known of it.
        capacity: what the path gave us alone, lately; 0 when it is the rate.
        shared_seconds: for how much longer, in seconds of sending, competitors are expected.
        rtt_variation: standard deviation of round trips for other reasons than a queue, seconds.
        least_mean_rtt: where they vary, the least mean of many round trips, seconds; 0 while unknown.
        queue_bytes: what our probes may queue; 0 while none has shown anything.
        policed_seconds: for how much longer, in seconds of sending, a policer is known to let no more through.
        window_bytes: that were under way at last, on a path too short to be paced; 0 while unknown.
        window_found: more than that was too much.
        recent_rate: the most that the path gave lately; 0 when it is the rate.
        held_bytes: the longest queue of ours that lost nothing.
        left_at: when the transfer that found this last sent anything, seconds of its sender's clock; 0: not known.
        way_back: the least way of a report, with the difference of the clocks, seconds (`report_delay.py`); None: not
            known.
    """

    rate: float
    min_rtt: float
    loss: float | None
    capacity: float = 0.0
    shared_seconds: float = 0.0
    rtt_variation: float = 0.0
    least_mean_rtt: float = 0.0
    queue_bytes: float = 0.0
    policed_seconds: float = 0.0
    window_bytes: float = 0.0
    window_found: bool = False
    recent_rate: float = 0.0
    held_bytes: float = 0.0
    left_at: float = 0.0
    way_back: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What one report taught.

    Attributes:
        rtt: round trip, seconds; None when it cannot be told.
        delivery_rate: bytes a second at which chunks arrived lately; None when too few did.
        arrived: chunks newly known to have arrived.
        lost: chunks newly known to be lost.
        packets_per_chunk: packets a chunk has.
        counts_packets: the delivery rate is that of packets, of chunks that never became whole as well.
        lost_bytes: what is to be sent again of chunks newly known to be lost, or taken for it since the last report.
        flight: of the chunks that are acknowledged, where the controller asks for it.
        way_back: how long the report was on its way, with the difference of the clocks, seconds; None: not told.
    """

    rtt: float | None
    delivery_rate: float | None
    arrived: int
    lost: int
    packets_per_chunk: int
    counts_packets: bool = False
    lost_bytes: int = 0
    flight: RateSample | None = None
    way_back: float | None = None
