"""Writes finished sums to a directory, in the background: for people, nothing here reads them."""

from __future__ import annotations

import asyncio
import logging
import threading

from fedrdma_fate.aggregate.checkpoint import StoppedError, write
from fedrdma_fate.core.fold import Fold
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.wire.frames import MessageKey
from fedrdma_fate.wire.summand import Shape, Summand

logger = logging.getLogger(__name__)


class SumCheckpoints:
    """One sum is written at a time: its slot stays until it is on disk. Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext) -> None:
        """
        Args:
            context: the gateway's.
        """
        self._context = context
        self._writing = False

    def keep(self, keys: tuple[MessageKey, ...], fold: Fold, shapes: tuple[Shape, ...], slot: Message) -> None:
        """Begin to write a sum of all parties; where checkpoints are configured, and no other is being written."""
        config = self._context.config.aggregate
        if config.checkpoints is None or not fold.whole or slot.lease is None:
            return
        if self._writing:
            logger.warning("a sum is not written to %s: the one before it still is", config.checkpoints)
            return
        self._writing = True
        summand = Summand(tuple(key.source for key in keys), fold.weight(), shapes)
        # its task may give it back at once
        lease = slot.lease.share("checkpoint")
        planes = lease.slot.part(slot.payload_at, slot.total_bytes).view
        spawn(self._context.tasks, self._write(keys[0], fold.order.value, summand, lease, planes))

    async def _write(self, key: MessageKey, order: str, summand: Summand, lease: Lease, planes: memoryview) -> None:
        config, stop = self._context.config.aggregate, threading.Event()
        assert config.checkpoints is not None
        of = {
            "session": key.session,
            "name": key.name,
            "tag": key.tag,
            "destination": str(key.destination),
            "order": order,
        }
        try:
            path = await asyncio.to_thread(
                write, config.checkpoints, planes, summand, of, config.checkpoints_kept, stop
            )
        except (OSError, StoppedError) as error:
            logger.warning("a sum is not written to %s: %s", config.checkpoints, error)
        else:
            logger.info("a sum of %s updates was written to %s", len(summand.parties), path)
        finally:
            # where this is cancelled, for the gateway stops, somebody else may have the slot next
            stop.set()
            self._writing = False
            lease.release()
