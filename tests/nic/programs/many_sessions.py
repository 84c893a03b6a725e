"""On both hosts: a process connects, transfers and closes many times; prints what it holds after the first and last.

many_sessions.py COUNT
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading

from deploy.softroce.programs.control import Control, control_connection, this_host
from deploy.softroce.programs.links import connect, progress_until, shared_region
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import CompletionKind, Endpoint, RemoteSlot, Slot
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport

REGION_BYTES = 1 << 20
SLOT_BYTES = 100_000
COUNTED = ("qp", "cq", "mr", "pd", "ctx")


def held(transport: VerbsTransport) -> dict[str, int]:
    """What the kernel and this process hold: verbs objects of this host, descriptors, threads, registrations so far."""
    command = ["rdma", "-j", "resource", "show", os.environ["TESTBED_DEVICE"]]
    (counts,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {
        **{name: counts[name] for name in COUNTED},
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "registrations": transport.registrations,
    }


def session(transport: VerbsTransport, region: SharedRegion, control: Control, number: int) -> bool:
    """Connect, send a payload each way, close; whether the peer's payload came right."""
    endpoint = connect(transport, control)
    payload = bytes([number % 251 + this_host()]) * SLOT_BYTES
    region.view[:SLOT_BYTES] = payload
    exposed = endpoint.expose(number, Slot(region, REGION_BYTES // 2, SLOT_BYTES))
    target = RemoteSlot(**control.exchange(dataclasses.asdict(exposed)))
    endpoint.post_write(1, Slot(region, 0, SLOT_BYTES), target, 0)
    endpoint.post_bytes(2, b"", target, 0, number)
    progress_until(endpoint, lambda done: {CompletionKind.IMMEDIATE} <= {one.kind for one in done} and len(done) == 3)
    came = bytes(region.view[REGION_BYTES // 2 : REGION_BYTES // 2 + SLOT_BYTES])
    end(endpoint, control, number)
    return came == bytes([number % 251 + 1 - this_host()]) * SLOT_BYTES


def end(endpoint: Endpoint, control: Control, number: int) -> None:
    """Close both ends, in turns the one first and the other."""
    control.exchange("done")
    if number % 2 == this_host():
        endpoint.close()
        control.say("closed")
    else:
        control.hear()
        endpoint.close()


def main(count: int) -> None:
    with shared_region(REGION_BYTES) as region, control_connection() as control:
        transport = VerbsTransport(VerbsSettings(), [region])
        right = session(transport, region, control, 1)
        first = held(transport)
        for number in range(2, count + 1):
            right &= session(transport, region, control, number)
        control.exchange("all done")
        last = held(transport)
        transport.close()
    print(json.dumps({"right": right, "first": first, "last": last}))


main(int(sys.argv[1]))
