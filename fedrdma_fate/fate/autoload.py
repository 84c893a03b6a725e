"""Started by the package's `.pth` file in every interpreter: extends FATE's modules when, and only when, they load.

Imports nothing that a bare interpreter has not loaded already.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

TARGETS = frozenset(
    (
        "fate.arch.federation._builder",
        "fate.arch.launchers.context_helper",
        "fate.arch.protocol.secure_aggregation._secure_aggregation",
        "fate.components.core._load_federation",
        "fate.components.core.spec.task",
        "fate.ml.aggregator.base",
        "fate_flow.controller.parser",
        "fate_flow.controller.task",
        "fate_flow.engine.relation_ship",
        "fate_flow.entity.spec.dag._task",
        "fate_flow.entity.types._engine",
    )
)
"""The modules that `registration` knows how to extend."""


class PostImportFinder:
    """Finds the targets as the finders behind it do, and has them extended once they have loaded."""

    def __init__(self, extend: "Callable[[ModuleType], None]") -> None:
        self._extend = extend

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec of a target, with a loader that extends it; None for every other module."""
        if fullname not in TARGETS:
            return None
        behind = iter(sys.meta_path)
        # stops behind us, so that the loop below goes on from there
        any(finder is self for finder in behind)
        for finder in behind:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _ExtendingLoader(spec.loader, self._extend)  # type: ignore[assignment]
                return spec
        return None


class _ExtendingLoader:
    """Loads as another loader does, then extends the module. The module shows the other loader, not this one."""

    def __init__(self, loader: "Any", extend: "Callable[[ModuleType], None]") -> None:
        self._loader = loader
        self._extend = extend

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._extend(module)


def install() -> None:
    """Have FATE's modules extended, those already loaded at once. May be repeated."""
    if any(isinstance(finder, PostImportFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, PostImportFinder(_extend))
    for name in TARGETS & sys.modules.keys():
        _extend(sys.modules[name])


def is_installed() -> bool:
    """Whether this interpreter extends FATE."""
    return any(isinstance(finder, PostImportFinder) for finder in sys.meta_path)


def _extend(module: "ModuleType") -> None:
    # FATE must load whatever is wrong with us
    try:
        from fedrdma_fate.fate.registration import extend
    except Exception as error:
        import warnings

        warnings.warn(f"fedrdma-fate is broken, its backend is not available in FATE: {error!r}", stacklevel=2)
        return
    extend(module)
