"""Whose turn it is to have a whole message in memory of the gateway's own: grpcio reads and sends none in pieces.

For threads of grpcio's. How long a message is, is known of a push only when it is read.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

from fedrdma_fate.wire.errors import ErrorCode, GatewayError

MOST_PUSHES = 384
"""That are read, wait for memory, or wait for their turn, each with a thread. A site has no more of them than are left
for others: half of them where it is alone, and then the others have the rest."""

MOST_READ = 8
"""Pushes to one site that are read or in memory at once; what waits for a site that is away keeps none to another."""

MOST_SITE_BYTES = 2 << 30
"""Of those to one site that are in memory: while they are more, no other is read."""

MOST_PUSH_BYTES = 16 << 30
"""Of all that are in memory: while they are as much, no other is read; one that was being read, and is found to be too
much, is refused."""

PATIENT_SECONDS = 2.0
"""Whoever is not read by then keeps nobody else from being read: it may have sent half, and never send the rest."""

MOST_SLOW = 16
"""Of those; where there are more, and others wait, the oldest is ended that is read for longer than:"""

SLOW_SECONDS = 60.0
"""To read 2 GB takes up to half of it on a slow machine."""

MOST_ANSWER_BYTES = 8 << 30
"""Of answers that are sent. A party has no more of it than is left for others, or one answer."""

_LOOK_SECONDS = 0.5
"""Between two looks of whoever waits at whether its client is gone, and others are slow."""


@dataclasses.dataclass(eq=False, slots=True)
class PushPlace:
    """Of one push.

    Attributes:
        site: to which it goes.
        cancel: ends its call.
        turn: it may be read, or is in memory.
        since: when it could begin to be read.
        is_read: it is in memory.
        total_bytes: of it there.
    """

    site: str
    cancel: Callable[[], object]
    turn: threading.Event = dataclasses.field(default_factory=threading.Event)
    since: float = 0.0
    is_read: bool = False
    total_bytes: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class _Site:
    """Pushes to one: those that may be read or are in memory, and those that wait, in their order."""

    current: list[PushPlace] = dataclasses.field(default_factory=list)
    waiting: collections.deque[PushPlace] = dataclasses.field(default_factory=collections.deque)

    def __len__(self) -> int:
        return len(self.current) + len(self.waiting)


class PushRoom:
    """Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sites: dict[str, _Site] = {}
        self._count = 0
        self._bytes = 0

    @contextlib.contextmanager
    def place(self, site: str, is_gone: Callable[[], bool], cancel: Callable[[], object]) -> Iterator[PushPlace]:
        """Wait until a push may be read; it has its place to the end.

        Args:
            site: that it goes to.
            is_gone: whether nobody waits for it any more.
            cancel: ends its call, from another thread.

        Raises:
            GatewayError: LIMIT_REACHED where too many wait already.
            EOFError: its client has gone.
        """
        place = PushPlace(site, cancel)
        with self._lock:
            of_site = self._sites.get(site, _Site())
            if len(of_site) >= MOST_PUSHES - self._count:
                raise _full(f"{len(of_site)} pushes to {site or 'sites that are not known'} are under way")
            self._sites[site] = of_site
            self._count += 1
            of_site.waiting.append(place)
            self._admit(of_site)
        try:
            while not place.turn.wait(_LOOK_SECONDS):
                if is_gone():
                    raise EOFError
                with self._lock:
                    self._admit(of_site)
                    slow = None if place.turn.is_set() else self._too_slow()
                if slow is not None:
                    slow.cancel()
            yield place
        finally:
            with self._lock:
                self._leave(place, of_site)

    def has_read(self, place: PushPlace, total_bytes: int) -> None:
        """It is in memory.

        Raises:
            GatewayError: LIMIT_REACHED where that is too much.
        """
        with self._lock:
            place.is_read = True
            if self._bytes + total_bytes > MOST_PUSH_BYTES:
                raise _full(f"pushes of {self._bytes} bytes are in memory, and this one has {total_bytes}")
            place.total_bytes = total_bytes
            self._bytes += total_bytes
            self._admit(self._sites[place.site])

    def _admit(self, site: _Site) -> None:
        """Let those be read for which there is room."""
        while site.waiting:
            held = [place for place in site.current if not self._is_slow(place)]
            if (
                self._bytes >= MOST_PUSH_BYTES
                or len(held) >= MOST_READ
                or sum(place.total_bytes for place in held) >= MOST_SITE_BYTES
            ):
                return
            if len(held) < len(site.current) and len(self._slow()) > MOST_SLOW:
                return
            place = site.waiting.popleft()
            place.since = self._clock()
            site.current.append(place)
            place.turn.set()

    def _is_slow(self, place: PushPlace) -> bool:
        return not place.is_read and self._clock() - place.since > PATIENT_SECONDS

    def _slow(self) -> list[PushPlace]:
        return [place for site in self._sites.values() for place in site.current if self._is_slow(place)]

    def _too_slow(self) -> PushPlace | None:
        slow = self._slow()
        oldest = min(slow, key=lambda place: place.since, default=None)
        if oldest is None or len(slow) <= MOST_SLOW or self._clock() - oldest.since <= SLOW_SECONDS:
            return None
        return oldest

    def _leave(self, place: PushPlace, site: _Site) -> None:
        (site.current if place.turn.is_set() else site.waiting).remove(place)
        self._count -= 1
        self._bytes -= place.total_bytes
        self._admit(site)
        if not len(site):
            self._sites.pop(place.site, None)


class AnswerRoom:
    """Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._of: dict[object, int] = {}

    @contextlib.contextmanager
    def taken(self, party: object, total_bytes: int, is_gone: Callable[[], bool]) -> Iterator[None]:
        """Wait until so many bytes may be in memory, for as long as they are.

        Args:
            party: whose answer it is.
            total_bytes: of it.
            is_gone: whether nobody waits for it any more.

        Raises:
            EOFError: its client has gone.
        """
        with self._changed:
            while not self._has_room(party, total_bytes):
                if is_gone():
                    raise EOFError
                self._changed.wait(_LOOK_SECONDS)
            self._of[party] = self._of.get(party, 0) + total_bytes
        try:
            yield
        finally:
            with self._changed:
                self._of[party] -= total_bytes
                if not self._of[party]:
                    del self._of[party]
                self._changed.notify_all()

    def _has_room(self, party: object, total_bytes: int) -> bool:
        of_party, of_all = self._of.get(party, 0), sum(self._of.values())
        left = MOST_ANSWER_BYTES - of_all - total_bytes
        return not of_all or (left >= 0 and (not of_party or of_party + total_bytes <= left))


def _full(what: str) -> GatewayError:
    return GatewayError(
        ErrorCode.LIMIT_REACHED, f"{what}.", "Let fewer push at once, or see why that site takes nothing."
    )
