"""Ports that no other test listens on, nor is about to."""

from __future__ import annotations

import os
from collections import deque

from fedrdma_fate.bench.ports import free_ports

_WORKERS = 16
"""Processes that run tests beside each other, at most, which have ports of their own: each has 750."""

_GIVEN: deque[int] = deque(maxlen=200)
"""Those that this process was given last: more than a test uses, so that none is given twice before it listens."""


def ports_of_this_process(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now, and that are given to nobody else for a while.

    `free_ports` only looks: until somebody listens on a port it may find it again, in this process or in another one.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    found: list[int] = []
    while len(found) < count:
        for port in free_ports(_WORKERS):
            if len(found) < count and port % _WORKERS == worker and port not in _GIVEN:
                _GIVEN.append(port)
                found.append(port)
    return found
