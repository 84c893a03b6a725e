"""What a check has found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from fedrdma_fate.wire.errors import FedRDMAError

Level = Literal["ok", "warning", "error"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was looked at.
        level: `ok`; `warning`, works with a drawback; or `error`, does not work.
        found: what was seen.
        remedy: what to do about it; empty for `ok`.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""


def fine(check: str, found: str) -> Finding:
    """A finding that asks for nothing."""
    return Finding(check, "ok", found)


def failure(check: str, error: FedRDMAError, level: Level = "error") -> Finding:
    """The finding behind an error; its page is the remedy where it has none of its own."""
    remedy = error.remedy or error.code.explanation
    return Finding(check, level, f"[{error.code.value}] {error.message}", remedy)


def worst(findings: Iterable[Finding]) -> Level:
    """The gravest level among them, `ok` when there are none."""
    order: list[Level] = ["ok", "warning", "error"]
    return max((finding.level for finding in findings), key=order.index, default="ok")
