"""What is measured over a WAN: each row is a program for the two hosts of the testbed."""

from __future__ import annotations

import dataclasses
import enum
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.bench.selection import select_by_name
from fedrdma_fate.bench.wan.results import Transfer
from fedrdma_fate.bench.wan.wan_link import LARGEST_RDMA_PACKET_BYTES
from fedrdma_fate.quantities import GIB

MOST_REGISTERED_BYTES = 10**9
"""Of a payload in a registered region of the testbed: Soft-RoCE has refused 1 GiB."""
PACKET_HEADER_BYTES = 58
"""Ethernet, IPv4, UDP, the base transport header and the checksum of a RoCE v2 packet."""
CHUNK_ALLOWANCE_BYTES = 256
"""For a chunk's extended headers, its acknowledgement and the frames that go with it."""


class ResentBy(enum.Enum):
    """Who sends lost bytes again in a row, and so knows how many."""

    PROTOCOL = "the mode, which says so"
    TCP = "the kernel's TCP, which counts segments"
    DEVICE = "the RDMA device, which tells nobody: what it sent is counted"


@dataclasses.dataclass(frozen=True, slots=True)
class WanRow:
    """One row.

    Attributes:
        name: as in the table and on the command line.
        module: of the program that both hosts run; host 0 prints a list of its transfers as JSON.
        before: arguments before the payload's size and the number of transfers.
        resent_by: whose count of bytes sent again is the right one.
        slots: of the payload's size that the hosts take memory for.
        most_bytes: of a payload, that the testbed carries this way; None: no limit is known.
        needs: a program that must be on the machine beside Python; the Debian package has the same name.
    """

    name: str
    module: str
    before: tuple[str, ...]
    resent_by: ResentBy
    slots: float
    most_bytes: int | None = None
    needs: str | None = None

    def problem(self, payload_bytes: int) -> str | None:
        """Why a payload cannot be measured this way on this machine; None when it can."""
        if self.needs is not None and find_program(self.needs) is None:
            return f"needs the program {self.needs}: apt-get install {self.needs}"
        if self.most_bytes is not None and payload_bytes > self.most_bytes:
            return (
                f"the testbed's devices register no region for {payload_bytes:,} bytes: at most {self.most_bytes:,}; "
                "take a smaller --size, and --repeat for more of them"
            )
        return None

    def program(self, payload_bytes: int, transfers: int) -> list[str]:
        """The module and its arguments."""
        return [self.module, *self.before, str(payload_bytes), str(transfers)]

    def guest_bytes(self, payload_bytes: int) -> int:
        """Memory of the guest: the hosts' slots, what is under way, and the guest itself."""
        return int(2 * GIB + self.slots * payload_bytes)

    def to_transfer(
        self, told: Mapping[str, Any], payload_bytes: int, packet_bytes: int = LARGEST_RDMA_PACKET_BYTES
    ) -> Transfer:
        """What host 0 says of one transfer, in RDMA packets that carry so much.

        Raises:
            KeyError: it does not say enough.
        """
        sent = int(told["sent_bytes"])
        match self.resent_by:
            case ResentBy.PROTOCOL:
                resent = int(told["resent_bytes"])
            case ResentBy.TCP:
                resent = int(told["tcp_resent_bytes"])
            case ResentBy.DEVICE:
                resent = resent_by_device(sent, payload_bytes, int(told.get("chunks") or 1), packet_bytes)
        return Transfer(float(told["seconds"]), resent, sent)


def resent_by_device(
    sent_bytes: int, payload_bytes: int, chunks: int, packet_bytes: int = LARGEST_RDMA_PACKET_BYTES
) -> int:
    """How much of a payload a device sent again, in whole packets, by what left its interface.

    Args:
        sent_bytes: with all headers.
        payload_bytes: of the transfer.
        chunks: that it was cut into.
        packet_bytes: of payload that a packet carries.
    """
    packets = -(-payload_bytes // packet_bytes)
    least = payload_bytes + packets * PACKET_HEADER_BYTES + chunks * CHUNK_ALLOWANCE_BYTES
    again = max(0, sent_bytes - least) // (packet_bytes + PACKET_HEADER_BYTES)
    return again * packet_bytes


def find_program(name: str) -> str | None:
    """Where a program is: beside this Python, or on the path."""
    beside = Path(sys.executable).parent
    return shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")


def all_wan_rows() -> list[WanRow]:
    """The ways that there are without this project, then its modes."""
    programs = "deploy.softroce.programs"
    one_shot, tcp, gateways = (f"{programs}.{name}" for name in ("one_shot", "tcp_streams", "gateway_transfers"))
    iperf3, most = f"{programs}.iperf3_transfers", MOST_REGISTERED_BYTES
    return [
        WanRow("tcp-cubic", tcp, ("cubic", "1"), ResentBy.TCP, 0.5),
        WanRow("tcp-bbr", tcp, ("bbr", "1"), ResentBy.TCP, 0.5),
        WanRow("iperf3-cubic", iperf3, ("cubic",), ResentBy.TCP, 0.5, needs="iperf3"),
        WanRow("iperf3-bbr", iperf3, ("bbr",), ResentBy.TCP, 0.5, needs="iperf3"),
        WanRow("tcp-8", tcp, ("cubic", "8"), ResentBy.TCP, 0.5),
        WanRow("grpc", gateways, ("grpc",), ResentBy.TCP, 4.5, most),
        WanRow("one-shot", one_shot, (), ResentBy.DEVICE, 4.5, most),
        WanRow("fedrdma", gateways, ("fedrdma",), ResentBy.DEVICE, 4.5, most),
        WanRow("fedrdma-e", gateways, ("fedrdma-e",), ResentBy.DEVICE, 4.5, most),
        WanRow("fedrdma-x-repeat", gateways, ("fedrdma-x-repeat",), ResentBy.PROTOCOL, 4.5, most),
        WanRow("fedrdma-x", gateways, ("fedrdma-x",), ResentBy.PROTOCOL, 4.5, most),
        WanRow("fedrdma-x-sealed", gateways, ("fedrdma-x-sealed",), ResentBy.PROTOCOL, 4.5, most),
        WanRow("fedrdma-x-udp", gateways, ("fedrdma-x-udp",), ResentBy.PROTOCOL, 4.5, most),
        WanRow("fedrdma-x-udp-sealed", gateways, ("fedrdma-x-udp-sealed",), ResentBy.PROTOCOL, 4.5, most),
    ]


def select_wan_rows(names: Sequence[str]) -> list[WanRow]:
    """The rows of these names, in the order of `all_wan_rows`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none of a name.
    """
    return select_by_name(all_wan_rows(), names)
