"""Links of single hosts that differ from the others': `3:rate=700mbit,rtt=40ms,loss=1%`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from fedrdma_fate.quantities import QuantityError, parse_loss, parse_rate, parse_size, parse_time

_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "rate": ("rate", parse_rate),
    "nic-rate": ("nic_rate", parse_rate),
    "rtt": ("rtt_ns", parse_time),
    "loss": ("loss", parse_loss),
    "buffer": ("buffer_bytes", parse_size),
}
_HOST = re.compile(r"\d{1,3}", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class HostLink:
    """What is different at one host; None: as at the others.

    Attributes:
        host: its number.
        rate: of the bottlenecks in front of the host and behind it, bit/s. Hosts without one have none behind them.
        nic_rate: at which it sends, bit/s.
        rtt_ns: round-trip time to a host that has none of its own, nanoseconds.
        loss: share of packets lost, on the way to the host and from it.
        buffer_bytes: of the bottlenecks.
    """

    host: int
    rate: int | None = None
    nic_rate: int | None = None
    rtt_ns: int | None = None
    loss: float | None = None
    buffer_bytes: int | None = None

    @property
    def has_a_way_of_its_own(self) -> bool:
        """Whether packets to the host are delayed or lost beyond what happens to all packets."""
        return self.rtt_ns is not None or self.loss is not None


def parse_host_link(text: str) -> HostLink:
    """A host's link as people write it: HOST:KEY=VALUE, with commas between several.

    Keys are rate, nic-rate, rtt, loss, buffer.

    Raises:
        QuantityError: it is not one; names the key and the value.
    """
    host, separator, assignments = text.partition(":")
    if not separator or _HOST.fullmatch(host) is None:
        raise QuantityError(f"{text!r} is not HOST:KEY=VALUE, such as 3:rate=700mbit,rtt=40ms,loss=1%")
    values: dict[str, Any] = {}
    for assignment in assignments.split(","):
        name, separator, value = assignment.strip().partition("=")
        if not separator or name not in _FIELDS:
            raise QuantityError(f"host {int(host)}: {assignment!r} is not KEY=VALUE with a key of {', '.join(_FIELDS)}")
        field, parse = _FIELDS[name]
        if field in values:
            raise QuantityError(f"host {int(host)}: {name} is given twice")
        try:
            values[field] = parse(value)
        except QuantityError as error:
            raise QuantityError(f"host {int(host)}: {name}: {error}") from error
    return HostLink(int(host), **values)
