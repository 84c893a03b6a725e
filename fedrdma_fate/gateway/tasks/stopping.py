"""What tasks of a gateway that is going away are told."""

from __future__ import annotations

from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.wire.errors import ErrorCode, GatewayError


class StoppingError(GatewayError):
    """This gateway is going away.

    Attributes:
        next_run: see `protocol.Error`.
    """

    next_run = False


def stopping_error(context: GatewayContext) -> StoppingError:
    """The error for tasks of a gateway that is going away."""
    error = StoppingError(
        ErrorCode.GATEWAY_STOPPING,
        f"the gateway of {context.config.site} is stopping.",
        "Start it again, then run the job again.",
    )
    error.next_run = context.leaves_to_next
    return error
