"""FATE's side: the federation backend, serialisation into slots, and its registration into FATE and FATE Flow.

Nothing is imported until it is asked for: the start of every interpreter goes through here (see `autoload`).
"""

# the name that type checkers know; importing typing would cost more than all the rest
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fedrdma_fate.fate.federation import FedRDMAFederation
    from fedrdma_fate.fate.settings import FederationOptions

__all__ = ["FedRDMAFederation", "FederationOptions"]


def __getattr__(name: str) -> object:
    if name == "FedRDMAFederation":
        from fedrdma_fate.fate.compatibility import require_supported_fate

        require_supported_fate()
        from fedrdma_fate.fate.federation import FedRDMAFederation

        return FedRDMAFederation
    if name == "FederationOptions":
        from fedrdma_fate.fate.settings import FederationOptions

        return FederationOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
