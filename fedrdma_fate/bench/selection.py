"""Rows of a benchmark, chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from fedrdma_fate.wire.errors import ConfigError, ErrorCode


class Named(Protocol):
    """Something with a name on the command line."""

    @property
    def name(self) -> str:
        """As in the table."""
        ...


Row = TypeVar("Row", bound=Named)


def select_by_name(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows of these names, in the order of `rows`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none of a name.
    """
    known = [row.name for row in rows]
    for name in names:
        if name not in known:
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"there is no row {name!r}.", f"Rows: {', '.join(known)}.")
    return [row for row in rows if row.name in names]
