"""Which data path to one peer is the main one: chosen, left when it fails, and gone back to when it works again."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable

from fedrdma_fate.gateway.background import TimerHandle
from fedrdma_fate.gateway.config.schema import PeerConfig
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.peers.greeting import allowed_transports
from fedrdma_fate.gateway.peers.path_retries import PathRetries
from fedrdma_fate.gateway.peers.paths import DataPaths
from fedrdma_fate.gateway.peers.transport_choice import (
    FIRST_PINGS,
    LEAST_UDP_ROUND_TRIP_SECONDS,
    better_transports,
    choose_transport,
)
from fedrdma_fate.obs.complaints import EACH_TELLS
from fedrdma_fate.wire.frames import ControlFrame, Hello, PathUse, Ping

logger = logging.getLogger(__name__)

MOVE_SECONDS = 10.0
"""A main path that has been it for less is left at once: what began on it goes on by the better one, which was away
only for a moment."""

LOOK_SECONDS = 1.0
"""Between two looks at a path that is being left."""

QUIET_LOOKS = 3
"""A path on which nothing is under way is closed after so many of them: the peer may be about to send its last."""

MOST_LOOKS = 3
"""One on which something is under way is, too, after so many: that goes on by the main path with what has not arrived,
which is what was on its way. By a path that was left for a better one it may take minutes, as by TCP where a fifth is
lost."""

PROMPT_SECONDS = 1.0
"""A control channel that answers within it shows that the way is there, and no queue of seconds stands in it."""


class _Leaving:
    """A path that carries what it has begun with, and nothing new."""

    def __init__(self) -> None:
        self._looks = self._quiet_looks = 0

    def is_over(self, *, is_busy: bool) -> bool:
        """Whether it can be closed, as it looks now: with something under way, or without."""
        self._looks += 1
        self._quiet_looks = 0 if is_busy else self._quiet_looks + 1
        return self._quiet_looks >= QUIET_LOOKS or (is_busy and self._looks >= MOST_LOOKS)


class MainPath:
    """The choice, for one peer. Belongs to the event loop's thread.

    The side that dialled the control channel is active: it alone chooses, and tries what is better than what is used.
    """

    def __init__(
        self,
        peer: PeerConfig,
        context: GatewayContext,
        paths: DataPaths,
        hello: Callable[[], Hello | None],
        send: Callable[[ControlFrame], object],
        abandon: Callable[[str], None],
        changed: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            peer: the peer.
            context: the gateway's.
            paths: the data paths to it.
            hello: what it said of itself, None as long as it has never been connected.
            send: sends a frame to it.
            abandon: ends a path, and takes back what was handed to it.
            changed: called when there is another main path.
            call_later: calls something on this thread after so many seconds.
            clock: seconds, of any origin.
        """
        self._peer = peer
        self._context = context
        self._paths = paths
        self._hello = hello
        self._send = send
        self._abandon = abandon
        self._changed = changed
        self._call_later = call_later
        self._clock = clock
        self._first_round_trips: deque[float] = deque(maxlen=FIRST_PINGS)
        self._least_round_trip = math.inf
        self._retries = PathRetries(clock)
        self._leaving: dict[str, _Leaving] = {}
        self._main_since = 0.0
        self._suspect: tuple[str, int, str, float] | None = None
        self._trial: TimerHandle | None = None
        self._look: TimerHandle | None = None

    # -- the control channel --------------------------------------------------------------------------------------

    def online(self) -> None:
        """The control channel is up, and what there is of paths is being renewed."""
        if self._paths.active and self._paths.main is None:
            self.choose()
        self._plan_trial()

    def offline(self) -> None:
        """It is gone: only what is needed in any case is connected anew."""
        self._first_round_trips.clear()
        self._cancel()
        for transport in list(self._paths.paths):
            if self._paths.is_aside(transport):
                self._retries.put_off(transport)
                self._abandon(transport)

    def peer_restarted(self) -> None:
        """It may be configured otherwise, and reachable in other ways."""
        self._paths.unusable.clear()
        self._retries.forget()
        self._least_round_trip = math.inf

    def close(self) -> None:
        """Try nothing any more."""
        self._cancel()

    def _cancel(self) -> None:
        for timer in (self._trial, self._look):
            if timer is not None:
                timer.cancel()
        self._trial = self._look = None
        self._leaving.clear()

    @property
    def least_round_trip(self) -> float:
        """The shortest that a ping to this run of the peer has taken, seconds: how far it is, busy or not."""
        return self._least_round_trip

    def on_round_trip(self, seconds: float) -> None:
        """A ping was answered after so long."""
        self._least_round_trip = min(self._least_round_trip, seconds)
        self._leave_suspect(seconds)
        if len(self._first_round_trips) < FIRST_PINGS:
            self._first_round_trips.append(seconds)
            if self._paths.active and self._paths.main is None:
                self.choose()
                self._changed()

    # -- choosing -------------------------------------------------------------------------------------------------

    def choose(self) -> None:
        """Take the best path that there may be; nothing as long as it is not known how long the way is."""
        hello = self._hello()
        if hello is None:
            return
        own, absent = self._own(), self._absent()
        transport, reason = choose_transport(own, self._context.host, hello, self._paths.unusable, absent)
        if transport == "udp" and self._is_auto and len(self._first_round_trips) < FIRST_PINGS:
            # their answers will say how long the path is; the first goes anyway
            if self._first_round_trips:
                self._send(Ping(time.monotonic()))
            return
        self._say_chosen(transport, reason)
        self._leaving.pop(transport, None)
        self._main_since = self._clock()
        self._paths.need(transport, reason, main=True)
        self._plan_trial()

    def fall_back(self, transport: str, *, served: bool = True) -> None:
        """The main path cannot be connected, or carries nothing: take the next. Whether it may have served well."""
        path = self._paths.paths[transport]
        trouble = self._paths.unusable[transport]
        self._complain("data path given up", "giving up %s to %s: it %s", transport, trouble)
        path.went_down(self._clock())
        if path.ever_up:
            self._retries.lost(transport, path.up_seconds, carried=served and path.carried)
        else:
            self._retries.failed(transport)
        self.give_up(transport)
        self.choose()
        self._changed()

    def give_up(self, transport: str) -> None:
        """It is the main path no more."""
        if transport == "grpc":
            # mode grpc goes on to use it
            self._paths.paths[transport].main = False
        else:
            self._abandon(transport)

    def has_next(self, transport: str) -> bool:
        """Whether there is another path than the last resort to take in place of the main one."""
        hello = self._hello()
        if hello is None:
            return False
        unusable = {**self._paths.unusable, transport: "given up"}
        return choose_transport(self._own(), self._context.host, hello, unusable, self._absent())[0] != "grpc"

    def _own(self) -> tuple[str, ...]:
        return tuple(name for name in allowed_transports(self._peer, self._context) if name != "grpc")

    @property
    def _is_auto(self) -> bool:
        return (self._peer.transport or self._context.config.transport) == "auto"

    def _absent(self) -> dict[str, str]:
        """What this host does not offer on this way."""
        absent = self._context.transports.absent
        shortest = self._least_round_trip
        if not self._is_auto or shortest >= LEAST_UDP_ROUND_TRIP_SECONDS:
            return absent
        least = f"{LEAST_UDP_ROUND_TRIP_SECONDS * 1e3:g} ms"
        return {"udp": f"a round trip of {shortest * 1e3:.1f} ms, for UDP it is {least} at least", **absent}

    # -- trying what is better ------------------------------------------------------------------------------------

    def _better(self) -> tuple[str, ...]:
        hello, used = self._hello(), self._paths.main_transport
        if hello is None or used is None or not self._paths.active:
            return ()
        return better_transports(used, self._own(), self._context.host, hello, self._absent())

    def _plan_trial(self) -> None:
        if self._trial is not None:
            self._trial.cancel()
            self._trial = None
        coming = self._retries.next(self._better())
        if coming is not None:
            self._trial = self._call_later(max(0.0, coming[1] - self._clock()), self._try)

    def _try(self) -> None:
        """Connect a better path beside the main one, which carries on."""
        self._trial = None
        coming = self._retries.next(self._better())
        if coming is None:
            return
        transport, at = coming
        if self._lacks_round_trips(transport):
            self._send(Ping(time.monotonic()))
            self._trial = self._call_later(LOOK_SECONDS, self._try)
        elif at > self._clock() or transport in self._paths.paths:
            # what is being left is not met anew before it is closed
            self._trial = self._call_later(max(LOOK_SECONDS, at - self._clock()), self._try)
        else:
            self._retries.tried(transport)
            message = "trying %s to %s again, which would be better than %s"
            self._complain("trying", message, transport, self._paths.main_transport, level=logging.INFO)
            self._paths.need(transport, "tried again", main=False)
            self._plan_trial()

    def _lacks_round_trips(self, transport: str) -> bool:
        return transport == "udp" and self._is_auto and len(self._first_round_trips) < FIRST_PINGS

    def on_connected(self, transport: str) -> None:
        """A path is up: if it was tried, it is the main one from now on."""
        if not self._paths.active or not self._paths.is_aside(transport):
            return
        if transport not in self._better():
            self._retries.put_off(transport)
            self._close(transport, "it is not better than what is used")
            return
        hello = self._hello()
        assert hello is not None
        _, reason = choose_transport(self._own(), self._context.host, hello, self._paths.unusable, self._absent())
        self._say_chosen(transport, reason)
        moves = self._clock() - self._main_since < MOVE_SECONDS
        self._send(PathUse(transport, self._paths.paths[transport].attempt, True, reason))
        before = self._take(transport, reason)
        if before is not None and moves:
            self._close(before, "the better one is back")
        self._plan_trial()
        self._changed()

    def on_use(self, frame: PathUse) -> None:
        """The peer says what a path is used for from now on, or that it has no use for it."""
        path = self._paths.paths.get(frame.transport)
        if path is None or path.attempt != frame.attempt:
            # it is another one already
            return
        if frame.main:
            if not self._paths.active and not path.main:
                self._take(frame.transport, frame.reason)
                self._changed()
        elif self._paths.is_aside(frame.transport):
            self.on_aside_lost(frame.transport, frame.reason, tell=False)
        elif path.main and self._paths.active and frame.transport != "grpc":
            self.leave(frame.transport, f"{self._peer.site} says: {frame.reason}")

    def leave(self, transport: str, reason: str) -> None:
        """The main path carries nothing though it is up: take the next one, or have the peer do so."""
        path = self._paths.paths[transport]
        if not self._paths.active:
            self._send(PathUse(transport, path.attempt, False, reason))
            return
        self._paths.unusable[transport] = f"was left ({reason})"
        self.fall_back(transport, served=False)

    def on_stalled(self, transport: str, connection: int, reason: str, *, silent: bool) -> None:
        """A path is up, and carries nothing that it should; see `PathStalled`."""
        path = self._paths.paths.get(transport)
        if path is None or path.connection != connection or not path.up:
            return
        if self._paths.is_aside(transport):
            if self._paths.active:
                # what stands still there goes on by the main path
                self._close(transport, reason)
            return
        if not path.main:
            return
        if silent:
            # is the way itself gone, or as slow as all that? Then another path would carry no more
            self._suspect = transport, connection, reason, self._clock()
            self._send(Ping(time.monotonic()))
        else:
            self.leave(transport, reason)

    def _leave_suspect(self, round_trip: float) -> None:
        suspect, self._suspect = self._suspect, None
        if suspect is None:
            return
        transport, connection, reason, asked_at = suspect
        path = self._paths.paths.get(transport)
        took = self._clock() - asked_at
        soon = round_trip <= took <= PROMPT_SECONDS
        if path is not None and path.main and path.up and path.connection == connection and soon:
            self.leave(transport, f"{reason}, while the control channel answers in {round_trip * 1e3:.0f} ms")

    def _take(self, transport: str, reason: str) -> str | None:
        """Make a path that is up the main one; what was it before, if that is to be left."""
        before = self._paths.main_transport
        if before is not None:
            self._paths.paths[before].main = False
        path = self._paths.paths[transport]
        path.main, path.reason = True, reason
        self._main_since = self._clock()
        if before is None:
            return None
        left = self._paths.paths[before]
        if before == "grpc":
            left.reason = "mode grpc"
            if left.link.progress():
                # what went by it as the last resort goes on by the better one, and mode `grpc` by a new one
                self._abandon(before)
            return None
        left.reason = "until what has begun on it has ended"
        left.link.recall_credits()
        self._leaving[before] = _Leaving()
        if self._look is None and self._paths.active:
            self._look = self._call_later(LOOK_SECONDS, self._look_at_leaving)
        return before

    def _look_at_leaving(self) -> None:
        self._look = None
        for transport, leaving in list(self._leaving.items()):
            if not self._paths.is_aside(transport):
                del self._leaving[transport]
                continue
            is_busy = bool(self._paths.paths[transport].link.progress())
            if leaving.is_over(is_busy=is_busy):
                self._close(transport, "it goes on by the better one" if is_busy else "what had begun on it has ended")
        if self._leaving:
            self._look = self._call_later(LOOK_SECONDS, self._look_at_leaving)

    def on_aside_lost(self, transport: str, reason: str, *, tell: bool = True) -> None:
        """A path beside the main one is gone, here or there."""
        was_left = transport in self._leaving
        path = self._paths.paths[transport]
        if not was_left and self._paths.active:
            self._paths.unusable[transport] = f"could not be connected ({reason.rstrip('.')})"
            self._retries.failed(transport)
        if tell:
            self._send(PathUse(transport, path.attempt, False, reason))
        self._leaving.pop(transport, None)
        self._abandon(transport)
        self._plan_trial()
        self._changed()

    def _close(self, transport: str, reason: str) -> None:
        """End a path beside the main one. Told before what was on it goes elsewhere: none of it may come twice."""
        self._send(PathUse(transport, self._paths.paths[transport].attempt, False, reason))
        self._leaving.pop(transport, None)
        self._abandon(transport)
        self._changed()

    # -- for people -----------------------------------------------------------------------------------------------

    def unused(self) -> list[dict[str, object]]:
        """What would be better than the main path, why it is not used, and when it is tried again."""
        told: list[dict[str, object]] = []
        for transport in self._better():
            retry = self._retries.get(transport)
            due = None if retry is None or retry.due_at is None else max(0.0, retry.due_at - self._clock())
            told.append(
                {
                    "transport": transport,
                    "reason": self._paths.unusable.get(transport, "is not up"),
                    "trials": 0 if retry is None else retry.trials,
                    "next_trial_seconds": due,
                }
            )
        return told

    def _say_chosen(self, transport: str, reason: str) -> None:
        site = self._peer.site
        self._context.complaints.add(
            logger,
            "data path chosen",
            site,
            "data path to %s: %s (%s)",
            site,
            transport,
            reason,
            level=logging.INFO,
            lines=EACH_TELLS,
        )

    def _complain(
        self, kind: str, message: str, transport: str, other: object, *, level: int = logging.WARNING
    ) -> None:
        site = self._peer.site
        self._context.complaints.add(logger, kind, site, message, transport, site, other, level=level, lines=EACH_TELLS)
