"""Which device, port and GID to use: by rule, or as the configuration says; and what is wrong where none will do."""

from __future__ import annotations

import dataclasses
import errno
import logging
import socket
from collections.abc import Callable, Iterable, Sequence

from fedrdma_fate.transport.endpoint_base import unavailable
from fedrdma_fate.transport.verbs.interface import DeviceInfo, GidEntry, LocalPort, PortInfo
from fedrdma_fate.wire.errors import TransportError

logger = logging.getLogger(__name__)

NAME = "verbs"


@dataclasses.dataclass(frozen=True, slots=True)
class PortPreference:
    """What the configuration asks for; None leaves it to the rule.

    Attributes:
        device: name of the device.
        port: its port.
        gid_index: place in the port's GID table.
        mtu: largest path MTU, bytes.
    """

    device: str | None = None
    port: int | None = None
    gid_index: int | None = None
    mtu: int | None = None


def address_is_ours(address: str) -> bool:
    """Whether an interface of this network namespace has the address; devices of others may be visible too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def select_port(
    devices: Sequence[DeviceInfo], preference: PortPreference, is_ours: Callable[[str], bool] = address_is_ours
) -> LocalPort:
    """The port to use: of the devices that will do, the first by name.

    Without a preference, it is an active port with a RoCE v2 GID that stands for an IPv4 address of this host.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE, which says what is wrong with each device.
    """
    if not devices:
        raise unavailable(
            NAME, "this host has no RDMA device", "`rdma link` lists devices; scripts/testbed makes software ones."
        )
    usable: list[LocalPort] = []
    failures: list[TransportError] = []
    for device in _named(devices, preference.device):
        try:
            usable.append(_port_of(device, preference, is_ours))
        except TransportError as error:
            failures.append(error)
    if not usable:
        if len(failures) == 1:
            raise failures[0]
        reasons = "; ".join(error.message.removeprefix(f"no {NAME} data path: ").rstrip(".") for error in failures)
        raise unavailable(NAME, reasons, "Set verbs.device, verbs.port and verbs.gid_index to what shall be used.")
    if len(usable) > 1:
        names = ", ".join(port.device for port in usable)
        logger.info("several RDMA devices will do (%s): using %s; verbs.device chooses", names, usable[0].device)
    return usable[0]


def _named(devices: Sequence[DeviceInfo], name: str | None) -> Iterable[DeviceInfo]:
    ordered = sorted(devices, key=lambda device: device.name)
    if name is None:
        return ordered
    found = [device for device in ordered if device.name == name]
    if not found:
        there = ", ".join(device.name for device in ordered)
        raise unavailable(NAME, f"there is no RDMA device {name!r}", f"Set verbs.device to one of: {there}.")
    return found


def _port_of(device: DeviceInfo, preference: PortPreference, is_ours: Callable[[str], bool]) -> LocalPort:
    if not device.windows:
        raise unavailable(
            NAME,
            f"{device.name} has no memory windows, without which a peer could write beyond the slots granted to it",
            "Use another device, or transport tcp.",
        )
    port = _active_port(device, preference.port)
    gid = _gid_of(device, port, preference.gid_index, is_ours)
    return LocalPort(
        device.name,
        port.number,
        gid.index,
        gid.address,
        min(port.mtu, preference.mtu or port.mtu),
        port.largest_message,
    )


def _active_port(device: DeviceInfo, number: int | None) -> PortInfo:
    candidates = [port for port in device.ports if number in (None, port.number)]
    if not candidates:
        raise unavailable(NAME, f"{device.name} has no port {number}", f"Set verbs.port to 1 to {len(device.ports)}.")
    active = [port for port in candidates if port.active]
    if not active:
        numbers = ", ".join(str(port.number) for port in candidates)
        raise unavailable(
            NAME,
            f"port {numbers} of {device.name} is down",
            "Bring its network interface up (`rdma link` names it) and check the cable.",
        )
    return active[0]


def _gid_of(device: DeviceInfo, port: PortInfo, index: int | None, is_ours: Callable[[str], bool]) -> GidEntry:
    place = f"port {port.number} of {device.name}"
    table = ", ".join(f"{gid.index}: {gid.address}" for gid in port.gids) or "empty"
    if index is not None:
        found = next((gid for gid in port.gids if gid.index == index), None)
        if found is None:
            raise unavailable(NAME, f"{place} has no GID at index {index}", f"Its GID table: {table}.")
        return found
    mapped = [gid for gid in port.gids if gid.roce_v2 and gid.ipv4 is not None]
    if not mapped:
        raise unavailable(
            NAME,
            f"{place} has no RoCE v2 GID of an IPv4 address",
            f"Give its network interface an IPv4 address, or set verbs.gid_index. Its GID table: {table}.",
        )
    for gid in mapped:
        if gid.ipv4 is not None and is_ours(gid.ipv4):
            return gid
    raise unavailable(
        NAME,
        f"{place} has the address {mapped[0].ipv4}, which no interface of this host has",
        "The device belongs to another network namespace; set verbs.gid_index to use it all the same.",
    )
