"""The matrix of faults over real verbs: what can be done to two hosts of a testbed, and their gateways there.

It is done in a guest, from host 0, by `tests/nic/programs/verbs_matrix.py`.
"""

from __future__ import annotations

import contextlib
import functools
import random
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.support.certificates import TestAuthority
from tests.support.gateway_faults import GATEWAY_FAULTS, GatewayFault, Heal, Place, nothing
from tests.support.gateway_matrix import DISK_SIZE, SETTINGS, SHARED_MEMORY_SIZE, START_SECONDS
from tests.support.hosts import add_device, gateways_on_hosts, remove_device, set_link, set_packets
from tests.support.private_disks import disks_of_guest
from tests.support.sites import runner_of

HOSTS = (0, 1)


def _pair_broken(place: Place, chance: random.Random, number: signal.Signals) -> Heal:
    """A queue pair of one gateway is in the error state; it makes another one."""
    runner_of(place.sites).signal(place.sites[chance.choice("ab")], number)
    return nothing


def _device_gone(_place: Place, chance: random.Random) -> Heal:
    host = chance.choice(HOSTS)
    remove_device(host)
    return functools.partial(add_device, host)


def _link_down(_place: Place, chance: random.Random) -> Heal:
    host = chance.choice(HOSTS)
    set_link(host, "down")
    return functools.partial(set_link, host, "up")


def _wire(_place: Place, chance: random.Random, netem: tuple[str, ...]) -> Heal:
    """To all that one host sends, or both: of RDMA and of TCP alike."""
    struck = chance.choice(((0,), (1,), HOSTS))
    for host in struck:
        set_packets(host, *netem)

    def undo() -> None:
        for host in struck:
            set_packets(host)

    return undo


VERBS_FAULTS: dict[str, GatewayFault] = {
    "queue pair error": GatewayFault(functools.partial(_pair_broken, number=signal.SIGUSR1)),
    "chunk queue pair error": GatewayFault(functools.partial(_pair_broken, number=signal.SIGUSR2)),
    "device gone": GatewayFault(_device_gone, 1.0),
    "link down": GatewayFault(_link_down, 1.0),
    "wire loses": GatewayFault(functools.partial(_wire, netem=("loss", "20%")), 1.0),
    "wire doubles": GatewayFault(functools.partial(_wire, netem=("duplicate", "20%")), 1.0),
    "wire damages": GatewayFault(functools.partial(_wire, netem=("corrupt", "20%")), 1.0),
    "wire reorders": GatewayFault(functools.partial(_wire, netem=("delay", "2ms", "reorder", "80%")), 1.0),
}
"""What only hosts with cards and a wire between them have."""

FAULTS_OVER_VERBS: dict[str, GatewayFault] = {**GATEWAY_FAULTS, **VERBS_FAULTS}

IN_EVERY_RUN = [
    "none",
    "control reset",
    "both killed",
    "stopped in order",
    "suspended for long",
    "no descriptors",
    *VERBS_FAULTS,
]
"""What meets queue pairs, or the memory that is registered. The others strike connections, disks, certificates, tasks:
`tests/matrix/test_gateway_matrix.py` plays them over other data paths in every run, and sweeps alone over verbs too."""


@contextlib.contextmanager
def place_on_hosts(directory: Path) -> Iterator[Place]:
    """A gateway on each of two hosts, over verbs, with certificates."""
    disk, shared_memory = directory / "disk", directory / "shm"
    for each in (disk, shared_memory):
        each.mkdir(parents=True)
    authority = TestAuthority(directory / "tls")
    settings = {**SETTINGS, "memory": {**SETTINGS["memory"], "directory": str(shared_memory)}}
    with (
        disks_of_guest({disk: DISK_SIZE, shared_memory: SHARED_MEMORY_SIZE}) as disks,
        gateways_on_hosts(
            directory / "sites",
            authority,
            of_site=lambda name: {"memory": {"spill_directory": str(disk / name)}},
            ready_seconds=START_SECONDS,
            **settings,
        ) as sites,
    ):
        yield Place(sites, authority, disks, disk, shared_memory)
