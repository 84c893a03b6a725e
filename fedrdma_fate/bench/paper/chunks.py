"""Single transfers of the paper's modes between two engines, with a chunk size and Link-Enable set by hand.

Without gateways: what is timed is the protocol of a mode from its offer to its delivery, and no frames of anybody else.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.paper.networks import Experiment
from fedrdma_fate.bench.report import format_bytes
from fedrdma_fate.bench.wan.runner import Hosts
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.quantities import GIB

_PROGRAM = "deploy.softroce.programs.engine_transfer"
_GUEST_BYTES = GIB
"""Of memory for the guest itself, beside the payloads."""
_ENABLE_BYTES = 4096
"""About the path's MTU."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """How a payload is sent.

    Attributes:
        mode: `fedrdma` or `fedrdma-e`.
        payload_bytes: of the transfer.
        chunk_bytes: base chunk size; the payload's where it is to go at once.
        link_enable: a chunk of 4 KiB goes first.
    """

    mode: str
    payload_bytes: int
    chunk_bytes: int
    link_enable: bool = False

    @property
    def is_whole(self) -> bool:
        return self.chunk_bytes >= self.payload_bytes

    @property
    def label(self) -> str:
        """Such as `4.00 MB` or `whole`, with Link-Enable marked."""
        size = "whole" if self.is_whole else format_bytes(self.chunk_bytes)
        return f"{size} + LE" if self.link_enable else size

    def predicted_bps(self, link: WanLink) -> float:
        """One chunk on its way at a time: chunk / (RTT + chunk / rate)."""
        bits = min(self.chunk_bytes, self.payload_bytes) * 8
        return bits / (link.rtt_seconds + bits / link.rate_bps)

    def arguments(self) -> list[str]:
        """Of the program."""
        sizes = ("--bytes", str(self.payload_bytes), "--chunk", str(min(self.chunk_bytes, self.payload_bytes)))
        return ["--mode", self.mode, *sizes, *(("--enable", str(_ENABLE_BYTES)) if self.link_enable else ())]


@dataclasses.dataclass(frozen=True, slots=True)
class CutResult:
    """A transfer that arrived.

    Attributes:
        cut: how it was sent.
        seconds: virtual, from the offer until the sender knows of the delivery.
        sent_bytes: that left the sender's interface.
        dropped_packets: by the delay line or the bottleneck.
    """

    cut: Cut
    seconds: float
    sent_bytes: int
    dropped_packets: int

    @property
    def bps(self) -> float:
        """Goodput."""
        return self.cut.payload_bytes * 8 / self.seconds

    def to_document(self, link: WanLink) -> dict[str, Any]:
        """For `--json`."""
        return {
            **dataclasses.asdict(self.cut),
            "seconds": self.seconds,
            "sent_bytes": self.sent_bytes,
            "dropped_packets": self.dropped_packets,
            "goodput_bps": self.bps,
            "predicted_bps": self.cut.predicted_bps(link),
        }


def send_cut(experiment: Experiment, link: WanLink, cut: Cut) -> CutResult | None:
    """Send one payload; None where it did not arrive, and the experiment's failures say why."""
    what = f"{cut.mode}, chunk {cut.label}, {link.rate_text}, {experiment.network.name}"
    experiment.tell(what)
    try:
        return _sent(experiment.hosts(link), cut)
    except RowError as error:
        experiment.failures[what] = str(error)
        return None


def _sent(hosts: Hosts, cut: Cut) -> CutResult:
    done = hosts.run([_PROGRAM, *cut.arguments()], _GUEST_BYTES + 4 * cut.payload_bytes)
    try:
        (line,) = (line for line in done.printed if line.startswith("{"))
        told = json.loads(line)
        seconds, sent = float(told["seconds"]), int(told["sent_bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise RowError(f"host 0 did not say how long its transfer took: {list(done.printed)}") from error
    return CutResult(cut, seconds, sent, done.lost_packets + done.overflowed_packets)
