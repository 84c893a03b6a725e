"""What the guest is to do, as the machine outside writes it down, and what it says while it does it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from deploy.softroce.netem import DelayLine
from deploy.softroce.rate_trace import TracedBottlenecks
from deploy.softroce.wan import Plan, Step
from fedrdma_fate.bench.wan.shaping import RateTrace

CHANNEL = "/dev/tty1"
"""The guest's console that carries its events to the outside, one JSON object a line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """What one host runs.

    Attributes:
        namespace: the host's network namespace.
        command: program and arguments.
        environment: the whole of it.
        background: it goes on for as long as the others, and is ended with them.
    """

    namespace: str
    command: tuple[str, ...]
    environment: dict[str, str]
    background: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One run: the network, and a program for each host, perhaps with others in the background behind them.

    Attributes:
        directory: in which the programs start.
        real_time: the kernel's network threads get priority over the programs.
        sample_seconds: between two looks at how full the bottlenecks' buffers are; None: nobody looks.
    """

    plan: Plan
    programs: tuple[Program, ...]
    directory: str
    real_time: bool
    sample_seconds: float | None = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        document: dict[str, Any] = json.loads(path.read_text())
        made = document["plan"]
        steps = tuple(Step(*_queues(step), at_ns=step["at_ns"]) for step in made["steps"])
        programs = tuple(Program(**{**item, "command": tuple(item["command"])}) for item in document["programs"])
        settings = {name: document[name] for name in ("directory", "real_time", "sample_seconds")}
        return cls(Plan(*_queues(made), steps=steps, traced=_traced(made["traced"])), programs, **settings)


def _traced(document: dict[str, Any] | None) -> TracedBottlenecks | None:
    if document is None:
        return None
    points = tuple((int(at), int(rate)) for at, rate in document["trace"]["points"])
    trace = RateTrace(points, document["trace"]["repeat_ns"])
    return TracedBottlenecks(**{**document, "netdevs": tuple(document["netdevs"]), "trace": trace})


def _queues(document: dict[str, Any]) -> tuple[tuple[tuple[str, ...], ...], tuple[DelayLine, ...]]:
    commands = tuple(tuple(command) for command in document["commands"])
    return commands, tuple(DelayLine(**line) for line in document["delay_lines"])
