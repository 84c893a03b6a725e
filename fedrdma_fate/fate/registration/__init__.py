"""How FATE and FATE Flow get to know the backend: one extension per module, applied once the module has loaded."""

from __future__ import annotations

import logging
import warnings
from types import ModuleType

from fedrdma_fate.fate.compatibility import missing_attributes, unsupported, version_mismatch
from fedrdma_fate.fate.registration import aggregation, builder, entrypoint, flow, launcher
from fedrdma_fate.fate.registration.extension import Extension

logger = logging.getLogger("fedrdma_fate.fate")

EXTENSIONS: dict[str, Extension] = {
    extension.target: extension
    for extension in (
        *aggregation.EXTENSIONS,
        *builder.EXTENSIONS,
        *launcher.EXTENSIONS,
        *entrypoint.EXTENSIONS,
        *flow.EXTENSIONS,
    )
}


class FateVersionWarning(UserWarning):
    """FATE is not as expected; the backend may be unusable, FATE itself is not touched."""


def extend(module: ModuleType) -> None:
    """Extend a module that has just loaded. Never raises: what does not match is warned of, and left alone."""
    extension = EXTENSIONS[module.__name__]
    try:
        problems = missing_attributes(module, extension.relies_on)
        if not problems:
            extension.apply(module)
        version_problem = version_mismatch(module.__name__.partition(".")[0])
        problems += [version_problem] if version_problem else []
    except Exception as error:
        problems = [f"extending {module.__name__} failed with {error!r}"]
    if problems:
        text = str(unsupported(problems))
        logger.warning(text)
        warnings.warn(text, FateVersionWarning, stacklevel=2)
