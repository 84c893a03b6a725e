"""Gives a target its inputs, one after the other, and keeps those that must not do what they did."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import mmap
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.fuzz.mutation import MOST_BYTES, Mutator
from tests.fuzz.target import Finding, Target
from tests.support.repository import ROOT

CORPUS = ROOT / "tests" / "fuzz" / "corpus"
"""Of each target a folder, with inputs that were findings once."""

BUILD = ROOT / "build" / "fuzz"
"""Where findings are saved."""

MOST_GROWTH = 64 * 1024 * 1024
"""Bytes that the process may grow by over one input."""

HANG_SECONDS = 10.0
"""Of the processor's time for INPUTS_AT_ONCE inputs; one takes microseconds, some milliseconds at most."""

KILL_SECONDS = 3 * HANG_SECONDS
"""Of the processor's time, after which the kernel ends a process that does not come back from C to be told."""

INPUTS_AT_ONCE = 200
"""Between two settings of the timer that finds what hangs."""

MOST_FINDINGS = 20
"""After so many different ones a run ends: they have to be looked at first."""


@dataclasses.dataclass
class Outcome:
    """What a run came to.

    Attributes:
        inputs: that were read.
        taken: of those, how many were.
        seconds: it took.
        findings: what happened and the input, one of each kind.
    """

    inputs: int = 0
    taken: int = 0
    seconds: float = 0.0
    findings: dict[str, bytes] = dataclasses.field(default_factory=dict)


class LastInput:
    """The input that is being read, in a file: it is known even when the process does not survive it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as opened:
            opened.truncate(4 + MOST_BYTES)
            self._map = mmap.mmap(opened.fileno(), 4 + MOST_BYTES)

    def note(self, data: bytes) -> None:
        """This one is next."""
        self._map[: 4 + len(data)] = len(data).to_bytes(4, "big") + data

    @staticmethod
    def left_in(path: Path) -> bytes:
        """The last one that was noted."""
        raw = path.read_bytes()
        return raw[4 : 4 + int.from_bytes(raw[:4], "big")]


def kept(target: Target) -> list[bytes]:
    """The corpus of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / target.name).glob("*"))]


def fuzz(
    target: Target, inputs: int, number: int = 0, last: LastInput | None = None, seconds: float = math.inf
) -> Outcome:
    """Read the seeds, the corpus, and so many inputs made of them.

    Args:
        target: what reads them.
        inputs: how many.
        number: seeds the random numbers.
        last: told of each input before it is read.
        seconds: after which no further ones are begun.
    """
    known = [*target.seeds, *kept(target)]
    outcome = Outcome()
    began = time.monotonic()
    stream = _inputs(target, known, inputs, number)
    done = False
    while not done and len(outcome.findings) < MOST_FINDINGS and time.monotonic() - began < seconds:
        # only where the input is known that the process dies of
        signal.setitimer(signal.ITIMER_PROF, KILL_SECONDS if last is not None else 0)
        with _cpu_limit(HANG_SECONDS):
            done = not _some(target, stream, outcome, last)
    signal.setitimer(signal.ITIMER_PROF, 0)
    outcome.seconds = time.monotonic() - began
    return outcome


def read_one(target: Target, data: bytes) -> str:
    """Read one input; what was found, or an empty string."""
    outcome = Outcome()
    with _cpu_limit(HANG_SECONDS):
        _some(target, iter([data]), outcome, None)
    return next(iter(outcome.findings), "")


def save(target: Target, data: bytes, folder: Path) -> Path:
    """Keep an input."""
    path = folder / target.name / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _inputs(target: Target, known: list[bytes], inputs: int, number: int) -> Iterator[bytes]:
    yield from known
    mutator = Mutator(known, number, target.tokens)
    for count in range(inputs - len(known)):
        data = mutator.next()
        yield target.repair(data)[:MOST_BYTES] if target.repair is not None and count % 2 else data


def _some(target: Target, stream: Iterator[bytes], outcome: Outcome, last: LastInput | None) -> bool:
    """Read INPUTS_AT_ONCE of them; whether there may be more."""
    read, refusals, findings = target.read, target.refusals, outcome.findings
    _forget_memory()
    memory = _most_memory()
    for _ in range(INPUTS_AT_ONCE):
        data = next(stream, None)
        if data is None:
            return False
        if last is not None:
            last.note(data)
        outcome.inputs += 1
        try:
            outcome.taken += read(data)
        except refusals:
            pass
        except Finding as finding:
            findings.setdefault(str(finding), data)
            if str(finding) == _HANGS:
                return True
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            findings.setdefault(f"{type(error).__name__}: {_where(error)}", data)
        now = _most_memory()
        if now - memory > MOST_GROWTH:
            findings.setdefault(f"memory grew beyond {MOST_GROWTH >> 20} MiB", data)
        memory = now
    return True


_HANGS = f"takes more than {HANG_SECONDS:g} s of the processor"


@contextlib.contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """A finding where what is inside takes longer."""

    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise Finding(_HANGS)

    before = signal.signal(signal.SIGVTALRM, hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _forget_memory() -> None:
    """Let the most memory that was used count from now on, where the kernel can do that (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _where(error: BaseException) -> str:
    """The innermost line of a traceback: what tells kinds of findings apart."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    line = "" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"{line} {str(error)[:120]}"
