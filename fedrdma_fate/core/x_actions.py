"""What the state machines of `fedrdma-x` ask for beyond the common actions."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.actions import Action
from fedrdma_fate.core.plan import Chunk
from fedrdma_fate.core.x_report import Report


@dataclasses.dataclass(frozen=True, slots=True)
class PostChunk:
    """RDMA WRITE WITH IMMEDIATE of a chunk to `at` in the granted slot, on queue pair number `queue_pair`.

    On reliable queue pairs, answer with `on_write_done(work_request)`.
    """

    work_request: int
    chunk: Chunk
    at: int
    queue_pair: int
    immediate: int


@dataclasses.dataclass(frozen=True, slots=True)
class SendReport:
    """Send a report to the sender; it may be lost, and may overtake none."""

    report: Report


XAction = Action | PostChunk | SendReport
