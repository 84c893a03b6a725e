"""How fast the verbs transport moves bytes beside a bare pyverbs loop, in turns, from host 0 to host 1; prints both.

    scripts/testbed run -- .venv/bin/python -m deploy.softroce.programs.verbs_rate

Same chunk size, same number of writes under way, same number of queue pairs, same memory, and both sleep on completion
events.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator

from deploy.softroce.programs.bare_verbs import BareVerbs
from deploy.softroce.programs.control import Control, control_connection, this_host
from deploy.softroce.programs.links import connect, shared_region, wait_for
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import CompletionKind, Endpoint, RemoteSlot, Slot
from fedrdma_fate.quantities import parse_size
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport

GRANT = 1


@dataclasses.dataclass(frozen=True)
class Load:
    """What is moved.

    Attributes:
        total: bytes.
        chunk: bytes of a write.
        depth: writes under way.
        queue_pairs: that they are dealt to.
    """

    total: int
    chunk: int
    depth: int
    queue_pairs: int


Write = Callable[[], float]
"""Moves everything once; the seconds that it took."""


@contextlib.contextmanager
def bare_loop(control: Control, region: SharedRegion, load: Load) -> Iterator[Write]:
    """pyverbs and nothing else."""
    with contextlib.closing(BareVerbs(region, load.queue_pairs, load.depth)) as verbs:
        verbs.connect(control.exchange(verbs.offer))
        # both are ready to receive before anything is sent
        control.exchange("ready")
        yield lambda: verbs.write(load.total, load.chunk)
        control.exchange("done")


@contextlib.contextmanager
def verbs_layer(control: Control, region: SharedRegion, load: Load) -> Iterator[Write]:
    """The transport's endpoint, as an engine uses it."""
    settings = VerbsSettings(queue_pairs=load.queue_pairs)
    with (
        contextlib.closing(VerbsTransport(settings, [region])) as transport,
        contextlib.closing(connect(transport, control)) as endpoint,
    ):
        exposed = endpoint.expose(GRANT, Slot(region, 0, load.total))
        target = RemoteSlot(**control.exchange(dataclasses.asdict(exposed)))
        yield lambda: write_all(endpoint, region, target, load)
        # an endpoint that makes no progress looks alive all the same: its device acknowledges
        control.exchange("done")


def write_all(endpoint: Endpoint, region: SharedRegion, target: RemoteSlot, load: Load) -> float:
    """Write chunk after chunk, and wait for the last completion."""
    started = time.monotonic()
    posted = under_way = 0
    while posted < load.total or under_way:
        while posted < load.total and under_way < load.depth:
            length = min(load.chunk, load.total - posted)
            endpoint.post_write(posted + 1, Slot(region, posted, length), target, posted)
            posted += length
            under_way += 1
        wait_for(endpoint)
        under_way -= sum(done.kind is CompletionKind.WRITE_DONE for done in endpoint.progress())
    return time.monotonic() - started


def measure(control: Control, region: SharedRegion, load: Load, repeat: int) -> dict[str, list[float]]:
    """Seconds of each, taken in turns, so that what slows the machine down slows both."""
    seconds: dict[str, list[float]] = {"bare": [], "layer": []}
    ways = {"bare": bare_loop, "layer": verbs_layer}
    for _ in range(repeat):
        for name, way in ways.items():
            with way(control, region, load) as write:
                if this_host() == 0:
                    seconds[name].append(write())
    return seconds


def report(load: Load, seconds: dict[str, list[float]]) -> dict[str, object]:
    """Medians as rates, and the layer's share of the bare loop's."""
    rates = {name: load.total * 8 / statistics.median(taken) / 1e6 for name, taken in seconds.items()}
    return {
        **dataclasses.asdict(load),
        "bare_mbit_per_second": round(rates["bare"], 1),
        "layer_mbit_per_second": round(rates["layer"], 1),
        "ratio": round(rates["layer"] / rates["bare"], 3),
        "seconds": {name: [round(one, 3) for one in taken] for name, taken in seconds.items()},
    }


def main() -> None:
    """Run this host's part; host 0 prints a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m deploy.softroce.programs.verbs_rate")
    parser.add_argument("--bytes", type=parse_size, default=parse_size("256MiB"), help="default 256MiB")
    parser.add_argument("--chunk", type=parse_size, default=parse_size("1MiB"), help="bytes of a write (default 1MiB)")
    parser.add_argument("--depth", type=int, default=8, help="writes under way (default 8)")
    parser.add_argument("--queue-pairs", type=int, default=2, help="default 2")
    parser.add_argument("--repeat", type=int, default=3, help="times that each is measured (default 3)")
    options = parser.parse_args()
    load = Load(options.bytes, options.chunk, options.depth, options.queue_pairs)
    with control_connection() as control, shared_region(load.total) as region:
        seconds = measure(control, region, load, options.repeat)
    if this_host() == 0:
        print(json.dumps(report(load, seconds)))


if __name__ == "__main__":
    main()
