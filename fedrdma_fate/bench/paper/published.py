"""What the papers state in their text and tables, and nothing read off a plot: FedRDMA's, at the end FedComm's."""

from __future__ import annotations

import dataclasses

NOT_STATED = "not stated"

RTT_TEXT = "20ms"
"""Section 4.1: the round trip of all its measurements."""

ROUND_SECONDS_TCP = 45.9
"""Section 1: to transfer the model's weights in a round of full GPT-2 tuning at 10 Gbit/s, by FATE's gRPC."""
COMMUNICATION_SHARE_TCP = 0.4497
"""Sections 1 and 2.1: communication's share of the total time, the same case."""
LARGEST_RATIO = 28.4
"""Section 2.1: communication over computation at the lowest bandwidth of Figure 1, which the text does not name."""
TRAFFIC_GB, EPOCHS = 9.3, 5
"""Sections 4.2 and 4.1: over the WAN during training."""
COMMUNICATION_SAVED_E, TOTAL_SAVED_E = 0.739, 0.333
"""Section 4.2, Figure 7: by FedRDMA-E, of communication and of end-to-end time."""
COMMUNICATION_FACTOR, TOTAL_FACTOR = 2.913, 2.381
"""Section 4.2, Figure 7: by FedRDMA, how much faster communication and federated learning become."""
MOST_RANKS_SAVED = 0.70
"""Section 4.4, Figure 8: more than this of communication time in the majority of cases."""
RANK_16_FACTOR = 2.37
"""Section 4.4, Figure 8: for LoRA rank 16."""


@dataclasses.dataclass(frozen=True, slots=True)
class BandwidthColumn:
    """A column of Table 2.

    Attributes:
        label: Gbit/s as printed.
        lowest_gbit, highest_gbit: the range it covers.
        largest_chunk, best_chunk: as printed.
        link_enable: whether it is needed.
        seconds: for 1 GB.
        about: whether the seconds are marked as approximate.
    """

    label: str
    lowest_gbit: int
    highest_gbit: int
    largest_chunk: str
    best_chunk: str
    link_enable: bool
    seconds: float
    about: bool = False

    @property
    def latency(self) -> str:
        """As printed."""
        return f"{'~' if self.about else ''}{self.seconds:.2f} s"


TABLE_2 = (
    BandwidthColumn("1", 1, 1, "1GB", "1GB", False, 8.16),
    BandwidthColumn("2", 2, 2, "1GB", "1GB", False, 4.10),
    BandwidthColumn("3", 3, 3, "1GB", "1GB", False, 2.77),
    BandwidthColumn("4-5", 4, 5, "12MB", "4MB", True, 6.57, about=True),
    BandwidthColumn("6-9", 6, 9, "4MB", "4MB", True, 6.11, about=True),
    BandwidthColumn("10", 10, 10, "4MB", "4MB", True, 6.00),
    BandwidthColumn("100", 100, 100, "4MB", "4MB", True, 5.98),
)


def column_for(rate_bps: int) -> BandwidthColumn | None:
    """The column of Table 2 that covers a rate."""
    return next((one for one in TABLE_2 if one.lowest_gbit * 10**9 <= rate_bps <= one.highest_gbit * 10**9), None)


@dataclasses.dataclass(frozen=True, slots=True)
class CostRow:
    """A row of Table 4: the cost of 1 GB.

    Attributes:
        method: as printed.
        memory_mb: beyond the payload.
        seconds: of the transfer.
        watts: of the network card.
        joules: energy.
    """

    method: str
    memory_mb: float
    seconds: float
    watts: float
    joules: float


STANDARD_CARD_WATTS, RDMA_CARD_WATTS = 5.1, 18.7
"""Table 4's power. Its energy is this times its time."""

TABLE_4 = {
    "grpc": CostRow("FedLLM", 13.8, 24.6, STANDARD_CARD_WATTS, 125.2),
    "fedrdma": CostRow("FedRDMA", 60.0, 9.4, RDMA_CARD_WATTS, 175.4),
    "fedrdma-e": CostRow("FedRDMA-E", 0.025, 6.0, RDMA_CARD_WATTS, 112.6),
}
"""By the mode that is ours."""

AMQP_FACTORS = {"3g": 1.75, "4g": 2.15, "wifi": 2.5}
"""FedComm, Figure 8: how much faster AMQP is than TCP. For which model is not said."""
CPU_STRESS_ADDS = {
    ("tcp-serial", "vgg5"): 16.82,
    ("udp-fedcomm", "vgg5"): 2.72,
    ("tcp-serial", "vgg8"): 22.61,
    ("udp-fedcomm", "vgg8"): 49.19,
}
"""FedComm, Figure 4: seconds of communication, the sum of its networks, by our rows that are its TCP and UDP."""
CPU_STRESS_ADDS_VGG8 = {"tcp-serial": 22.5, "mqtt-0": 40.6, "amqp-fanout": 42.3}
"""FedComm, Figure 9: the same of its brokers, with VGG-8."""
NETWORK_STRESS_ADDS_VGG8 = {"tcp-serial": 158.0, "mqtt-0": 123.0, "amqp-fanout": 114.0}
"""FedComm, Figure 10, with VGG-8."""
ACCURACY_DIFFERS = 0.005
"""FedComm, Figure 11: less than this between TCP and its application layer protocols."""
TCP_ACCURACY_VGG5 = {1: 0.4448, 5: 0.6448, 10: 0.7089, 50: 0.7965, 100: 0.8151}
"""Of FedComm's repository, `TestSuite/IntegrationTest.py`: by round, on CIFAR-10."""
