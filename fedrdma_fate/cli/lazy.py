"""Subcommands that are imported only when they are run."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import click


@dataclasses.dataclass(frozen=True, slots=True)
class Subcommand:
    """A command that is not imported yet.

    Attributes:
        name: as typed; the name of the click command in its module, too.
        module: where it is defined.
        summary: its line in the list of commands, which is shown without importing it.
    """

    name: str
    module: str
    summary: str

    def load(self) -> click.Command:
        """Import it.

        Raises:
            TypeError: the module has something else by that name.
        """
        command = getattr(importlib.import_module(self.module), self.name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.module}.{self.name} is no click command, but {command!r}")
        return command


class LazyGroup(click.Group):
    """A group of which a process loads the one command that it runs, and the libraries of no other."""

    def __init__(self, *arguments: Any, subcommands: Sequence[Subcommand], **attributes: Any) -> None:
        """As click.Group, with `subcommands` to choose from."""
        super().__init__(*arguments, **attributes)
        self._subcommands = {subcommand.name: subcommand for subcommand in subcommands}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order."""
        return sorted({*super().list_commands(ctx), *self._subcommands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None if there is none of that name."""
        if cmd_name in self._subcommands:
            return self._subcommands[cmd_name].load()
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands from their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._subcommands[name].summary) for name in sorted(self._subcommands)])
