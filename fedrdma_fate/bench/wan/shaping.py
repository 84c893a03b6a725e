"""What a path may do to packets beside rate, delay and loss, as people write it: a policer, a rate that
follows a trace, TCP flows that come and go.

The testbed takes its options from here, too, so that both command lines read them alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from fedrdma_fate.quantities import QuantityError, parse_rate, parse_size, parse_time

MOST_TRACE_BYTES = 2**22
"""Of a file with a trace: a rate every 10 ms for half an hour has a third of it."""
MOST_TRACE_RATES = 200_000
"""Of a trace, as many as fit into such a file, so that what holds them is bounded too."""
LEAST_TRACE_BPS = 1_000
"""Where a packet of 4,200 bytes takes half a minute: an outage, to whoever waits."""
MOST_TRACE_BPS = 10**12
"""Ten times what the testbed's clock can follow."""

MOST_FLOWS = 16
"""Beside what is looked at; each is a thread at either end."""
LEAST_ON_NS = 10**7
"""Of a flow: what lasts less has hardly been opened."""
DEFAULT_ON_NS = DEFAULT_OFF_NS = 10**9
"""Some tens of the round trips that one takes for a WAN: CUBIC has filled a buffer by then, and BBR knows the path."""

_FLOWS = re.compile(r"\d{1,4}", re.ASCII)
_TRACE_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_TRACE_RATE = re.compile(r"\d{1,13}", re.ASCII)
_REPEAT = "repeat"


@dataclasses.dataclass(frozen=True, slots=True)
class Policer:
    """A token bucket that drops what it has no tokens for, and queues nothing.

    Attributes:
        rate_bps: at which tokens come.
        burst_bytes: that the bucket holds: what passes at once after a pause.
    """

    rate_bps: int
    burst_bytes: int

    def __str__(self) -> str:
        return f"{self.rate_bps}bit:{self.burst_bytes}B"


def parse_policer(text: str) -> Policer:
    """A policer as people write it: RATE:BURST, such as 500mbit:100kB.

    Raises:
        QuantityError: it is not one.
    """
    rate, separator, burst = text.partition(":")
    if not separator:
        raise QuantityError(f"{text!r} is not RATE:BURST, such as 500mbit:100kB")
    return Policer(parse_rate(rate), parse_size(burst))


@dataclasses.dataclass(frozen=True, slots=True)
class CrossTraffic:
    """TCP flows (CUBIC) that share the way out with what is looked at, and come and go.

    Attributes:
        flows: how many.
        on_ns: that each sends before it ends.
        off_ns: after which the next one begins in its place.
    """

    flows: int
    on_ns: int
    off_ns: int

    def __str__(self) -> str:
        return f"{self.flows}:{self.on_ns}ns:{self.off_ns}ns"


def parse_cross_traffic(text: str) -> CrossTraffic:
    """Cross traffic as people write it: FLOWS, or FLOWS:ON:OFF such as 2:1s:500ms; on and off are a second by default.

    Raises:
        QuantityError: it is none, or so many flows that they alone would keep the testbed busy.
    """
    flows, *times = text.split(":")
    if _FLOWS.fullmatch(flows) is None or len(times) not in (0, 2):
        raise QuantityError(f"{text!r} is not FLOWS or FLOWS:ON:OFF, such as 2:1s:500ms")
    if not 1 <= int(flows) <= MOST_FLOWS:
        raise QuantityError(f"{text!r}: there are 1 to {MOST_FLOWS} flows")
    on_ns, off_ns = (parse_time(time) for time in times) if times else (DEFAULT_ON_NS, DEFAULT_OFF_NS)
    if on_ns < LEAST_ON_NS:
        raise QuantityError(f"{text!r}: a flow lasts {LEAST_ON_NS // 10**6} ms at least")
    return CrossTraffic(int(flows), on_ns, off_ns)


@dataclasses.dataclass(frozen=True, slots=True)
class RateTrace:
    """A rate that changes at given moments.

    Attributes:
        points: from how many nanoseconds on which rate holds, bit/s; the first from 0 on.
        repeat_ns: after so many nanoseconds it begins again; None: the last rate holds.
    """

    points: tuple[tuple[int, int], ...]
    repeat_ns: int | None = None

    @property
    def highest_bps(self) -> int:
        """The highest rate."""
        return max(rate for _, rate in self.points)

    @property
    def lowest_bps(self) -> int:
        """The lowest rate."""
        return min(rate for _, rate in self.points)

    @property
    def mean_bps(self) -> int:
        """The mean over time until it begins again, or until the last rate begins."""
        end = self.points[-1][0] if self.repeat_ns is None else self.repeat_ns
        if not end:
            return self.points[0][1]
        begins, rates = [at for at, _ in self.points], [rate for _, rate in self.points]
        spans = (until - begin for begin, until in itertools.pairwise([*begins, end]))
        return sum(span * rate for span, rate in zip(spans, rates, strict=False)) // end

    def moments(self) -> Iterator[tuple[int, int]]:
        """From when on, in nanoseconds, which rate holds; without an end where it repeats."""
        for begun in itertools.count(step=self.repeat_ns or 1):
            yield from ((begun + at, rate) for at, rate in self.points)
            if self.repeat_ns is None:
                return

    def to_text(self) -> str:
        """As `parse_rate_trace` reads it."""
        lines = [f"{_seconds(at)} {rate}" for at, rate in self.points]
        lines += [] if self.repeat_ns is None else [f"{_seconds(self.repeat_ns)} {_REPEAT}"]
        return "\n".join(lines) + "\n"


def read_rate_trace(path: Path) -> RateTrace:
    """The trace in a file.

    Raises:
        QuantityError: it cannot be read, is too long, or is no trace; names the file and the line.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_TRACE_BYTES + 1)
        text = content.decode("ascii")
    except OSError as error:
        raise QuantityError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise QuantityError(f"{path}: it is no text of ASCII characters") from error
    if len(content) > MOST_TRACE_BYTES:
        raise QuantityError(f"{path}: it has more than {MOST_TRACE_BYTES:,} bytes")
    try:
        return parse_rate_trace(text)
    except QuantityError as error:
        raise QuantityError(f"{path}: {error}") from error


def parse_rate_trace(text: str) -> RateTrace:
    """A trace: lines of seconds and bit/s, the first at 0, each later than the one before.

    The last line may be seconds and `repeat`: then it begins again; else the last rate holds. Empty lines, and what
    follows a `#`, say nothing.

    Raises:
        QuantityError: it is none; names the line.
    """
    points: list[tuple[int, int]] = []
    repeat_ns: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        told = line.partition("#")[0].split()
        if not told:
            continue
        if repeat_ns is not None:
            raise QuantityError(f"line {number}: nothing follows {_REPEAT!r}")
        if len(told) != 2 or _TRACE_SECONDS.fullmatch(told[0]) is None:
            raise QuantityError(f"line {number}: {line.strip()[:80]!r} is not seconds and bit/s, such as 0.2 300000000")
        at_ns = int(Decimal(told[0]) * 10**9)
        if at_ns <= points[-1][0] if points else at_ns != 0:
            problem = "not later than the line before" if points else "not 0, where a trace begins"
            raise QuantityError(f"line {number}: {told[0]} s are {problem}")
        if told[1] == _REPEAT and points:
            repeat_ns = at_ns
        else:
            points.append((at_ns, _trace_rate(number, told[1])))
        if len(points) > MOST_TRACE_RATES:
            raise QuantityError(f"line {number}: more than {MOST_TRACE_RATES:,} rates")
    if not points:
        raise QuantityError("it holds no rate")
    return RateTrace(tuple(points), repeat_ns)


def _trace_rate(number: int, text: str) -> int:
    if _TRACE_RATE.fullmatch(text) is None:
        raise QuantityError(f"line {number}: {text[:80]!r} is no whole number of bit/s")
    if not LEAST_TRACE_BPS <= int(text) <= MOST_TRACE_BPS:
        raise QuantityError(f"line {number}: {text} bit/s are not between {LEAST_TRACE_BPS:,} and {MOST_TRACE_BPS:,}")
    return int(text)


def _seconds(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 10**9)
    return f"{whole}.{rest:09}"
