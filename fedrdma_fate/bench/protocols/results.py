"""What was measured of protocols, and how it is shown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from fedrdma_fate.bench.plots import Series, bar_plot
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.report import DataTable, Plot, format_bytes, format_seconds
from fedrdma_fate.bench.wan.results import PER_CENT

GIGA = 1e9
"""Bytes of a GB."""
MEGA = 1e6
"""Bit/s of a Mbit/s."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProtocolRound:
    """One round.

    Attributes:
        seconds: of communication, virtual: from its beginning until the last silo's model was at the server, less the
            silos' computing.
        fedcomm_seconds: by FedComm's clock: from when the server's sends had returned, less the silos' mean computing.
        silo_seconds: as `seconds`, of each silo.
        down_seconds: from the beginning until each silo had the server's model.
        sent_bytes: that left the server's interface, with all headers.
        received_bytes: that came to it.
        resent_bytes: of models, by all hosts; None: nobody knows.
        missing_down_bytes: of models that silos should have received, that never came.
        missing_up_bytes: of the silos' models.
        dropped: datagrams that were not believed.
        accuracy: of the average after the round, where a model is trained: the share of the test that it tells rightly.
        digest: SHA-256 of that average.
        flow_bps: that another TCP flow had beside the models, with stress of the network: the mean of all flows, while
            models came to where they go.
    """

    seconds: float
    fedcomm_seconds: float
    silo_seconds: tuple[float, ...]
    down_seconds: tuple[float, ...]
    sent_bytes: int
    received_bytes: int
    resent_bytes: int | None
    missing_down_bytes: int
    missing_up_bytes: int
    dropped: int
    accuracy: float | None = None
    digest: str | None = None
    flow_bps: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a round took of the machine, the mean of the rounds.

    Attributes:
        server_cpu_seconds: user and system time of the server's processes but the broker, less what making and
            comparing the models takes.
        silos_cpu_seconds: as much, of all silos.
        broker_cpu_seconds: of all brokers; 0 where there is none.
        broker_peak_bytes: resident, of all brokers, each at its largest since it was started.
    """

    server_cpu_seconds: float
    silos_cpu_seconds: float
    broker_cpu_seconds: float
    broker_peak_bytes: int

    @property
    def cpu_seconds(self) -> float:
        """Of all."""
        return self.server_cpu_seconds + self.silos_cpu_seconds + self.broker_cpu_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class ProtocolMeasurement:
    """One row, as measured in one boot of the testbed, or on loopback.

    Attributes:
        name: of the row.
        rounds: one after the other, on the same connections.
        lost_packets: that the network lost, in all rounds.
        overflowed_packets: that found a buffer full, in all rounds.
        wall_seconds: of this machine, for all rounds and the boot.
        usage: of CPU and memory, where it was measured in real time; else None.
    """

    name: str
    rounds: tuple[ProtocolRound, ...]
    lost_packets: int
    overflowed_packets: int
    wall_seconds: float
    usage: Usage | None = None

    @property
    def seconds(self) -> float:
        """Of communication, the median of the rounds."""
        return statistics.median(one.seconds for one in self.rounds)

    @property
    def fedcomm_seconds(self) -> float:
        """By FedComm's clock, the median of the rounds."""
        return statistics.median(one.fedcomm_seconds for one in self.rounds)

    @property
    def first_silo_seconds(self) -> float:
        """Of the silo that was done first, the median of the rounds."""
        return statistics.median(min(one.silo_seconds) for one in self.rounds)

    @property
    def resent_bytes(self) -> int | None:
        """Of all rounds; None: nobody knows."""
        counts = [one.resent_bytes for one in self.rounds if one.resent_bytes is not None]
        return sum(counts) if len(counts) == len(self.rounds) else None

    @property
    def flow_bps(self) -> float | None:
        """That another flow had, the mean of the rounds; None: there was none."""
        rates = [one.flow_bps for one in self.rounds if one.flow_bps is not None]
        return statistics.fmean(rates) if rates else None

    @property
    def missing_bytes(self) -> int:
        """Never delivered, of all rounds, either way."""
        return sum(one.missing_down_bytes + one.missing_up_bytes for one in self.rounds)

    def sent_over_payload(self, payload_bytes: int) -> float:
        """Bytes that left the server over the payload of a round down, the mean of the rounds."""
        return statistics.fmean(one.sent_bytes for one in self.rounds) / payload_bytes

    def received_over_payload(self, payload_bytes: int) -> float:
        """Bytes that came to the server over the payload of a round up, the mean of the rounds."""
        return statistics.fmean(one.received_bytes for one in self.rounds) / payload_bytes


def read_measurement(document: Mapping[str, object]) -> ProtocolMeasurement:
    """What `dataclasses.asdict` made, read from JSON.

    Raises:
        TypeError, KeyError, ValueError: it is something else.
    """
    told = dict(document)
    rounds = told.pop("rounds")
    if not isinstance(rounds, list):
        raise TypeError("rounds are no list")
    made = tuple(
        ProtocolRound(**{**one, "silo_seconds": tuple(one["silo_seconds"]), "down_seconds": tuple(one["down_seconds"])})
        for one in rounds
    )
    used = told.pop("usage", None)
    usage = Usage(**used) if isinstance(used, dict) else None
    return ProtocolMeasurement(rounds=made, usage=usage, **told)  # type: ignore[arg-type]


def to_document(
    setting: ProtocolSetting, measurements: Sequence[ProtocolMeasurement], failures: Mapping[str, str]
) -> dict[str, object]:
    """The result for `--json`; `failures` says by name of a row why it was not measured."""
    return {
        **({} if setting.loopback else {"link": setting.link.to_document(), "limited": setting.limited}),
        "silos": setting.silos,
        "model": setting.model.name,
        "model_bytes": setting.model.size,
        **({} if setting.training is None else setting.training.to_document()),
        **({} if setting.stress is None else setting.stress.to_document()),
        "clock": "real" if setting.loopback else "virtual",
        "rows": [_to_row(setting, one) for one in measurements],
        "failures": dict(failures),
    }


def _to_row(setting: ProtocolSetting, measurement: ProtocolMeasurement) -> dict[str, object]:
    return {
        "name": measurement.name,
        "seconds": measurement.seconds,
        "fedcomm_seconds": measurement.fedcomm_seconds,
        "first_silo_seconds": measurement.first_silo_seconds,
        "sent_over_payload": measurement.sent_over_payload(setting.payload_bytes),
        "received_over_payload": measurement.received_over_payload(setting.payload_bytes),
        "resent_bytes": measurement.resent_bytes,
        "missing_bytes": measurement.missing_bytes,
        **({} if measurement.flow_bps is None else {"flow_bps": measurement.flow_bps}),
        "lost_packets": measurement.lost_packets,
        "overflowed_packets": measurement.overflowed_packets,
        "usage": None if measurement.usage is None else dataclasses.asdict(measurement.usage),
        "rounds": [dataclasses.asdict(one) for one in measurement.rounds],
    }


def to_table(setting: ProtocolSetting, measurements: Sequence[ProtocolMeasurement]) -> DataTable:
    """The result for people."""
    if setting.loopback:
        return _to_usage_table(setting, measurements)
    columns = (
        "",
        "communication",
        "FedComm's clock",
        "first round",
        "first silo",
        "down, × payload",
        "up, × payload",
        "sent again",
        "never delivered",
        "overflowed",
        "lost",
    )
    title = f"{setting}; medians of the rounds, virtual time"
    return _with_flows(DataTable(title, columns, [_cells(setting, one) for one in measurements]), measurements)


def _with_flows(table: DataTable, measurements: Sequence[ProtocolMeasurement]) -> DataTable:
    """A column more where other flows were beside the models."""
    rates = [one.flow_bps for one in measurements]
    if not any(rate is not None for rate in rates):
        return table
    cells = ["none" if rate is None else f"{rate / MEGA:.1f}" for rate in rates]
    rows = [(*row, cell) for row, cell in zip(table.rows, cells, strict=True)]
    return DataTable(table.title, (*table.columns, "another flow, Mbit/s"), rows)


def _to_usage_table(setting: ProtocolSetting, measurements: Sequence[ProtocolMeasurement]) -> DataTable:
    columns = (
        "",
        "communication",
        "CPU s a GB: server",
        "silos",
        "broker",
        "all",
        "broker's peak memory",
        "never delivered",
    )
    title = f"{setting}; real time, CPU over what went down and up, means of the rounds after the first"
    return _with_flows(DataTable(title, columns, [_usage_cells(setting, one) for one in measurements]), measurements)


def _usage_cells(setting: ProtocolSetting, measurement: ProtocolMeasurement) -> tuple[str, ...]:
    payloads = 2 * setting.payload_bytes
    missing = f"{measurement.missing_bytes / payloads / len(measurement.rounds) * PER_CENT:.2g} %"
    used = measurement.usage
    if used is None:
        return (measurement.name, format_seconds(measurement.seconds), *["not measured"] * 5, missing)
    seconds = (used.server_cpu_seconds, used.silos_cpu_seconds, used.broker_cpu_seconds, used.cpu_seconds)
    return (
        measurement.name,
        format_seconds(measurement.seconds),
        *(f"{one / payloads * GIGA:.2f}" for one in seconds),
        format_bytes(used.broker_peak_bytes) if used.broker_peak_bytes else "none",
        missing,
    )


def _cells(setting: ProtocolSetting, measurement: ProtocolMeasurement) -> tuple[str, ...]:
    # both ways
    payloads = 2 * setting.payload_bytes * len(measurement.rounds)
    resent = measurement.resent_bytes
    return (
        measurement.name,
        format_seconds(measurement.seconds),
        format_seconds(measurement.fedcomm_seconds),
        format_seconds(measurement.rounds[0].seconds),
        format_seconds(measurement.first_silo_seconds),
        f"{measurement.sent_over_payload(setting.payload_bytes):.3f}",
        f"{measurement.received_over_payload(setting.payload_bytes):.3f}",
        "not known" if resent is None else f"{resent / payloads * PER_CENT:.1f} %",
        f"{measurement.missing_bytes / payloads * PER_CENT:.2g} %",
        f"{measurement.overflowed_packets:,}",
        f"{measurement.lost_packets:,}",
    )


def to_plot(name: str, setting: ProtocolSetting, measurements: Sequence[ProtocolMeasurement]) -> Plot:
    """Seconds of communication by both clocks, as bars.

    Args:
        name: of the file, without its ending.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    names = [one.name for one in measurements]
    wall = Series("by the wall", [one.seconds for one in measurements])
    fedcomm = Series("by FedComm's clock", [one.fedcomm_seconds for one in measurements])
    image = bar_plot(f"{setting}", "communication of a round, s", names, [wall, fedcomm])
    return Plot(name, f"Communication of a round, by both clocks. {setting}.", image)
