"""When a data path that was given up is tried again: soon where it had served well, else later each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

SOON_SECONDS = 1.0
"""Before a path that had served well is tried again. A blackout, a NAT that forgot its mapping and a device that was
reset are over in seconds; and it is longer than what connects the next path."""

FIRST_WAIT_SECONDS = 30.0
"""Before any other is. What kept it from coming up takes somebody with a firewall or a cable to change; and a trial is
a connection, 30 rounds of probes and a link thread."""

LONGEST_WAIT_SECONDS = 600.0
"""After doubling. A path that works again is taken within ten minutes, a tenth of an ordinary job; a trial each ten
minutes is nothing."""

STEADY_SECONDS = 60.0
"""A path served well when it was up for so long, and for longer than it had been waited for, and carried something. So
a path that comes and goes, or a peer that says so, changes the main path no more than twice a minute."""


@dataclasses.dataclass(slots=True)
class Retry:
    """A transport that is not used though it would be the better one.

    Attributes:
        wait_seconds: from its last failure to the next trial.
        due_at: when that is; None while it is up, or being tried.
        trials: since it was given up.
    """

    wait_seconds: float
    due_at: float | None
    trials: int = 0


class PathRetries:
    """What is to be tried again. One for each peer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        Args:
            clock: seconds, of any origin.
        """
        self._clock = clock
        self._retries: dict[str, Retry] = {}

    def failed(self, transport: str) -> None:
        """It could not be connected, or was lost without having served well."""
        known = self._retries.get(transport)
        wait = FIRST_WAIT_SECONDS if known is None else min(known.wait_seconds * 2, LONGEST_WAIT_SECONDS)
        self._wait(transport, wait, 0 if known is None else known.trials)

    def lost(self, transport: str, up_seconds: float, *, carried: bool) -> None:
        """It was up for so long; with `carried`, something has gone by it."""
        known = self._retries.get(transport)
        waited = 0.0 if known is None else known.wait_seconds
        if carried and up_seconds >= max(waited, STEADY_SECONDS):
            self._wait(transport, SOON_SECONDS, 0)
            return
        if known is not None:
            # after one that had served well, seconds were enough
            known.wait_seconds = max(known.wait_seconds, FIRST_WAIT_SECONDS / 2)
        self.failed(transport)

    def tried(self, transport: str) -> None:
        """It is being tried now."""
        retry = self._retries.setdefault(transport, Retry(FIRST_WAIT_SECONDS, None))
        retry.due_at = None
        retry.trials += 1

    def put_off(self, transport: str) -> None:
        """A trial of it came to nothing, which says nothing of it."""
        if (known := self._retries.get(transport)) is not None:
            self._wait(transport, known.wait_seconds, known.trials)

    def forget(self) -> None:
        """The peer is another one."""
        self._retries.clear()

    def next(self, transports: Iterable[str]) -> tuple[str, float] | None:
        """Which of these, best first, is to be tried first, and when. What was never given up waits as if it had been.

        Args:
            transports: the best first.
        """
        due: list[tuple[float, str]] = []
        for transport in transports:
            if transport not in self._retries:
                self.failed(transport)
            at = self._retries[transport].due_at
            if at is not None:
                due.append((at, transport))
        if not due:
            return None
        at, transport = min(due, key=lambda entry: entry[0])
        return transport, at

    def get(self, transport: str) -> Retry | None:
        """What is known of its trials."""
        return self._retries.get(transport)

    def _wait(self, transport: str, seconds: float, trials: int) -> None:
        self._retries[transport] = Retry(seconds, self._clock() + seconds, trials)
