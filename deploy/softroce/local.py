"""`scripts/testbed host`: a Soft-RoCE device on this machine itself, whose kernel has or loads the module."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from deploy.softroce.errors import TestbedError

MODULE = "rdma_rxe"


def set_up(netdev: str | None, device: str) -> str:
    """Load the module and put a Soft-RoCE device on a network interface; a line on what there is now.

    Args:
        netdev: None: the interface of the default route.
        device: name of the RDMA device; one that exists already on the interface is kept.

    Raises:
        TestbedError: not root, no module, no such interface, or a command failed.
    """
    if os.geteuid() != 0:
        raise TestbedError("a device can be set up by root only.", "sudo scripts/testbed host")
    for tool in ("ip", "rdma"):
        if shutil.which(tool) is None:
            raise TestbedError(f"missing on this machine: {tool}.", "apt-get install iproute2")
    load_module()
    chosen = netdev or default_netdev(_output("ip", "route", "show", "default"))
    if not Path("/sys/class/net", chosen).exists():
        raise TestbedError(f"there is no network interface {chosen}.", "ip -brief link    shows those that there are")
    existing = device_on(_output("rdma", "link", "show"), chosen)
    if existing is None:
        _output("rdma", "link", "add", device, "type", "rxe", "netdev", chosen)
    return f"{existing or device} on {chosen} ({'was there' if existing else 'added'})"


def remove(device: str) -> str:
    """Take a Soft-RoCE device away again.

    Raises:
        TestbedError: there is none of this name, or it cannot be removed.
    """
    _output("rdma", "link", "delete", device)
    return f"{device} removed"


def load_module(loaded: Path = Path("/sys/module", MODULE)) -> None:
    """Make sure that the kernel has Soft-RoCE.

    Raises:
        TestbedError: it neither has it nor loads it.
    """
    if loaded.exists():
        return
    problem = f"this machine's kernel ({platform.release()}) has no {MODULE}"
    remedy = (
        "Debian:  apt-get install linux-image-amd64, and boot it (cloud kernels leave RDMA out)\n"
        "Ubuntu:  apt-get install linux-modules-extra-$(uname -r)\n"
        "or use a testbed in a guest, which needs no module:  scripts/testbed run --help"
    )
    modprobe = shutil.which("modprobe", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if modprobe is None:
        raise TestbedError(f"{problem}, and there is no modprobe to load it.", remedy)
    result = subprocess.run([modprobe, MODULE], check=False, capture_output=True, text=True)
    if result.returncode:
        raise TestbedError(f"{problem}: {result.stderr.strip()}", remedy)


def default_netdev(routes: str) -> str:
    """The interface of the first default route, out of `ip route show default`.

    Raises:
        TestbedError: there is none.
    """
    found = re.search(r"\bdev (\S+)", routes)
    if found is None:
        raise TestbedError("there is no default route to take the interface from.", "Name one:  --netdev eth0")
    return found[1]


def device_on(links: str, netdev: str) -> str | None:
    """The RDMA device on an interface, out of `rdma link show`; None: there is none."""
    return next((device for device, interface in _links(links) if interface == netdev), None)


def _links(links: str) -> Iterator[tuple[str, str]]:
    for line in links.splitlines():
        found = re.match(r"link (\S+)/\d+ .*\bnetdev (\S+)", line)
        if found:
            yield found[1], found[2]


def _output(*command: str) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        raise TestbedError(f"{shlex.join(command)} failed: {(result.stderr or result.stdout).strip()}")
    return result.stdout
