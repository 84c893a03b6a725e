"""What was measured over a WAN, and how it is shown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from fedrdma_fate.bench.plots import Series, bar_plot
from fedrdma_fate.bench.report import DataTable, Plot, format_bytes, format_seconds
from fedrdma_fate.bench.wan.wan_link import WanLink

PER_CENT = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """One payload from host 0 to host 1.

    Attributes:
        seconds: virtual, until host 0 knows that host 1 has it.
        resent_bytes: of the payload, sent again.
        sent_bytes: that left host 0's interface meanwhile, with all headers.
    """

    seconds: float
    resent_bytes: int
    sent_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class WanMeasurement:
    """One row, as measured in one boot of the testbed.

    Attributes:
        name: of the row.
        first: the transfer on connections that had carried nothing.
        later: those after it, on the same connections.
        lost_packets: that the WAN lost of what host 0 sent, in all transfers.
        overflowed_packets: that did not fit into the bottleneck's buffer in front of host 1, in all transfers.
        policed_packets: that a policer in front of host 1 dropped, in all transfers.
        wall_seconds: of this machine, for all transfers and the boot.
        first_queue_bytes: in the bottleneck's buffer in front of host 1 at most, until the first transfer had ended.
        queue_bytes: the same, in those after it.
    """

    name: str
    first: Transfer
    later: tuple[Transfer, ...]
    lost_packets: int
    overflowed_packets: int
    wall_seconds: float
    first_queue_bytes: int = 0
    queue_bytes: int = 0
    policed_packets: int = 0

    @property
    def median_seconds(self) -> float:
        """Of the later transfers."""
        return statistics.median(transfer.seconds for transfer in self.later)

    @property
    def resent_bytes(self) -> int:
        """Of the later transfers, the median."""
        return int(statistics.median(transfer.resent_bytes for transfer in self.later))

    @property
    def sent_bytes(self) -> int:
        """Of the later transfers, the median."""
        return int(statistics.median(transfer.sent_bytes for transfer in self.later))


def to_document(
    link: WanLink, payload_bytes: int, measurements: Sequence[WanMeasurement], failures: Mapping[str, str]
) -> dict[str, object]:
    """The result for `--json`; `failures` says by name of a row why it was not measured."""
    rows = [_to_row(link, payload_bytes, measurement) for measurement in measurements]
    return {"link": link.to_document(), "payload_bytes": payload_bytes, "rows": rows, "failures": dict(failures)}


def _to_row(link: WanLink, payload_bytes: int, measurement: WanMeasurement) -> dict[str, object]:
    return {
        "name": measurement.name,
        "seconds": measurement.median_seconds,
        "goodput_share": link.share(payload_bytes, measurement.median_seconds),
        "resent_bytes": measurement.resent_bytes,
        "sent_bytes": measurement.sent_bytes,
        "first_seconds": measurement.first.seconds,
        "first_goodput_share": link.share(payload_bytes, measurement.first.seconds),
        "first_resent_bytes": measurement.first.resent_bytes,
        "later_seconds": [transfer.seconds for transfer in measurement.later],
        "lost_packets": measurement.lost_packets,
        "overflowed_packets": measurement.overflowed_packets,
        "policed_packets": measurement.policed_packets,
        "first_queue_bytes": measurement.first_queue_bytes,
        "queue_bytes": measurement.queue_bytes,
    }


def to_table(link: WanLink, payload_bytes: int, measurements: Sequence[WanMeasurement]) -> DataTable:
    """The result for people."""
    columns = (
        "",
        "median",
        "share",
        "slowest",
        "first",
        "its share",
        "sent again",
        "lost",
        "overflowed",
        *(["policed"] if link.policer is not None else []),
        "first queue",
        "queue",
    )
    rows = [_cells(link, payload_bytes, measurement) for measurement in measurements]
    return DataTable(f"{payload_bytes:,} bytes over {link}; virtual time", columns, rows)


def _cells(link: WanLink, payload_bytes: int, measurement: WanMeasurement) -> tuple[str, ...]:
    return (
        measurement.name,
        format_seconds(measurement.median_seconds),
        _per_cent(link.share(payload_bytes, measurement.median_seconds)),
        format_seconds(max(transfer.seconds for transfer in measurement.later)),
        format_seconds(measurement.first.seconds),
        _per_cent(link.share(payload_bytes, measurement.first.seconds)),
        format_bytes(measurement.resent_bytes),
        f"{measurement.lost_packets:,}",
        f"{measurement.overflowed_packets:,}",
        *([f"{measurement.policed_packets:,}"] if link.policer is not None else []),
        format_bytes(measurement.first_queue_bytes),
        format_bytes(measurement.queue_bytes),
    )


def _per_cent(share: float) -> str:
    return f"{share * PER_CENT:.1f} %"


def to_plots(link: WanLink, payload_bytes: int, measurements: Sequence[WanMeasurement]) -> list[Plot]:
    """Share of the link, and bytes sent again, each as bars.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    names = [measurement.name for measurement in measurements]
    first = [link.share(payload_bytes, one.first.seconds) * PER_CENT for one in measurements]
    later = [link.share(payload_bytes, one.median_seconds) * PER_CENT for one in measurements]
    again = [one.resent_bytes / payload_bytes * PER_CENT for one in measurements]
    title = f"{format_bytes(payload_bytes)}, {link}"
    goodput = bar_plot(title, "goodput, % of the link", names, [Series("first", first), Series("later", later)])
    resent = bar_plot(title, "sent again, % of the payload", names, [Series("sent again", again)])
    return [
        Plot("bench-wan-goodput", "Goodput as a share of the link: first transfer, median of the later ones.", goodput),
        Plot("bench-wan-resent", "Bytes sent again as a share of the payload, median of the later transfers.", resent),
    ]
