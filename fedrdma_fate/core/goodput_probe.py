"""What a probe sends over a link, within its bounds, and what is concluded from how it went."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fedrdma_fate.core.plan import DEFAULT_CHUNK_BYTES, ChunkPlan
from fedrdma_fate.core.tuning import LINK_ENABLE_FROM_BYTES, LinkEnable, LinkTraits

CHUNK_SIZES = tuple(1 << exponent for exponent in range(18, 27))
"""256 KiB to 64 MiB."""

FIRST_BYTES = 128 * 1024
"""The first payload only tells how fast the link is, so that nothing too large follows."""

FIRST_CHUNK_ROUNDS = 2
"""How often a large first chunk is sent alone, and as often behind a Link-Enable chunk."""

SIZE_ROUNDS = 2
"""How often each chunk size is measured; its best counts, as a measurement is disturbed more easily than helped."""

NEARLY_BEST = 0.9
"""A smaller chunk with this part of the best goodput is preferred: it loses less, and stages less."""

_MOST_WAITING = 10
"""More than all but this part of a trial does not count as waiting: the round trip is not known that well."""

_SLOW_FACTOR = 2.0
_SLOW_SECONDS = 0.05
"""A first chunk that takes so much longer than one behind a Link-Enable chunk was lost and sent again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One payload that was sent.

    Attributes:
        plan: how it was cut.
        seconds: how long it took.
        survived: whether it arrived on the data path it began on, with nothing sent again.
    """

    plan: ChunkPlan
    seconds: float
    survived: bool = True

    @property
    def bits_per_second(self) -> float:
        """Goodput; 0 of a payload that did not arrive."""
        return self.plan.total_bytes * 8 / max(self.seconds, 1e-9) if self.survived else 0.0


def link_rate(trial: Trial, round_trip_seconds: float) -> float:
    """What the link carries, bits a second: without the round trips that the chunks of a trial waited for, one each.

    Args:
        trial: one that survived.
        round_trip_seconds: of the control channel, which may be slower than the data path.
    """
    waited = trial.plan.count * round_trip_seconds
    return trial.plan.total_bytes * 8 / max(trial.seconds - waited, trial.seconds / _MOST_WAITING, 1e-9)


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """What is left for a probe, and what is known of the link.

    Attributes:
        largest_bytes: the largest payload: a fair part of both sides' memory.
        total_bytes: of all payloads still to be sent.
        seconds: until the end.
        bits_per_second: what the link seems to carry.
        round_trip_seconds: which every chunk waits for.
    """

    largest_bytes: int
    total_bytes: int
    seconds: float
    bits_per_second: float
    round_trip_seconds: float

    def chunk_seconds(self, chunk_bytes: int) -> float:
        """How long a chunk is likely to take."""
        return self.round_trip_seconds + chunk_bytes * 8 / self.bits_per_second

    def most_chunks(self, chunk_bytes: int, part: float) -> int:
        """How many chunks of a size may be sent in a part of what is left."""
        by_time = self.seconds * part / self.chunk_seconds(chunk_bytes)
        return int(min(self.total_bytes * part / chunk_bytes, by_time))


def measuring_plan(chunk_bytes: int, sizes_left: int, bounds: Bounds, *, enable: bool) -> ChunkPlan | None:
    """The payload that measures a chunk size, None where the bounds do not allow it.

    Args:
        chunk_bytes: the size.
        sizes_left: how many measurements are still to come, with this one: they share what is left.
        bounds: what is left.
        enable: with a Link-Enable chunk.
    """
    most = min(bounds.largest_bytes // chunk_bytes, bounds.most_chunks(chunk_bytes, 1.0))
    if most == 0:
        return None
    chunks = min(most, max(1, bounds.most_chunks(chunk_bytes, 1 / sizes_left)))
    return ChunkPlan(chunks * chunk_bytes, chunk_bytes, _enable_bytes(enable))


def first_chunk_plans(largest_bytes: int, total_bytes: int) -> tuple[ChunkPlan, ChunkPlan] | None:
    """One large chunk, alone and behind a Link-Enable chunk; None where the bounds allow none that is at risk.

    Args:
        largest_bytes: the largest payload.
        total_bytes: of all payloads; half of it is for the chunk sizes.
    """
    for chunk_bytes in (DEFAULT_CHUNK_BYTES, LINK_ENABLE_FROM_BYTES):
        if chunk_bytes <= largest_bytes and 2 * FIRST_CHUNK_ROUNDS * chunk_bytes <= total_bytes / 2:
            return ChunkPlan(chunk_bytes, chunk_bytes), ChunkPlan(chunk_bytes, chunk_bytes, _enable_bytes(True))
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Whether large first chunks need Link-Enable (paper, section 4.3).

    Attributes:
        link_enable: the setting, None where nothing was learnt.
        reason: for people.
    """

    link_enable: LinkEnable | None
    reason: str


def judge_first_chunks(alone: Sequence[Trial], behind: Sequence[Trial]) -> Verdict:
    """Compare large chunks that were sent first with those behind a Link-Enable chunk."""
    if not alone or not behind:
        return Verdict(None, "not tested: the bounds allow too few chunks that would be at risk")
    if not all(trial.survived for trial in behind):
        return Verdict(None, "large chunks did not survive even behind a Link-Enable chunk")
    lost = sum(not trial.survived for trial in alone)
    if lost:
        return Verdict("always", f"{lost} of {len(alone)} large first chunks did not survive")
    slowest, usual = max(trial.seconds for trial in alone), min(trial.seconds for trial in behind)
    if slowest > _SLOW_FACTOR * usual and slowest - usual > _SLOW_SECONDS:
        return Verdict("always", f"a large first chunk took {slowest:.3f} s, {usual:.3f} s behind a Link-Enable chunk")
    return Verdict("never", f"all {len(alone)} large first chunks survived")


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """That with the smallest chunks among those of nearly the best goodput; None where nothing arrived."""
    best = max((trial.bits_per_second for trial in trials), default=0.0)
    good = [trial for trial in trials if trial.survived and trial.bits_per_second >= NEARLY_BEST * best]
    return min(good, key=lambda trial: trial.plan.chunk_bytes, default=None)


def _enable_bytes(enable: bool) -> int:
    return LinkTraits().mtu_bytes if enable else 0
