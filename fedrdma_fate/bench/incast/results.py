"""What was measured of rounds, and how it is shown."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from fedrdma_fate.bench.incast.settings import IncastSetting
from fedrdma_fate.bench.plots import Series, bar_plot
from fedrdma_fate.bench.report import DataTable, Plot, format_bytes, format_seconds
from fedrdma_fate.bench.wan.results import PER_CENT


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """One round.

    Attributes:
        seconds: virtual, from the moment when silos may begin until the round has ended.
        up_seconds: until the arbiter has pulled every payload; of a round that ends there the same.
        silo_seconds: until each silo's payload was there.
        resent_bytes: of payloads, sent again by all hosts.
        sent_bytes: that left the interfaces of all hosts, with all headers.
        queue_bytes: most bytes seen in the fullest of the buffers.
        missing_share: of the payloads, that never came.
    """

    seconds: float
    up_seconds: float
    silo_seconds: tuple[float, ...]
    resent_bytes: int
    sent_bytes: int
    queue_bytes: int
    missing_share: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class IncastMeasurement:
    """One row, as measured in one boot of the testbed.

    Attributes:
        name: of the row.
        rounds: one after the other, on the same connections.
        lost_packets: that the WAN lost, in all rounds.
        overflowed_packets: that found a buffer full, in all rounds.
        wall_seconds: of this machine, for all rounds and the boot.
    """

    name: str
    rounds: tuple[Round, ...]
    lost_packets: int
    overflowed_packets: int
    wall_seconds: float

    @property
    def round_seconds(self) -> list[float]:
        """Of each round."""
        return [one.seconds for one in self.rounds]

    @property
    def median_seconds(self) -> float:
        """Of all rounds, the first included."""
        return statistics.median(self.round_seconds)

    @property
    def p99_seconds(self) -> float:
        """What 99 of 100 rounds do not exceed: of fewer than 100 rounds the slowest."""
        return sorted(self.round_seconds)[math.ceil(0.99 * len(self.rounds)) - 1]

    @property
    def silo_mean_seconds(self) -> float:
        """After which a silo's payload was there, the mean of all silos and rounds."""
        return statistics.fmean(seconds for one in self.rounds for seconds in one.silo_seconds)

    @property
    def resent_bytes(self) -> int:
        """Of all rounds together."""
        return sum(one.resent_bytes for one in self.rounds)

    @property
    def queue_bytes(self) -> int:
        """The most in any round."""
        return max(one.queue_bytes for one in self.rounds)

    @property
    def missing_share(self) -> float:
        """Of all payloads of all rounds."""
        return statistics.fmean(one.missing_share for one in self.rounds)


def read_measurement(document: Mapping[str, object]) -> IncastMeasurement:
    """What `dataclasses.asdict` made, read from JSON.

    Raises:
        TypeError, KeyError, ValueError: it is something else.
    """
    told = dict(document)
    rounds = told.pop("rounds")
    if not isinstance(rounds, list):
        raise TypeError("rounds are no list")
    made = tuple(Round(**{**one, "silo_seconds": tuple(one["silo_seconds"])}) for one in rounds)
    return IncastMeasurement(rounds=made, **told)  # type: ignore[arg-type]


def to_document(
    setting: IncastSetting, measurements: Sequence[IncastMeasurement], failures: Mapping[str, str]
) -> dict[str, object]:
    """The result for `--json`; `failures` says by name of a row why it was not measured."""
    return {
        "link": setting.link.to_document(),
        "silos": setting.silos,
        "payload_bytes": setting.payload_bytes,
        "down": setting.down,
        "least_seconds": setting.least_seconds,
        "rows": [_to_row(one) for one in measurements],
        "failures": dict(failures),
    }


def _to_row(measurement: IncastMeasurement) -> dict[str, object]:
    return {
        "name": measurement.name,
        "round_seconds": measurement.round_seconds,
        "resent_bytes": measurement.resent_bytes,
        "queue_bytes": measurement.queue_bytes,
        "missing_share": measurement.missing_share,
        "silo_mean_seconds": measurement.silo_mean_seconds,
        "lost_packets": measurement.lost_packets,
        "overflowed_packets": measurement.overflowed_packets,
        "rounds": [dataclasses.asdict(one) for one in measurement.rounds],
    }


def to_table(setting: IncastSetting, measurements: Sequence[IncastMeasurement]) -> DataTable:
    """The result for people."""
    columns = (
        "",
        "median",
        "× least",
        "first",
        "its × least",
        "p99",
        "mean of a silo",
        "sent again",
        "missing",
        "overflowed",
        "lost",
        "deepest buffer",
    )
    title = f"{setting}; a round takes {format_seconds(setting.least_seconds)} at least; virtual time"
    return DataTable(title, columns, [_cells(setting, one) for one in measurements])


def _cells(setting: IncastSetting, measurement: IncastMeasurement) -> tuple[str, ...]:
    least, first = setting.least_seconds, measurement.rounds[0].seconds
    again = measurement.resent_bytes / (setting.payloads_bytes * len(measurement.rounds))
    return (
        measurement.name,
        format_seconds(measurement.median_seconds),
        f"{measurement.median_seconds / least:.2f}",
        format_seconds(first),
        f"{first / least:.2f}",
        format_seconds(measurement.p99_seconds),
        format_seconds(measurement.silo_mean_seconds),
        f"{again * PER_CENT:.1f} %",
        f"{measurement.missing_share * PER_CENT:.2g} %",
        f"{measurement.overflowed_packets:,}",
        f"{measurement.lost_packets:,}",
        format_bytes(measurement.queue_bytes),
    )


def to_plot(name: str, setting: IncastSetting, measurements: Sequence[IncastMeasurement]) -> Plot:
    """Times of rounds over the least, as bars.

    Args:
        name: of the file, without its ending.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    least, names = setting.least_seconds, [one.name for one in measurements]
    first = Series("first", [one.rounds[0].seconds / least for one in measurements])
    median = Series("median", [one.median_seconds / least for one in measurements])
    image = bar_plot(f"{setting}", "time of a round, × the least possible", names, [first, median])
    return Plot(name, f"Time of a round over the least possible: the first, and the median. {setting}.", image)
