"""A round of full GPT-2 tuning: what it sends, and how long it computes."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.bench.paper.published import COMMUNICATION_SHARE_TCP, ROUND_SECONDS_TCP
from fedrdma_fate.bench.payload import named_payload
from fedrdma_fate.bench.wan.results import WanMeasurement

TRANSFERS = 2
"""A round over the WAN: one silo's update to the arbiter, the aggregate back. Five rounds of it are 9.27 GiB, and the
paper says 9.3 GB."""

COMPUTE_SECONDS = ROUND_SECONDS_TCP * (1 / COMMUNICATION_SHARE_TCP - 1)
"""Of the paper's round: 45.9 s of communication are 44.97 % of the whole, 56.2 s are the rest."""


def model_bytes() -> int:
    """All parameters of GPT-2 as float64, which FATE aggregates in."""
    return named_payload("gpt2-full").total_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """How long a round takes.

    Attributes:
        communication: virtual seconds of its transfers.
        compute: seconds, as given.
        sample_seconds: of the transfers that it was made of, as they were measured.
    """

    communication: float
    compute: float
    sample_seconds: tuple[float, ...]

    @property
    def total(self) -> float:
        """End to end; one after the other."""
        return self.communication + self.compute

    @property
    def share(self) -> float:
        """Communication's, of the whole."""
        return self.communication / self.total


def round_of(measurement: WanMeasurement, sample_bytes: int, compute: float) -> Round:
    """A round whose transfers cost what the sample's later ones did, in proportion to their size."""
    communication = TRANSFERS * measurement.median_seconds * model_bytes() / sample_bytes
    return Round(communication, compute, tuple(transfer.seconds for transfer in measurement.later))
