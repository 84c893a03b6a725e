"""What a benchmark over a WAN is asked to measure: links and payloads, one or many."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fedrdma_fate.bench.report import format_bytes
from fedrdma_fate.bench.wan.shaping import (
    CrossTraffic,
    Policer,
    RateTrace,
    parse_cross_traffic,
    parse_policer,
    read_rate_trace,
)
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.quantities import QuantityError, parse_loss, parse_rate, parse_size, parse_time
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

BDP = "bdp"
"""As a buffer: the bandwidth-delay product of the link."""

AXES = ("rate", "RTT", "buffer", "loss", "jitter", "payload")
"""What may vary in a sweep."""

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One link, and one payload over it.

    Attributes:
        buffer_name: as the buffer was asked for; `bdp` is one name for many sizes.
        path: name of the link, where it has one.
        left_out: names of rows that are not measured over it.
    """

    link: WanLink
    payload_bytes: int
    buffer_name: str
    path: str = ""
    left_out: tuple[str, ...] = ()

    def place(self, axis: str) -> str:
        """Where this stands on one of `AXES`, as written beside it."""
        places = {
            "rate": self.link.rate_text,
            "RTT": f"{self.link.rtt_ns / 1e6:g} ms",
            "buffer": self.buffer_name,
            "loss": f"{self.link.loss * 100:g} %",
            "jitter": f"{self.link.jitter_ns / 1e6:g} ms",
            "payload": format_payload(self.payload_bytes),
        }
        return places[axis]

    def __str__(self) -> str:
        return f"{format_payload(self.payload_bytes)} over {self.path or self.link}"


def format_payload(size: int) -> str:
    """In whole MiB where it is so many, else in decimal units."""
    whole, rest = divmod(size, 2**20)
    return format_bytes(size) if rest or not whole else f"{whole} MiB"


@dataclasses.dataclass(frozen=True, slots=True)
class Peculiarities:
    """What all links of a benchmark have in common; see `WanLink`."""

    reorders: bool = False
    slot_ns: int = 0
    back_slot_ns: int | None = None
    burst_packets: float = 1.0
    delay_packets: int | None = None
    mtu_bytes: int | None = None
    policer: Policer | None = None
    nic_rate_bps: int | None = None
    back_rate_bps: int | None = None
    back_loss: float | None = None
    rate_trace: RateTrace | None = None
    cross: CrossTraffic | None = None


def parse_peculiarities(
    *,
    reorder: bool = False,
    slots: str = "0",
    back_slots: str | None = None,
    burst: float = 1.0,
    delay_packets: int | None = None,
    mtu: int | None = None,
    policer: str | None = None,
    nic_rate: str | None = None,
    back_rate: str | None = None,
    back_loss: str | None = None,
    rate_trace: str | None = None,
    cross: str | None = None,
) -> Peculiarities:
    """What the options of one value each say of all links.

    Raises:
        ConfigError: CONFIG_BAD_VALUE for one that cannot be read; names the option.
    """
    return Peculiarities(
        reorders=reorder,
        slot_ns=_value("--slots", parse_time, slots),
        back_slot_ns=_optional("--back-slots", parse_time, back_slots),
        burst_packets=burst,
        delay_packets=delay_packets,
        mtu_bytes=mtu,
        policer=_optional("--policer", parse_policer, policer),
        nic_rate_bps=_optional("--nic-rate", parse_rate, nic_rate),
        back_rate_bps=_optional("--back-rate", parse_rate, back_rate),
        back_loss=_optional("--back-loss", parse_loss, back_loss),
        rate_trace=_optional("--rate-trace", lambda name: read_rate_trace(Path(name)), rate_trace),
        cross=_optional("--cross", parse_cross_traffic, cross),
    )


_NONE = Peculiarities()


def parse_settings(
    rates: str,
    rtts: str,
    buffers: str,
    losses: str,
    sizes: str,
    jitters: str = "0",
    common: Peculiarities = _NONE,
) -> list[Setting]:
    """All combinations of what the options list, with commas between: rates outermost, sizes innermost.

    Where the rate follows a trace, its mean stands for `rates`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE for a value that cannot be read, or is given twice; names the option.
    """
    combinations = itertools.product(
        _values("--rate", parse_rate, rates) if common.rate_trace is None else [common.rate_trace.mean_bps],
        _values("--rtt", parse_time, rtts),
        _values("--buffer", _parse_buffer, buffers),
        _values("--loss", parse_loss, losses),
        _values("--jitter", parse_time, jitters),
        _values("--size", parse_size, sizes),
    )
    return [
        _peculiar(_setting(rate, rtt, buffer, loss, size), jitter, common)
        for rate, rtt, buffer, loss, jitter, size in combinations
    ]


def parse_link(rate: str, rtt: str, buffer: str, loss: str) -> WanLink:
    """One link, as options of one value each describe it.

    Raises:
        ConfigError: CONFIG_BAD_VALUE for one that cannot be read; names the option.
    """
    rate_bps = _value("--rate", parse_rate, rate)
    rtt_ns, buffer_bytes = _value("--rtt", parse_time, rtt), _value("--buffer", _parse_buffer, buffer)
    return _setting(rate_bps, rtt_ns, buffer_bytes, _value("--loss", parse_loss, loss), 0).link


def parse_payload_sizes(text: str) -> Sequence[int]:
    """Bytes of each size that `--size` lists.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: not a list of sizes.
    """
    return _values("--size", parse_size, text)


def parse_payload_size(text: str) -> int:
    """Bytes of `--size`, such as `1GB` or `256MiB`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: not a size.
    """
    return _value("--size", parse_size, text)


def _setting(rate_bps: int, rtt_ns: int, buffer_bytes: int | None, loss: float, payload_bytes: int) -> Setting:
    if buffer_bytes is not None:
        return Setting(WanLink(rate_bps, rtt_ns, buffer_bytes, loss), payload_bytes, format_bytes(buffer_bytes))
    product = rate_bps * rtt_ns // (8 * 10**9)
    if not product:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, "--buffer: a link without delay has no bandwidth-delay product.")
    return Setting(WanLink(rate_bps, rtt_ns, product, loss), payload_bytes, BDP)


def _peculiar(setting: Setting, jitter_ns: int, common: Peculiarities) -> Setting:
    if jitter_ns > setting.link.rtt_ns // 2:
        way = f"{setting.link.rtt_ns / 2e6:g} ms"
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--jitter: it may not be longer than a way, which takes {way}.")
    if common.burst_packets > 1 and not (setting.link.loss or common.back_loss):
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, "--burst: a link that loses nothing has no bursts of it.")
    told = {field.name: getattr(common, field.name) for field in dataclasses.fields(common)}
    return dataclasses.replace(setting, link=dataclasses.replace(setting.link, jitter_ns=jitter_ns, **told))


def _parse_buffer(text: str) -> int | None:
    return None if text.strip().lower() == BDP else parse_size(text)


def _value(name: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except QuantityError as error:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"{name}: {error}.") from error


def _optional(name: str, parse: Callable[[str], _T], text: str | None) -> _T | None:
    return None if text is None else _value(name, parse, text)


def _values(name: str, parse: Callable[[str], _T], text: str) -> Sequence[_T]:
    values = [_value(name, parse, part) for part in text.split(",")]
    if len(set(values)) < len(values):
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"{name}: {text!r} has a value twice.")
    return values
