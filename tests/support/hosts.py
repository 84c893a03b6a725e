"""Gateways on the hosts of a testbed, run from one program on host 0: all hosts share files and processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.softroce.netem import ENDLESS_PACKETS
from tests.support.certificates import TestAuthority
from tests.support.sites import PROCESS_READY_SECONDS, InProcesses, Site, Sites, gateway_site

CONTROL_PORT = 9370
PARTIES = ("guest:1", "host:2")
LAUNCHER = Path(__file__).resolve().parents[1] / "nic" / "programs" / "breakable_gateway.py"


def on_host(index: int, *command: str) -> list[str]:
    """A command that runs on another host of the testbed than the caller's."""
    return ["ip", "netns", "exec", f"host{index}", *command]


def from_outside(*command: str) -> list[str]:
    """A command that runs in the guest's first namespace, where the WAN is and devices are handed out."""
    return ["nsenter", "--net=/proc/1/ns/net", *command]


def run(command: Sequence[str]) -> str:
    """Run it; what it prints.

    Raises:
        RuntimeError: it failed, with what it said.
    """
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr or result.stdout}")
    return result.stdout


def remove_device(host: int) -> None:
    """Take a host's RDMA device away."""
    run(on_host(host, "rdma", "link", "delete", f"rxe{host}"))


def add_device(host: int) -> None:
    """Give it one again."""
    run(on_host(host, "rdma", "link", "add", f"rxe{host}", "type", "rxe", "netdev", "eth0"))
    run(from_outside("rdma", "dev", "set", f"rxe{host}", "netns", f"host{host}"))


def set_link(host: int, state: str) -> None:
    """A host's network interface: `up` or `down`."""
    run(on_host(host, "ip", "link", "set", "eth0", state))


def set_packets(host: int, *netem: str) -> None:
    """What becomes of the packets that a host sends, in tc's words: `loss 20%`; nothing: all arrive at once."""
    device = ("dev", f"delay{host}", "root")
    # a queue that is only changed goes on with what it is not told of
    run(from_outside("tc", "qdisc", "del", *device))
    run(from_outside("tc", "qdisc", "add", *device, "netem", "limit", str(ENDLESS_PACKETS), *netem))


class OnHosts(InProcesses):
    """Runs the gateway of site `a` on host 0 and that of `b` on host 1; SIGUSR1 breaks one of its queue pairs."""

    def command(self, site: Site) -> list[str]:
        return on_host("ab".index(site.name), sys.executable, str(LAUNCHER))


@contextlib.contextmanager
def gateways_on_hosts(
    directory: Path,
    authority: TestAuthority | None = None,
    of_site: Callable[[str], Mapping[str, Any]] = lambda _name: {},
    ready_seconds: float = PROCESS_READY_SECONDS,
    **settings: Any,
) -> Iterator[Sites]:
    """A gateway on each of two hosts, connected by verbs.

    Args:
        directory: for configurations, traces and logs.
        authority: gives both a certificate, with which they seal; without, `security` is off.
        of_site: further settings of one, by its name; those of a section are merged into it.
        ready_seconds: for a gateway to start, and to stop.
        **settings: keys of the configuration, over the defaults of the tests.
    """
    addresses = os.environ["TESTBED_HOSTS"].split(",")
    names = "ab"
    with tempfile.TemporaryDirectory(prefix="fr") as sockets:
        sites = {}
        for index, name in enumerate(names):
            other = 1 - index
            peer = {"site": names[other], "parties": [PARTIES[other]], "address": f"{addresses[other]}:{CONTROL_PORT}"}
            listen = {
                "control": f"{addresses[index]}:{CONTROL_PORT}",
                "data": f"{addresses[index]}:0",
                "grpc": f"{addresses[index]}:0",
            }
            sites[name] = gateway_site(
                name,
                [PARTIES[index]],
                home=directory / name,
                sockets=Path(sockets),
                port=CONTROL_PORT,
                peers=[peer],
                listen=listen,
                # a network of the testbed alone
                security_off_beyond_loopback=True,
                **{"transport": "verbs", **settings},
            )
            for key, value in of_site(name).items():
                sites[name].config[key] = {**sites[name].config.get(key, {}), **value}
            if authority is not None:
                authority.issue(name)
                sites[name].config.update(security="mtls", tls=authority.settings(name))
                del sites[name].config["security_off_beyond_loopback"]
        with Sites.running(sites, OnHosts(ready_seconds)) as running:
            running.wait_until_connected()
            yield running
