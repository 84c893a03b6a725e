"""Changes of the WAN while the programs run: `2s:rate=500mbit,loss=1%`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deploy.softroce.wan import Step, Wan, reshape
from fedrdma_fate.quantities import QuantityError, parse_loss, parse_rate, parse_size, parse_time

_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "rate": ("rate", parse_rate),
    "rtt": ("rtt_ns", parse_time),
    "loss": ("loss", parse_loss),
    "back-rate": ("back_rate", parse_rate),
    "back-loss": ("back_loss", parse_loss),
    "jitter": ("jitter_ns", parse_time),
    "buffer": ("buffer_bytes", parse_size),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What becomes of the WAN at a moment.

    Attributes:
        at_ns: nanoseconds after the programs were started.
        values: fields of `Wan`, and what they become.
    """

    at_ns: int
    values: tuple[tuple[str, Any], ...]


def parse_change(text: str) -> Change:
    """A change as people write it: TIME:NAME=VALUE, with commas between several.

    Names are rate, rtt, loss, back-rate, back-loss, jitter, buffer.

    Raises:
        QuantityError: it is not one.
    """
    at, separator, assignments = text.partition(":")
    if not separator:
        raise QuantityError(f"{text!r} is not TIME:NAME=VALUE, such as 2s:rate=500mbit")
    values = [_assignment(text) for text in assignments.split(",")]
    names = [name for name, _ in values]
    if len(set(names)) < len(names):
        raise QuantityError(f"{text!r} changes one thing twice")
    return Change(parse_time(at), tuple(values))


def _assignment(text: str) -> tuple[str, Any]:
    name, separator, value = text.strip().partition("=")
    if not separator or name not in _FIELDS:
        raise QuantityError(f"{text!r} is not NAME=VALUE with a name of {', '.join(_FIELDS)}")
    field, parse = _FIELDS[name]
    return field, parse(value)


def steps(wan: Wan, count: int, changes: Sequence[Change]) -> tuple[Step, ...]:
    """How to carry the changes out, in the order of their times; each leaves the others' values as they are.

    Raises:
        ValueError: a network without a rate is to change it, or the outcome makes no sense.
    """
    made = []
    for change in sorted(changes, key=lambda change: change.at_ns):
        values = dict(change.values)
        if wan.rate is None and ("rate" in values or "buffer_bytes" in values):
            raise ValueError("a WAN without a rate has no bottleneck to change: give --rate")
        if wan.trace is not None and ("rate" in values or "buffer_bytes" in values):
            raise ValueError(
                "a bottleneck that follows a trace has its rate and its buffer from --rate-trace and --buffer"
            )
        wan = dataclasses.replace(wan, **values)
        made.append(dataclasses.replace(reshape(wan, count), at_ns=change.at_ns))
    return tuple(made)
