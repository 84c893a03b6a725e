"""The WAN link that a benchmark runs over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from fedrdma_fate.bench.quantities import QuantityError, parse_loss, parse_rate, parse_size, parse_time
from fedrdma_fate.bench.report import format_bytes
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_T = TypeVar("_T")

_RATE_UNITS = ((10**9, "Gbit/s"), (10**6, "Mbit/s"), (10**3, "kbit/s"), (1, "bit/s"))


@dataclasses.dataclass(frozen=True, slots=True)
class WanLink:
    """What a link does to packets, each way.

    Attributes:
        rate_bps: of its bottleneck.
        rtt_ns: round trip while nothing is sent.
        buffer_bytes: what the bottleneck holds before it drops.
        loss: share of packets lost besides.
    """

    rate_bps: int
    rtt_ns: int
    buffer_bytes: int
    loss: float

    @property
    def rtt_seconds(self) -> float:
        return self.rtt_ns / 1e9

    def share(self, payload_bytes: int, seconds: float) -> float:
        """Of the link's rate, what a payload in this time made use of."""
        return payload_bytes * 8 / seconds / self.rate_bps

    def to_document(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "rate_bps": self.rate_bps,
            "rtt_s": self.rtt_seconds,
            "buffer_bytes": self.buffer_bytes,
            "loss": self.loss,
        }

    @property
    def rate_text(self) -> str:
        """Such as `10 Gbit/s`."""
        scale, unit = next((scale, unit) for scale, unit in _RATE_UNITS if self.rate_bps >= scale)
        return f"{self.rate_bps / scale:g} {unit}"

    def __str__(self) -> str:
        rate, rtt = self.rate_text, f"RTT {self.rtt_ns / 1e6:g} ms"
        return f"{rate}, {rtt}, buffer {format_bytes(self.buffer_bytes)}, loss {self.loss * 100:g} %"


def parse_link(rate: str, rtt: str, buffer: str, loss: str) -> WanLink:
    """The link as its options describe it, such as `10gbit`, `20ms`, `4MB` and `0.1%`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE for one that cannot be read; names it.
    """
    return WanLink(
        rate_bps=_option("--rate", parse_rate, rate),
        rtt_ns=_option("--rtt", parse_time, rtt),
        buffer_bytes=_option("--buffer", parse_size, buffer),
        loss=_option("--loss", parse_loss, loss),
    )


def parse_payload_size(text: str) -> int:
    """Bytes of `--size`, such as `1GB` or `256MiB`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: not a size.
    """
    return _option("--size", parse_size, text)


def _option(name: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except QuantityError as error:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"{name}: {error}.") from error
