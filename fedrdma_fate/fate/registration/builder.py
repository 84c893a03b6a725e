"""`FederationBuilder.build` and `FederationEngine`: the library's way in, `create_context(federation_engine=…)`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fedrdma_fate.fate.registration.extension import Extension

_PREFIX = "federation.fedrdma"


def _extend_builder(module: ModuleType) -> None:
    engine = add_enum_member(module.FederationEngine, "FEDRDMA", "fedrdma")
    original = module.FederationBuilder.build

    @functools.wraps(original)
    def build(self: Any, computing_session: Any, t: Any, conf: dict[str, Any]) -> Any:
        if t is not engine and t != engine.value:
            return original(self, computing_session, t, conf)
        from fedrdma_fate.fate.registration.factory import build_federation

        return build_federation(self._federation_id, computing_session, self._party, self._parties, settings_in(conf))

    module.FederationBuilder.build = build


def settings_in(conf: Mapping[str, Any]) -> dict[str, Any]:
    """This backend's keys in FATE's dotted style (`federation.fedrdma.gateway`), or under one key as a dictionary."""
    nested = dict(conf.get(_PREFIX) or {})
    dotted = {key[len(_PREFIX) + 1 :]: value for key, value in conf.items() if key.startswith(f"{_PREFIX}.")}
    return {**nested, **dotted}


def add_enum_member(enumeration: Any, name: str, value: str) -> Any:
    """Add a member to an enumeration that is closed, so that lookup by value, by name and iteration find it."""
    if value in enumeration._value2member_map_:
        return enumeration(value)
    member = object.__new__(enumeration)
    member._name_ = name
    member._value_ = value
    member._sort_order_ = len(enumeration._member_names_)
    type.__setattr__(enumeration, name, member)
    enumeration._member_names_.append(name)
    enumeration._member_map_[name] = member
    enumeration._value2member_map_[value] = member
    return member


EXTENSIONS = (
    Extension(
        "fate.arch.federation._builder",
        ("FederationEngine._member_map_", "FederationEngine._value2member_map_", "FederationBuilder.build"),
        _extend_builder,
    ),
)
