"""What the own link of a site carries, from short trains that go to all its peers at one moment.

The path probe sees each way alone, and the slowest link of it. Whether the site's own is that link, which all ways lead
over, only shows when all are used at once: then the last train is through when the own link has carried all of them,
and half of them when it has carried these, whatever holds the others up on their ways.

Times are those of the sender's clock, so the clocks of the peers need not agree. Whatever else holds a train up makes
the link look slower than it is, and never faster: then it is shared where that was not needed, until more has arrived.
Where cards take turns between the trains, as those of RDMA do, each is spread out by the others: then its own way was
idle in between, and took none of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedrdma_fate.core.path_probe import TRAIN_DATAGRAMS
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES

SETTLED_SECONDS = 1.0
"""After the latest data path has come up: its own trains are half a second apart (`ANSWER_SECONDS`)."""

ANSWERED_SECONDS = 0.5
"""Until all trains are answered; see `ANSWER_SECONDS`."""

MOST_REPEATS = 4
"""So often do trains go once more where they have not told of a link that carries all: what foreign flows have queued
on the ways comes and goes within a second. With those before, and longer ones after each, they are ten to a peer, which
answers 16 (`MOST_TRAINS`)."""

REPEAT_SECONDS = 1.0
"""Before the first of these, twice as long before each one more: 256 KiB take a tenth of that at 20 Mbit/s."""

FIRST_DATAGRAMS = TRAIN_DATAGRAMS
"""Of all trains together: as many bytes as one train of the path probe, for the buffer may be no larger."""

MORE_FACTOR = 4
"""So many times as much goes once more where the link carries more than its fastest way: of 256 KiB at 10 Gbit/s the
arrivals tell how soon they are looked at."""

INTERLEAVED = 1.25
"""A train that took so many times its own time to arrive had those of others in between. Where it took less, and had,
the link carries nearly what all ways do."""

WANTED_SECONDS = SETTLED_SECONDS + 2 * ANSWERED_SECONDS
"""After the latest data path has come up until trains are wanted of all: those that went to all have been answered."""

KNOWN_SECONDS = WANTED_SECONDS
"""For so long more are paths waited for of which nothing is known yet: their own trains are answered by then or never,
and those that are wanted of all have come, so that neither meets these."""

COME_SHARE = 0.5
"""Of the trains that were wanted more have to come: fewer may not fill the link. What is lost makes it look slower, and
a train may be one datagram."""

LEAST_SECONDS = 0.0001
"""Nothing is looked at sooner."""


class Arrived(NamedTuple):
    """How one train arrived.

    Attributes:
        seconds: from the moment at which all began until all of it had come, and the way back.
        round_trip: of its way, alone, seconds.
        rate: of that way, bytes a second.
        came: how many of its datagrams.
        spread: from its first datagram's arrival to its last's, seconds.
        sent: how many datagrams it had.
    """

    seconds: float
    round_trip: float
    rate: float
    came: int
    spread: float
    sent: int


def datagrams_each(peers: int, *, more: bool) -> int:
    """How many go to each of so many peers, at most: fewer where its queues are known to hold no more.

    Args:
        peers: two at least.
        more: whether it is the second time.
    """
    total = FIRST_DATAGRAMS * (MORE_FACTOR if more else 1)
    return max(1, min(total // peers, TRAIN_DATAGRAMS))


def wanted_delays(round_trips: Mapping[str, float]) -> dict[str, float]:
    """By how much later than the farthest each is to be asked for its train, so that all come at one moment.

    Args:
        round_trips: of the way to each, seconds, by name.
    """
    longest = max(round_trips.values(), default=0.0)
    return {name: longest - round_trip for name, round_trip in round_trips.items()}


def wanted_rate(trains: Sequence[Arrived], wanted: int) -> float:
    """Bytes a second that the receiver's link carries at least, of trains that were to come at one moment; 0: unknown.

    They have come on one clock, so their spacing tells it, too, and the slower of both is believed: who looks late
    finds them closer to each other than they came, but later; of a round trip that is not as long as was thought they
    are early, but as far from each other as they came.

    Args:
        trains: that have come.
        wanted: how many were to.
    """
    if len(trains) <= COME_SHARE * wanted:
        return 0.0
    came, most = sum(train.came for train in trains), sum(train.rate for train in trains)
    first = min(train.seconds - train.spread for train in trains)
    span = max(train.seconds for train in trains) - first
    return min(most, _of_all(trains), (came - 1) * DATAGRAM_BYTES / max(span, LEAST_SECONDS))


def joint_rate(trains: Sequence[Arrived], peers: int = 0) -> float:
    """Bytes a second that the link carries at least, of trains that began at one moment; no more than all ways do.

    Args:
        trains: those that are answered.
        peers: to how many went one, where that is more; 0 comes of fewer than `least_answered` of them.
    """
    peers = max(peers, len(trains))
    if len(trains) < least_answered(peers):
        return 0.0
    trains = _with_possible_trips(trains)
    most = sum(train.rate for train in trains)
    return min(most, max(_of_all(trains), _of_the_first(trains, least_answered(peers))))


def believed_rate(rate: float, told: float, trains: Sequence[Arrived], count: int) -> float:
    """What to believe of trains behind shorter ones, which may have overrun a queue: then they tell less, or nothing.

    Args:
        rate: that they have told, bytes a second.
        told: that the shorter ones had told; 0: there were none.
        trains: those that have come, or are answered.
        count: how many there were to be.
    """
    is_whole = len(trains) == count and all(train.came == train.sent for train in trains)
    return rate if is_whole else max(rate, told)


def held_bytes(trains: Sequence[Arrived]) -> int:
    """What a buffer has held of trains that came at one moment, whatever else of them it may have lost."""
    return sum(train.came for train in trains) * DATAGRAM_BYTES


def least_answered(peers: int) -> int:
    """Of trains to so many peers have to tell of the link, so that few who lie, or one, do not."""
    return max(2, (peers + 1) // 2)


def _with_possible_trips(trains: Sequence[Arrived]) -> Sequence[Arrived]:
    """Who came sooner than its way takes was known by a moment at which that way was queued.

    As when all paths came up at once, and the train of each queued behind those of the others. Its way is taken for no
    longer then than the first datagram of any took, so that the link looks slower, and not faster; those of the others
    stay as they are, so that nobody makes them longer or shorter by what he says of his.
    """
    first = max(min(train.seconds - train.spread for train in trains), 0.0)
    return [
        train if train.round_trip <= train.seconds - train.spread else train._replace(round_trip=first)
        for train in trains
    ]


def _of_all(trains: Sequence[Arrived]) -> float:
    """The last is through when the link has carried all of them."""
    came = sum(train.came for train in trains)
    slowest = math.inf
    for train in trains:
        # what it takes by itself it takes also where no other holds it up
        own = train.came * DATAGRAM_BYTES
        if train.spread > INTERLEAVED * own / train.rate:
            own = DATAGRAM_BYTES
        waited = train.seconds - train.round_trip - own / train.rate
        slowest = min(slowest, (came * DATAGRAM_BYTES - own) / max(waited, LEAST_SECONDS))
    return slowest


def _of_the_first(trains: Sequence[Arrived], least: int) -> float:
    """The same of those that came first: what holds the others up on their ways is not the link.

    Which of them left first nobody knows, nor whether the card took turns. Where it did not, the last of some has
    waited for all others of these; where it did, as much as of it has been carried of each train there is. So the link
    carries the lesser of both, at least.
    """
    waits = sorted((_waited(train), train.came, train.seconds - train.round_trip) for train in trains)
    fastest = 0.0
    for some in range(least, len(waits)):
        first = waits[:some]
        counts = sorted(came for _, came, _ in first)
        fewest = counts[0]
        # without the last, which need not have waited for itself, and without one that may lie where that leaves any
        one_by_one = sum(counts[: -2 if some > 2 else -1])
        by_turns = sum(min(train.came, fewest) for train in trains)
        took = max(took for _, _, took in first)
        rates = (
            one_by_one * DATAGRAM_BYTES / max(first[-1][0], LEAST_SECONDS),
            by_turns * DATAGRAM_BYTES / max(took, LEAST_SECONDS),
        )
        fastest = max(fastest, min(rates))
    return fastest


def _waited(train: Arrived) -> float:
    """Until its first datagram was through, seconds: by the rate of its way, and as it came."""
    own = min(train.came * DATAGRAM_BYTES / train.rate, train.spread + DATAGRAM_BYTES / train.rate)
    return train.seconds - train.round_trip - own
