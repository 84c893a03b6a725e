"""What is fuzzed, and what counts as a finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence


class Finding(BaseException):
    """What must not happen has; no part of the project may catch it."""


@dataclasses.dataclass(frozen=True)
class Target:
    """One reader of bytes.

    Attributes:
        name: as corpus folder and option name it.
        seeds: real inputs.
        read: reads an input; whether it was taken. Whatever it raises but `refusals` is a finding.
        refusals: the typed errors that it may raise.
        repair: makes checksums and lengths of an input right, so that what lies behind them is reached; applied to
            half of the inputs.
        close: ends what it has opened.
        tokens: parts of inputs that mean something to it; they are put in, once or many times.
    """

    name: str
    seeds: Sequence[bytes]
    read: Callable[[bytes], bool]
    refusals: tuple[type[Exception], ...]
    repair: Callable[[bytes], bytes] | None = None
    close: Callable[[], None] = lambda: None
    tokens: Sequence[bytes] = ()


def require(holds: bool, what: str) -> None:
    """A finding unless it holds."""
    if not holds:
        raise Finding(what)
