"""On host 0: two gateways on two hosts, and a fault in the middle of a transfer from host 0 to host 1; prints JSON.

gateway_faults.py FAULT [MODE [secured]]

What the sender knew, and when; how often the data path was connected; what was sent twice; whether the bytes are right.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.certificates import TestAuthority
from tests.support.hosts import OnHosts, add_device, gateways_on_hosts, remove_device, set_link
from tests.support.sites import Sites, eventually, party

SIZE = 16 << 20
CHUNK = "256KiB"
BEFORE_FAULT = SIZE // 4
DEAD_SECONDS = 1.0
IDLE_SECONDS = 15.0
RECOVERY_SECONDS = 60.0

A, B = party("guest:1"), party("host:2")


def gateways(sites: Sites) -> OnHosts:
    assert isinstance(sites.runner, OnHosts)
    return sites.runner


@contextlib.contextmanager
def broken_pair(sites: Sites, site: str, number: signal.Signals = signal.SIGUSR1) -> Iterator[None]:
    """A queue pair is forced into the error state; nothing has to be mended."""
    gateways(sites).signal(sites[site], number)
    yield


@contextlib.contextmanager
def removed_device(_: Sites, host: int) -> Iterator[None]:
    """The host's device is removed, and added again."""
    remove_device(host)
    yield
    add_device(host)


@contextlib.contextmanager
def link_down(_: Sites, host: int) -> Iterator[None]:
    """The host's network interface goes down, and up again."""
    set_link(host, "down")
    yield
    set_link(host, "up")


@contextlib.contextmanager
def killed_gateway(sites: Sites, site: str) -> Iterator[None]:
    """The gateway dies without a word, and is started again."""
    gateways(sites).kill(sites[site])
    yield
    gateways(sites).start(sites[site])


FAULTS: dict[str, Callable[[Sites], contextlib.AbstractContextManager[None]]] = {
    "pair-of-sender": lambda sites: broken_pair(sites, "a"),
    "pair-of-receiver": lambda sites: broken_pair(sites, "b"),
    "chunk-pair-of-sender": lambda sites: broken_pair(sites, "a", signal.SIGUSR2),
    "chunk-pair-of-receiver": lambda sites: broken_pair(sites, "b", signal.SIGUSR2),
    "device-of-sender": lambda sites: removed_device(sites, 0),
    "device-of-receiver": lambda sites: removed_device(sites, 1),
    "link-of-receiver": lambda sites: link_down(sites, 1),
    "killed-receiver": lambda sites: killed_gateway(sites, "b"),
}


def main(fault: str, mode: str = "fedrdma-e", *secured: str) -> None:
    """Run the fault, and print what was seen."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        timeouts = {"idle": IDLE_SECONDS, "connect": 3.0, "peer_silence": 5.0, "drain": 1.0}
        settings = {"mode": mode, "chunk": CHUNK, "link_enable": "never"}
        memory = {"send_bytes": "32MiB", "receive_bytes": "64MiB", "ring_slots": 1, "ring_slot_bytes": "4MiB"}
        try:
            authority = TestAuthority(home / "tls") if secured else None
            with gateways_on_hosts(home, authority, **settings, timeouts=timeouts, memory=memory) as sites:
                print(json.dumps(transfer(sites, FAULTS[fault])), flush=True)
        except BaseException:
            for log in sorted(home.glob("*/log")):
                print(log, log.read_text()[-4000:], sep="\n", file=sys.stderr)
            raise


def transfer(sites: Sites, fault: Callable[[Sites], contextlib.AbstractContextManager[None]]) -> dict[str, Any]:
    body = hashlib.shake_128(b"fault").digest(SIZE)
    with sites["a"].client() as a:
        lease = a.lease(SIZE)
        lease.buffer[:] = body
        lease.commit("m", "t", [B], "object")
        done = eventually(lambda: moving(sites))
        struck = time.time()
        with fault(sites):
            lost = eventually(lambda: sites["a"].events("link_lost") or sites["a"].events("peer_lost"), IDLE_SECONDS)[0]
            time.sleep(DEAD_SECONDS)
            kept = arrived_bytes(sites)
        with sites["b"].client() as b:
            right = bytes(b.get("m", "t", A, timeout=RECOVERY_SECONDS).buffer) == body
        recovered = time.time() - struck
        sent = eventually(lambda: sites["a"].events("sent"))
        exchanged = [small_transfer(sites) for _ in range(2)]
    return {
        "right": right,
        "done_bytes": done,
        "kept_bytes": kept,
        "knew_after": lost["time"] - struck,
        "reason": lost["reason"],
        "recovered_after": recovered,
        "sent": [
            {key: event[key] for key in ("mode", "resent_bytes", "chunks", "writes", "transport")} for event in sent
        ],
        "delivered": len([event for event in sites["b"].events("delivered") if event["name"] == "m"]),
        "later": exchanged,
    }


def moving(sites: Sites) -> int:
    """How much has arrived, once it is enough."""
    done = arrived_bytes(sites)
    return done if done >= BEFORE_FAULT else 0


def arrived_bytes(sites: Sites) -> int:
    """Of the payload, by what its sender knows."""
    if sites["a"].events("sent"):
        return SIZE
    return sum(int(transfer["done_bytes"]) for transfer in sites["a"].status()["transfers"])


def small_transfer(sites: Sites) -> bool:
    """Whether another payload, which needs a grant of its own, comes through."""
    body, name = os.urandom(1 << 20), os.urandom(4).hex()
    with sites["a"].client() as a, sites["b"].client() as b:
        lease = a.lease(len(body))
        lease.buffer[:] = body
        lease.commit(name, "t", [B], "object")
        return bytes(b.get(name, "t", A, timeout=30).buffer) == body


main(*sys.argv[1:])
