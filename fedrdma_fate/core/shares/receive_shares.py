"""Which rate each sender may have, so that all together fill the receiver's link and do not overrun it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping

from fedrdma_fate.core.shares.common_end import Ending, common_end
from fedrdma_fate.core.shares.distances import believed_round_trip, common_round_trip
from fedrdma_fate.core.shares.link_rate import AMPLE_SHARE, JOINT_GAIN, LONG_WINDOWS, WANTED_GAIN, LinkRate
from fedrdma_fate.core.shares.max_min import max_min
from fedrdma_fate.core.shares.share_sender import Arrivals, Sender
from fedrdma_fate.core.shares.windows import HEADROOM, LEAST_PART, USED_SHARE, Windows
from fedrdma_fate.core.x.controller import LEAST_RATE, LEAST_SHARED_RATE

GATHER_SECONDS = 0.02
"""After the first of several has begun, as many are expected as usual: what begins together, at the end of a round of
training, begins within some milliseconds. Of each it is heard half its round trip later."""

QUIET_GATHER_SECONDS = 0.005
"""And so long after the latest of several, for who begins together leaves no such gaps: of eight that begin within 15
ms one in 25 times."""

GATHERED_STEP = 0.75
"""While it shows that fewer begin than were expected, all are told when so few are, and not at each."""

LONE_BURSTS = 4
"""After so many times that one sender alone has sent, the next is not held up for as long."""

LONE_GATHER_SECONDS = 0.005
"""But for this."""

REMEMBERED_CROWDS = 16
"""Times that several have sent at once, of which the largest crowd is expected again. Those that one has sent alone do
not count: between two rounds in which all send FATE has many, and who is held up for a round trip for nothing loses
less than a buffer that is overrun by 64."""

MOST_TRANSFERS = 8192
"""Of a sender that count: a gateway announces no more (`MOST_ANNOUNCED`)."""

TOLD_SHARE = 0.02
"""A share that has changed by less is not told anew."""

DECIDE_SECONDS = 0.001
"""Who begins or ends within this is decided on together: 64 that begin together would else be told 64 times."""

PATH_HEADROOM = 1.25
"""Of what is known of the way to one, it may have so many times: what it probes for, itself (`PROBE_UP`)."""

FORGOTTEN_SECONDS = 20.0
"""After so long without anything, what it has announced is forgotten; until then, it may go on. A gateway that says
nothing at all is given up after as long (`timeouts.peer_silence`)."""

LEAST_PLACES = 4
"""That take turns at a time, so that one that stops in its turn wastes a quarter of the link until that shows."""

WAITING_SHARE = 0.25
"""Of the link at most goes to those that wait for their turn, at the least rate; where it would be more, all go."""


class ReceiveShares:
    """Shares a link among its senders. Times in seconds of one clock, rates in payload bytes a second.

    Who takes part joins; a share holds for all that a sender sends. What is to be told is to be asked for
    (`take_told`) after each call of something that may change it.

    Attributes:
        link: what the link carries.
        senders: who takes part, by name.
    """

    def __init__(self, configured: float | None = None, *, gathers: bool = True, turns: bool = False) -> None:
        """
        Args:
            configured: what the link carries at most; None: to be found.
            gathers: whether who begins is heard of late, so that more are to be expected.
            turns: whether few send at a time, in the order in which they have begun, and the others wait.
        """
        self._gathers = gathers
        self._takes_turns = turns
        self._asks = 0
        self._turn_ends: float | None = None
        self.link = LinkRate(configured, least_hold=0 if gathers else LONG_WINDOWS)
        self.senders: dict[str, Sender] = {}
        self._joined = 0
        self._named: frozenset[str] | None = None
        self._last_named = frozenset[str]()
        self._crowds: list[int] = []
        self._crowd = 0
        self._lone_bursts = 0
        self._gather = GATHER_SECONDS
        self._first_start = self._latest_start = -math.inf
        self._decide_at: float | None = None
        self._windows = Windows(self.link, by_reports=not gathers)
        self._settled_at = 0.0
        self._uneven: dict[str, float] = {}
        self._told: dict[str, float] = {}

    # -- who takes part -------------------------------------------------------------------------------------------

    def join(self, name: str, now: float, round_trip: float | None = None) -> None:
        """It may send from now on; what it was told before is not known to it any more."""
        sender = self.senders.get(name)
        if sender is None:
            sender = self.senders[name] = Sender(_spread(self._joined))
            self._joined += 1
        sender.share, sender.transfers, sender.silent = math.inf, set(), False
        if round_trip is not None:
            sender.round_trip = round_trip
        self._count(now)
        # it is to know before it sends anything
        self._decide(now)

    def leave(self, name: str, now: float) -> None:
        """It is gone, with all that was under way."""
        if self.senders.pop(name, None) is not None:
            self._told.pop(name, None)
            self._count(now)
            self._decide_soon(now)

    def expect(self, names: Collection[str], now: float) -> None:
        """Only these are to send for now, as far as is known; nobody: any may.

        Where others are among them than before, how many began at once tells nothing of them.
        """
        named = frozenset(names) if names else None
        if named == self._named:
            return
        if named is not None:
            if not named <= self._last_named:
                self._crowds.clear()
            self._last_named = named
        self._named = named
        self._decide(now)

    def on_path(self, name: str, now: float, rate: float | None, round_trip: float | None) -> None:
        """What a train of its own, or the control channel, has told of the way from it."""
        sender = self.senders.get(name)
        if sender is None:
            return
        if round_trip is not None:
            sender.round_trip = round_trip
        if rate is not None:
            if self._gathers:
                sender.train_rate = rate
            else:
                sender.path_rate = rate
            before = self.link.rate
            self.link.on_probed(rate)
            if self.link.rate != before:
                self._decide_soon(now)

    def on_joint_train(self, rate: float, now: float) -> None:
        """Trains to all at one moment came at this rate together."""
        self.link.on_joint_train(rate)
        self._decide_soon(now)

    def on_wanted_train(self, rate: float, now: float, held_bytes: int = 0) -> None:
        """Trains that were wanted of all came at this rate together, and so much was held in a buffer."""
        self.link.on_wanted_train(rate, held_bytes)
        self._decide_soon(now)

    @property
    def may_be_told_more(self) -> bool:
        """Whether the link is not known to carry about what all ways do that lead over it, and trains may tell that."""
        reach = sum(each.path_rate for each in self.senders.values())
        return self.link.may_be_probed and (self.link.rate or 0.0) < AMPLE_SHARE * reach

    def wants_more(self, rate: float) -> bool:
        """Whether trains that came at this rate together, faster than each alone, are to be followed by longer ones."""
        if self._gathers:
            return rate > WANTED_GAIN * (self.link.rate or math.inf)
        fastest = max((each.path_rate for each in self.senders.values()), default=math.inf)
        return rate > JOINT_GAIN * fastest

    def on_begin(self, name: str, transfer: int, now: float, total_bytes: int = 0) -> None:
        """It has announced a transfer. What has come of it before is to be told first (`on_arrivals`).

        Nobody has looked yet whether that can be: what it announces is no less than nothing, and else what it says.
        """
        total_bytes = max(total_bytes, 0)
        sender = self.senders.get(name)
        if sender is None or transfer in sender.transfers or len(sender.transfers) >= MOST_TRANSFERS:
            return
        was_active = sender.active
        if not sender.transfers:
            self._asks += 1
            sender.asked = self._asks
            sender.announced_bytes, sender.due_bytes = 0, sender.come.received_bytes
        sender.announced_bytes += total_bytes
        sender.due_bytes += total_bytes
        sender.transfers.add(transfer)
        if not was_active:
            self._wake(sender, now)
            self._count(now)
            self._decide_soon(now)

    def on_end(self, name: str, transfer: int, now: float) -> None:
        """A transfer has come, or will not."""
        sender = self.senders.get(name)
        if sender is None or transfer not in sender.transfers:
            return
        sender.transfers.discard(transfer)
        if not sender.transfers:
            sender.arrived_rate = 0.0
            self._count(now)
            self._decide_soon(now)
        elif self._takes_turns:
            self._decide_soon(now)

    def settle(self, now: float) -> None:
        """Decide now on what has begun, and not with what begins within a millisecond: all that begins now has."""
        if self._decide_at is not None:
            self._decide(now)

    def on_arrivals(self, name: str, arrivals: Arrivals) -> None:
        """What has come of it so far; to be told before `on_timer`."""
        sender = self.senders.get(name)
        if sender is not None:
            sender.come = arrivals

    # -- what is shared -------------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """How many send."""
        return sum(sender.active for sender in self.senders.values())

    @property
    def under_way(self) -> bool:
        """Whether anybody has announced what has not ended, be it one of which nothing has come for long."""
        return any(sender.transfers for sender in self.senders.values())

    @property
    def expected(self) -> int:
        """How many are expected to send at once."""
        may_begin = len(self._may_begin)
        return max(min(max(self._crowds), may_begin), self._crowd) if self._crowds else may_begin

    @property
    def round_trip(self) -> float:
        """The longest of all that send, seconds, but of few that are much farther away; of all, while nobody does."""
        known = [self._trip(sender) for sender in self.senders.values() if sender.active or not self._crowd]
        return common_round_trip(known)

    def take_told(self) -> dict[str, float]:
        """Shares that are to be told now, by name; infinite: no bound."""
        told, self._told = self._told, {}
        return told

    # -- time -----------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When to call `on_timer`, with what has come by then."""
        times = (self._decide_at, self._windows.ends, self._turn_ends)
        return min((due for due in times if due is not None), default=None)

    def on_timer(self, now: float) -> None:
        """Judge what has come, and decide anew."""
        for sender in self.senders.values():
            if not sender.silent or not sender.transfers:
                continue
            if sender.come.at > sender.begun_at:
                self._wake(sender, now)
                self._count(now)
                self._decide_soon(now)
            elif now > sender.begun_at + FORGOTTEN_SECONDS:
                sender.transfers.clear()
        if self._windows.ends is not None and now >= self._windows.ends:
            self._end_window(now)
        due = self._decide_at if self._turn_ends is None else min(self._turn_ends, self._decide_at or math.inf)
        if due is not None and now >= due:
            self._decide(now)

    def _watch(self, now: float) -> None:
        """Windows follow each other while anybody sends, also of those that have gone silent, who may go on."""
        if len(self.senders) < 2 or not self.under_way:
            self._windows.stop()
        elif self._windows.ends is None:
            self._start_window(now)

    def _wake(self, sender: Sender, now: float) -> None:
        """It begins, or goes on after a silence."""
        start = now - self._trip(sender) / 2
        if not self._crowd:
            self._gather = LONE_GATHER_SECONDS if self._lone_bursts >= LONE_BURSTS else GATHER_SECONDS
            self._first_start = self._latest_start = start
        self._latest_start = max(self._latest_start, start)
        # what its train has told of its way, until it is seen to use all that it has
        sender.usable, sender.begun_at, sender.come_before = PATH_HEADROOM * sender.train_rate, now, None
        sender.ignores = sender.silent = False

    def _decide_soon(self, now: float) -> None:
        due = now + DECIDE_SECONDS
        self._decide_at = due if self._decide_at is None else min(self._decide_at, due)

    def _count(self, now: float) -> None:
        """Somebody has begun or ended."""
        active = self.active
        self.link.disturb()
        self._settled_at = now + self.round_trip
        self._uneven = {}
        if active:
            self._crowd = max(self._crowd, active)
        elif self._crowd:
            if self._crowd > 1:
                self._crowds = [*self._crowds[1 - REMEMBERED_CROWDS :], self._crowd]
                self.link.on_rest()
            self._lone_bursts = self._lone_bursts + 1 if self._crowd == 1 else 0
            self._crowd = 0

    def _decide(self, now: float) -> None:
        self._decide_at = self._turn_ends = None
        # whoever asks for it: what was decided is judged
        self._watch(now)
        self._note_reach()
        total, active = self.link.shared_out, self.active
        if total is None or len(self.senders) < 2:
            for name in self.senders:
                self._tell(name, math.inf, now)
            return
        parts = self._parts(active, now)
        if parts == 1 or self.link.ample:
            self._end_turns()
            shares = {name: math.inf for name, sender in self.senders.items() if sender.active}
        elif self._takes_turns and active > 1 and (parts == active or self._crowd >= self.expected):
            shares = self._by_turns(self._left_by_foreign(total, parts), now)
        else:
            shares = self._among(self._left_by_foreign(total, parts), parts)
        # who begins next comes on top of those that are here; by doubling, so that not each one that begins changes it
        may_begin, others, least = self._may_begin, len(self.senders), max(2, 1 << active.bit_length())
        expected = max(self.expected, least)
        for name, sender in self.senders.items():
            # of whom nothing is expected has what it has when all begin
            count = expected if name in may_begin else max(others, least)
            part = self._left_by_foreign(total, count) / self.link.gain / count
            next_share = part if self._turn_ends is None else LEAST_RATE
            self._tell(name, shares[name] if sender.active else next_share, now)

    def _left_by_foreign(self, total: float, parts: int) -> float:
        """What there is for so many of ours beside who keeps to no share."""
        return total * (1 - self.link.foreign.part / (parts + 1))

    def _trip(self, sender: Sender) -> float:
        """Its round trip, seconds; after half of it is heard that it has begun."""
        return believed_round_trip(sender.round_trip)

    @property
    def _may_begin(self) -> Mapping[str, Sender]:
        """Those that are to send, or all, where somebody does who is not to."""
        named = self._named
        if named is None or any(sender.active and name not in named for name, sender in self.senders.items()):
            return self.senders
        return {name: sender for name, sender in self.senders.items() if name in named} or self.senders

    def _parts(self, active: int, now: float) -> int:
        """For how many the link is to do: those that send, and those that may have begun with them."""
        if not active or not self._gathers:
            return active
        until = self._first_start + self._gather
        if self._crowd > 1:
            until = min(until, self._latest_start + QUIET_GATHER_SECONDS)
        heard = (until + self._trip(sender) / 2 for sender in self._may_begin.values() if not sender.active)
        due = sorted(moment for moment in heard if moment > now)
        parts = max(active, min(self.expected, active + len(due)))
        if parts > active:
            still = max(int(GATHERED_STEP * parts) - active, 0)
            self._decide_at = due[len(due) - still - 1]
        return parts

    def _note_reach(self) -> None:
        """What all that are sent to can take together; more of the link nobody has to know."""
        self.link.reach = sum(sender.path_rate for sender in self.senders.values() if sender.active) or math.inf

    def _by_turns(self, total: float, now: float) -> dict[str, float]:
        """The shares of those whose turn it is, and the least for all others.

        A turn is over a round trip before the last of what was announced comes: then what the next sends comes just
        behind it. What has come tells when that is, again and again.
        """
        for sender in self.senders.values():
            if sender.turn_transfers and not sender.turn_transfers & sender.transfers:
                # what has begun since comes after what others have announced before
                self._asks += 1
                sender.asked, sender.turn_transfers = self._asks, set()
        queue = sorted(((name, each) for name, each in self.senders.items() if each.active), key=_place_in_queue)
        round_trip = self.round_trip
        # not the mean, which one that announces more than it can ever send makes what it likes
        announced = statistics.median(sender.announced_bytes for _, sender in queue)
        # a turn is to last a round trip, for nothing is known sooner of what was told
        places = max(LEAST_PLACES, math.ceil(total * round_trip / max(announced, 1.0)))
        waiting = (len(queue) - places) * LEAST_RATE
        if waiting <= 0 or waiting > WAITING_SHARE * total:
            return self._among(total, len(queue))
        part = (total - waiting) / places
        shares, taken, next_end = {}, 0.0, math.inf
        for name, sender in queue:
            sender.in_turn = taken < places * USED_SHARE
            if not sender.in_turn:
                shares[name] = LEAST_RATE
                continue
            if not sender.turn_transfers:
                sender.turn_transfers = set(sender.transfers)
            share = shares[name] = max(min(part, sender.usable), LEAST_RATE)
            if share > HEADROOM * sender.share:
                sender.turn_at = now
            ends = max(now, sender.turn_at + round_trip) + sender.left_bytes / share
            if ends > now + round_trip:
                taken += share / part
                next_end = min(next_end, max(ends - round_trip, now + DECIDE_SECONDS))
        self._turn_ends = next_end if taken else None
        return shares

    def _end_turns(self) -> None:
        """All send."""
        for sender in self.senders.values():
            sender.in_turn, sender.turn_transfers = True, set()

    def _among(self, total: float, parts: int) -> dict[str, float]:
        """The shares of those that send, where so many are to have one."""
        self._end_turns()
        wants = {
            name: min(sender.usable, PATH_HEADROOM * sender.path_rate)
            for name, sender in self.senders.items()
            if sender.active
        }
        taken = {name: self.senders[name].arrived_rate for name in wants if self.senders[name].ignores}
        rest = max(total - sum(taken.values()), total * LEAST_PART)
        honest = {name: want for name, want in wants.items() if name not in taken}
        # those that are still expected
        missing = {f"\0{number}": math.inf for number in range(parts - len(wants))}
        shares = max_min(rest, {**honest, **missing})
        if self._uneven.keys() == honest.keys() and all(math.isinf(want) for want in honest.values()):
            shares.update({name: shares[name] * part for name, part in self._uneven.items()})
        # who keeps to nothing is told what would be fair
        return {name: shares[name] if name in honest else total / parts for name in wants}

    def _look_for_common_end(self) -> None:
        """Once, when it is time for that: of all that use their shares, from when on which part of an equal one."""
        total = self.link.shared_out
        if self._uneven or not self._gathers or total is None:
            return
        active = {name: sender for name, sender in self.senders.items() if sender.active}
        if all(math.isinf(sender.usable) for sender in active.values()):
            endings = {name: Ending(each.left_bytes, each.share, self._trip(each)) for name, each in active.items()}
            shares = common_end(endings, total) or {}
            self._uneven = {name: share * len(active) / total for name, share in shares.items()}

    def _tell(self, name: str, share: float, now: float) -> None:
        sender = self.senders[name]
        share = max(share, LEAST_SHARED_RATE)
        if share == sender.share or abs(share - sender.share) <= TOLD_SHARE * sender.share < math.inf:
            return
        sender.least_share = min(share, sender.share)
        sender.share, sender.changed_at = share, now
        self._told[name] = share
        if sender.active:
            self._settled_at = now + self.round_trip

    # -- what has come --------------------------------------------------------------------------------------------

    def _start_window(self, now: float) -> None:
        self._windows.start(self.senders.values(), self._crowd, self.round_trip, now)

    def _end_window(self, now: float) -> None:
        active = [sender for sender in self.senders.values() if sender.active]
        if self._windows.judge(active, self._settled_at, self.round_trip, now, self._trip):
            self._count(now)
        self._windows.tell(len(active))
        self._look_for_common_end()
        self._start_window(now)
        self._decide_at = now


def _place_in_queue(sender: tuple[str, Sender]) -> int:
    """Who has asked first is first."""
    return sender[1].asked


def _spread(number: int) -> float:
    """Places in [0, 1), of which the first so many lie as far from each other as they can (van der Corput)."""
    place, part = 0.0, 0.5
    while number:
        place += part * (number & 1)
        number, part = number >> 1, part / 2
    return place
