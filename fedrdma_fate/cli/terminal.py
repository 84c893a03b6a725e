"""The one way to an operator's terminal, with `failure.tell`: what peers and tasks have chosen does not act on it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedrdma_fate.obs.log import escaped


class Terminal(Console):
    """Rich's console, on which text has no control characters; styles are Rich's own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)
