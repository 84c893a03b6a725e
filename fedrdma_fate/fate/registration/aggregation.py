"""FATE's secure aggregation: its server asks the gateway for the sum before its own loop runs."""

from __future__ import annotations

from types import ModuleType

from fedrdma_fate.fate.registration.extension import Extension


def _extend_server(module: ModuleType) -> None:
    from fedrdma_fate.fate.sums import install_sums

    install_sums(module.SecureAggregatorServer)


EXTENSIONS = (
    Extension(
        "fate.arch.protocol.secure_aggregation._secure_aggregation",
        ("SecureAggregatorServer.secure_aggregate", "SecureAggregatorServer._send_name", "MixAggregate.aggregate"),
        _extend_server,
    ),
)
