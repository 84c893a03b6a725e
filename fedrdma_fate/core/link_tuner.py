"""Chunk size and Link-Enable of modes `fedrdma` and `fedrdma-e`: Table 2 to begin with, then what transfers teach."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque

from fedrdma_fate.core.goodput_probe import Trial, link_rate
from fedrdma_fate.core.plan import DEFAULT_CHUNK_BYTES, LARGEST_CHUNK_BYTES, ChunkPlan
from fedrdma_fate.core.tuning import LinkEnable, LinkTraits, plan_transfer
from fedrdma_fate.wire.frames import Mode

BASELINE_TRANSFERS = 8
"""So many transfers of a size are seen before another chunk size is tried; twice as many each time it was in vain."""

LARGEST_BASELINE = 64
CLIMBING_BASELINE = 2
"""And so many after one that was better."""

BETTER = 1.05
"""A chunk size is better when its goodput is so many times that of the other."""

COLLAPSED = 0.5
COLLAPSED_TRANSFERS = 3
"""So many below this part of the best: the link has changed, and the climb begins again where it began."""

SMALLEST_TUNED_BYTES = 2 * 1024 * 1024
"""A shorter payload is one chunk in any case."""

SMALLEST_CHUNK_BYTES = 512 * 1024
STAGED_PART = 8
"""`fedrdma` stages a chunk beside the payload: it may take this part of it."""

MOSTLY_WAITING = 0.9
"""Of a transfer that waited for longer than this, the rate of the link cannot be told."""

RATE_FADES = 0.9
"""A transfer is disturbed more easily than helped: the largest rate counts, and fades."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A rate in bits a second, and where it comes from."""

    rate_bps: float
    source: str


class _Ladder:
    """Climbs to the chunk size with the best goodput, a factor of two at a time, for payloads of about one size."""

    def __init__(self, start: int, least: int, most: int) -> None:
        self._start = self._best = start
        self._record = 0.0
        self._least, self._most = least, most
        self._trying: int | None = None
        self._factors = [2.0, 0.5]
        self._seen: deque[float] = deque(maxlen=BASELINE_TRANSFERS)
        self._count = 0
        self._patience = BASELINE_TRANSFERS
        self._wanted = BASELINE_TRANSFERS

    @property
    def chunk_bytes(self) -> int:
        """What the next transfer uses."""
        return self._best if self._trying is None else self._trying

    def note(self, chunk_bytes: int, bits_per_second: float) -> None:
        """A transfer with this chunk size has ended."""
        if chunk_bytes == self._trying:
            self._judge(bits_per_second)
        elif chunk_bytes == self._best and self._trying is None:
            self._seen.append(bits_per_second)
            self._record = max(self._record, bits_per_second)
            self._count += 1
            if self._collapsed():
                self._begin_again()
            elif self._count >= self._wanted:
                self._try_another()

    def _collapsed(self) -> bool:
        latest = list(self._seen)[-COLLAPSED_TRANSFERS:]
        return len(latest) == COLLAPSED_TRANSFERS and max(latest) < COLLAPSED * self._record

    def _begin_again(self) -> None:
        self._best, self._record, self._count = self._start, 0.0, 0
        self._factors = [2.0, 0.5]
        self._seen.clear()
        self._patience = self._wanted = BASELINE_TRANSFERS

    def _judge(self, bits_per_second: float) -> None:
        assert self._trying is not None
        if bits_per_second >= BETTER * statistics.median(self._seen):
            # and on in this direction
            self._factors = [self._trying / self._best]
            self._best = self._trying
            self._seen.clear()
            self._wanted, self._patience = CLIMBING_BASELINE, BASELINE_TRANSFERS
        self._trying = None
        self._count = 0

    def _try_another(self) -> None:
        while self._factors:
            step = int(self._best * self._factors.pop(0))
            if self._least <= step <= self._most:
                self._trying = step
                return
        # all were in vain: look again later, the link may have changed
        self._factors = [2.0, 0.5]
        self._patience = min(2 * self._patience, LARGEST_BASELINE)
        self._wanted, self._count = self._patience, 0


class LinkTuner:
    """What is known of the link to one peer over one transport, and what follows for the modes that wait for chunks."""

    def __init__(self) -> None:
        self.link_enable: LinkEnable | None = None
        self.link_enable_reason = ""
        self._probed_chunk: int | None = None
        self._found: Finding | None = None
        self._ladders: dict[tuple[Mode, int], _Ladder] = {}

    @property
    def found(self) -> Finding | None:
        """The rate that a probe or transfers of these modes have found."""
        return self._found

    def chunk_sizes(self) -> dict[str, int]:
        """The chunk sizes in use, by mode and largest payload in MiB, as in `fedrdma-e/64`."""
        return {
            f"{mode}/{max(1, (1 << length) >> 20)}": ladder.chunk_bytes
            for (mode, length), ladder in self._ladders.items()
        }

    def on_probe(
        self, rate_bps: float | None, chunk_bytes: int | None, link_enable: LinkEnable | None, reason: str
    ) -> None:
        """`fedrdma probe` has measured the link; what it could not tell stays."""
        if rate_bps is not None:
            self._found = Finding(rate_bps, "probed")
        if chunk_bytes is not None:
            self._probed_chunk = chunk_bytes
            self._ladders.clear()
        if link_enable is not None:
            self.link_enable, self.link_enable_reason = link_enable, reason

    def on_transfer(self, mode: Mode, plan: ChunkPlan, seconds: float, round_trip: float | None) -> None:
        """A payload went alone, and took so long from its slot to its delivery."""
        if mode not in ("fedrdma", "fedrdma-e") or seconds <= 0:
            return
        ladder = self._ladders.get((mode, _class_of(plan.total_bytes)))
        if ladder is not None:
            ladder.note(plan.chunk_bytes, plan.total_bytes * 8 / seconds)
        if round_trip is not None and plan.count * round_trip < MOSTLY_WAITING * seconds:
            rate = link_rate(Trial(plan, seconds), round_trip)
            before = 0.0 if self._found is None else self._found.rate_bps * RATE_FADES
            self._found = Finding(max(rate, before), "measured")

    def rate(self, configured_bps: float | None, seen: Finding | None) -> Finding | None:
        """What is known of the rate: set by hand, found here, or seen by others, in this order."""
        return self._found or seen if configured_bps is None else Finding(configured_bps, "configured")

    def plan(
        self,
        mode: Mode,
        total_bytes: int,
        configured_chunk: int | None,
        policy: LinkEnable,
        link: LinkTraits,
        seen: Finding | None = None,
    ) -> ChunkPlan:
        """How a payload is cut.

        Args:
            mode: how it travels.
            total_bytes: its length.
            configured_chunk: the chunk size set by hand.
            policy: the configured Link-Enable.
            link: what else is known. A rate in it was set by hand.
            seen: the rate that mode `fedrdma-x`, or the probe of a new path, has found.
        """
        rate, chunk = self.rate(link.rate_bps, seen), configured_chunk
        traits = dataclasses.replace(link, rate_bps=None if rate is None else rate.rate_bps)
        if chunk is None and mode in ("fedrdma", "fedrdma-e") and total_bytes >= SMALLEST_TUNED_BYTES:
            chunk = self._ladder(mode, total_bytes, link).chunk_bytes
        wished = self.link_enable if policy == "auto" and self.link_enable is not None else policy
        return plan_transfer(mode, total_bytes, chunk, wished, traits)

    def _ladder(self, mode: Mode, total_bytes: int, link: LinkTraits) -> _Ladder:
        key = (mode, _class_of(total_bytes))
        if key not in self._ladders:
            top = min(1 << key[1], LARGEST_CHUNK_BYTES)
            # a measured rate says nothing of the buffer that a whole payload has to fit: only one set by hand counts
            start = self._probed_chunk or plan_transfer(mode, top, None, "never", link).chunk_bytes
            most = max(top // STAGED_PART, DEFAULT_CHUNK_BYTES) if mode == "fedrdma" else top
            self._ladders[key] = _Ladder(min(start, top), SMALLEST_CHUNK_BYTES, most)
        return self._ladders[key]


def _class_of(total_bytes: int) -> int:
    """Payloads of one class differ by a factor of two at most."""
    return (total_bytes - 1).bit_length()
