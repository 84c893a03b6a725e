"""How long datagrams may be while a link is used: Datagram Packetization Layer PMTU Discovery (RFC 8899, section 5).

Each side does it for what it sends. What tells it that datagrams of a length come through are the peer's answers to
short pings, which name the longest datagram that has come since the ping before: so the data itself proves the path, a
probe is padding that is sent ahead of a ping, and a length is held against the path only where the ping behind it came
through. What is lost with its ping, by chance or in a queue, says nothing of lengths.

    SEARCHING ── no longer one passes, or all do ──► SEARCH_COMPLETE ── RAISE_SECONDS ──► SEARCHING
        ▲                                                │
        └── datagrams of `base` pass ── BASE ◄── black hole, from every state
                                         └── they do not either ──► ERROR: the link is given up
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

MOST_PROBES = 6
"""Of a length that may not pass: MAX_PROBES of RFC 8899, section 5.1.2, which has 3; where a fifth of all datagrams is
lost, three in a row are so once in 125 times, six once in 15,625, and a shorter length stays for RAISE_SECONDS."""

PROBE_SECONDS = 1.0
"""After which a probe whose ping was not answered is sent again: PROBE_TIMER at its least (section 5.1.1), some round
trips of any path."""

RAISE_SECONDS = 600.0
"""From the end of a search to the next one: PMTU_RAISE_TIMER, section 5.1.1."""

CONFIRMATION_SECONDS = 10.0
"""Without data of full length padding of it goes this often: CONFIRMATION_TIMER, section 5.1.1, with each ping of an
idle link (`liveness.py`)."""

LEAST_MISSED_PINGS = 3
"""Pings in a row that say that nothing long has come: MAX_PROBES for what has been confirmed before."""

LEAST_MISSED_DATAGRAMS = 8
"""Long ones, sent ahead of these pings: where a fifth of all is lost, eight are so once in 400,000 times."""

_PROBES_IN_DOUBT = -(-LEAST_MISSED_DATAGRAMS // LEAST_MISSED_PINGS)
"""Ahead of each ping while full length is in doubt: then it takes no data to find out."""

MOST_PINGS = 128
"""That are remembered until they are answered: 19 s of `liveness.TICK_SECONDS`, twice what a link waits for."""


class State(enum.Enum):
    """Of section 5.2; a link is made with a length that has passed, so that it is never DISABLED."""

    BASE = "base"
    SEARCHING = "searching"
    SEARCH_COMPLETE = "search-complete"
    ERROR = "error"


class Padding(NamedTuple):
    """What to send ahead of a ping: so many datagrams of this length."""

    datagrams: int
    length: int


class LongSent(NamedTuple):
    """Datagrams of at least `base` bytes that were sent since the ping before: how many, and the shortest of them."""

    datagrams: int = 0
    shortest: int = 0


class _Ping(NamedTuple):
    length: int
    sent: LongSent
    probe: int


class PathMtu:
    """What one side sends. Lengths are those of datagrams, without the headers of IP and UDP.

    Attributes:
        length: that passes, so far as is known: PLPMTU.
        state: see above.
    """

    def __init__(self, length: int, base: int, lengths: Sequence[int], now: float) -> None:
        """
        Args:
            length: longest datagram that has come through.
            base: to go on with where that does not pass any more: BASE_PLPMTU.
            lengths: that a path may have, in any order.
            now: seconds.
        """
        self.length = length
        self.state = State.SEARCH_COMPLETE
        self._base = min(base, length)
        self._lengths = sorted(lengths)
        self._pings: dict[int, _Ping] = {}
        self._probe = 0
        self._probes = 0
        self._probed_at: float | None = None
        self._missed_pings = 0
        self._missed_datagrams = 0
        self._in_doubt = False
        self._confirmed_at = now
        self._raise_at = now + RAISE_SECONDS

    @property
    def base(self) -> int:
        """The shortest that `length` may become."""
        return self._base

    def wants_ping(self, now: float) -> bool:
        """Whether a probe is due, with a ping behind it."""
        if self._in_doubt or self.state is State.BASE:
            return True
        return self.state is State.SEARCHING and self._may_probe(now)

    def wants_search(self, now: float) -> bool:
        """Whether `search` is due."""
        return self.state is State.SEARCH_COMPLETE and now >= self._raise_at

    def search(self, lengths: Sequence[int], now: float) -> None:
        """Look for longer ones, from now on and after each black hole.

        Args:
            lengths: that a path may have; none is longer than the route takes.
            now: seconds.
        """
        self._lengths = sorted(lengths)
        if self.state is State.SEARCH_COMPLETE:
            self._seek(now)

    def on_ping(self, number: int, sent: LongSent, now: float) -> Padding:
        """A short ping is about to be sent: what to send ahead of it.

        Args:
            number: of the ping.
            sent: since the ping before.
            now: seconds.
        """
        padding = self._padding(now)
        is_probe = padding.length > self.length
        if padding.datagrams and not is_probe:
            shortest = min(sent.shortest or padding.length, padding.length)
            sent = LongSent(sent.datagrams + padding.datagrams, shortest)
        if len(self._pings) >= MOST_PINGS:
            del self._pings[next(iter(self._pings))]
        self._pings[number] = _Ping(self.length, sent, padding.length if is_probe else 0)
        return padding

    def on_pong(self, number: int, longest: int, now: float) -> None:
        """The peer has answered a ping; what was never asked, or has been answered, is ignored.

        Args:
            number: of the ping.
            longest: datagram that had come since the ping before.
            now: seconds.
        """
        ping = self._pings.pop(number, None)
        if ping is None or self.state is State.ERROR:
            return
        if longest >= self.length:
            self._confirm(now)
        elif longest < ping.sent.shortest and ping.length == self.length:
            self._missed_pings += 1
            self._missed_datagrams += ping.sent.datagrams
            self._in_doubt = True
            if self._missed_pings >= LEAST_MISSED_PINGS and self._missed_datagrams >= LEAST_MISSED_DATAGRAMS:
                self._shorten()
                return
        if ping.probe and ping.probe == self._probe:
            self._on_probed(longest >= ping.probe, now)

    def doubt(self) -> None:
        """Something says that full length does not pass any more, such as an ICMP message, which anybody can send."""
        self._in_doubt = True

    def refuse(self) -> bool:
        """This host's own device takes no datagram of `length`; False: nor one of `base`."""
        if self.length == self._base:
            return False
        self._shorten()
        return True

    def _padding(self, now: float) -> Padding:
        if self.state is State.BASE or self._in_doubt:
            return Padding(_PROBES_IN_DOUBT, self.length)
        if self.state is State.SEARCHING:
            if not self._may_probe(now):
                return Padding(0, 0)
            self._probed_at = now
            return Padding(1, self._probe)
        if now - self._confirmed_at >= CONFIRMATION_SECONDS:
            return Padding(1, self.length)
        return Padding(0, 0)

    def _may_probe(self, now: float) -> bool:
        """One at a time."""
        return self._probed_at is None or now - self._probed_at >= PROBE_SECONDS

    def _confirm(self, now: float) -> None:
        self._missed_pings = self._missed_datagrams = 0
        self._in_doubt = False
        self._confirmed_at = now
        if self.state is State.BASE:
            self._seek(now)

    def _shorten(self) -> None:
        """A black hole (section 4.3): what is sure goes on at once, and what passes now is looked for from there."""
        self.state = State.ERROR if self.length == self._base else State.BASE
        self.length = self._base
        self._missed_pings = self._missed_datagrams = self._probe = 0
        self._in_doubt = False

    def _on_probed(self, passed: bool, now: float) -> None:
        self._probed_at = None
        if passed:
            self.length = self._probe
            self._seek(now)
            return
        self._probes += 1
        if self._probes >= MOST_PROBES:
            self._complete(now)

    def _seek(self, now: float) -> None:
        """The next longer length that is known; lengths are in order, so that after one that fails there is none."""
        self._probe = next((length for length in self._lengths if length > self.length), 0)
        self._probes = 0
        self._probed_at = None
        self.state = State.SEARCHING
        if not self._probe:
            self._complete(now)

    def _complete(self, now: float) -> None:
        self.state = State.SEARCH_COMPLETE
        self._probe = 0
        self._raise_at = now + RAISE_SECONDS
