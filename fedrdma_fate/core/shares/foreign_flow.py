"""Whether somebody fills the link who keeps to no share of it, as a TCP flow does, and what is left to them.

The receiver counts only what comes of its own senders. But where they have lost nothing at the rate that is let
through, and then all of them do, with nobody let send more, somebody else has begun to fill the buffer. Then the link
is shared as if there were one more sender, as a flow that has the path for itself leaves a competitor half of it
(`core/x/competition.py`). All rules and numbers of this module are ours.
"""

from __future__ import annotations

import math
from collections import deque

from fedrdma_fate.core.x.loss_rounds import CHANCE_DEVIATIONS

LEARNT_WINDOWS = 16
"""So many windows tell what is usually lost; before, nothing that is lost is a sign. A round of 4 MiB each at 1 Gbit/s
has no more, so what its ways lose at random is known before it can be taken for somebody else's."""

LEARNT_GAIN = 1 / LEARNT_WINDOWS
"""Weight of a window in what is usually lost."""

SIGN_LOSS = 0.01
"""And so much more of what is sent than usual; of a path that loses next to nothing, some windows lose a chunk."""

SIGN_WINDOWS = 8
"""Among so many windows there have to be several that show it."""

SIGNS = 3
"""So many: one is a burst, and what begins in the middle of a window shows in two."""

JUDGED_WINDOWS = 64
"""After so many at less, 1.3 s at 20 ms, it is judged whether less is lost now."""

STILL_LOST_SHARE = 0.5
"""Where so much of it is still lost, that is chance, or the link is slower: leaving room does not mend it."""

LEFT_SECONDS = 3.0
"""So long after the last sign all of a part is left: CUBIC that has a ninth of 1 Gbit/s takes three seconds from one
full buffer to the next (RFC 9438, where it grows as Reno does)."""

RETURNED_SECONDS = 3.0
"""In so many more seconds what was left is taken back, if there is no sign: a competitor of one flow that takes room
back at 4 % of the path a second (`INCREASE_SHARE`) gets the ninth of eight in as long."""


class ForeignFlow:
    """Tells one from what windows lose. Times in seconds of sending.

    Attributes:
        part: how much of an equal part is left to it, from 0, nobody is there, to 1.
    """

    def __init__(self) -> None:
        self.part = 0.0
        self._usual = self._usual_of_all = 0.0
        self._learnt = 0
        self._recent: deque[float] = deque(maxlen=SIGN_WINDOWS)
        self._lost_before = 0.0
        self._windows = 0
        self._lost_since = 0.0
        self._quiet_seconds = 0.0

    def on_window(self, lost: float, chunks: float, seconds: float, all_lost: float) -> None:
        """A window is over in which nobody was let send more than before.

        Args:
            lost: share of what was sent, of all senders but the one that lost most: who loses alone loses on a way
                of its own.
            all_lost: the same of all senders.
            chunks: that all have sent, of which chance takes more or less than usual.
            seconds: how long it was.
        """
        if self.part:
            self._watch(lost, seconds)
            return
        # of few chunks the one that lost most has often lost all that was
        usual = max(self._usual, self._usual_of_all)
        chance = CHANCE_DEVIATIONS * math.sqrt(usual * (1 - usual) / max(chunks, 1.0))
        is_sign = self._learnt >= LEARNT_WINDOWS and lost > usual + max(chance, SIGN_LOSS)
        self._recent.append(lost if is_sign else 0.0)
        if not is_sign:
            self._learnt = min(self._learnt + 1, LEARNT_WINDOWS)
            gain = max(LEARNT_GAIN, 1 / self._learnt)
            self._usual += (lost - self._usual) * gain
            self._usual_of_all += (all_lost - self._usual_of_all) * gain
        signs = [each for each in self._recent if each]
        if len(signs) >= SIGNS:
            self.part, self._quiet_seconds = 1.0, 0.0
            self._lost_before = sum(signs) / len(signs) - self._usual
            self._windows, self._lost_since = 0, 0.0
            self._recent.clear()

    def on_rest(self) -> None:
        """Nobody sends any more: whether it is still there when the next round begins is not known."""
        self.part /= 2
        self._recent.clear()

    def _watch(self, lost: float, seconds: float) -> None:
        self._windows += 1
        self._lost_since += lost - self._usual
        if self._windows == JUDGED_WINDOWS and self._lost_since >= STILL_LOST_SHARE * self._lost_before * self._windows:
            self.part = 0.0
            more = self._lost_since / self._windows
            self._usual, self._usual_of_all = self._usual + more, self._usual_of_all + more
            return
        if lost > self._usual:
            self._quiet_seconds = 0.0
        else:
            self._quiet_seconds += seconds
        quiet = self._quiet_seconds - LEFT_SECONDS
        self.part = min(max(1 - quiet / RETURNED_SECONDS, 0.0), 1.0)
