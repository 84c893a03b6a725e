"""What is known of the path to a peer, and how: the same for all transfers of a link."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.x.controller import Controller, MakeController
from fedrdma_fate.core.x.loss_detection import UNKNOWN_RTT_SECONDS
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.short_path import least_round_trip

HOST_BOUND_RATE = 62.5e6
"""Bytes a second, 500 Mbit/s: on slower paths the time of a chunk is that of the link. At 5 Mbit/s a packet takes 2 ms,
and a way of 2 ms that was taken for a short one was paced no more."""

PathSource = Literal["configured", "remembered", "probed", "measured"]
"""How a path is known: from the configuration, from an earlier run, from a train of datagrams, from a transfer."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownPath:
    """What is known of a path, and how."""

    state: PathState
    source: PathSource


PROBE_AGREES = 2.0
"""A train whose rate is within this factor of what is remembered confirms it, and replaces it otherwise."""


class PathMemory:
    """What is known of the path to a peer, from transfer to transfer; a new data path changes nothing about it.

    Attributes:
        known: rate, round trip and loss, and how they are known; None while nothing is.
        rtt_hint: round trip of the control channel, seconds, None while it is not known.
        repairs_packets: of a chunk that goes again the data path sends what is missing: where it is short, reports
            clock what is sent.
        is_probing: a train has been sent over the data path, and none was answered.
        awaits_train: nothing is known yet, and what a train tells is about to come.
        lost_trains: nothing was known, and of no train most had come in time.
        told: what the receiver lets through of all transfers together, bytes a second; infinite: all.
        limit: what is theirs of this site's own link, as this site has decided; infinite: all.
    """

    def __init__(self, known: KnownPath | None = None, make_controller: MakeController = RateController) -> None:
        """
        Args:
            known: of the path, from an earlier run.
            make_controller: of each transfer.
        """
        self.known = known
        self._make_controller = make_controller
        self.rtt_hint: float | None = None
        self.repairs_packets = False
        self.is_probing = self.awaits_train = self.lost_trains = False
        self.told = self.limit = math.inf
        self._users = 0
        self._loss: float | None = None

    @property
    def loss(self) -> float | None:
        """Probability that a packet is lost, as transfers have found it; None: none has."""
        return self.known.state.loss if self.known is not None and self.proved else self._loss

    @property
    def state(self) -> PathState | None:
        """Rate, round trip and loss, None while nothing is known."""
        return None if self.known is None else self.known.state

    @property
    def bound(self) -> float:
        """What all transfers together may send, bytes a second; infinite: no bound."""
        return min(self.told, self.limit)

    @property
    def proved(self) -> bool:
        """Whether a transfer of this run has found it."""
        return self.known is not None and self.known.source == "measured"

    def learn(self, state: PathState, source: PathSource, chunk_bytes: int = 0) -> None:
        """Something is known, by chunks of this size; what a transfer has found stands until another finds something
        else."""
        before = self.known
        if source != "measured" and before is not None:
            if before.source == "measured" or source == "configured":
                return
            if before.source == "remembered" and 1 / PROBE_AGREES < state.rate / before.state.rate < PROBE_AGREES:
                return
        self.known = KnownPath(self._judged(state, chunk_bytes), source)

    def hint(self, rtt: float) -> None:
        """So long is the round trip of the control channel, seconds."""
        self.rtt_hint = rtt
        if self.known is not None:
            self.known = dataclasses.replace(self.known, state=self._judged(self.known.state))

    def _judged(self, state: PathState, chunk_bytes: int = 0) -> PathState:
        """What transfers have found, without what busy hosts have added to the round trip of a short path."""
        if not self.repairs_packets or state.rate < HOST_BOUND_RATE:
            # it is paced, and what chunks take is what a queue is told by; or the path's own time, where it is slow
            return state
        least = least_round_trip(state.min_rtt, chunk_bytes / state.rate, self.rtt_hint)
        return dataclasses.replace(state, min_rtt=least)

    def begin(self) -> Controller:
        """A transfer begins: at its share of the rate, where others are under way."""
        self._users += 1
        known = self.state
        if known is None and math.isfinite(self.bound):
            # to find the path by a packet train of 4 MiB is what the bound forbids
            supposed = PathState(self.bound, self.rtt_hint or UNKNOWN_RTT_SECONDS, None)
            return self._make_controller(supposed, proved=False)
        if known is None:
            return self._make_controller()
        capacity = max(known.capacity, known.rate)
        window = known.window_bytes / self._users
        # what the path lately gave is for who has it for itself
        recent = known.recent_rate if self._users == 1 else 0.0
        share = dataclasses.replace(
            known, rate=known.rate / self._users, capacity=capacity, window_bytes=window, recent_rate=recent
        )
        return self._make_controller(share, proved=self.proved)

    def end(self, control: Controller) -> None:
        """It has ended; what it found is remembered."""
        found = control.state()
        if found is not None and control.sampled:
            rate, window = found.rate * self._users, found.window_bytes * self._users
            recent = found.recent_rate if self._users == 1 or self.state is None else self.state.recent_rate
            whole = dataclasses.replace(found, rate=rate, window_bytes=window, recent_rate=recent)
            self.learn(whole, "measured", control.chunk_bytes)
        elif found is not None:
            # held to a share of the path, it has not seen how fast that is, but what it loses
            self._loss = control.loss
        self._users -= 1
