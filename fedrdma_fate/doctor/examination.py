"""All checks of a machine, in the order in which they are shown."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedrdma_fate.aggregate.skmsg import try_skmsg
from fedrdma_fate.client.access import TaskAccess
from fedrdma_fate.client.client import ask_status
from fedrdma_fate.client.remote import ask_remote_status
from fedrdma_fate.doctor.certificates import check_certificates
from fedrdma_fate.doctor.fate import check_fate, check_hooks, check_tables
from fedrdma_fate.doctor.fate_report import FateReport, ask_fresh_interpreter
from fedrdma_fate.doctor.findings import Finding
from fedrdma_fate.doctor.host import (
    LockedMemory,
    VerbsNeed,
    check_directories,
    check_huge_pages,
    check_memlock,
    check_python,
    check_shared_memory,
    read_huge_page_policy,
    read_privilege,
)
from fedrdma_fate.doctor.notices import check_notices
from fedrdma_fate.doctor.rdma import check_choice, check_ports, check_pyverbs, read_ports
from fedrdma_fate.doctor.site import (
    check_config,
    check_gateway,
    check_open_ports,
    check_parent,
    check_peers,
    check_tasks_port,
    uses_udp,
    verbs_need,
)
from fedrdma_fate.doctor.udp import UdpSockets, check_udp, look_at_udp
from fedrdma_fate.gateway.config.schema import GatewayConfig, ListenConfig, MemoryConfig, VerbsConfig
from fedrdma_fate.memory.room import available_bytes
from fedrdma_fate.security.reloading import utc_now
from fedrdma_fate.transport.verbs.device_selection import PortPreference, address_is_ours
from fedrdma_fate.transport.verbs.interface import Verbs
from fedrdma_fate.transport.verbs.transport import load_verbs


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What the checks look at.

    Attributes:
        python: (major, minor).
        system: name of the operating system.
        processor: its architecture.
        sysfs: /sys.
        proc: /proc.
        memlock: the limit of locked memory in bytes, None for none.
        available_bytes: memory that a process may still take.
        load_verbs: see `transport.verbs.transport.load_verbs`.
        address_is_ours: see `transport.verbs.device_selection.address_is_ours`.
        ask_status: see `client.client.ask_status`.
        ask_fate: what a fresh interpreter makes of FATE.
        look_at_udp: what UDP sockets get.
        ask_remote_status: see `client.remote.ask_remote_status`.
        try_skmsg: see `aggregate.skmsg.try_skmsg`.
        now: the time, with its zone.
    """

    python: tuple[int, int]
    system: str
    processor: str
    sysfs: Path
    proc: Path
    memlock: Callable[[], int | None]
    available_bytes: Callable[[], int]
    load_verbs: Callable[[], Verbs]
    address_is_ours: Callable[[str], bool]
    ask_status: Callable[[str], Mapping[str, Any]]
    ask_fate: Callable[[], FateReport]
    look_at_udp: Callable[[], UdpSockets]
    try_skmsg: Callable[[], str] = try_skmsg
    ask_remote_status: Callable[[TaskAccess], bytes] = ask_remote_status
    now: Callable[[], datetime.datetime] = utc_now

    @classmethod
    def this(cls) -> Machine:
        """The machine that this process runs on."""
        return cls(
            python=sys.version_info[:2],
            system=platform.system(),
            processor=platform.machine(),
            sysfs=Path("/sys"),
            proc=Path("/proc"),
            memlock=_memlock,
            available_bytes=available_bytes,
            load_verbs=load_verbs,
            address_is_ours=address_is_ours,
            ask_status=ask_status,
            ask_fate=ask_fresh_interpreter,
            look_at_udp=look_at_udp,
        )


def examine(machine: Machine, config_path: Path | None, address: str | None) -> list[Finding]:
    """Carry out all checks.

    Args:
        machine: what to look at.
        config_path: the gateway's configuration, None to assume the defaults.
        address: of the gateway's socket; None for the configured one.
    """
    configured, config = check_config(config_path)
    socket = address or (ListenConfig() if config is None else config.listen).socket
    reached, status = check_gateway(socket, machine.ask_status)
    memory = MemoryConfig() if config is None else config.memory
    runs = status is not None and (config is None or status.site == config.site)
    report = machine.ask_fate()
    return [
        check_python(machine.python, machine.system, machine.processor),
        configured,
        check_certificates(config, machine.now()),
        *_check_memory(machine, memory, runs),
        check_directories(
            {"listen.socket": _directory_of(socket), "memory.spill_directory": memory.spill_directory}, taken=runs
        ),
        *_check_rdma(machine, config),
        check_udp(machine.look_at_udp(), used=uses_udp(config)),
        check_notices(
            "auto" if config is None else config.aggregate.notices, machine.try_skmsg, status if runs else None
        ),
        *([] if config is None else [check_open_ports(config)]),
        reached,
        *_check_tasks_port(machine, config),
        *([] if status is None else check_peers(status)),
        *([] if status is None else check_parent(status)),
        check_fate(report),
        check_hooks(report),
        check_tables(report),
    ]


def _directory_of(socket: str) -> Path:
    return Path(socket.removeprefix("unix://")).parent


def _check_tasks_port(machine: Machine, config: GatewayConfig | None) -> list[Finding]:
    found = None if config is None else check_tasks_port(config, machine.ask_remote_status)
    return [] if found is None else [found]


def _check_memory(machine: Machine, memory: MemoryConfig, runs: bool) -> list[Finding]:
    usable = os.access(memory.directory, os.W_OK | os.X_OK)
    needed = memory.send_bytes + memory.receive_bytes
    largest = max(memory.send_bytes, memory.receive_bytes)
    return [
        check_shared_memory(memory.directory, usable, machine.available_bytes(), needed, taken=runs),
        check_huge_pages(read_huge_page_policy(machine.sysfs), largest),
    ]


def _check_rdma(machine: Machine, config: GatewayConfig | None) -> list[Finding]:
    need: VerbsNeed = verbs_need(config)
    ports = read_ports(machine.sysfs)
    memory = MemoryConfig() if config is None else config.memory
    locked = LockedMemory(machine.memlock(), read_privilege(machine.proc))
    pyverbs, verbs = check_pyverbs(machine.load_verbs, need, devices=bool(ports))
    found = [*check_ports(ports, need), pyverbs]
    if verbs is not None and ports and need != "unused":
        wished = VerbsConfig() if config is None else config.verbs
        preference = PortPreference(wished.device, wished.port, wished.gid_index, wished.mtu)
        found.append(check_choice(verbs, preference, machine.address_is_ours, need))
    # they are registered, and counted, once for each peer
    peers = 1 if config is None else max(1, len(config.peers))
    needed = (memory.send_bytes + memory.receive_bytes) * peers
    found.append(check_memlock(locked, needed, need, devices=bool(ports)))
    return found


def _memlock() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
