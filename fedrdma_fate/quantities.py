"""Rates, times, sizes and loss as people write them: `1gbit`, `20ms`, `4MB`, `0.1%`; numbers of things."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

MEGABYTE = 10**6
GIGABYTE = 10**9
GIB = 2**30

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%]*)")

_RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_SIZES = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 10 ** (3 * power) for power, prefix in enumerate("kmg", start=1)},
    **{f"{prefix}ib": 2 ** (10 * power) for power, prefix in enumerate("kmg", start=1)},
}


class QuantityError(ValueError):
    """A quantity that cannot be read, with what it may look like."""


def counted(count: int, what: str) -> str:
    """A number of things: `1 message`, `2 messages`. `what` is a noun that takes an s."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def parse_rate(text: str) -> int:
    """Bits per second.

    Raises:
        QuantityError: not a rate, or zero.
    """
    return _positive(text, _whole(text, _scaled(text, _RATES, "a rate such as 500mbit or 10gbit")), "a rate")


def parse_time(text: str) -> int:
    """Nanoseconds; zero may be written without a unit.

    Raises:
        QuantityError: not a time.
    """
    return 0 if text.strip() == "0" else _whole(text, _scaled(text, _TIMES, "a time such as 20ms or 1.5s"))


def parse_size(text: str) -> int:
    """Bytes. kB, MB and GB are decimal; KiB, MiB and GiB are binary.

    Raises:
        QuantityError: not a size, not a whole number of bytes, or zero.
    """
    return _positive(text, _whole(text, exact_size(text)), "a size")


def exact_size(text: str) -> Decimal:
    """As `parse_size`, for callers that bound and round by themselves: perhaps zero, perhaps a fraction of a byte.

    Raises:
        QuantityError: not a size.
    """
    return _scaled(text, _SIZES, "a size such as 4MB or 2GiB")


def parse_loss(text: str) -> float:
    """The share of packets lost, 0 up to but not including 1.

    Raises:
        QuantityError: not a percentage below 100 %.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match[2] != "%" and text.strip() != "0"):
        raise QuantityError(f"{text!r} is not a loss such as 0.1%")
    share = float(match[1]) / 100
    if share >= 1:
        raise QuantityError(f"{text!r} loses everything; a loss is below 100%")
    return share


def _scaled(text: str, units: Mapping[str, int], expected: str) -> Decimal:
    match = _NUMBER.fullmatch(text.strip())
    unit = match[2].lower() if match else ""
    if match is None or unit not in units:
        raise QuantityError(f"{text!r} is not {expected}")
    return Decimal(match[1]) * units[unit]


def _whole(text: str, value: Decimal) -> int:
    if value != int(value):
        raise QuantityError(f"{text!r} is not a whole number of the smallest unit")
    return int(value)


def _positive(text: str, value: int, what: str) -> int:
    if value == 0:
        raise QuantityError(f"{text!r}: {what} cannot be zero")
    return value
