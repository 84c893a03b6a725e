"""FATE Flow: the engine's name, what it goes with, the task's configuration and where that comes from, and its end."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import msgspec

from fedrdma_fate.fate.compatibility import missing_attributes, unsupported, version_mismatch
from fedrdma_fate.fate.registration.extension import Extension
from fedrdma_fate.fate.registration.spec import allow_in_union, federation_spec
from fedrdma_fate.wire.frames import Party


def _extend_engine_names(module: ModuleType) -> None:
    module.FederationEngine.FEDRDMA = "fedrdma"


def _extend_relationship(module: ModuleType) -> None:
    for engines in module.Relationship.Computing.values():
        supported = engines["federation"]["support"]
        if "fedrdma" not in supported:
            supported.append("fedrdma")


def _extend_task_spec(module: ModuleType) -> None:
    from fate_flow.entity.spec.dag._federation import FederationPartiesSpec

    module.FedRDMAFederationSpec = federation_spec(FederationPartiesSpec)  # type: ignore[attr-defined]
    allow_in_union(module.TaskRuntimeConfSpec, module.FedRDMAFederationSpec)
    allow_in_union(module.TaskCleanupConfigSpec, module.FedRDMAFederationSpec)


def _extend_parser(module: ModuleType) -> None:
    original = module.TaskParser.generate_federation_conf

    @functools.wraps(original)
    def generate_federation_conf(self: Any) -> Any:
        if module.ENGINES.get("federation").lower() != "fedrdma":
            return original(self)
        return _federation_conf(self, (module.PROXY or {}).get("fedrdma") or {})

    module.TaskParser.generate_federation_conf = generate_federation_conf


def _federation_conf(task: Any, configured: dict[str, Any]) -> Any:
    """The section for one task; of several gateways, only that of the task's own party goes in."""
    from fate_flow.entity.spec.dag import _task

    from fedrdma_fate.fate.settings import parse_settings

    problems = [problem for problem in (version_mismatch("fate_flow"),) if problem]
    problems += missing_attributes(_task, ["FedRDMAFederationSpec"])
    if problems:
        raise unsupported(problems)
    settings = parse_settings(configured)
    local = Party(task.role, task.party_id)
    parties = [Party(party.role, party_id) for party in task.parties for party_id in party.party_id]
    # uploads and transformations run as a party of their own, which needs no gateway
    alone = all(party == local for party in parties)
    return _task.FedRDMAFederationSpec(
        type="fedrdma",
        metadata={
            "federation_id": task.federation_id,
            "parties": {"local": _party_section(local), "parties": [_party_section(party) for party in parties]},
            "fedrdma_config": {
                "gateway": None if alone else settings.address_for(local),
                **msgspec.to_builtins(settings.options),
            },
        },
    )


def _extend_task_controller(module: ModuleType) -> None:
    original = module.TaskController.kill_task.__func__

    @functools.wraps(original)
    def kill_task(cls: Any, task: Any) -> Any:
        killed = original(cls, task)
        # it is called when all is well, too; then each party leaves by itself
        if task.f_party_status != "success":
            # FATE Flow's own clean-up does so when two interpreters for each party have started, and imported FATE
            from fedrdma_fate.fate.stopping import end_session_of

            end_session_of(task.f_component_parameters)
        return killed

    module.TaskController.kill_task = classmethod(kill_task)


def _party_section(party: Party) -> dict[str, str]:
    return {"role": party.role, "partyid": party.party_id}


EXTENSIONS = (
    Extension("fate_flow.entity.types._engine", ("FederationEngine",), _extend_engine_names),
    Extension("fate_flow.engine.relation_ship", ("Relationship.Computing",), _extend_relationship),
    Extension(
        "fate_flow.entity.spec.dag._task",
        ("TaskRuntimeConfSpec.__fields__", "TaskRuntimeConfSpec.__schema_cache__", "TaskCleanupConfigSpec.__fields__"),
        _extend_task_spec,
    ),
    Extension(
        "fate_flow.controller.parser", ("TaskParser.generate_federation_conf", "ENGINES", "PROXY"), _extend_parser
    ),
    Extension("fate_flow.controller.task", ("TaskController.kill_task.__func__",), _extend_task_controller),
)
