"""A /sys and a /proc for tests, with the RDMA devices that a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

GID = "0000:0000:0000:0000:0000:ffff:0a00:0001"
"""10.0.0.1 as the kernel writes it."""

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def write(path: Path, text: str) -> None:
    """One attribute."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_port(
    sysfs: Path,
    device: str = "mlx5_0",
    number: int = 1,
    *,
    state: str = "4: ACTIVE",
    gids: Sequence[tuple[str, str]] = ((GID, "RoCE v2"),),
    mtu: int = 9000,
) -> None:
    """A port of an RDMA device; each GID is (address, type), unset ones have no type, as in the kernel's table."""
    port = sysfs / "class" / "infiniband" / device / "ports" / str(number)
    for name, text in (("state", state), ("link_layer", "Ethernet"), ("rate", "100 Gb/sec (4X EDR)")):
        write(port / name, text)
    for index, (address, kind) in enumerate(gids):
        write(port / "gids" / str(index), address)
        if kind:
            write(port / "gid_attrs" / "types" / str(index), kind)
            write(port / "gid_attrs" / "ndevs" / str(index), "eth5")
    write(sysfs / "class" / "net" / "eth5" / "mtu", str(mtu))
