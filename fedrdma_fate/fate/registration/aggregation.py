"""FATE's aggregation: its server asks the gateway for sums before its own loop runs, says so ahead, and knows holes."""

from __future__ import annotations

from types import ModuleType

from fedrdma_fate.fate.registration.extension import Extension


def _extend_server(module: ModuleType) -> None:
    from fedrdma_fate.fate.aggregation.hook import install_aggregation
    from fedrdma_fate.fate.sums import install_sums

    install_sums(module.SecureAggregatorServer)
    # around the other: what may have holes is not summed by the gateway
    install_aggregation(module)


def _extend_constructor(module: ModuleType) -> None:
    from fedrdma_fate.fate.sums import install_sums_ahead

    install_sums_ahead(module.BaseAggregatorServer)


EXTENSIONS = (
    Extension(
        "fate.arch.protocol.secure_aggregation._secure_aggregation",
        (
            "SecureAggregatorServer.secure_aggregate",
            "SecureAggregatorServer._send_name",
            "SecureAggregatorServer._recv_name",
            "SecureAggregatorClient.secure_aggregate",
            "SecureAggregatorClient._get_mixer",
            "MixAggregate.aggregate",
            "MixAggregate.finalize",
        ),
        _extend_server,
    ),
    Extension("fate.ml.aggregator.base", ("BaseAggregatorServer.__init__",), _extend_constructor),
)
