"""Leases of send slots whose wait is seen. Imports nothing of FATE or torch: workers that move partitions need it."""

from __future__ import annotations

import logging
import time

from fedrdma_fate.client.client import SendLease
from fedrdma_fate.fate.gateway_client import Client
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

logger = logging.getLogger(__name__)

QUIET_WAIT_SECONDS = 5.0
"""A put that waits longer than this for room says so in the log."""


def lease_visibly(client: Client, total_bytes: int, timeout: float | None, name: str) -> SendLease:
    """A send slot; a long wait for room is logged.

    Raises:
        MemoryPoolError: POOL_TIMEOUT when there is no room in `timeout` seconds, PAYLOAD_TOO_LARGE when never.
    """
    if timeout is not None and timeout <= QUIET_WAIT_SECONDS:
        return client.lease(total_bytes, timeout=timeout)
    started = time.monotonic()
    try:
        return client.lease(total_bytes, timeout=QUIET_WAIT_SECONDS)
    except MemoryPoolError as error:
        if error.code is not ErrorCode.POOL_TIMEOUT:
            raise
    logger.warning("put of %r waits for %d bytes in the gateway's send pool", name, total_bytes)
    lease = client.lease(total_bytes, timeout=None if timeout is None else timeout - QUIET_WAIT_SECONDS)
    logger.warning("put of %r went on after %.1f s", name, time.monotonic() - started)
    return lease
