"""Our writes: dealt over the queue pairs of a link, signalled in batches, fenced where they must land last."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from fedrdma_fate.transport.verbs.interface import Piece, QueuePair, Target

SIGNAL_EVERY = 16
"""At most so many writes of a queue pair share one completion,"""

SIGNAL_BYTES = 1024 * 1024
"""and at most so many bytes: the owner of larger writes wants to know of each."""


@dataclasses.dataclass(slots=True)
class Write:
    """A write that was posted to the transport.

    Attributes:
        work_request: its id, as its owner knows it.
        source: our memory.
        target: the peer's.
        immediate: None for a plain write; a write with immediate is fenced.
        data: what a fenced write brings; `source` is where it is staged once it is dealt to a queue pair.
        sequence: its place in the order of posting.
    """

    work_request: int
    source: Piece
    target: Target
    immediate: int | None = None
    data: bytes = b""
    sequence: int = 0


class Staging(Protocol):
    """Registered memory for the bytes of fenced writes that are under way."""

    def put(self, data: bytes) -> Piece | None:
        """Copy them there; None while there is no room."""
        ...

    def free(self, piece: Piece) -> None:
        """They are at the peer."""
        ...


class Lane:
    """The send queue of one queue pair."""

    def __init__(self, pair: QueuePair, depth: int, largest_message: int) -> None:
        self.pair = pair
        self._depth = depth
        self._largest = largest_message
        self._used = 0
        self._under_way: deque[tuple[Write, int]] = deque()
        self._batch: list[Write] = []
        self._unsignalled = 0
        self._unsignalled_bytes = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way here."""
        return not self._under_way

    def room_for(self, write: Write) -> bool:
        """Whether its messages fit into the send queue."""
        return self._used + self._messages(write) <= self._depth

    def holds_before(self, sequence: int) -> bool:
        """Whether something posted before `sequence` has not completed here."""
        # all of them: a write may have been posted here before a fence that waited although it is later
        return any(write.sequence < sequence for write, _ in self._under_way)

    def add(self, write: Write) -> None:
        """Put it into the batch that `post` hands to the device."""
        messages = self._messages(write)
        self._used += messages
        self._under_way.append((write, messages))
        self._batch.append(write)

    def post(self) -> None:
        """Hand the batch to the device; its last write is signalled, so that all of it completes.

        Raises:
            VerbsError: the device does not take it.
        """
        batch, self._batch = self._batch, []
        for position, write in enumerate(batch):
            self._unsignalled += 1
            self._unsignalled_bytes += write.source.length
            full = self._unsignalled >= SIGNAL_EVERY or self._unsignalled_bytes >= SIGNAL_BYTES
            signalled = full or position == len(batch) - 1
            self._post_messages(write, signalled)
            if signalled:
                self._unsignalled = self._unsignalled_bytes = 0

    def completed(self, sequence: int) -> list[Write]:
        """This write, and those posted here before it that were not signalled: a queue pair completes in order."""
        done = []
        while self._under_way:
            write, messages = self._under_way.popleft()
            self._used -= messages
            done.append(write)
            if write.sequence == sequence:
                break
        return done

    def _messages(self, write: Write) -> int:
        return max(1, -(-write.source.length // self._largest))

    def _post_messages(self, write: Write, signalled: bool) -> None:
        source, target = write.source, write.target
        while source.length > self._largest:
            head = Piece(source.address, self._largest, source.key)
            self.pair.write(write.sequence, head, target, signalled=False)
            source = Piece(source.address + self._largest, source.length - self._largest, source.key)
            target = Target(target.address + self._largest, target.key)
        self.pair.write(write.sequence, source, target, signalled=signalled, immediate=write.immediate)


class VerbsOutbound:
    """The writes of a link that have not completed.

    A plain write goes to the next queue pair that has room. A fenced one goes behind the writes before it where these
    are all on one queue pair, which keeps their order; else it waits until all but one queue pair are through with
    them. Plain writes that were posted later may overtake a fence that waits.
    """

    def __init__(self, pairs: Sequence[QueuePair], depth: int, largest_message: int, staging: Staging) -> None:
        self._lanes = [Lane(pair, depth, largest_message) for pair in pairs]
        self._by_number = {lane.pair.number: lane for lane in self._lanes}
        self._largest_write = largest_message * depth
        self._staging = staging
        self._plain: deque[Write] = deque()
        self._fenced: deque[Write] = deque()
        self._sequence = 0
        self._next_lane = 0

    @property
    def has_idle_lane(self) -> bool:
        """Whether a queue pair has nothing to do, so that waiting for a batch would cost time."""
        return any(lane.idle for lane in self._lanes)

    def add(self, write: Write) -> None:
        """Queue it; `flush` posts it.

        Raises:
            ValueError: it is larger than a whole send queue.
        """
        if write.source.length > self._largest_write:
            raise ValueError(f"a write of {write.source.length} bytes; {self._largest_write} fit into a send queue")
        self._sequence += 1
        write.sequence = self._sequence
        (self._plain if write.immediate is None else self._fenced).append(write)

    def flush(self) -> None:
        """Hand to the device what it has room for.

        Raises:
            VerbsError: it does not take it.
        """
        while self._deal_fenced() or self._deal_plain():
            pass
        for lane in self._lanes:
            lane.post()

    def completed(self, pair: int, sequence: int) -> list[Write]:
        """The writes that a completion covers."""
        done = self._by_number[pair].completed(sequence)
        for write in done:
            if write.immediate is not None:
                self._staging.free(write.source)
        return done

    def _deal_plain(self) -> bool:
        if not self._plain:
            return False
        for turn in range(len(self._lanes)):
            position = (self._next_lane + turn) % len(self._lanes)
            if self._lanes[position].room_for(self._plain[0]):
                self._lanes[position].add(self._plain.popleft())
                self._next_lane = (position + 1) % len(self._lanes)
                return True
        return False

    def _deal_fenced(self) -> bool:
        if not self._fenced:
            return False
        write = self._fenced[0]
        if self._plain and self._plain[0].sequence < write.sequence:
            return False
        before = [lane for lane in self._lanes if lane.holds_before(write.sequence)]
        lane = before[0] if before else self._lanes[self._next_lane]
        if len(before) > 1 or not lane.room_for(write):
            return False
        staged = self._staging.put(write.data)
        if staged is None:
            return False
        write.source = staged
        lane.add(self._fenced.popleft())
        return True
