"""How workers that add are told of updates: whether it is the way that the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable

from fedrdma_fate.doctor.findings import Finding, fine
from fedrdma_fate.doctor.gateway_status import GatewayStatus

CHECK = "notices"


def check_notices(wish: str, try_skmsg: Callable[[], str], status: GatewayStatus | None) -> Finding:
    """By which way they are told, and why not by SKMSG where that is asked for.

    Args:
        wish: `aggregate.notices`.
        try_skmsg: see `aggregate.skmsg.try_skmsg`; asked only where SKMSG is, and no gateway says what it has.
        status: of the gateway with this configuration, where it runs: it may be allowed more than who asks.
    """
    if wish != "skmsg":
        return fine(
            CHECK, f"workers that add are told of updates over their sockets, as aggregate.notices: {wish} says"
        )
    of_gateway = None if status is None or status.sum_workers is None else status.sum_workers.notices
    reason = try_skmsg() if of_gateway is None else of_gateway.reason
    who = "this user" if of_gateway is None else "the running gateway"
    if not reason:
        return fine(CHECK, f"{who} has the kernel pass notices on, by SKMSG")
    remedy = (
        "Sums are the same without. Give the gateway CAP_BPF and CAP_NET_ADMIN (AmbientCapabilities in its unit), or "
        "set aggregate.notices: auto."
    )
    return Finding(CHECK, "warning", f"over the worker's socket, not by SKMSG, for {who}: {reason}", remedy)
