"""What every baseline implements: a sender, a receiver, and whatever has to run beside them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec


class RowError(Exception):
    """A row could not be measured; the text says why."""


class Sender(Protocol):
    """Lives in the sending party's process."""

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """Send the payload; may return before it has arrived. Iterations have different numbers."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Receiver(Protocol):
    """Lives in the receiving party's process."""

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        """Wait for what was sent in this iteration; the arrays are dropped before the next one."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """How often a baseline is run.

    Attributes:
        warm_ups: iterations before the timed ones; memory is watched during these, so that timing is undisturbed. With
            none, memory is watched during the timed ones.
        most_repeats: upper limit of timed iterations, or None.
    """

    warm_ups: int = 2
    most_repeats: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SideBytes:
    """A number of bytes for each side."""

    sender: int = 0
    receiver: int = 0


class Service:
    """A baseline that is running: how to open its two ends, and what else works for them.

    Attributes:
        open_sender: makes the sender, in its process; pickles.
        open_receiver: makes the receiver; None where the sender is both: a baseline of one process, whose
            `put` copies, and whose `get` only shows the copy.
    """

    def __init__(self, open_sender: Callable[[], Sender], open_receiver: Callable[[], Receiver] | None) -> None:
        self.open_sender = open_sender
        self.open_receiver = open_receiver

    @property
    def sender_helpers(self) -> Sequence[int]:
        """Processes beside the sender's that work for it."""
        return ()

    @property
    def receiver_helpers(self) -> Sequence[int]:
        """Processes beside the receiver's that work for it."""
        return ()

    def settle(self) -> None:
        """Wait until nothing is under way any more.

        Raises:
            RowError: something does not come to rest.
        """

    def extra_shared(self) -> SideBytes:
        """Shared memory used at once since the start, beyond one payload a side and what is in use at rest."""
        return SideBytes()

    def check(self) -> None:
        """Find out whether the payloads went the way that the row's name says.

        Raises:
            RowError: they did not.
        """

    def complaints(self) -> str:
        """What the helpers have to say after a failure, or an empty string."""
        return ""


@contextlib.contextmanager
def complaining(service: Service) -> Iterator[None]:
    """Add the service's complaints to a RowError that passes."""
    try:
        yield
    except RowError as error:
        raise RowError("\n".join(filter(None, (str(error), service.complaints())))) from error


class Baseline(Protocol):
    """One row of the table."""

    @property
    def name(self) -> str:
        """As in the table and on the command line."""
        ...

    @property
    def schedule(self) -> Schedule:
        """How often it is run."""
        ...

    def start(self, workspace: Path, largest_bytes: int) -> AbstractContextManager[Service]:
        """Start what runs beside the parties; ends it on leaving.

        Args:
            workspace: an empty directory for files, removed afterwards.
            largest_bytes: size of the largest payload that will be sent.

        Raises:
            RowError: it cannot be started.
        """
        ...
