"""What a benchmark has several of, chosen by name."""

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


def find_by_name(items: Sequence[Row], name: str, kind: str = "row") -> Row:
    """The one of this name.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none; names those of its kind that there are.
    """
    for item in items:
        if item.name == name:
            return item
    known = ", ".join(item.name for item in items)
    raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"there is no {kind} {name!r}.", f"{kind.capitalize()}s: {known}.")


def select_by_name(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows of these names, in the order of `rows`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there is none of a name.
    """
    wanted = {find_by_name(rows, name).name for name in names}
    return [row for row in rows if row.name in wanted]
