"""What a gateway takes of its host, and whether that grows."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

MOST_GROWTH = 0.02
"""After warm-up: what the project holds itself to."""

WARM_UP = 1 / 5
"""Of the rounds that a process lives, where nothing else was asked for: caches and what is remembered of each peer fill
up."""

SLACK = {"memory_kib": 512, "keeper_kib": 256, "descriptors": 2, "threads": 1, "disk_kib": 64, "mappings": 4}
"""What is no growth however small the whole is: a block of the allocator, a worker of a pool, a page of a file."""

JUDGED = tuple(SLACK)
"""The rest of a `Sample` is shown, and has a bound of its own: the journal is written anew when it has doubled, from
`COMPACT_FROM_BYTES` on, the trace is rotated at `trace_bytes`, and who has the log written to a file rotates it."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a gateway takes while nothing is under way.

    Attributes:
        round: after how many rounds.
        life: how often the gateway was started before.
        memory_kib: private memory.
        shared_kib: pages of shared memory that it has touched: its regions.
        keeper_kib: private memory of its keeper.
        descriptors: open.
        threads: of the process.
        mappings: lines of its memory map.
        disk_kib: files that it keeps, but for the journal, the trace and the log.
        journal_kib: the journal.
        trace_kib: the trace.
        log_kib: the log.
    """

    round: int
    life: int
    memory_kib: int
    shared_kib: int
    keeper_kib: int
    descriptors: int
    threads: int
    mappings: int
    disk_kib: int
    journal_kib: int
    trace_kib: int
    log_kib: int


def measure(pid: int, home: Path, number: int, life: int) -> Sample:
    """A gateway now.

    Args:
        pid: of its process.
        home: where its files are.
        number: of rounds.
        life: how often it was started before.
    """
    process = Path("/proc") / str(pid)
    status = _status(process)
    files = {path: size for path in home.rglob("*") if (size := _size_kib(path)) is not None}
    journal = {path for path in files if path.name.startswith("journal")}
    trace = {path for path in files if path.name.startswith("trace")}
    log = {home / "log"}
    keepers = [child.pid for child in psutil.Process(pid).children() if "keeper" in " ".join(child.cmdline())]
    return Sample(
        number,
        life,
        status["RssAnon"],
        status["RssShmem"],
        sum(_status(Path("/proc") / str(keeper))["RssAnon"] for keeper in keepers),
        len(os.listdir(process / "fd")),
        status["Threads"],
        (process / "maps").read_text().count("\n"),
        _total(files, files.keys() - journal - trace - log),
        _total(files, journal),
        _total(files, trace),
        _total(files, log),
    )


def _status(process: Path) -> dict[str, int]:
    lines = (line.split() for line in (process / "status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) for line in lines if line[0] in ("RssAnon:", "RssShmem:", "Threads:")}


def _size_kib(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        if path.is_file():
            return path.stat().st_blocks // 2
    return None


def _total(files: dict[Path, int], chosen: Iterable[Path]) -> int:
    return sum(files.get(path, 0) for path in chosen)


@dataclasses.dataclass(frozen=True)
class Growth:
    """How something has grown while one process of a gateway lived.

    Attributes:
        site: of the gateway.
        what: a field of `Sample`.
        rounds: of that life, from the end of its warm-up.
        early: the median of the first quarter of these.
        late: the median of the last quarter.
    """

    site: str
    what: str
    rounds: int
    early: float
    late: float

    @property
    def fraction(self) -> float:
        """Of what it was; 0.01: one percent more."""
        return (self.late - self.early) / self.early if self.early else 0.0

    @property
    def flat(self) -> bool:
        """Whether it is less than what is allowed."""
        return self.late - self.early <= max(MOST_GROWTH * self.early, SLACK[self.what])


def growth(site: str, samples: Sequence[Sample], warm_up: int | None = None) -> list[Growth]:
    """In the longest life of a gateway; empty where none has been long enough to tell.

    Args:
        site: its name.
        samples: of all its lives, in their order.
        warm_up: rounds of that life before those that are compared; by default a fifth of them.
    """
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.life, []).append(sample)
    longest = max(lives.values(), key=len, default=[])
    if warm_up is None:
        warm = longest[int(len(longest) * WARM_UP) :]
    else:
        warm = [sample for sample in longest if sample.round >= longest[0].round + warm_up]
    quarter = len(warm) // 4
    if not quarter:
        return []
    rounds = warm[-1].round - warm[0].round
    return [
        Growth(
            site,
            what,
            rounds,
            statistics.median(getattr(sample, what) for sample in warm[:quarter]),
            statistics.median(getattr(sample, what) for sample in warm[-quarter:]),
        )
        for what in JUDGED
    ]
