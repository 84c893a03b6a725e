"""Every way to move a payload that is measured, one file each."""

from __future__ import annotations

from collections.abc import Sequence

from fedrdma_fate.bench.baselines.disk import Disk
from fedrdma_fate.bench.baselines.fate_rabbitmq import FateRabbitMq
from fedrdma_fate.bench.baselines.fate_standalone import FateStandalone
from fedrdma_fate.bench.baselines.gateways import GatewayPair
from fedrdma_fate.bench.baselines.interface import Baseline
from fedrdma_fate.bench.baselines.memcpy import Memcpy
from fedrdma_fate.bench.baselines.quic import Quic
from fedrdma_fate.bench.baselines.raw_tcp import RawTcp
from fedrdma_fate.bench.baselines.raw_udp import RawUdp
from fedrdma_fate.bench.selection import select_by_name

__all__ = ["Baseline", "all_baselines", "select_baselines", "usual_baselines"]


def all_baselines() -> list[Baseline]:
    """The references that ratios are made with, then each mode over each transport; the slowest comes last."""
    return [
        Memcpy(),
        RawTcp(),
        RawUdp(),
        Quic(),
        Disk(),
        GatewayPair("fedrdma-e", "shm"),
        GatewayPair("fedrdma-e", "shm", lend=False),
        GatewayPair("fedrdma-e", "tcp"),
        GatewayPair("fedrdma-e", "tcp", kept="nothing"),
        GatewayPair("fedrdma-e", "tcp", kept="on disk"),
        GatewayPair("fedrdma-e", "tcp", seal="integrity"),
        GatewayPair("fedrdma-e", "tcp", seal="on"),
        GatewayPair("fedrdma-x", "shm"),
        GatewayPair("fedrdma-x", "tcp"),
        GatewayPair("fedrdma-x", "tcp", seal="on"),
        GatewayPair("fedrdma-x", "udp"),
        GatewayPair("fedrdma-x", "udp", seal="on"),
        GatewayPair("fedrdma", "shm"),
        GatewayPair("fedrdma", "tcp"),
        GatewayPair("grpc", "grpc"),
        FateRabbitMq(),
        FateRabbitMq(replicating=True),
        FateStandalone(),
    ]


def usual_baselines() -> list[Baseline]:
    """Those that are measured where none is named: QUIC and FATE's RabbitMQ backend take minutes."""
    return [baseline for baseline in all_baselines() if not isinstance(baseline, FateRabbitMq | Quic)]


def select_baselines(names: Sequence[str]) -> list[Baseline]:
    """The baselines of these names, in the order of `all_baselines`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none of a name.
    """
    return select_by_name(all_baselines(), names)
