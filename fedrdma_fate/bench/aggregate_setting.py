"""What `fedrdma bench aggregate` sums, what it measures of a row, and how it sees that a sum is right."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import ITEM_BYTES, Shape, planes_bytes, planes_of

START_SECONDS = 300.0
"""For all gateways of a row to start and to connect: their pools are touched page by page meanwhile, gigabytes that
take seconds of a core, and on a busy host ten times as long. One that ends is seen at once."""

_LAYERS = 60
"""Arrays that the parameters are cut into: as many as ResNet-18 has, give or take a few."""

Sums = list[tuple[Any, Any]]
"""Of each array the fractions and the whole numbers; where FATE has made one of both, that and None."""


@dataclasses.dataclass(frozen=True, slots=True)
class AggregateRow:
    """What was measured.

    Attributes:
        name: of the row.
        model: what was summed.
        updates: how many.
        seconds: from the first put to the sum.
        after_last_seconds: from the end of the last put to the sum; of `copy` and `add`, what one update takes.
        cpu_seconds: of all processes meanwhile.
        waiting_bytes: the most that the site of the arbiter had of updates, sums included: what was leased from its
            receive region and lay on its disk, less what is leased at rest; where there is no gateway, what was in
            shared memory, or by how much the memory of the processes grew.
        up_bytes: payload bytes that transfers have brought to the arbiter's site; None where there are no sites.
        down_bytes: likewise, from it to the others.
        after_arrival_seconds: from when the last update lay whole at the arbiter's gateway to the sum, without its
            transfer; None where there is no gateway, or nothing says when that was.
    """

    name: str
    model: str
    updates: int
    seconds: float
    after_last_seconds: float
    cpu_seconds: float
    waiting_bytes: int
    up_bytes: int | None = None
    down_bytes: int | None = None
    after_arrival_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class AggregateSetting:
    """What to sum.

    Attributes:
        model: its name.
        parameters: of the model; each has two float64.
        updates: how many, 2 or more.
        room: updates that the arbiter's receive region has room for.
        transport: data path between the gateways.
        sites: of the rows that have some beside the arbiter's, 2 or more.
    """

    model: str
    parameters: int
    updates: int
    room: int
    transport: str
    sites: int = 2

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of the arrays."""
        layers = min(_LAYERS, self.parameters)
        each, left = divmod(self.parameters, layers)
        return ((each + left,), *(((each,),) * (layers - 1)))

    @property
    def update_bytes(self) -> int:
        """Of one update, without its footer."""
        return planes_bytes(self.shapes)

    def party(self, rank: int) -> Party:
        """The client of a rank."""
        return Party("host", str(rank + 1))


def make_update(setting: AggregateSetting) -> npt.NDArray[np.uint8]:
    """The planes of an update, before `mark`."""
    update = np.zeros(setting.update_bytes, np.uint8)
    chance = np.random.default_rng(1)
    for plane in planes_of(setting.shapes):
        values: Any = np.frombuffer(update, np.float64, plane.items, plane.offset)
        values[:] = chance.uniform(-1, 1, plane.items)
        if plane.whole:
            np.rint(values * 1e7, out=values)
    return update


def mark(update: npt.NDArray[np.uint8], setting: AggregateSetting, rank: int, by: int = 1) -> None:
    """Make it the update of this rank: one more in the whole number of its own; -1 takes that back."""
    whole = next(plane for plane in planes_of(setting.shapes) if plane.whole)
    update[whole.offset :][: whole.items * ITEM_BYTES].view(np.float64)[rank] += by


def pairs_of(buffer: Any, setting: AggregateSetting) -> Sums:
    """The arrays in the planes that lie there: fractions and whole numbers."""
    planes = [np.frombuffer(buffer, np.float64, plane.items, plane.offset) for plane in planes_of(setting.shapes)]
    return list(zip(planes[::2], planes[1::2], strict=True))


def check(setting: AggregateSetting, update: npt.NDArray[np.uint8], sums: Sums) -> None:
    """See that every party is in it exactly once.

    Raises:
        RowError: one is not.
    """
    expected = pairs_of(update, setting)
    for number, ((found, found_whole), (fraction, whole)) in enumerate(zip(sums, expected, strict=True)):
        total = found if found_whole is None else found + found_whole
        right = setting.updates * (fraction + whole)
        if not number:
            right[: setting.updates] += 1
        # the whole numbers leave 29 bits of a float64 to the fraction
        if not np.allclose(total, right, rtol=0, atol=1e-6):
            raise RowError("the sum is wrong")
