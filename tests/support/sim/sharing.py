"""Jobs that send one payload after the other over a shared link, and what each gets of it."""

from __future__ import annotations

import random

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from fedrdma_fate.core.x.controller import MakeController
from fedrdma_fate.core.x.rate_control import RateController
from tests.support.sim.bottleneck import Bottleneck
from tests.support.sim.clock import VirtualClock
from tests.support.sim.x_flow import XFlow

BETWEEN_SECONDS = (0.02, 0.04)
"""A round computes now a little longer and now a little shorter: jobs do not keep step."""


class Job:
    """Sends one payload after the other over one link, of which a probe has told the rate.

    Attributes:
        arrived_bytes: payload that is there.
    """

    def __init__(
        self,
        clock: VirtualClock,
        link: Bottleneck,
        payload_bytes: int,
        begins: float,
        chance: random.Random,
        make_controller: MakeController = RateController,
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._payload_bytes = payload_bytes
        path = PathState(0.985 * link.profile.rate_bps / 8, link.profile.rtt, None)
        plan = ChunkPlan(payload_bytes, FIRST_CHUNK_BYTES)
        self._flow = XFlow(clock, link, plan, path, proved=False, recut=True, make_controller=make_controller)
        self._flow.on_end = self._on_end
        self._delivered_bytes = 0
        clock.at(begins, self._flow.start)

    @property
    def arrived_bytes(self) -> int:
        """Payload that is there."""
        return self._delivered_bytes + self._flow.arrived_bytes

    def _on_end(self) -> None:
        assert self._flow.outcome == Finished()
        self._delivered_bytes += self._payload_bytes
        self._clock.after(self._chance.uniform(*BETWEEN_SECONDS), self._flow.start)
