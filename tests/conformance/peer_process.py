"""The other gateway, as a process that can be killed: connects, exposes a slot, and progresses for ever.

Usage: peer_process.py TRANSPORT DIRECTORY. Offers and the remote slot go over standard input and output as JSON lines.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Slot
from tests.conformance.pairs import TRANSPORTS, Site, wait_for


def main() -> None:
    directory = Path(sys.argv[2])
    region = SharedRegion.create("peer", 1 << 20)
    draft = TRANSPORTS[sys.argv[1]](Site(directory, region)).open("active")
    print(json.dumps(dict(draft.address)), flush=True)
    endpoint = draft.connect(json.loads(sys.stdin.readline()), 10)
    print(json.dumps(dataclasses.asdict(endpoint.expose(1, Slot(region, 0, region.length)))), flush=True)
    while True:
        wait_for(endpoint, timeout=10)
        endpoint.progress()


if __name__ == "__main__":
    main()
