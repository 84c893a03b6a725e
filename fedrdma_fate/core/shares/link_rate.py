"""How much a receiver's link carries of all senders together, found from what arrives of all of them.

UniFL (section 3.2) has the receiver raise its window to 1.25 of what it was, keep that where no more is lost, try 0.75
of it otherwise, keep that where less is lost, and hold for four windows. What differs is ours:

- a trial is judged by how much arrives, and not by what is lost: where the buffer is deep nothing is lost until it is
  full, and where a path loses at random each trial would look alike;
- it begins at 1.05, for 1.25 of a whole round trip of 20 ms at 1 Gbit/s is more than a buffer of 0.5 MB, and doubles as
  long as it succeeds: from one silo's access link to that of ten takes seven trials;
- what goes down is tried only where less arrives than was let through, and by a twentieth. Where that has found
  nothing, the path loses at random, and more is tried next, one step at a time;
- where chance takes more than a trial has to show, it lasts several windows, and is larger, as a buffer holds it.
"""

from __future__ import annotations

import math
from typing import Literal

from fedrdma_fate.core.path_probe import TRAIN_DATAGRAMS
from fedrdma_fate.core.shares.foreign_flow import ForeignFlow
from fedrdma_fate.core.shares.trials import (
    CAREFUL_GAINS,
    FILL_WINDOWS,
    FIRST_GAIN,
    LOWER_GAIN,
    MUCH_LOWER_GAIN,
    STEADY_SHARE,
    TRIAL_WINDOWS,
    Usual,
    carried_at_most,
    carried_before,
    carried_in,
    chance_of_longest,
    kept_share,
    least_fallen,
    lost_at_random,
    windows_held,
    windows_shown,
)
from fedrdma_fate.core.shares.window import Window
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES

PACED_SHARE = 0.98
"""Of the link is shared out: with the whole of it, a queue would never drain. A single flow keeps to 0.99."""

MOST_GAIN = 2.0
"""Of one that follows others that succeeded: what slow start does in a round trip (RFC 5681)."""

AMPLE_SHARE = 0.7
"""Of what all ways carry together has to have come in a trial that succeeded, or of trains, for the link to be none
that is shared: what each finds of its own way goes up and down by a quarter, so that a trial for all of it would show
little."""

JOINT_GAIN = 1.25
"""By so much faster than the fastest way alone have trains to all to come together: two estimates of one link differ by
some hundredths, and the difference would be let through for nothing."""

WANTED_GAIN = 1.1
"""The same of trains that were wanted of all, and have come on one clock: that tells it in two ways, of which the
slower counts."""

HOLD_WINDOWS = 4
"""Between two trials: UniFL, section 3.2.2."""

LONG_WINDOWS = 16
"""Where the ways are known, and trains have gone to all at once, what these have told is not doubted before so many in
which the same peers are sent to. Of a link that is known well a trial can only cost: where chunks are lost at random,
it may seem to succeed. Who sends for longer has more to gain than that."""

HELD_BYTES = TRAIN_DATAGRAMS * DATAGRAM_BYTES
"""What a buffer is taken to hold as long as trains have not shown that it holds more: one of them."""

MOST_HOLD_WINDOWS = 64
"""After each trial that finds nothing it is twice as long, up to this: at 10 Gbit/s one overruns a buffer of 0.5 MB."""

OVERLOAD_LOSS = 0.2
"""So much more of a window lost than usual: the buffer is overrun, and not by a twentieth. A single flow takes as much
for what a path may lose at random, before it knows better (`USUAL_LOSS`)."""

OVERLOAD_SHARE = 0.9
"""And so little of what is let through arrives."""

COMMON_LOSS = OVERLOAD_LOSS / 2
"""And so much of what each of half the senders sends: all that lead over a link lose in its buffer. One that loses
alone loses on a way of its own, where a foreign flow may have begun; of 16 KiB chunks in a window one may lose half as
many as another by chance."""

CARRIES_ALL_SHARE = 0.9
"""Of what all ways carry came of trains to all at once: then these were held up on their ways, and not on the link,
which no more than that can overrun for long. It carries their headers, too, which the rates do not count."""

DISBELIEVED_IN_A_ROW = 4
"""So many windows in a row have to look overrun, for a link to be taken for slower than such trains have shown it,
while no more than that can have been sent over it: foreign flows may begin on most ways within a window or two, and all
lose on these."""

REFUTED_ROUNDS = 2
"""So many rounds in a row in which the link was overrun, and it is believed to be slower than trains have shown: in one
of them it may have been the ways, or a foreign flow on the link that has ended."""

LOWERED_AT_MOST = 8
"""By which the rate is divided at most: what arrives while a buffer is overrun may be less than the link carries."""

LOSS_GAIN = 0.25
"""Weight of a window in the usual loss, as of a round for a single flow (`EWMA_GAIN`)."""

DOUBTED_WINDOWS = 4
"""So many after a raise, what overruns the buffer is that raise: its loss is told a round trip later or two, and the
rate goes back to what it was before. What comes through a buffer that is overrun is little more than half of the link,
for of chunks the rest is lost with a part, and each sender comes down by itself."""


class LinkRate:
    """The estimate. Rates in payload bytes a second.

    Attributes:
        rate: what the link carries; None while nothing is known.
        found_by: how that is known.
        gain: of the trial under way, 1 while there is none.
        foreign: who is on it and keeps to no share.
        reach: what all ways that lead over the link carry together, as far as it is known: more is not tried for.
    """

    def __init__(self, configured: float | None = None, *, least_hold: int = 0) -> None:
        """
        Args:
            configured: what the link carries at most, as somebody has set it by hand; None: to be found.
            least_hold: windows after somebody has begun or ended, until there is a trial.
        """
        self._configured = configured
        self._least_hold = least_hold
        self.rate = configured
        self.found_by: Literal["unknown", "configured", "probed", "arrivals"]
        self.found_by = "unknown" if configured is None else "configured"
        self.gain = 1.0
        self.reach = math.inf
        self.foreign = ForeignFlow()
        self._is_roomy = False
        self._is_judged = False
        self._next_gain = FIRST_GAIN
        self._hold = least_hold
        self._next_hold = HOLD_WINDOWS
        self._before: Window | None = None
        self._trial_windows = 0
        self._trial_length = 1
        self._chance = 0.0
        self._before_trial: Window | None = None
        self._usual = Usual()
        self._doubted_windows = 0
        self._retreats: tuple[float, ...] = ()
        self._usual_loss = 0.0
        self._is_careful = False
        self._less_found_nothing = False
        self._random_loss = 0.0
        self._is_by_free = False
        self._joint_rate = 0.0
        self._disbelieved = 0
        self._is_lowered = False
        self._lowered: tuple[float, Window] | None = None
        self._lowered_rounds = 0
        self._held_bytes = HELD_BYTES
        self._undisturbed = 0

    @property
    def shared_out(self) -> float | None:
        """What is to be shared among the senders now."""
        return None if self.rate is None else self.rate * self.gain * PACED_SHARE

    @property
    def ample(self) -> bool:
        """Whether it carries all that can be sent over it: then there is nothing to share."""
        if self.rate is None or not math.isfinite(self.reach):
            return False
        return self.rate >= self.reach or (self._is_roomy and self.rate >= AMPLE_SHARE * self.reach)

    def on_probed(self, rate: float) -> None:
        """A sender's train came at this rate: the link carries no less, as far as no trial has shown how much."""
        if self.may_be_probed and rate > (self.rate or 0.0):
            self.rate, self.found_by = rate, "probed"

    def on_joint_train(self, rate: float) -> None:
        """Trains to all peers at one moment came at this rate together: the link carries no less."""
        if self.may_be_probed and rate > JOINT_GAIN * (self.rate or 0.0):
            self.rate, self.found_by, self._is_roomy = rate, "probed", True
            self._joint_rate, self._lowered_rounds = rate, 0

    def on_wanted_train(self, rate: float, held_bytes: int = 0) -> None:
        """Trains that were wanted of all senders came at this rate together, and so much was held in a buffer."""
        self._held_bytes = max(self._held_bytes, held_bytes)
        if self.may_be_probed and rate > WANTED_GAIN * (self.rate or 0.0):
            self.rate, self.found_by = rate, "probed"

    def on_rest(self) -> None:
        """A round is over, nobody sends any more: what trains have told holds for the next.

        Where the link was taken for overrun, that may have been foreign flows, on it or on most ways: they come and go.
        """
        self.foreign.on_rest()
        self._lowered_rounds = self._lowered_rounds + 1 if self._is_lowered else 0
        self._is_lowered, self._lowered = False, None
        if self._lowered_rounds >= REFUTED_ROUNDS:
            self._joint_rate = 0.0
        elif self._lowered_rounds and self._joint_rate > (self.rate or 0.0):
            self.rate, self.found_by, self._is_roomy = self._joint_rate, "probed", True
            self._is_judged = False

    def on_arrived(self, rate: float) -> None:
        """So much has come in a window, of one sender or of several: the link carries no less."""
        if self.found_by != "configured" and self.gain == 1 and rate > (self.rate or 0.0):
            self.rate, self.found_by = rate, "arrivals"

    def on_window(self, window: Window) -> None:
        """A window is over in which nobody has begun or ended, and all have known their shares for a round trip."""
        if self.rate is None or not 0 < window.allowed < math.inf:
            return
        before, self._before = self._before, window
        self._undisturbed += 1
        if not self._least_hold and self.gain == 1 and not self._retreats:
            # what is sent and lost may go over many ways, and over none that all share
            self.foreign.on_window(
                window.others_lost_share,
                window.chunks,
                window.seconds,
                window.lost_share if window.has_short_chunks else window.others_lost_share,
            )
        if self._lowered is not None and window.is_less_than(self._lowered[1]):
            rate, lowered = self._lowered
            self._lowered = None
            if window.loses_as_much_as(lowered):
                # of what that has lowered as much is lost: at random
                self._set(rate)
                self._usual_loss = max(window.lost_share, self._usual_loss)
                self._disbelieved = 0
                return
        if self.is_overrun(window):
            self._disbelieved += 1
            carried = self._has_carried(window.all_sent)
            if self._disbelieved >= (DISBELIEVED_IN_A_ROW if carried else 1 + window.has_few_chunks):
                self._on_overrun(window)
            return
        self._disbelieved = 0
        if self.foreign.part:
            # somebody takes what we leave, and leaves what we take: trials would show that alone
            self.gain, self._before = 1.0, None
            self._usual.forget()
            self._trial_windows = 0
            self._doubt_less()
            return
        usual = self._usual.window
        self._usual.note(window)
        if self.gain != 1:
            self._on_trial_window(window, usual, before)
        else:
            self._doubt_less()
            self._usual_loss += (window.lost_share - self._usual_loss) * LOSS_GAIN
            if before is not None and window.is_like(before) and self._is_known(window):
                self._begin_trial(window)

    def _on_trial_window(self, window: Window, usual: Window | None, before: Window | None) -> None:
        """One in which less or more is let through; where chance takes much, a mean of several tells more."""
        if not self._trial_windows:
            self._before_trial = usual
        self._trial_windows += 1
        if self._trial_windows < self._trial_length:
            return
        if self._trial_length > 1:
            window, before = self._usual.window or window, self._before_trial
        if self.gain > 1:
            self._judge_raise(window, self._before_trial)
        else:
            self._judge_lower(window, before)
        self._trial_windows = 0

    def _length_of_trial(self, gain: float, window: Window) -> int:
        """So many windows that chance does not decide, as far as a buffer holds what they let through."""
        wanted = windows_shown(gain, self._chance_in(window))
        if gain > 1 and wanted > 1:
            wanted = min(wanted, windows_held(self._held_bytes, self._too_much(gain, window.seconds)))
        return wanted

    def _is_known(self, window: Window) -> bool:
        """Whether it has been seen for long enough what usually comes, for a trial to be judged beside it."""
        usual, wanted = self._usual, self._length_of_trial(self._next_gain, window)
        if window.has_short_chunks and usual.window and usual.window.lost_share > 1 - STEADY_SHARE:
            wanted = min(wanted, HOLD_WINDOWS)
        return usual.windows >= wanted

    def _chance_in(self, window: Window) -> float:
        """By how much more or less chance takes in a window."""
        return window.chance(self._usual_loss if self._usual.window is None else self._usual.window.lost_share)

    def _too_much(self, gain: float, seconds: float) -> float:
        """Bytes that such a trial lets through too much in so long, of a link that is full."""
        return max((gain * PACED_SHARE - 1) * (self.rate or 0.0) * seconds, 1.0)

    def _next_step(self, window: Window) -> float:
        """The gain of the next trial: where loss makes it a single one, as large as half a buffer holds."""
        if self._is_careful and self._next_gain <= FIRST_GAIN:
            for gain in CAREFUL_GAINS:
                windows = self._length_of_trial(gain, window) + TRIAL_WINDOWS - 1
                if windows * self._too_much(gain, window.seconds) <= self._held_bytes / 2:
                    return gain
        return self._next_gain

    def _has_carried(self, rate: float) -> bool:
        """Whether trains to all at once have shown that it carries so much, or all that the ways take."""
        return self._joint_rate > min(rate, CARRIES_ALL_SHARE * self.reach)

    def is_overrun(self, window: Window) -> bool:
        """Whether the buffer is overrun: then who gets little through cannot be told from who sends little."""
        usual = self._usual_loss
        if self._usual.window is not None and self._usual.windows >= HOLD_WINDOWS:
            usual = max(usual, self._usual.window.lost_share)
        too_much = usual + max(OVERLOAD_LOSS, window.rare(usual))
        is_lossy = window.lost_share > too_much and window.common_loss > COMMON_LOSS
        return is_lossy and window.arrived < OVERLOAD_SHARE * window.allowed

    def disturb(self) -> None:
        """Somebody has begun or ended: a trial under way shows nothing any more."""
        self.gain = 1.0
        self._trial_windows = self._undisturbed = 0
        self._before = None
        self._usual.forget()
        self._hold = max(self._hold, self._least_hold)

    def _begin_trial(self, window: Window) -> None:
        self._hold -= 1
        if self._hold >= 0:
            return
        if self._variation > 1 - kept_share(FIRST_GAIN):
            self._try_by_free(window)
            return
        chance = self._chance_in(window)
        # of longer chunks a window is taken as it is
        vague = chance if window.has_short_chunks else 0.0
        window = self._usual.shown(window, vague)
        missing = max(0.0 if math.isfinite(self.reach) else window.missing_share, window.lost_share)
        self._is_careful = missing > 1 - STEADY_SHARE
        tries_less = self._next_gain <= FIRST_GAIN and self._is_careful
        by_chance = self._usual.by_chance(vague)
        no_more = window.has_short_chunks and self._loses_no_more(window.lost_share - by_chance)
        is_random = self._less_found_nothing or no_more
        loses_at_random = is_random and missing - window.lost_share <= 1 - STEADY_SHARE + by_chance
        # what is missing is that of some alone, and no less of it where less was let through
        self._is_by_free = tries_less and self._less_found_nothing and window.free_missing_share <= 1 - STEADY_SHARE
        if self._is_by_free and self._may_rise:
            self._is_careful = False
            self._raise(FIRST_GAIN, self._length_of_trial(FIRST_GAIN, window))
        elif tries_less and not (loses_at_random and self._may_rise):
            self._chance = chance_of_longest(chance)
            self.gain = LOWER_GAIN if self._chance <= 1 - kept_share(FIRST_GAIN) else MUCH_LOWER_GAIN
            self._trial_length = self._length_of_trial(self.gain, window)
        elif self._may_rise and (self._undisturbed > LONG_WINDOWS or self._fits_a_buffer(window.seconds)):
            gain = self._next_step(window)
            self._raise(gain, self._length_of_trial(gain, window))

    def _loses_no_more(self, lost: float) -> bool:
        """Whether less need not be tried before more: it has found nothing where as much was lost, or what is let
        through is no more than trains have come at, which the link carries."""
        return self.found_by == "probed" or lost <= self._random_loss

    def _fits_a_buffer(self, seconds: float) -> bool:
        """Whether what a first trial lets through too much, of a link that is full, is no more than a buffer holds."""
        return TRIAL_WINDOWS * self._too_much(FIRST_GAIN, seconds) <= self._held_bytes

    def _try_by_free(self, window: Window) -> None:
        """What foreign flows make vary shows nothing: a trial where what the others are let send comes steadily."""
        if self._may_rise and max(self._usual.free_variation, window.free_missing_share) <= 1 - STEADY_SHARE:
            self._is_by_free, self._is_careful = True, False
            self._raise(FIRST_GAIN)

    def _raise(self, gain: float, length: int = 1) -> None:
        assert self.rate is not None
        self._trial_length = length
        self.gain = self._bounded(gain)
        self._retreats = (*self._retreats, self.rate)[-2:]
        self._doubted_windows = DOUBTED_WINDOWS

    @property
    def _variation(self) -> float:
        """By how much what comes of a window varies, where it is told by reports, that are early and late."""
        return self._usual.variation if self._least_hold else 0.0

    @property
    def may_be_probed(self) -> bool:
        """Whether a train may tell more than what is known: no trial has shown it, nor anybody set it."""
        return self.found_by != "configured" and not self._is_judged

    @property
    def _may_rise(self) -> bool:
        """Whether it may carry more, as far as is known."""
        return not self.ample and (self._configured is None or (self.rate or 0.0) < self._configured)

    def _bounded(self, gain: float) -> float:
        """The gain, no larger than takes to all that there can be."""
        return max(1.0, min(gain, self.reach / (self.rate or math.inf)))

    def _judge_raise(self, window: Window, before: Window | None) -> None:
        assert self.rate is not None
        gain, self.gain = self.gain, 1.0
        if before is not None and 1 < window.allowed / before.allowed < gain:
            # who does not use what it has was let send more for nothing
            gain = window.allowed / before.allowed
        kept = kept_share(gain)
        if before is None:
            succeeds = False
        elif self._is_by_free:
            # what they gain others may lose
            succeeds = 1 - window.free_missing_share >= kept * (1 - before.free_missing_share)
            succeeds = succeeds and window.lost_share - before.lost_share <= 1 - kept
        else:
            succeeds = 1 - window.missing_share >= kept * (1 - before.missing_share)
            # by chance less may be lost just now, but no queue grows less for that
            succeeds = succeeds and window.queued_share - before.queued_share + self._variation <= 1 - kept
        if self._is_careful and before is not None:
            # of many who send little each, those that lost something do not count as using their shares
            succeeds = succeeds and window.all_arrived >= kept * gain * before.all_arrived
        at_random = before if self._is_lossy(window) and before and lost_at_random(window, before, gain) else None
        if at_random is not None:
            self._random_loss = at_random.lost_share
        if succeeds:
            # no more than what it has carried, of which some may have stayed in a queue
            self._set(min(self.rate * gain, max(self.rate, window.all_sent / PACED_SHARE)))
            if self._is_careful:
                # what is lost hides what a larger step would overrun
                self._hold, self._next_hold = 0, HOLD_WINDOWS
                return
            self._is_roomy = True
            self._next_gain, self._next_hold = min(1 + 2 * (gain - 1), MOST_GAIN), HOLD_WINDOWS
            if self.rate < (self._configured or math.inf):
                self._raise(self._next_gain)
            return
        self._next_gain, self._is_roomy = FIRST_GAIN, False
        self._less_found_nothing = False
        self._wait()
        if at_random is not None:
            # the link was full, and what came is what it carries
            carried = min(self.rate * gain, carried_in(window, at_random))
            self._set(max(carried, min(self.rate, (self.rate + carried_at_most(window, at_random)) / 2)))
            self._hold, self._next_hold = FILL_WINDOWS, HOLD_WINDOWS

    def _is_lossy(self, window: Window) -> bool:
        """Whether more was tried for of a slow link that loses something, by all."""
        return self._is_careful and not self._is_by_free and window.has_short_chunks and self._chance_in(window) > 0

    def _wait(self) -> None:
        self._hold, self._next_hold = self._next_hold, min(2 * self._next_hold, MOST_HOLD_WINDOWS)

    def _judge_lower(self, window: Window, before: Window | None) -> None:
        """Less was let through: where less is lost, or in a queue, and as much has come, the link carries no more."""
        assert self.rate is not None
        gain, self.gain = self.gain, 1.0
        less = 1 - gain
        kept = before is not None and window.all_arrived >= (1 - less / 2) * before.all_arrived
        chance = 0.0 if self._trial_length == 1 else self._chance
        if kept and before is not None and window.has_less_missing_than(before, least_fallen(before, gain, chance)):
            lowered = self.rate * gain
            if window.has_short_chunks and self._trial_length > 1:
                # chance may have it that less is missing
                lowered = max(lowered, min(self.rate, carried_before(window, before)))
            self._set(lowered)
            # as long as it succeeds
            self._hold, self._next_hold = 0, HOLD_WINDOWS
            self._less_found_nothing = False
            self._random_loss = 0.0
        else:
            self._less_found_nothing = True
            if before is not None:
                self._random_loss = before.lost_share
            self._wait()

    def _doubt_less(self) -> None:
        self._doubted_windows = max(self._doubted_windows - 1, 0)
        if not self._doubted_windows:
            self._retreats = ()

    def _on_overrun(self, window: Window) -> None:
        """The buffer is overrun: by what was tried for, by the last that was found so, or what comes is the link's."""
        assert self.rate is not None
        if self._retreats:
            *rest, retreat = self._retreats
            self._set(min(self.rate, max(window.all_arrived, retreat)))
            self._wait()
            self._retreats = tuple(rest)
            self._doubt_less()
        else:
            self._lowered = (self.rate, window)
            self._set(min(self.rate, max(window.all_arrived, self.rate / LOWERED_AT_MOST)))
            self._hold = self._next_hold = HOLD_WINDOWS
        self.gain, self._next_gain, self._is_roomy = 1.0, FIRST_GAIN, False
        self._trial_windows = 0
        self._before = None
        self._usual.forget()
        self._less_found_nothing = False
        self._is_lowered, self._disbelieved = True, 0

    def _set(self, rate: float) -> None:
        self.rate = rate if self._configured is None else min(rate, self._configured)
        self.found_by, self._is_judged = "arrivals", True
