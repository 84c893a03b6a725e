"""Checks of RDMA: devices, ports and GIDs as the kernel shows them, pyverbs, and what the device rule picks."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrdma_fate.doctor.findings import Finding, Level, failure, fine
from fedrdma_fate.doctor.host import VerbsNeed
from fedrdma_fate.transport.verbs.device_selection import PortWish, choose_port
from fedrdma_fate.transport.verbs.interface import MTUS, GidEntry, Verbs, VerbsError
from fedrdma_fate.wire.errors import TransportError

_PACKET_HEADERS_BYTES = 100
"""What RoCE v2 adds to the payload of a packet, rounded up."""


@dataclasses.dataclass(frozen=True, slots=True)
class KernelPort:
    """A port of an RDMA device as the kernel shows it.

    Attributes:
        device: name of the device.
        number: of the port, from 1.
        state: such as `ACTIVE` or `DOWN`.
        link_layer: `Ethernet` or `InfiniBand`.
        rate: as the kernel words it.
        gids: its addresses.
        interface: its network interface, or an empty string.
        interface_mtu: of that, bytes; 0 where it is not known.
    """

    device: str
    number: int
    state: str
    link_layer: str
    rate: str
    gids: tuple[GidEntry, ...]
    interface: str
    interface_mtu: int

    @property
    def ipv4(self) -> tuple[GidEntry, ...]:
        """The GIDs that a RoCE v2 connection can use by our rule."""
        return tuple(gid for gid in self.gids if gid.roce_v2 and gid.ipv4 is not None)


def read_ports(sysfs: Path) -> list[KernelPort]:
    """The ports of all RDMA devices; `sysfs` is /sys. None where there is no RDMA."""
    return [
        _read_port(sysfs, device.name, port)
        for device in _listed(sysfs / "class" / "infiniband")
        for port in _listed(device / "ports")
        if port.name.isdecimal()
    ]


def check_ports(ports: Sequence[KernelPort], need: VerbsNeed) -> list[Finding]:
    """One finding for each port, or one that there is no device."""
    if not ports:
        if need == "required":
            remedy = "`rdma link` lists devices. Load the card's driver, or set transport to auto or tcp."
            return [Finding("rdma device", "error", "none, and the configuration says transport: verbs", remedy)]
        return [fine("rdma device", "none; payloads go by TCP, or through shared memory on one host")]
    return [_check_port(port, need) for port in ports]


def check_pyverbs(load: Callable[[], Verbs], need: VerbsNeed, *, devices: bool) -> tuple[Finding, Verbs | None]:
    """Whether pyverbs can be loaded; where it can, the devices by it. Its absence is the normal case."""
    try:
        verbs = load()
    except TransportError as error:
        if need == "required":
            return failure("pyverbs", error), None
        use = "this host's RDMA device stays unused" if devices else "silos without an RDMA card need none"
        return fine("pyverbs", f"not installed: {use}"), None
    return fine("pyverbs", "installed"), verbs


def check_choice(verbs: Verbs, wish: PortWish, is_ours: Callable[[str], bool], need: VerbsNeed) -> Finding:
    """Which device, port and GID a gateway takes, and why, or why none will do."""
    check = "rdma choice"
    level: Level = "error" if need == "required" else "warning"
    try:
        devices = verbs.devices()
        port = choose_port(devices, wish, is_ours)
    except VerbsError as error:
        remedy = "Check the permissions of /dev/infiniband, and that the device's driver is loaded."
        return Finding(check, level, str(error), remedy)
    except TransportError as error:
        return failure(check, error, level)
    named = [key for key in ("device", "port", "gid_index", "mtu") if getattr(wish, key) is not None]
    why = f"verbs.{', verbs.'.join(named)} in the configuration" if named else _rule(len(devices))
    gid = GidEntry(port.gid_index, port.gid, True).ipv4 or port.gid
    found = f"{port.device} port {port.port}, GID {port.gid_index} ({gid}), MTU {port.mtu}: {why}"
    return fine(check, found)


def _rule(devices: int) -> str:
    first = "the first by name" if devices > 1 else "the only device,"
    return f"{first} with an active port and a RoCE v2 GID of an IPv4 address of this host"


def _check_port(port: KernelPort, need: VerbsNeed) -> Finding:
    check = f"rdma {port.device} port {port.number}"
    addresses = ", ".join(f"{gid.index}: {gid.ipv4}" for gid in port.ipv4) or "none"
    found = f"{port.state}, {port.link_layer}, {port.rate}; {len(port.gids)} GIDs, RoCE v2 with IPv4: {addresses}"
    if port.interface:
        found += f"; {port.interface} has MTU {port.interface_mtu}, so packets carry {_path_mtu(port.interface_mtu)}"
    if need == "unused":
        return fine(check, found)
    interface = port.interface or "its network interface"
    if port.state != "ACTIVE":
        return Finding(check, "warning", found, f"Bring {interface} up, and check the cable.")
    if not port.ipv4:
        return Finding(check, "warning", found, f"Give {interface} an IPv4 address, or set verbs.gid_index.")
    return fine(check, found)


def _path_mtu(interface_mtu: int) -> str:
    carried = max((mtu for mtu in MTUS if mtu + _PACKET_HEADERS_BYTES <= interface_mtu), default=MTUS[0])
    hint = "" if carried == MTUS[-1] else f" (an MTU of 4200 or more would make it {MTUS[-1]})"
    return f"{carried} bytes{hint}"


def _read_port(sysfs: Path, device: str, port: Path) -> KernelPort:
    gids: list[GidEntry] = []
    interface = ""
    for entry in _listed(port / "gids"):
        address = _read(entry)
        kind = _read(port / "gid_attrs" / "types" / entry.name)
        if not entry.name.isdecimal() or not _is_address(address):
            continue
        gids.append(GidEntry(int(entry.name), str(ipaddress.IPv6Address(address)), kind == "RoCE v2"))
        interface = interface or _read(port / "gid_attrs" / "ndevs" / entry.name)
    mtu = _read(sysfs / "class" / "net" / interface / "mtu") if interface else ""
    return KernelPort(
        device=device,
        number=int(port.name),
        # "4: ACTIVE"
        state=_read(port / "state").rpartition(" ")[2] or "unknown state",
        link_layer=_read(port / "link_layer") or "unknown link layer",
        rate=_read(port / "rate") or "unknown rate",
        gids=tuple(sorted(gids, key=lambda gid: gid.index)),
        interface=interface,
        interface_mtu=int(mtu) if mtu.isdecimal() else 0,
    )


def _is_address(text: str) -> bool:
    """Whether a line of the GID table is in use."""
    try:
        return int(ipaddress.IPv6Address(text)) != 0
    except ValueError:
        return False


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    """An attribute of sysfs; reading one that is unset is an error there, and an empty string here."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
