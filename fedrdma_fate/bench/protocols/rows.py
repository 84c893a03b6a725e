"""The protocols: each is a name that the program `exchange` knows."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping, Sequence

from fedrdma_fate.bench.incast.rows import GUEST_BYTES, PAYLOADS_PER_SILO, PROCESS_BYTES, SLOT_BYTES
from fedrdma_fate.bench.protocols.brokers import (
    amqp_note,
    amqp_problem,
    fate_osx_problem,
    fate_pulsar_problem,
    fate_rabbitmq_problem,
    find_rabbitmq,
    mqtt_problem,
    quic_problem,
    zmtp_problem,
)
from fedrdma_fate.bench.protocols.running import RunningBroker
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.protocols.training import TORCH_BYTES
from fedrdma_fate.bench.selection import select_by_name

EXCHANGE = "deploy.softroce.programs.exchange"
PACED_SHARE = 0.97
"""Of what the link carries: room for the end that TCP tells, and for what neighbours are early or late by."""

BROKER_BYTES = 2 * 2**30
"""Of a guest in which RabbitMQ runs: from 40 % of its memory on it would take no more messages."""
FATE_BYTES = 512 * 2**20
"""Of FATE with torch in a host's process, and in the worker of its computing engine."""
BROKER_PAYLOADS = 4
"""Of each silo, that a broker holds and its sockets' buffers."""


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
        find_note: what is to be said of how a model of so many bytes goes this way; None: nothing.
        needs_rabbitmq: rows that do share a boot of the testbed, and in it the broker.
        by_name: measured only where it is named, and in a boot of its own: it takes longer than all others together.
        host_bytes: of memory that its program takes at each host, beside what all take.
        broker_at_each: every host has a broker of its own.
        only_on_loopback: why a network has no such row; None: it has.
        running_option: names a broker that runs already, by which alone it is measured; None: it needs none.
        running: that broker; None: none was named.
    """

    name: str
    sent_again_by: SentAgainBy
    loses: bool = False
    find_problem: Callable[[int], str | None] = lambda _: None
    find_note: Callable[[int], str | None] = lambda _: None
    needs_rabbitmq: bool = False
    by_name: bool = False
    host_bytes: int = 0
    broker_at_each: bool = False
    only_on_loopback: str | None = None
    running_option: str | None = None
    running: RunningBroker | None = None

    def problem(self, setting: ProtocolSetting) -> str | None:
        """Why it cannot be measured in a setting on this machine; None when it can."""
        if self.only_on_loopback is not None and not setting.loopback:
            return f"is measured with --loopback alone: {self.only_on_loopback}"
        if self.running_option is not None and self.running is None:
            return f"needs a broker that runs: {self.running_option} HOST:PORT"
        if (problem := self.find_problem(setting.model.size)) is not None:
            return problem
        return None if self.running is None else self.running.find_problem()

    def note(self, setting: ProtocolSetting) -> str | None:
        """What is to be said of how a model goes this way; None: nothing."""
        if self.running is not None:
            where = f"{self.running.host}:{self.running.port}"
            return f"the broker at {where} is not the command's: its CPU time and memory are not counted"
        return self.find_note(setting.model.size)

    def program(self, setting: ProtocolSetting, rounds: int, beside: Sequence[ProtocolRow] = ()) -> list[str]:
        """The module and its arguments; further rows come after this one, in the same boot."""
        rates = (
            "--down-bps",
            f"{PACED_SHARE * setting.down_bps:.0f}",
            "--up-bps",
            f"{PACED_SHARE * setting.up_bps:.0f}",
        )
        mtu = ("--mtu", str(setting.link.mtu_bytes))
        names = ",".join(row.name for row in (self, *beside))
        train = () if setting.training is None else setting.training.arguments
        stress = () if setting.stress is None else setting.stress.arguments
        running = () if self.running is None else ("--running", str(self.running))
        return [EXCHANGE, names, str(setting.model.size), str(rounds), *rates, *mtu, *train, *stress, *running]

    def shares_boot_with(self, other: ProtocolRow) -> bool:
        """Whether both are measured in one boot of the testbed: the broker takes longer to start than a row takes."""
        return self.needs_rabbitmq and other.needs_rabbitmq and not (self.by_name or other.by_name)

    def guest_bytes(self, setting: ProtocolSetting) -> int:
        """Memory of the guest: taken as it is used."""
        per_host = PROCESS_BYTES + SLOT_BYTES + PAYLOADS_PER_SILO * setting.model.size + self.host_bytes
        if setting.training is not None:
            per_host += TORCH_BYTES
        broker = BROKER_BYTES + BROKER_PAYLOADS * setting.payload_bytes if self.needs_rabbitmq else 0
        brokers = setting.silos + 1 if self.broker_at_each else 1
        return GUEST_BYTES + (setting.silos + 1) * per_host + brokers * broker


def all_protocol_rows() -> list[ProtocolRow]:
    """What there is without this project, then its modes and transports."""
    return [
        ProtocolRow("tcp-serial", SentAgainBy.TCP),
        ProtocolRow("tcp-cubic", SentAgainBy.TCP),
        ProtocolRow("tcp-bbr", SentAgainBy.TCP),
        ProtocolRow("udp-fedcomm", SentAgainBy.NOBODY, loses=True),
        ProtocolRow("udp-indexed", SentAgainBy.NOBODY, loses=True),
        *(ProtocolRow(f"mqtt-{quality}", SentAgainBy.TCP, find_problem=mqtt_problem) for quality in range(3)),
        _amqp_row("amqp-fanout"),
        _amqp_row("amqp-confirm"),
        ProtocolRow("zmtp-pub", SentAgainBy.TCP, loses=True, find_problem=zmtp_problem),
        ProtocolRow("zmtp-dealer", SentAgainBy.TCP, find_problem=zmtp_problem),
        ProtocolRow("grpc-stream", SentAgainBy.TCP),
        ProtocolRow("quic", SentAgainBy.PROTOCOL, find_problem=quic_problem),
        _fate_row("fate-rabbitmq"),
        _fate_row("fate-rabbitmq-replication", broker_at_each=True),
        _running_row("fate-osx", "--osx", fate_osx_problem),
        _running_row("fate-pulsar", "--pulsar", fate_pulsar_problem),
        ProtocolRow("grpc/grpc", SentAgainBy.TCP),
        ProtocolRow("fedrdma-e/verbs", SentAgainBy.DEVICE),
        ProtocolRow("fedrdma-e/udp", SentAgainBy.DEVICE),
        ProtocolRow("fedrdma-e/tcp", SentAgainBy.TCP),
        ProtocolRow("fedrdma-x/verbs", SentAgainBy.PROTOCOL),
        ProtocolRow("fedrdma-x/udp", SentAgainBy.PROTOCOL),
        ProtocolRow("fedrdma-x/tcp", SentAgainBy.TCP),
        ProtocolRow("fedrdma-x/shm", SentAgainBy.PROTOCOL, only_on_loopback="memory is shared within one host"),
    ]


def _amqp_row(name: str) -> ProtocolRow:
    return ProtocolRow(name, SentAgainBy.TCP, find_problem=amqp_problem, find_note=amqp_note, needs_rabbitmq=True)


def _fate_row(name: str, *, broker_at_each: bool = False) -> ProtocolRow:
    return ProtocolRow(
        name,
        SentAgainBy.TCP,
        find_problem=fate_rabbitmq_problem,
        needs_rabbitmq=True,
        by_name=True,
        host_bytes=FATE_BYTES,
        broker_at_each=broker_at_each,
    )


def _running_row(name: str, option: str, find_problem: Callable[[int], str | None]) -> ProtocolRow:
    return ProtocolRow(
        name,
        SentAgainBy.TCP,
        find_problem=find_problem,
        host_bytes=FATE_BYTES,
        only_on_loopback="hosts of the testbed do not reach a broker of this machine",
        running_option=option,
    )


def by_running(rows: Sequence[ProtocolRow], brokers: Mapping[str, RunningBroker]) -> list[ProtocolRow]:
    """The rows with the brokers that were named, by option."""
    return [
        row if row.running_option is None else dataclasses.replace(row, running=brokers.get(row.running_option))
        for row in rows
    ]


def lacks_rabbitmq(rows: Sequence[ProtocolRow]) -> bool:
    """Whether one of them needs the broker, and there is none."""
    return any(row.needs_rabbitmq for row in rows) and find_rabbitmq() is None


def usual_protocol_rows(*, loopback: bool = False, options: Collection[str] = ()) -> list[ProtocolRow]:
    """Those that are measured where none is named.

    Args:
        options: that name brokers that run.
    """
    return [
        row
        for row in all_protocol_rows()
        if not row.by_name
        and (loopback or row.only_on_loopback is None)
        and (row.running_option is None or row.running_option in options)
    ]


def select_protocol_rows(names: Sequence[str]) -> list[ProtocolRow]:
    """The rows of these names, in the order of `all_protocol_rows`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none of a name.
    """
    return select_by_name(all_protocol_rows(), names)
