"""Whether the FATE at hand is the one this backend was made for."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from fedrdma_fate.wire.errors import ErrorCode, FateError

SUPPORTED_VERSION = "2.2.0"

_PUSH_PARAMETERS = (
    "value", "federation", "computing", "name", "tag", "parties", "max_message_size", "num_partitions_of_slice_table",
)  # fmt: skip
_PULL_PARAMETERS = ("buffers", "ctx", "federation", "name", "tag", "party")
_PERSISTENT_IDS = (
    "_TablePersistentId", "_ContextPersistentId", "_TorchSafeTensorPersistentId", "_NumpySafeTensorPersistentId",
)  # fmt: skip


def version_mismatch(package: str) -> str | None:
    """What is wrong with the version of `fate` or `fate_flow`, None when nothing is.

    Args:
        package: name of an importable package.
    """
    version = getattr(importlib.import_module(package), "__version__", "unknown")
    return None if version == SUPPORTED_VERSION else f"{package} is version {version}, not {SUPPORTED_VERSION}"


def missing_attributes(module: ModuleType, paths: Sequence[str]) -> list[str]:
    """Those dotted attributes that the module does not have, each as a sentence."""
    return [f"{module.__name__} has no {path}" for path in paths if not _has(module, path)]


def require_supported_fate() -> None:
    """Refuse to run on a FATE that is not as expected.

    Raises:
        FateError: FATE_ABSENT, or FATE_VERSION with everything that does not match.
    """
    try:
        serdes = importlib.import_module("fate.arch.federation.api._serdes")
    except ModuleNotFoundError as error:
        raise FateError(
            ErrorCode.FATE_ABSENT, f"FATE is not installed ({error}).", "Install fedrdma-fate with its extra `fate`."
        ) from error
    problems = [problem for problem in (version_mismatch("fate"),) if problem]
    problems += _object_path_mismatches(serdes)
    if problems:
        raise unsupported(problems)


def unsupported(problems: Sequence[str]) -> FateError:
    """The error for a FATE of another version."""
    return FateError(
        ErrorCode.FATE_VERSION,
        f"this FATE is not the one that fedrdma-fate extends: {'; '.join(problems)}.",
        f"Use FATE {SUPPORTED_VERSION}, or set FEDRDMA_FATE_DISABLE=1 to run FATE without this backend.",
    )


def _object_path_mismatches(serdes: ModuleType) -> list[str]:
    expected = {
        "TableRemotePersistentPickler.push": _PUSH_PARAMETERS,
        "TableRemotePersistentUnpickler.pull": _PULL_PARAMETERS,
    }
    problems = missing_attributes(serdes, [*expected, *_PERSISTENT_IDS])
    for path, parameters in expected.items():
        if _has(serdes, path) and tuple(inspect.signature(_get(serdes, path)).parameters) != parameters:
            problems.append(f"{serdes.__name__}.{path} does not take {', '.join(parameters)}")
    return problems


def _get(module: ModuleType, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), module)


def _has(module: ModuleType, path: str) -> bool:
    try:
        _get(module, path)
    except AttributeError:
        return False
    return True
