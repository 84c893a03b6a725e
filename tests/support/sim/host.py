"""A host in virtual time: one link of the engine, as it ships, which has a turn whenever there is something to do."""

from __future__ import annotations

from collections import deque

from fedrdma_fate.engine.events import Emit
from fedrdma_fate.engine.link import Command
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.security.datagram_tags import DatagramKeys
from tests.support.engine import StrictLink
from tests.support.sim.busy import Turns
from tests.support.sim.clock import VirtualClock
from tests.support.sim.endpoint import SimDraft, SimEndpoint


class SimHost:
    """Drives a link on the virtual clock, where a thread would drive it on the real one."""

    def __init__(
        self, clock: VirtualClock, peer: str, settings: LinkSettings, emit: Emit, turns: Turns | None = None
    ) -> None:
        """
        Args:
            clock: virtual time.
            peer: the other site.
            settings: of the link.
            emit: takes its events.
            turns: when its thread runs; None: whenever it has something to do.
        """
        self.link = StrictLink(peer, settings, emit, lambda: clock.now)
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._next_turn: float | None = None
        self._attempts = 0
        self._turns = turns

    def connect(self, endpoint: SimEndpoint, keys: DatagramKeys) -> None:
        """Renew the data path."""
        self._attempts += 1
        attempt = self._attempts
        endpoint.wake = self.wake
        self.do(lambda link: link.connect(SimDraft(endpoint), {}, attempt, keys))

    def do(self, command: Command) -> None:
        """Have the link carry out a command in its next turn, which is now."""
        self._commands.append(command)
        self.wake()

    def wake(self) -> None:
        """There is something to do now."""
        self._turn_at(self._clock.now)

    def end(self) -> None:
        """The link ends, with what it had still to do; nothing more comes of it."""
        self.link.end(self._commands)
        self._next_turn = None

    def _turn_at(self, when: float) -> None:
        if self._turns is not None:
            when = self._turns.next(when)
        if self._next_turn is None or when < self._next_turn:
            self._next_turn = when
            self._clock.at(when, lambda: self._turn(when))

    def _turn(self, when: float) -> None:
        if when != self._next_turn:
            return
        self._next_turn = None
        until = self.link.turn(self._commands).until
        if until is not None:
            self._turn_at(until)
