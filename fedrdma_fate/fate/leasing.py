"""Leases of send slots whose wait is seen. Imports nothing of FATE or torch: workers that move partitions need it."""

from __future__ import annotations

import logging
import time

from fedrdma_fate.client.client import SendLease
from fedrdma_fate.client.protocol import DIGESTED_AT_COMMIT_BYTES, DIGESTED_BY_TASKS_BYTES
from fedrdma_fate.core.digest import block_digest, blocks_of
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


def wants_digests(total_bytes: int) -> bool:
    """Whether the gateway is told those of a payload that is sent when it is whole: by them it knows it again."""
    return DIGESTED_AT_COMMIT_BYTES < total_bytes <= DIGESTED_BY_TASKS_BYTES


def tell_digests(lease: SendLease, total_bytes: int) -> None:
    """Tell those of a slot that is written and not committed, where they are of use.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE.
        MemoryPoolError: LEASE_UNKNOWN.
    """
    if wants_digests(total_bytes):
        lease.written(0, [block_digest(lease.buffer[start:end]) for start, end in blocks_of(total_bytes)])
