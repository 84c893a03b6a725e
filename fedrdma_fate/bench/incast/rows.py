"""The ways that payloads of many silos go to one arbiter: each is a kind of the program `rounds`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fedrdma_fate.bench.incast.settings import IncastSetting
from fedrdma_fate.bench.selection import select_by_name
from fedrdma_fate.bench.wan.rows import ResentBy

PROGRAM = "deploy.softroce.programs.rounds"
GUEST_BYTES = 2**30
"""Of the guest itself, and what its queues hold."""
PROCESS_BYTES = 128 * 2**20
"""Of a host's program: Python with what a gateway imports."""
SLOT_BYTES = 28 * 2**20
"""Of a gateway's regions, beside the payloads: see `rounds`."""
PAYLOADS_PER_SILO = 6
"""Sent, received, and granted ahead, at the silo and at the arbiter."""


@dataclasses.dataclass(frozen=True, slots=True)
class IncastRow:
    """One row.

    Attributes:
        name: as in the table and on the command line.
        resent_by: whose count of bytes sent again is the right one.
        settings: of the gateways' configuration, as `--set` of the program takes them.
    """

    name: str
    kind: str
    resent_by: ResentBy
    settings: tuple[str, ...] = ()

    def program(self, setting: IncastSetting, rounds: int) -> list[str]:
        """The module and its arguments."""
        down = ["--down"] if setting.down else []
        more = [argument for each in self.settings for argument in ("--set", each)]
        return [PROGRAM, self.kind, str(setting.payload_bytes), str(rounds), *down, *more]

    def guest_bytes(self, setting: IncastSetting) -> int:
        """Memory of the guest: taken as it is used."""
        per_host = PROCESS_BYTES + SLOT_BYTES + PAYLOADS_PER_SILO * setting.payload_bytes
        return GUEST_BYTES + (setting.silos + 1) * per_host


def all_incast_rows() -> list[IncastRow]:
    """This project's ways, then what there is without it."""
    return [
        IncastRow("fedrdma-x", "fedrdma-x", ResentBy.PROTOCOL),
        IncastRow("fedrdma-x-unshared", "fedrdma-x", ResentBy.PROTOCOL, ('receive={"share": "off"}',)),
        IncastRow("fedrdma-x-udp", "fedrdma-x-udp", ResentBy.PROTOCOL),
        IncastRow("tcp-cubic", "tcp-cubic", ResentBy.TCP),
        IncastRow("tcp-bbr", "tcp-bbr", ResentBy.TCP),
        IncastRow("tcp-reno", "tcp-reno", ResentBy.TCP),
        IncastRow("grpc", "grpc", ResentBy.TCP),
    ]


def select_incast_rows(names: Sequence[str]) -> list[IncastRow]:
    """The rows of these names, in the order of `all_incast_rows`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none of a name.
    """
    return select_by_name(all_incast_rows(), names)
