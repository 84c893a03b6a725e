"""What a sender measures of a path: round trip, the rate at which chunks arrive, and how many packets are lost."""

from __future__ import annotations

from collections import deque

DELIVERY_WINDOW_SECONDS = 0.008
"""The delivery rate is that of so long lately: four reports, which come every 2 ms, and one PROBE_UP."""

LEAST_PRECISE_SECONDS = 0.002
"""Over less, single packets show: two of 4 KiB take 3 % of it at 1 Gbit/s. Ours; reports come as often."""

LEAST_ESTIMATE_SECONDS = LEAST_PRECISE_SECONDS / 2
"""Over less a rate that the path probe has estimated is not corrected, where a payload takes long enough to tell. On
fast paths reports come ten times as often, one between two was 1.8 % too high, and the largest counts for 0.1 s."""


MOST_RATE = 1e13
"""Bytes a second, 80 Tbit/s: no path has more, whatever a receiver says of what arrived within how short a time."""

MOST_SAMPLES = 4096
"""That are kept: twice the chunks that a thread sends within 8 ms. Who reports arrivals that are next to no time apart
would have a sender keep all of them."""


class DeliveryRateEstimator:
    """Bytes over time at the receiver, lately: over a few milliseconds, or what it takes to see enough of them.

    BBR takes a sample for each acknowledged packet (delivery rate sampling, draft-ietf-ccwg-bbr). Here the receiver
    says when the newest chunk arrived, so that acknowledgements that are held up do not matter. Times are in seconds of
    the receiver's clock.

    Attributes:
        least_bytes: that must have arrived for a rate to mean something.
    """

    def __init__(self, least_bytes: int) -> None:
        """
        Args:
            least_bytes: that must have arrived for a rate to mean something.
        """
        self.least_bytes = least_bytes
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=MOST_SAMPLES)

    def rate(self, arrived_at: float, received_bytes: int, least_seconds: float = 0.0) -> float | None:
        """Bytes a second lately; None where that cannot be told.

        Args:
            arrived_at: when the newest chunk arrived.
            received_bytes: all that had arrived by then.
            least_seconds: that it is taken over; who knows nothing yet takes any rate.
        """
        arrivals = self._arrivals
        if arrivals and (arrived_at < arrivals[-1][0] or received_bytes == arrivals[-1][1]):
            return None
        if arrivals and arrived_at == arrivals[-1][0]:
            # found at one moment
            arrivals.pop()
        arrivals.append((arrived_at, received_bytes))
        latest_start = arrived_at - DELIVERY_WINDOW_SECONDS
        while (
            len(arrivals) > 2 and arrivals[1][0] <= latest_start and received_bytes - arrivals[1][1] >= self.least_bytes
        ):
            arrivals.popleft()
        since, before = arrivals[0]
        if received_bytes - before < self.least_bytes or arrived_at - since < least_seconds:
            return None
        return min((received_bytes - before) / (arrived_at - since), MOST_RATE)

    def restart(self) -> None:
        """Nothing arrived for a while, whatever the path can carry: begin anew."""
        self._arrivals.clear()


class MaxRateFilter:
    """The largest rate of a window of time: BBR.max_bw, draft-ietf-ccwg-bbr, section 5.5.

    Rates in bytes a second, times in seconds. Only samples that may still become the largest are kept.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=MOST_SAMPLES)

    def update(self, rate: float, now: float, window_seconds: float) -> float:
        """Take a sample in; the largest of the window."""
        samples = self._samples
        while samples and samples[-1][1] <= rate:
            samples.pop()
        samples.append((now, rate))
        while samples[0][0] < now - window_seconds:
            samples.popleft()
        return samples[0][1]

    def clear(self) -> None:
        """What was delivered so far teaches nothing about what is sent from now on."""
        self._samples.clear()

    def restart(self, rate: float, now: float) -> None:
        """As after `clear` and this sample."""
        self._samples.clear()
        self._samples.append((now, rate))


class RttFilter:
    """The latest round trip and the least of a window of time: BBR.min_rtt, draft-ietf-ccwg-bbr, section 5.5.

    Attributes:
        latest: round trip, seconds, 0 while unknown.
        least: round trip, seconds, 0 while unknown.
    """

    def __init__(self, remembered: float) -> None:
        """
        Args:
            remembered: least round trip of earlier transfers, seconds; 0: unknown.
        """
        self.latest = self.least = remembered
        self._least_at: float | None = None

    @property
    def queue_seconds(self) -> float:
        """What the latest round trip is longer than the least: the time in a queue."""
        return self.latest - self.least

    def update(self, rtt: float, now: float, window_seconds: float) -> None:
        """Take a round trip in, and believe the least one for so long."""
        self.latest = rtt
        if self._least_at is None:
            # what is remembered counts as seen now: the first round trip may have met a queue of others
            self._least_at = now
        if self.least <= 0 or rtt <= self.least or now > self._least_at + window_seconds:
            self.reset(rtt, now)

    def reset(self, least: float, now: float) -> None:
        """The path has changed: this is its least round trip."""
        self.least, self._least_at = least, now


EWMA_GAIN = 0.25
"""Weight of a round; of the first few rounds, each as much as those before. Ours: what chunk size, repair chunks and
copies are planned with follows a path that becomes lossy in four rounds."""

FULL_WEIGHT_CHUNKS = 64
"""A round of fewer chunks weighs less: of so many, a loss of 1 % shows with a chance of about a half."""


class LossEstimator:
    """Probability that a packet is lost, averaged over rounds (round trips) and transfers.

    Attributes:
        loss: the estimate, None while nothing is known.
    """

    def __init__(self, remembered: float | None, *, measured: bool = True) -> None:
        """
        Args:
            remembered: the estimate so far.
            measured: by transfers; what is only supposed gives way to the first round.
        """
        self.loss = remembered
        self._rounds = 0.0 if remembered is None or not measured else 1 / EWMA_GAIN

    def on_round(self, lost: int, resolved: int, packets: int) -> None:
        """A round is over.

        Args:
            lost: chunks that were.
            resolved: chunks lost or arrived.
            packets: of a chunk.
        """
        loss = 1 - (1 - lost / resolved) ** (1 / packets)
        weight = min(1.0, resolved / FULL_WEIGHT_CHUNKS)
        self._rounds += weight
        gain = weight * max(EWMA_GAIN, 1 / self._rounds)
        before = 0.0 if self.loss is None else self.loss
        self.loss = before + gain * (loss - before)


def chunk_loss(loss: float, packets: int) -> float:
    """Probability that a chunk is lost, as an RDMA message is with any of its packets.

    Args:
        loss: probability that a packet is lost.
        packets: of the chunk.
    """
    return 1 - (1 - min(max(loss, 0.0), 1.0)) ** packets
