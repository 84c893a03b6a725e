"""Trials of more, or less, on a link that many share: how long they last, and what they have shown of it.

A trial is judged beside what usually comes where as much is let through. Where the link loses packets at random, in
front of its queue or behind, chance takes more in one window and less in the next: then one window shows nothing, a
trial lasts several, and of one in which the link was full what came of it is what it carries.
"""

from __future__ import annotations

import math

from fedrdma_fate.core.shares.window import Window

FIRST_GAIN = 1.05
"""Of the first trial, 1.03 of the link: in two round trips of 20 ms at 1 Gbit/s it queues 150 kB."""

LOWER_GAIN = 0.95
"""Of a trial downwards."""

MUCH_LOWER_GAIN = 0.85
"""The same where chance takes so much that the longest would not show what that does."""

SUCCESS_SHARE = 0.7
"""Of what a trial tries for has to arrive besides: where the link was full, two fifths of the first do."""

STEADY_SHARE = 0.985
"""Of what is let through arrives where the link carries all of it: two arrivals of a window are early or late."""

TRIAL_WINDOWS = 2
"""So long what is let through for a trial comes: until all know that it is over."""

LONGEST_TRIAL = 8
"""Windows at most of one where chunks are lost at random: of 120 in a window of which a twentieth is lost, one loses
2 % more or less than the next by chance, and a trial of 1.05 shows 1.4 %. A mean of eight varies by a third of that."""

CAREFUL_GAINS = (1.2, 1.1)
"""Tried there in place of the first where half of what a buffer holds is more than that lets through: each shows more,
in fewer windows. A slow link that trains have told a tenth too low takes a second to find by steps of a twentieth."""

TRIAL_DEVIATIONS = 2
"""As many standard deviations of what chance takes are to be less than what a trial has to show: one in forty is more
(normal distribution)."""

FILL_WINDOWS = 12
"""Between two trials of more of a link that loses at random and is full: what one leaves in the queue keeps it full for
about as long, for some hundredths less than it carries come to it. In between chance may leave it idle."""

USUAL_WINDOWS = 16
"""As many windows in which as much was let through make up what usually comes of that. Beside one alone, of which
chance had taken more than usual, a trial succeeded on a full link, and the next overran the buffer: at 0.2 % of lost
packets."""

VARIES_FACTOR = 2
"""A window that differs from the others by so many times the mean difference shows something: by chance one in nine
does (normal distribution)."""

VARIES_GAIN = 1 / 8
"""Weight of a window in how much they vary: with a larger one, some that are alike by chance would make a trial."""

USUAL_SHARE = 0.75
"""So much of what is let through comes at least where a link is about full, and loses a fifth besides. Where less does,
it is sent several times what it carries, and what a trial does is so much less of what is let through. Ours."""

LEAST_SHARE = 1 / 8
"""Where less than this comes, nearly nothing does, as in an outage: that shows nothing of what a link carries. Nor is a
rate that was overrun divided by more at once (`LOWERED_AT_MOST`)."""


class Usual:
    """What usually comes where as much is let through.

    Attributes:
        window: the mean of the latest; None: nothing is known of as much.
        windows: of how many.
    """

    def __init__(self) -> None:
        self.window: Window | None = None
        self.windows = 0
        self._varies = self._free_varies = 0.0

    @property
    def variation(self) -> float:
        """By how much more or less that comes of a window does by itself."""
        return VARIES_FACTOR * self._varies

    @property
    def free_variation(self) -> float:
        """The same of what is let through to those that no foreign flow holds up."""
        return VARIES_FACTOR * self._free_varies

    def forget(self) -> None:
        """Who sends has changed, or something else that makes what comes another."""
        self.window = None

    def note(self, window: Window) -> None:
        """One more."""
        if self.window is None or not window.is_like(self.window):
            self.window, self.windows = window, 1
            return
        varies = abs(window.queued_share - self.window.queued_share)
        self._varies += (varies - self._varies) * VARIES_GAIN
        free_varies = abs(window.free_missing_share - self.window.free_missing_share)
        self._free_varies += (free_varies - self._free_varies) * VARIES_GAIN
        self.windows = min(self.windows + 1, USUAL_WINDOWS)
        self.window = self.window.towards(window, 1 / self.windows)

    def shown(self, window: Window, chance: float) -> Window:
        """What shows what there is: this one, or where chance takes more of one than would be seen, the mean."""
        is_vague = self.window is not None and TRIAL_DEVIATIONS * chance > 1 - STEADY_SHARE
        return self.window or window if is_vague else window

    def by_chance(self, chance: float) -> float:
        """So much more of the mean is hardly lost by chance, where this is the standard deviation of a window."""
        return TRIAL_DEVIATIONS * chance / math.sqrt(max(self.windows, 1))


def kept_share(gain: float) -> float:
    """Of what usually comes of what is let through, what has to come of so much more for a trial to succeed."""
    return 1 - (1 - SUCCESS_SHARE) * (gain - 1) / gain


def shown_where(came: float, share: float) -> float:
    """What a trial that changes what is let through by this share shows of a full link, by which so much of it came."""
    return share * min(max(came, LEAST_SHARE) / USUAL_SHARE, 1.0)


def least_fallen(before: Window, gain: float, chance: float) -> float:
    """By how much less has to be missing, in a trial of less, for it to succeed, where chance may take so much."""
    return max(SUCCESS_SHARE * shown_where(1 - before.missing_share, 1 - gain), chance)


def windows_shown(gain: float, chance: float) -> int:
    """Windows in which a trial shows more than chance, of which this is the standard deviation in one."""
    shown = 1 - kept_share(gain if gain > 1 else 2 - gain)
    return max(min(math.ceil((TRIAL_DEVIATIONS * chance / shown) ** 2), LONGEST_TRIAL), 1)


def windows_held(held_bytes: float, too_much: float) -> int:
    """Windows of a trial of more, of a link that is full, that a buffer holds: so many bytes too much in each."""
    return max(int(held_bytes / too_much) + 1 - TRIAL_WINDOWS, 1)


def chance_of_longest(chance: float) -> float:
    """What chance takes of the longest trial downwards, or of what came before, beside the other of both."""
    return TRIAL_DEVIATIONS * chance * math.sqrt(2 / LONGEST_TRIAL)


def carried_in(window: Window, before: Window) -> float:
    """What a link that loses at random may be sent, by a trial of more in which not all of that came: bytes a second.

    What came is all that it carries, but for what chance has taken. Behind its queue that is what this window has lost;
    in front of it, what is usually lost, for the queue makes up for it. The lesser of both: where a share is too large
    by a hundredth, what it queues stays.
    """
    lost = min(window.lost_share, before.lost_share)
    return window.all_arrived / (1 - lost) if lost < 1 else 0.0


def carried_at_most(window: Window, before: Window) -> float:
    """The same, whatever chance has taken of either."""
    lost = max(window.lost_share, before.lost_share)
    return window.all_arrived / (1 - lost) if lost < 1 else math.inf


def lost_at_random(window: Window, before: Window, gain: float) -> bool:
    """Whether what is lost is not lost in a full buffer, by a trial of more: there all that it let through too much is
    lost besides. Half of that is more than chance takes."""
    return window.lost_share - before.lost_share < shown_where(1 - before.lost_share, 1 - 1 / gain) / 2


def carried_before(window: Window, before: Window) -> float:
    """The same, by a trial of less, in which nothing was queued, and what it lost was lost at random."""
    return before.all_arrived / (1 - window.lost_share) if window.lost_share < 1 else math.inf
