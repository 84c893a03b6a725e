"""The protocols: each is a name that the program `exchange` knows."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence

from fedrdma_fate.bench.incast.rows import GUEST_BYTES, PAYLOADS_PER_SILO, PROCESS_BYTES, SLOT_BYTES
from fedrdma_fate.bench.protocols.brokers import mqtt_problem, zmtp_problem
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.selection import select_by_name

EXCHANGE = "deploy.softroce.programs.exchange"
PACED_SHARE = 0.97
"""Of what the link carries: room for the end that TCP tells, and for what neighbours are early or late by."""


class SentAgainBy(enum.Enum):
    """Who sends lost bytes again, and so knows how many."""

    NOBODY = "what is lost is missing"
    PROTOCOL = "the mode, which says so"
    TCP = "the kernel's TCP, which counts segments"
    DEVICE = "the RDMA device, which tells nobody"


@dataclasses.dataclass(frozen=True, slots=True)
class ProtocolRow:
    """One row.

    Attributes:
        name: as in the table, on the command line, and of the program's protocol.
        sent_again_by: whose count of bytes sent again is the right one.
        loses: whether bytes may never be delivered.
        find_problem: why a model of so many bytes cannot go this way on this machine; None when it can.
    """

    name: str
    sent_again_by: SentAgainBy
    loses: bool = False
    find_problem: Callable[[int], str | None] = lambda _: None

    def program(self, setting: ProtocolSetting, rounds: int) -> list[str]:
        """The module and its arguments."""
        rates = (
            "--down-bps",
            f"{PACED_SHARE * setting.down_bps:.0f}",
            "--up-bps",
            f"{PACED_SHARE * setting.up_bps:.0f}",
        )
        mtu = ("--mtu", str(setting.link.mtu_bytes))
        return [EXCHANGE, self.name, str(setting.model.size), str(rounds), *rates, *mtu]

    def guest_bytes(self, setting: ProtocolSetting) -> int:
        """Memory of the guest: taken as it is used."""
        per_host = PROCESS_BYTES + SLOT_BYTES + PAYLOADS_PER_SILO * setting.model.size
        return GUEST_BYTES + (setting.silos + 1) * per_host


def all_protocol_rows() -> list[ProtocolRow]:
    """What there is without this project, then its modes and transports."""
    return [
        ProtocolRow("tcp-serial", SentAgainBy.TCP),
        ProtocolRow("tcp-cubic", SentAgainBy.TCP),
        ProtocolRow("tcp-bbr", SentAgainBy.TCP),
        ProtocolRow("udp-fedcomm", SentAgainBy.NOBODY, loses=True),
        ProtocolRow("udp-indexed", SentAgainBy.NOBODY, loses=True),
        *(ProtocolRow(f"mqtt-{quality}", SentAgainBy.TCP, find_problem=mqtt_problem) for quality in range(3)),
        ProtocolRow("zmtp-pub", SentAgainBy.TCP, loses=True, find_problem=zmtp_problem),
        ProtocolRow("zmtp-dealer", SentAgainBy.TCP, find_problem=zmtp_problem),
        ProtocolRow("grpc-stream", SentAgainBy.TCP),
        ProtocolRow("grpc/grpc", SentAgainBy.TCP),
        ProtocolRow("fedrdma-e/verbs", SentAgainBy.DEVICE),
        ProtocolRow("fedrdma-e/udp", SentAgainBy.DEVICE),
        ProtocolRow("fedrdma-e/tcp", SentAgainBy.TCP),
        ProtocolRow("fedrdma-x/verbs", SentAgainBy.PROTOCOL),
        ProtocolRow("fedrdma-x/udp", SentAgainBy.PROTOCOL),
        ProtocolRow("fedrdma-x/tcp", SentAgainBy.TCP),
    ]


def select_protocol_rows(names: Sequence[str]) -> list[ProtocolRow]:
    """The rows of these names, in the order of `all_protocol_rows`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none of a name.
    """
    return select_by_name(all_protocol_rows(), names)
