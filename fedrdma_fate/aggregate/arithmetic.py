"""How a block of an update is added: exactly, the same in every order, or in float64, as FATE does or compensated."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedrdma_fate.aggregate.place import BLOCK_ITEMS
from fedrdma_fate.core.fold import Order, fraction_bits, most_whole

Floats = npt.NDArray[np.float64]


class UnfitError(Exception):
    """An update cannot be added, and why."""


class Adder(Protocol):
    """Adds blocks of up to BLOCK_ITEMS float64.

    Attributes:
        finishes: whether `finish` has something to do.
    """

    finishes: bool

    def add(self, sums: Floats | None, values: Floats, result: Floats, *, whole: bool) -> None:
        """Write the sum with these values to `result`; `sums` is None for the first update.

        Raises:
            UnfitError: they cannot be added; `result` holds anything.
        """
        ...

    def subtract(self, sums: Floats, values: Floats, result: Floats, *, whole: bool) -> None:
        """The sum without what was added before, exactly; only asked of an adder that may raise UnfitError."""
        ...

    def finish(self, sums: Floats, result: Floats) -> None:
        """Write what was added of fractions as float64 to `result`; whole numbers are float64 all the time."""
        ...


class ByRank:
    """In float64, as it comes: whoever drives it keeps the order of the ranks, and gets FATE's own bits."""

    finishes = False

    def add(self, sums: Floats | None, values: Floats, result: Floats, *, whole: bool) -> None:  # noqa: ARG002
        """See `Adder`. What is no number is passed on, as FATE does."""
        if sums is None:
            np.copyto(result, values)
        else:
            np.add(sums, values, out=result)

    def subtract(self, sums: Floats, values: Floats, result: Floats, *, whole: bool) -> None:
        """Never asked: nothing is refused."""
        raise NotImplementedError

    def finish(self, sums: Floats, result: Floats) -> None:
        """See `Adder`."""
        np.copyto(result, sums)


class Exact:
    """In numbers whose sum does not depend on the order.

    Whole numbers are added as float64, exactly, for their sums stay below 2**53. Fractions are rounded to so many bits
    behind the point (`core.fold.fraction_bits`) and added as 64-bit integers. A sum on the way may wrap around: only
    the total has to fit, in which the masks have cancelled.
    """

    finishes = True

    def __init__(self, parties: int) -> None:
        """
        Args:
            parties: whose updates are added.
        """
        bits = fraction_bits(parties)
        self._scale = 2.0**bits
        self._most_fraction = 2.0 ** (62 - bits)
        self._most_whole = float(most_whole(parties))
        self._scaled: Floats = np.empty(BLOCK_ITEMS)
        self._integers: npt.NDArray[np.int64] = np.empty(BLOCK_ITEMS, np.int64)
        self._differ: npt.NDArray[np.bool_] = np.empty(BLOCK_ITEMS, np.bool_)

    def add(self, sums: Floats | None, values: Floats, result: Floats, *, whole: bool) -> None:
        """See `Adder`."""
        if not _all_within(values, self._most_whole if whole else self._most_fraction):
            raise UnfitError("a number in it is none, infinite, or larger than a masked one can be")
        if not whole:
            integers = self._integers_of(values)
            into = result.view(np.int64)
            if sums is None:
                np.copyto(into, integers)
            else:
                np.add(sums.view(np.int64), integers, out=into)
            return
        self._add_whole(sums, values, result)

    def merge(self, sums: Floats | None, partial: Floats, result: Floats, *, whole: bool, parties: int) -> None:
        """Write the sum with that of other parties to `result`: the same bits as if each of them had been added.

        What another `Exact` for as many parties has added, and not finished: fractions are 64-bit integers. Of these
        every bit pattern is a sum that may have wrapped around, so only whole numbers can be found to be unfit.

        Args:
            sums: None where nothing was added before.
            partial: a block of the other sum.
            result: of the same length.
            whole: whether these are whole numbers, not fractions.
            parties: how many are in the other sum.

        Raises:
            UnfitError: it cannot be the sum of so many parties; `result` holds anything.
        """
        if whole:
            if not _all_within(partial, self._most_whole * parties):
                raise UnfitError(f"a number in it is none, infinite, or larger than those of {parties} parties can be")
            self._add_whole(sums, partial, result)
        elif sums is None:
            np.copyto(result.view(np.int64), partial.view(np.int64))
        else:
            np.add(sums.view(np.int64), partial.view(np.int64), out=result.view(np.int64))

    def unmerge(self, sums: Floats, partial: Floats, result: Floats, *, whole: bool) -> None:
        """Write the sum without what `merge` has added to `result`, exactly."""
        if whole:
            np.subtract(sums, partial, out=result)
        else:
            np.subtract(sums.view(np.int64), partial.view(np.int64), out=result.view(np.int64))

    def _add_whole(self, sums: Floats | None, values: Floats, result: Floats) -> None:
        scratch, differ = self._scaled[: len(values)], self._differ[: len(values)]
        np.rint(values, out=scratch)
        np.not_equal(scratch, values, out=differ)
        if differ.any():
            raise UnfitError("a whole number of its masks has a fraction")
        if sums is None:
            np.copyto(result, values)
        else:
            np.add(sums, values, out=result)

    def subtract(self, sums: Floats, values: Floats, result: Floats, *, whole: bool) -> None:
        """See `Adder`."""
        if whole:
            np.subtract(sums, values, out=result)
        else:
            np.subtract(sums.view(np.int64), self._integers_of(values), out=result.view(np.int64))

    def finish(self, sums: Floats, result: Floats) -> None:
        """See `Adder`."""
        np.multiply(sums.view(np.int64), 1.0 / self._scale, out=result)

    def _integers_of(self, values: Floats) -> npt.NDArray[np.int64]:
        scaled, integers = self._scaled[: len(values)], self._integers[: len(values)]
        np.multiply(values, self._scale, out=scaled)
        np.rint(scaled, out=scaled)
        np.copyto(integers, scaled, casting="unsafe")
        return integers


def _all_within(values: Floats, most: float) -> bool:
    """Whether all lie in [-most, most]; what is no number does not."""
    # Where all are far inside, as masked ones are, one pass says so: none is larger than the root of the sum of the
    # squares. The half is far more than what a sum of so many may be rounded by.
    if np.dot(values, values) <= most * most / 2:
        return True
    return bool(values.max() <= most and values.min() >= -most)


class Compensated:
    """In float64, as it comes, with what each addition rounds away in a sum of its own (two-sum; Neumaier 1974).

    The error no longer grows with the number of parties. In different orders the last bit may differ.
    """

    def __init__(self) -> None:
        """Blocks have half of BLOCK_ITEMS at most: the other half of what is kept aside is for what is rounded away."""
        self._shares: tuple[Floats, Floats] = (np.empty(BLOCK_ITEMS // 2), np.empty(BLOCK_ITEMS // 2))

    def add(self, state: tuple[Floats, Floats] | None, values: Floats, result: tuple[Floats, Floats]) -> None:
        """Write the sum with these values, and what was rounded away of it so far, to `result`.

        What is no number is passed on.
        """
        sums, lost = result
        if state is None:
            np.copyto(sums, values)
            lost[:] = 0.0
            return
        before, lost_before = state
        of_values, of_both = self._shares[0][: len(values)], self._shares[1][: len(values)]
        with np.errstate(invalid="ignore", over="ignore"):
            np.add(before, values, out=sums)
            # what of the values is in the sum, what of what was there before, and what of both is not
            np.subtract(sums, before, out=of_values)
            np.subtract(sums, of_values, out=of_both)
            np.subtract(before, of_both, out=of_both)
            np.subtract(values, of_values, out=of_values)
            np.add(of_both, of_values, out=of_both)
            np.add(lost_before, of_both, out=lost)

    def finish(self, state: tuple[Floats, Floats], result: tuple[Floats, Floats]) -> None:
        """Write the sum with all that was rounded away to `result`, and that nothing is."""
        (sums, lost), (total, left) = state, result
        with np.errstate(invalid="ignore"):
            np.add(sums, lost, out=total)
        # of an infinite sum nothing can be said to be rounded away
        np.copyto(total, sums, where=~np.isfinite(lost))
        left[:] = 0.0


def adder_for(order: Order, parties: int) -> Adder | Compensated:
    """What adds in this order."""
    if order is Order.ARRIVAL:
        return Compensated()
    return Exact(parties) if order is Order.EXACT else ByRank()
