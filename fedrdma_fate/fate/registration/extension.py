"""What an extension of one FATE module is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType


@dataclasses.dataclass(frozen=True, slots=True)
class Extension:
    """One module of FATE, and what is done to it.

    Attributes:
        target: full name of the module.
        relies_on: attributes that must be there, dotted; when one is not, nothing is done.
        apply: extends the module; called once, right after it has loaded.
    """

    target: str
    relies_on: tuple[str, ...]
    apply: Callable[[ModuleType], None]
