"""Payloads from host 0 to host 1, each in one RDMA write on a reliable queue pair, by bare pyverbs. Prints JSON.

    scripts/testbed run --virtual-time --rate 1gbit --rtt 20ms -- \
        .venv/bin/python -m deploy.softroce.programs.one_shot 64000000 3
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time

from deploy.softroce.programs.bare_verbs import BareVerbs
from deploy.softroce.programs.control import Control, control_connection, this_host
from deploy.softroce.programs.counters import read_counters
from deploy.softroce.programs.links import shared_region
from deploy.softroce.programs.pattern import fill, is_filled
from deploy.softroce.programs.pauses import pause_before


def write(verbs: BareVerbs, size: int, number: int) -> dict[str, object]:
    """Write everything at once, and say how long it took until it was acknowledged."""
    pause_before(number)
    before, begun = read_counters(), time.monotonic()
    seconds = verbs.write(size, size)
    return {"begun": begun, "seconds": seconds, **dataclasses.asdict(read_counters().since(before))}


def run(control: Control, size: int, count: int) -> None:
    """Both hosts' parts.

    Raises:
        SystemExit: a write failed, or something else arrived.
    """
    with shared_region(size) as region, contextlib.closing(BareVerbs(region, 1, 1)) as verbs:
        if this_host() == 0:
            fill(region.view[:size])
        verbs.connect(control.exchange(verbs.offer))
        control.exchange("ready")
        if this_host() == 0:
            taken = [write(verbs, size, number) for number in range(count)]
            control.exchange("done")
            print(json.dumps(taken))
        else:
            # nothing to do meanwhile: the device writes and acknowledges by itself
            control.exchange("done")
            if not is_filled(region.view[:size]):
                raise SystemExit("something else arrived than was sent")


def main() -> None:
    """Run this host's part."""
    with control_connection() as control:
        run(control, int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
