"""Sums of sites, and trees of them, where the arbiter's site has a narrow link.

    python -m tests.support.narrow_sums [--rate 200mbit] [--parties 4] [--parameters 500000]      (as root)

A gateway for each site, each a process in a network namespace of its own, over TCP. The namespaces meet at a bridge;
what goes to the arbiter's and what comes from there passes a token bucket of the rate, either way, and nothing else is
slowed down. In a round each party puts its update, the arbiter gets the sum, and each party gets an aggregate of half
its length; what is held against the right one, bit by bit. The first round warms up, the second counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.wire.frames import Party
from tests.support.sites import InProcesses, Site, Sites, eventually, linked_sites, party
from tests.support.summands import bits, exact_sum, masked, pairs_in, written

ARBITER = party("arbiter:1")
UP, DOWN = "mixed_client_values", "aggregated_values"
SITES = ("north", "middle", "south")
ROWS: dict[str, tuple[bool, dict[str, str]]] = {
    "sites-alone": (False, {}),
    "sites": (True, {}),
    "sites-tree": (True, {"middle": "north", "south": "north"}),
    "sites-levels": (True, {"middle": "north", "south": "middle"}),
}
"""Whether sites add, and their parents."""
BUCKET_BYTES = 64 << 10
"""That pass at once: more than a segment of the largest kind."""
QUEUE_MILLISECONDS = 50
"""That the bucket holds before it drops."""
STEP_SECONDS = 300.0
PARAMETER_BYTES = 16
HEADROOM_BYTES = 16 << 20


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextlib.contextmanager
def namespaces(names: Sequence[str], narrow: str, rate: str) -> Iterator[dict[str, str]]:
    """The address of each name's namespace, by name; namespaces have this process' id in theirs."""
    hub, made = _namespace("hub"), []
    addresses = {}
    try:
        _run("ip", "netns", "add", hub)
        made.append(hub)
        _run("ip", "-n", hub, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge0", "up")
        for number, name in enumerate(names):
            inside, port = _namespace(name), f"port{number}"
            _run("ip", "netns", "add", inside)
            made.append(inside)
            _run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inside)
            _run("ip", "-n", hub, "link", "set", port, "master", "bridge0", "up")
            addresses[name] = f"10.83.0.{1 + number}"
            _run("ip", "-n", inside, "address", "add", f"{addresses[name]}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", inside, "link", "set", device, "up")
            if name == narrow:
                bucket = ["tbf", "rate", rate, "burst", str(BUCKET_BYTES), "latency", f"{QUEUE_MILLISECONDS}ms"]
                _run("tc", "-n", hub, "qdisc", "add", "dev", port, "root", *bucket)
                _run("tc", "-n", inside, "qdisc", "add", "dev", "eth0", "root", *bucket)
        yield addresses
    finally:
        for inside in made:
            _run("ip", "netns", "delete", inside)


def _namespace(name: str) -> str:
    return f"sums{os.getpid()}-{name}"


class InNamespaces(InProcesses):
    """Each gateway in the namespace of its site."""

    def command(self, site: Site) -> list[str]:
        """How `fedrdma` is called for a site."""
        return ["ip", "netns", "exec", _namespace(site.name), *super().command(site)]


@contextlib.contextmanager
def _gateways(row: str, addresses: Mapping[str, str], parties: int, update_bytes: int) -> Iterator[Sites]:
    adds, parents = ROWS[row]
    layout = {"arbiter": [str(ARBITER)], **_layout(parties)}
    many = (len(SITES) * parties + 2) * (update_bytes + (1 << 20)) + HEADROOM_BYTES

    def of_site(name: str) -> dict[str, Any]:
        return {"aggregate": {"site_sums": adds, "site_wait": STEP_SECONDS, "parent": parents.get(name)}}

    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory(prefix="fr") as sockets:
        memory = {"send_bytes": many, "receive_bytes": many}
        sites = linked_sites(layout, Path(home), Path(sockets), of_site=of_site, memory=memory)
        for site in sites.values():
            # the namespaces are reached by nobody else
            site.config["security_off_beyond_loopback"] = True
            listen = site.config["listen"]
            listen["control"] = _moved(listen["control"], addresses[site.name])
            for peer in site.config["peers"]:
                peer["address"] = _moved(peer["address"], addresses[peer["site"]])
        with Sites.running(sites, InNamespaces(STEP_SECONDS)) as running:
            running.wait_until_connected()
            yield running


def _moved(address: str, host: str) -> str:
    return f"{host}:{address.rpartition(':')[2]}"


def _layout(parties: int) -> dict[str, list[str]]:
    return {site: [f"host:{number * parties + each}" for each in range(parties)] for number, site in enumerate(SITES)}


def run_row(row: str, addresses: Mapping[str, str], parties: int, parameters: int) -> dict[str, Any]:
    """Two rounds of a row; what the second took.

    Raises:
        AssertionError: a sum is not the right one.
    """
    shapes = ((parameters,),)
    layout = _layout(parties)
    sources = [party(name) for names in layout.values() for name in names]
    updates = masked(shapes, len(sources), seed=5)
    bodies = [written(update, source, 1.0) for update, source in zip(updates, sources, strict=True)]
    right = bits(exact_sum(updates, shapes))
    with (
        _gateways(row, addresses, parties, PARAMETER_BYTES * parameters) as sites,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(len(sources)) as pool,
    ):
        arbiter = stack.enter_context(sites["arbiter"].client(row, str(ARBITER)))
        hosts = [stack.enter_context(sites[site].client(row, name)) for site, names in layout.items() for name in names]
        done: dict[str, Any] = {}
        for tag in ("first", "second"):
            before = _brought(sites, row)
            asking = pool.submit(arbiter.get_sum, UP, tag, sources, timeout=STEP_SECONDS)
            _until_asked(row, sites)
            began = time.monotonic()
            for host, body in zip(hosts, bodies, strict=True):
                _put(host, body, UP, tag, [ARBITER])
            summed = asking.result(STEP_SECONDS)
            assert isinstance(summed, ReceivedSum), summed
            assert len(summed.parties_in) == len(sources), summed.reason
            at_sum = time.monotonic()
            assert bits(pairs_in(summed.buffer, summed.shapes)) == right
            looked = time.monotonic() - at_sum
            aggregate = bytes(summed.buffer[: PARAMETER_BYTES // 2 * parameters])
            _put_down(arbiter, aggregate, tag, sources, once=row != "sites-alone")
            del summed
            for got in pool.map(lambda host, tag=tag: host.get(DOWN, tag, ARBITER, timeout=STEP_SECONDS), hosts):
                assert bytes(got.buffer) == aggregate
            ended = time.monotonic()
            up, down = (now - then for now, then in zip(_brought(sites, row), before, strict=True))
            done = {
                "row": row,
                "sum_seconds": at_sum - began,
                "seconds": ended - began - looked,
                "up_bytes": up,
                "down_bytes": down,
            }
        return done


def _put(client: GatewayClient, body: bytes, name: str, tag: str, to: Sequence[Party]) -> None:
    lease = client.lease(len(body), timeout=STEP_SECONDS)
    lease.buffer[:] = body
    lease.commit(name, tag, list(to), "object")


def _put_down(arbiter: GatewayClient, body: bytes, tag: str, to: Sequence[Party], *, once: bool) -> None:
    if once:
        _put(arbiter, body, DOWN, tag, to)
        return
    for each in to:
        _put(arbiter, body, DOWN, tag, [each])


def _until_asked(row: str, sites: Sites) -> None:
    """As FATE's arbiter, which asks while its clients still train."""
    eventually(lambda: sites["arbiter"].status()["sums"], STEP_SECONDS)
    if ROWS[row][0]:
        for site in SITES:
            eventually(lambda site=site: any(p["sum_orders"] for p in sites[site].status()["peers"]), STEP_SECONDS)


def _brought(sites: Sites, session: str) -> tuple[int, int]:
    """Payload bytes that have come to the arbiter's site, and from there."""
    up, down = 0, 0
    for site in sites.values():
        for event in site.events("delivered"):
            if event["session"] == session and event["transport"] not in ("", "control", "local"):
                up += event["bytes"] if site.name == "arbiter" else 0
                down += event["bytes"] if event["peer"] == "arbiter" else 0
    return up, down


def main() -> None:
    """Run rows, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="200mbit", help="of the arbiter's link, as tc takes it")
    parser.add_argument("--parties", type=int, default=4, help="of each of the three sites")
    parser.add_argument("--parameters", type=int, default=500_000, help="of an update, 16 bytes each")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    asked = parser.parse_args()
    print("row           up        down      sum       in all")
    with namespaces(["arbiter", *SITES], "arbiter", asked.rate) as addresses:
        for row in asked.rows.split(","):
            done = run_row(row, addresses, asked.parties, asked.parameters)
            print(
                f"{row:12} {done['up_bytes'] / 1e6:6.1f} MB {done['down_bytes'] / 1e6:6.1f} MB"
                f" {done['sum_seconds']:7.2f} s {done['seconds']:7.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
