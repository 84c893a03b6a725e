"""FATE's component entrypoint: the task's configuration, and the federation made from it."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from fedrdma_fate.fate.registration.extension import Extension
from fedrdma_fate.fate.registration.spec import allow_in_union, federation_spec, is_for_clean_up


def _extend_task_spec(module: ModuleType) -> None:
    from fate.components.core.spec.federation import FederationPartiesSpec

    allow_in_union(module.TaskConfigSpec.TaskConfSpec, federation_spec(FederationPartiesSpec))
    allow_in_union(module.TaskCleanupConfigSpec, federation_spec(FederationPartiesSpec, clean_up=True))


def _extend_load_federation(module: ModuleType) -> None:
    original = module.load_federation

    @functools.wraps(original)
    def load_federation(federation: Any, computing: Any) -> Any:
        if federation.type != "fedrdma":
            return original(federation, computing)
        from fedrdma_fate.fate.registration import factory

        metadata = federation.metadata
        build = factory.build_federation_to_destroy if is_for_clean_up(federation) else factory.build_federation
        return build(
            metadata.federation_id,
            computing,
            metadata.parties.local.tuple(),
            [party.tuple() for party in metadata.parties.parties],
            metadata.fedrdma_config.dict(),
        )

    module.load_federation = load_federation  # type: ignore[attr-defined]
    # where it was imported before us
    package = sys.modules.get("fate.components.core")
    if getattr(package, "load_federation", None) is original:
        package.load_federation = load_federation  # type: ignore[union-attr]


EXTENSIONS = (
    Extension(
        "fate.components.core.spec.task",
        (
            "TaskConfigSpec.TaskConfSpec.__fields__",
            "TaskConfigSpec.TaskConfSpec.__schema_cache__",
            "TaskCleanupConfigSpec.__fields__",
        ),
        _extend_task_spec,
    ),
    Extension("fate.components.core._load_federation", ("load_federation",), _extend_load_federation),
)
