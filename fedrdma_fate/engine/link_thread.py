"""Links as their owners see them: commands from any thread, carried out in turns, by a thread of the link's own."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from fedrdma_fate.core.path_probe import JointAnswer
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.engine.events import Emit, SlotsReturned, TransferProgress
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.link import Clock, Command, Link, Wait
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import Draft, EndpointAddress, Slot
from fedrdma_fate.security.datagram_tags import DatagramKeys
from fedrdma_fate.security.sealing import PathSealing
from fedrdma_fate.timerfd import Timer
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ControlFrame, MessageKey, Offer

_COARSE_SECONDS = 0.02
"""For what is due later than this, a millisecond more or less is nothing."""


class LinkHandle:
    """A link to be commanded from any thread: nothing happens before whoever drives it gives it a `turn`."""

    def __init__(self, peer: str, settings: LinkSettings, emit: Emit, clock: Clock) -> None:
        self._link = Link(peer, settings, emit, clock)
        self._emit = emit
        self._commands: deque[Command] = deque()
        self._draft: Draft | None = None
        self._lock = threading.Lock()
        self._closing = False
        self._ended = False

    @property
    def heard_at(self) -> float:
        """When the data path last showed a sign of life."""
        return self._link.heard_at

    @property
    def known_path(self) -> KnownPath | None:
        """What is known of the path to the peer, None while nothing is."""
        return self._link.known_path

    @property
    def arrivals(self) -> Arrivals:
        """What has come in mode `fedrdma-x` so far."""
        return self._link.arrivals

    @property
    def deliveries(self) -> Arrivals:
        """What has arrived at the peer in mode `fedrdma-x` so far, as it reports."""
        return self._link.deliveries

    @property
    def bound(self) -> float:
        """What the peer lets through of all that is sent to it, bytes a second; infinite: no bound."""
        return self._link.bound

    @property
    def probed_rate(self) -> float | None:
        """Bytes a second at which the peer's latest train came; None where that could not be told."""
        return self._link.probed_rate

    @property
    def joint(self) -> JointAnswer | None:
        """What the latest train has told that went with those of other links; None while that is not known."""
        return self._link.joint

    @property
    def wanted(self) -> JointAnswer | None:
        """How the latest train of the peer came that was wanted of it; None while that is not known."""
        return self._link.wanted

    def progress(self) -> list[TransferProgress]:
        """What is under way, as it was some tenths of a second ago at most."""
        return self._link.snapshot

    @property
    def alive(self) -> bool:
        """Whether there are turns to come."""
        return not self._ended

    @property
    def backlog(self) -> int:
        """Commands that are left for its next turn."""
        return len(self._commands)

    # -- commands, see Link ---------------------------------------------------------------------------------------

    def connect(
        self,
        draft: Draft,
        peer: EndpointAddress,
        attempt: int,
        keys: DatagramKeys,
        sealing: PathSealing | None = None,
    ) -> None:
        """Connect the data path; a draft for a link that has ended, or is to, is closed.

        So is one that another comes for before it is begun. Each holds what its transport has few of, and may wait for
        its time-out, one after the other: a peer could have as many wait as commands may.
        """

        def attempt_it(link: Link) -> None:
            if not self._takes(draft):
                # it was closed by whoever came then
                return
            # what is in the slots would wait for the end of the link
            if self._closing:
                draft.close()
            else:
                link.connect(draft, peer, attempt, keys, sealing)

        with self._lock:
            replaced, self._draft = self._draft, draft
        if replaced is not None:
            replaced.close()
        if not self._command(attempt_it) and self._takes(draft):
            draft.close()

    def _takes(self, draft: Draft) -> bool:
        """Whether this draft is still the one that waits; then it does no longer."""
        with self._lock:
            is_waiting = self._draft is draft
            if is_waiting:
                self._draft = None
        return is_waiting

    def hint(self, rtt: float, rate: float | None) -> None:
        """What others know: the control channel's round trip in seconds, and a configured rate in bytes a second."""
        self._command(lambda link: link.hint(rtt, rate))

    def suspend(self, reason: str) -> None:
        """Drop the data path and pause: the control channel is gone."""
        self._command(lambda link: link.suspend(reason))

    def send(self, outgoing: Outgoing) -> None:
        """Send a message."""
        self._command(lambda link: link.send(outgoing))

    def written(self, transfer: int) -> None:
        """More of a message's payload lies in its slot."""
        self._command(lambda link: link.written(transfer))

    def cancel(self, transfer: int, code: ErrorCode, reason: str) -> None:
        """Give a message up."""
        self._command(lambda link: link.cancel(transfer, code, reason))

    def grant(self, grant: int, slot: Slot, transfer: int = 0, kept: KeptSlot | None = None) -> None:
        """Let the peer write into this slot, on what is kept there; on a link that has ended it comes back at once."""
        if not self._command(lambda link: link.grant(grant, slot, transfer, kept)):
            self._emit(SlotsReturned((slot,)))

    def share(self, rate: float, place: float) -> None:
        """Tell the peer what is let through of all that it sends."""
        self._command(lambda link: link.share(rate, place))

    def limit(self, rate: float, place: float) -> None:
        """Send no more than this of all that goes to the peer."""
        self._command(lambda link: link.limit(rate, place))

    def probe_jointly(self, began: float, count: int) -> None:
        """Send a short train, which trains of other links go with."""
        self._command(lambda link: link.probe_jointly(began, count))

    def want_train(self, began: float, count: int) -> None:
        """Ask the peer for a short train, which others are wanted with."""
        self._command(lambda link: link.want_train(began, count))

    def begin_early(self, offer: Offer) -> None:
        """Begin to receive what a datagram has announced, if that can be."""
        self._command(lambda link: link.begin_early(offer))

    def look_again(self, key: MessageKey) -> None:
        """Ask anew what may be missing of this message, and whether it is late."""
        self._command(lambda link: link.look_again(key))

    def decline(self, offer: Offer, answer: ControlFrame) -> None:
        """Take the grant of an announced transfer back, and answer its sender."""
        self._command(lambda link: link.decline(offer, answer))

    def recall_credits(self) -> None:
        """Ask the peer for all standing grants it has not used."""
        self._command(Link.recall_credits)

    def frame(self, frame: ControlFrame) -> None:
        """A control frame about transfers came from the peer."""
        self._command(lambda link: link.frame(frame))

    def retire(self) -> None:
        """End the link at its next turn: granted slots come back, messages on their way are dropped."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._wake()

    def close(self, timeout: float = 5.0) -> None:
        """Retire the link, and wait for its end where somebody else drives it; `alive` tells whether it came."""
        del timeout
        self.retire()

    # -- driving it -----------------------------------------------------------------------------------------------

    def turn(self, *, ready: bool = True) -> Wait:
        """One turn; the last one where the link was retired. See `Link.turn`."""
        if not self._closing:
            return self._link.turn(self._commands, ready=ready)
        self._link.end(self._commands)
        self._ended = True
        return Wait(None)

    def _command(self, command: Command) -> bool:
        """Leave a command for the next turn; False when the link has ended."""
        with self._lock:
            if self._closing:
                return False
            self._commands.append(command)
            self._wake()
            return True

    def _wake(self) -> None:
        """There is something to do."""


class LinkThread(LinkHandle):
    """A link with a thread of its own, which waits for completions, for what is due, and for commands."""

    def __init__(self, peer: str, settings: LinkSettings, emit: Emit, clock: Clock = time.monotonic) -> None:
        super().__init__(peer, settings, emit, clock)
        self._clock = clock
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._timer = Timer()
        self._watched: tuple[tuple[int, int], ...] = ()
        self._poller = self._poller_of(())
        self._thread = threading.Thread(target=self._run, name=f"link-{peer}-{settings.transport}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def close(self, timeout: float = 5.0) -> None:
        """Retire the link, and wait for its thread for so many seconds; `alive` tells whether it has ended."""
        self.retire()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _wake(self) -> None:
        os.eventfd_write(self._signal, 1)

    def _run(self) -> None:
        try:
            ready = True
            while not self._ended:
                wait = self.turn(ready=ready)
                if not self._ended:
                    try:
                        ready = self._wait(wait)
                    except Exception:
                        # a descriptor that cannot be waited for, say: the thread must go on
                        self._link.fail()
        finally:
            with self._lock:
                self._closing = True
                os.close(self._signal)
            self._timer.close()

    def _wait(self, wait: Wait) -> bool:
        """Whether one of its descriptors is ready."""
        descriptors = tuple(wait.descriptors)
        if descriptors != self._watched:
            self._poller = self._poller_of(descriptors)
            self._watched = descriptors
        ready = False
        for descriptor, _ in self._poller.poll(self._milliseconds(wait)):
            if descriptor == self._signal:
                os.eventfd_read(self._signal)
            elif descriptor == self._timer.fileno:
                self._timer.expired()
            else:
                ready = True
        return ready

    def _poller_of(self, descriptors: Sequence[tuple[int, int]]) -> select.poll:
        poller = select.poll()
        poller.register(self._signal, select.POLLIN)
        poller.register(self._timer.fileno, select.POLLIN)
        for descriptor, mask in descriptors:
            poller.register(descriptor, mask)
        return poller

    def _milliseconds(self, wait: Wait) -> float | None:
        """To wait at most: for what is due after less than poll can tell apart, the timer is set."""
        if wait.look_again or self._commands or self._closing:
            return 0
        if wait.until is None:
            return None
        seconds = max(0.0, wait.until - self._clock())
        if 0 < seconds < _COARSE_SECONDS:
            self._timer.set(seconds)
        return seconds * 1000 + 1 if seconds else 0


class MakeLink(Protocol):
    """Makes a link to a peer; `LinkThread` where it is to run by itself."""

    def __call__(self, peer: str, settings: LinkSettings, emit: Emit) -> LinkHandle:
        """A new link, without a data path yet."""
        ...
