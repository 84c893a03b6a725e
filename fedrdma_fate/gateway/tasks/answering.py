"""What a request of a task is answered with, also where that goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fedrdma_fate.client.protocol import Error
from fedrdma_fate.gateway.tasks.request_reader import RequestReader
from fedrdma_fate.gateway.tasks.stopping import StoppingError
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError

logger = logging.getLogger(__name__)

AnyAnswer = TypeVar("AnyAnswer")


async def answered(
    requests: RequestReader[Any],
    begin: Callable[[], AnyAnswer | Coroutine[Any, Any, AnyAnswer | None] | None],
    kind: str,
    refuse: Callable[[FedRDMAError], Error],
) -> AnyAnswer | Error | None:
    """The answer to a request; an error where there is none.

    Args:
        requests: of the connection; where it ends, the answer is given up.
        begin: begins to answer.
        kind: of request, for the log.
        refuse: makes the reply of an error.

    Raises:
        ConnectionError: the task went away.
    """
    try:
        answer = begin()
        return await requests.unless_ended(answer) if asyncio.iscoroutine(answer) else answer
    except FedRDMAError as error:
        return refuse(error)
    except ConnectionError:
        raise
    except Exception:
        logger.exception("internal error while answering %s", kind)
        return Error(ErrorCode.UNEXPECTED_EVENT.value, "the gateway failed to answer.", "See the gateway's log.")


def error_reply(error: FedRDMAError) -> Error:
    """The reply that tells of an error."""
    next_run = isinstance(error, StoppingError) and error.next_run
    return Error(error.code.value, error.message, error.remedy, next_run)
