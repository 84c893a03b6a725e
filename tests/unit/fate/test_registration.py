"""FATE and FATE Flow know the backend afterwards, and are left alone where they are not as expected."""

from __future__ import annotations

import enum
import importlib.util
import logging
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

from fedrdma_fate.fate import autoload
from fedrdma_fate.fate.registration import EXTENSIONS, FateVersionWarning, extend, factory
from fedrdma_fate.fate.registration.builder import add_enum_member, settings_in
from fedrdma_fate.fate.registration.launcher import FedRDMALauncherArguments, settings_from
from fedrdma_fate.fate.settings import BackendSettings, parse_settings
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FateError, GatewayError
from fedrdma_fate.wire.frames import Party

PARTIES = [("guest", "9999"), ("host", "10000"), ("arbiter", "10000")]


@pytest.fixture(autouse=True)
def extended() -> None:
    """As at interpreter start, where the package is installed."""
    autoload.install()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What `build_federation` was called with, instead of connecting."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(factory, "build_federation", lambda *arguments: calls.append(arguments) or "federation")
    return calls


class Colour(enum.Enum):
    """A closed enumeration, as FATE's is."""

    RED = "red"


def test_an_enumeration_gets_a_full_member() -> None:
    blue = add_enum_member(Colour, "BLUE", "blue")

    assert (Colour("blue"), Colour["BLUE"], Colour.BLUE) == (blue, blue, blue)  # type: ignore[attr-defined]
    assert list(Colour) == [Colour.RED, blue]
    assert (blue.name, blue.value, isinstance(blue, Colour), blue in Colour) == ("BLUE", "blue", True, True)
    assert pickle.loads(pickle.dumps(blue)) is blue
    assert add_enum_member(Colour, "BLUE", "blue") is blue
    assert len({Colour.RED, blue}) == 2


def test_create_context_takes_the_engine_by_name_and_by_member(built: list[tuple[Any, ...]], tmp_path: Path) -> None:
    from fate.arch.context import create_context
    from fate.arch.federation import FederationEngine

    for engine in ("fedrdma", FederationEngine.from_str("fedrdma")):
        create_context(
            PARTIES[0],
            PARTIES,
            "session",
            federation_engine=engine,
            federation_conf={"federation.fedrdma.gateway": "unix:///g.sock", "federation.osx.port": 1},
            computing_conf={"computing.standalone.data_dir": str(tmp_path)},
        )

    assert [(call[0], call[2], call[3], call[4]) for call in built] == [
        ("session", PARTIES[0], PARTIES, {"gateway": "unix:///g.sock"})
    ] * 2


def test_other_engines_are_built_by_fate(built: list[tuple[Any, ...]]) -> None:
    from fate.arch.federation import FederationBuilder

    with pytest.raises(ValueError, match="nonsense not in"):
        FederationBuilder("session", PARTIES[0], PARTIES).build(None, "nonsense", {})
    assert built == []


def test_settings_are_read_dotted_or_nested() -> None:
    conf = {"federation.fedrdma": {"gateway": "a", "get_timeout": 1}, "federation.fedrdma.gateway": "b", "other": 1}

    assert settings_in(conf) == {"gateway": "b", "get_timeout": 1}


@pytest.mark.parametrize(
    ("party", "address"),
    [
        (Party("host", "10000"), "unix:///h"),
        (Party("arbiter", "10000"), "unix:///a"),
        (Party("guest", "9"), "unix:///g"),
    ],
)
def test_the_most_precise_gateway_is_taken(party: Party, address: str) -> None:
    settings = parse_settings({"gateway": "unix:///g", "gateways": {"10000": "unix:///a", "host:10000": "unix:///h"}})

    assert settings.address_for(party) == address


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({"gatway": "unix:///g"}, ErrorCode.CONFIG_UNKNOWN_KEY, "gatway"),
        ({"gateway": 3}, ErrorCode.CONFIG_BAD_VALUE, "gateway"),
        ({"get_timeout": -1}, ErrorCode.CONFIG_BAD_VALUE, "get_timeout"),
        ({"mode": "rdma"}, ErrorCode.CONFIG_BAD_VALUE, "mode"),
        ({"loss_tolerance": -1}, ErrorCode.CONFIG_BAD_VALUE, "loss_tolerance"),
        ({"loss_tolerance": 0.5}, ErrorCode.CONFIG_BAD_VALUE, "loss_tolerance"),
        ({"loss_tolerance": float("nan")}, ErrorCode.CONFIG_BAD_VALUE, "loss_tolerance"),
        ({"loss_tolerance": "1 %"}, ErrorCode.CONFIG_BAD_VALUE, "loss_tolerance"),
        ({"straggler_wait": -1}, ErrorCode.CONFIG_BAD_VALUE, "straggler_wait"),
        ({"straggler_wait": float("inf")}, ErrorCode.CONFIG_BAD_VALUE, "straggler_wait"),
        ({"allowed_names": "a:b"}, ErrorCode.CONFIG_BAD_VALUE, "allowed_names"),
        ({"allowed_names": ["pickle.loads"]}, ErrorCode.CONFIG_BAD_VALUE, "allowed_names"),
        ({"allowed_names": ["a:b.c"]}, ErrorCode.CONFIG_BAD_VALUE, "allowed_names"),
        ({"allowed_names": ["a:*"]}, ErrorCode.CONFIG_BAD_VALUE, "allowed_names"),
        ({"allowed_names": ["a.:b"]}, ErrorCode.CONFIG_BAD_VALUE, "allowed_names"),
        ({"allowed_names": ["a:b\n"]}, ErrorCode.CONFIG_BAD_VALUE, "allowed_names"),
        ({"gateways": ["unix:///g"]}, ErrorCode.CONFIG_BAD_VALUE, "gateways"),
        ({}, ErrorCode.CONFIG_BAD_VALUE, "guest:9999"),
        ({"gateways": {"host:10000": "unix:///g"}}, ErrorCode.CONFIG_BAD_VALUE, "guest:9999"),
        ({"gateway": "127.0.0.1:9370"}, ErrorCode.CONFIG_BAD_VALUE, "unix:///"),
    ],
)
def test_wrong_settings_are_refused_by_name(values: dict[str, Any], code: ErrorCode, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        factory.build_federation("session", None, PARTIES[0], PARTIES, values)

    assert caught.value.code is code
    assert words in str(caught.value)


def test_a_gateway_that_does_not_run_is_told(tmp_path: Path) -> None:
    settings = {"gateway": f"unix://{tmp_path}/none", "connect_timeout": 0.01}

    with pytest.raises(GatewayError) as caught:
        factory.build_federation("session", None, PARTIES[0], PARTIES, settings)

    assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE


def launcher_arguments(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """The command line that FATE's launcher gives its children."""
    parties = [":".join(party) for party in PARTIES]
    monkeypatch.setattr(
        sys, "argv", ["job.py", "--parties", *parties, "--log_level", "INFO", *arguments, "--rank", "1"]
    )


def test_the_launcher_builds_the_engine_of_the_command_line(
    built: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fate.arch.launchers.context_helper import init_context

    launcher_arguments(
        monkeypatch,
        "--federation_engine=fedrdma",
        "--fedrdma_gateways=guest:9999=unix:///a,host:10000=unix:///b",
        "--fedrdma_mode=fedrdma",
        "--fedrdma_get_timeout=7",
        "--fedrdma_loss_tolerance=0.01",
        "--fedrdma_straggler_wait=0",
        "--fedrdma_allowed_names=bank.models:Score, bank:Limit",
        f"--data_dir={tmp_path}",
    )

    assert init_context("computing", "session").federation == "federation"

    session, _, party, parties, values = built[0]
    assert (session, party, parties) == ("session", PARTIES[1], PARTIES)
    assert parse_settings(values) == BackendSettings(
        gateways={"guest:9999": "unix:///a", "host:10000": "unix:///b"},
        mode="fedrdma",
        get_timeout=7.0,
        allowed_names=("bank.models:Score", "bank:Limit"),
        loss_tolerance=0.01,
        straggler_wait=0.0,
    )


def test_the_launcher_without_our_arguments_is_fates(
    built: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fate.arch.launchers.context_helper import init_context

    launcher_arguments(monkeypatch, f"--data_dir={tmp_path}")

    assert type(init_context("computing", "session").federation).__name__ == "StandaloneFederation"
    assert built == []


@pytest.mark.parametrize("asked", ["--context_type=cluster", "--computing_engine=eggroll"])
def test_the_launcher_refuses_what_it_cannot_combine(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    from fate.arch.launchers.context_helper import init_context

    launcher_arguments(monkeypatch, "--federation_engine=fedrdma", asked)

    with pytest.raises(ConfigError, match=asked.partition("=")[0]):
        init_context("computing", "session")


def test_the_launcher_says_when_spark_is_asked_for_and_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fate.arch.launchers.context_helper import init_context

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    launcher_arguments(monkeypatch, "--federation_engine=fedrdma", "--computing_engine=spark")

    with pytest.raises(ConfigError, match="pyspark is not installed"):
        init_context("computing", "session")


@pytest.mark.parametrize("gateways", ["guest:9999", "=unix:///a", "guest:9999="])
def test_a_mapping_of_gateways_that_is_none_is_refused(gateways: str) -> None:
    with pytest.raises(ConfigError, match="fedrdma_gateways"):
        settings_from(FedRDMALauncherArguments(fedrdma_gateways=gateways))


def federation_section(config: dict[str, Any]) -> dict[str, Any]:
    local, *_ = parties = [{"role": role, "partyid": party} for role, party in PARTIES]
    metadata = {"federation_id": "session", "parties": {"local": local, "parties": parties}, "fedrdma_config": config}
    return {"type": "fedrdma", "metadata": metadata}


COMPUTING = {"type": "standalone", "metadata": {"computing_id": "computing", "options": {}}}


def test_the_component_entrypoint_parses_and_loads_the_engine(built: list[tuple[Any, ...]]) -> None:
    from fate.components.core import load_federation
    from fate.components.core.spec.task import TaskCleanupConfigSpec, TaskConfigSpec

    section = federation_section({"gateway": "unix:///g.sock", "get_timeout": 5, "allowed_names": ["bank:Limit"]})
    config = TaskCleanupConfigSpec.parse_obj({"computing": COMPUTING, "federation": section})

    assert load_federation(config.federation, "computing") == "federation"

    assert built[0][:4] == ("session", "computing", PARTIES[0], PARTIES)
    assert parse_settings(built[0][4]) == BackendSettings(
        gateway="unix:///g.sock", get_timeout=5.0, allowed_names=("bank:Limit",)
    )
    assert "FedRDMAFederationSpec" in TaskConfigSpec.schema_json()


def test_only_what_cleans_up_does_without_a_session() -> None:
    from fate.components.core.spec.task import TaskCleanupConfigSpec, TaskConfigSpec

    def is_for_clean_up(model: Any) -> list[bool]:
        kinds = [field.type_ for field in model.__fields__["federation"].sub_fields]
        return [kind.is_for_clean_up for kind in kinds if kind.__name__ == "FedRDMAFederationSpec"]

    assert [is_for_clean_up(model) for model in (TaskConfigSpec.TaskConfSpec, TaskCleanupConfigSpec)] == [
        [False],
        [True],
    ]


def test_the_component_entrypoint_still_takes_fates_engines(built: list[tuple[Any, ...]]) -> None:
    from fate.components.core.spec.task import TaskCleanupConfigSpec

    section = {**federation_section({}), "type": "standalone"}

    config = TaskCleanupConfigSpec.parse_obj({"computing": COMPUTING, "federation": section})

    assert type(config.federation).__name__ == "StandaloneFederationSpec"
    assert built == []


def test_the_component_entrypoint_refuses_unknown_keys() -> None:
    from fate.components.core.spec.task import TaskCleanupConfigSpec

    section = federation_section({"gatway": "unix:///g.sock"})

    with pytest.raises(pydantic.ValidationError, match="gatway"):
        TaskCleanupConfigSpec.parse_obj({"computing": COMPUTING, "federation": section})


def test_fate_flow_lists_the_engine_and_supports_it_with_every_computing_engine() -> None:
    from fate_flow.engine.relation_ship import Relationship
    from fate_flow.entity.types import FederationEngine

    assert FederationEngine.FEDRDMA == "fedrdma"
    assert all("fedrdma" in engines["federation"]["support"] for engines in Relationship.Computing.values())


class Task:
    """As much of FATE Flow's TaskParser as the federation section needs."""

    role, party_id, federation_id = "host", "10000", "session"
    parties = (
        types.SimpleNamespace(role="guest", party_id=["9999"]),
        types.SimpleNamespace(role="host", party_id=["10000", "10001"]),
    )

    def generate_federation_conf(self) -> str:
        return "fates"


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """FATE Flow's parser module without its database."""
    module = types.ModuleType("fate_flow.controller.parser")
    monkeypatch.setattr(Task, "generate_federation_conf", Task.generate_federation_conf)
    module.TaskParser, module.ENGINES, module.PROXY = Task, {"federation": "FedRDMA"}, None  # type: ignore[attr-defined]
    extend(module)
    return module


def test_fate_flow_writes_the_section_with_the_partys_own_gateway(parser: Any) -> None:
    from fate_flow.entity.spec.dag._task import TaskCleanupConfigSpec

    parser.PROXY = {"fedrdma": {"gateways": {"guest:9999": "unix:///a", "host:10000": "unix:///b"}, "put_timeout": 9}}
    parser.PROXY["fedrdma"]["allowed_names"] = ["bank:Limit"]
    parser.PROXY["fedrdma"]["loss_tolerance"] = 0.01

    section = Task().generate_federation_conf()

    config = TaskCleanupConfigSpec(computing=COMPUTING, federation=section)
    written = config.dict()["federation"]
    assert written["type"] == "fedrdma"
    assert written["metadata"]["federation_id"] == "session"
    assert written["metadata"]["parties"]["local"] == {"role": "host", "partyid": "10000"}
    assert [party["partyid"] for party in written["metadata"]["parties"]["parties"]] == ["9999", "10000", "10001"]
    assert parse_settings(written["metadata"]["fedrdma_config"]) == BackendSettings(
        gateway="unix:///b", put_timeout=9.0, allowed_names=("bank:Limit",), loss_tolerance=0.01
    )


def test_fate_flow_with_another_engine_is_left_alone(parser: Any) -> None:
    parser.ENGINES = {"federation": "osx"}

    assert Task().generate_federation_conf() == "fates"


def test_fate_flow_without_a_gateway_for_the_party_is_a_configuration_error(parser: Any) -> None:
    assert parser.PROXY is None

    with pytest.raises(ConfigError, match="host:10000"):
        Task().generate_federation_conf()


def test_fate_flow_of_another_version_cannot_use_the_backend(parser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parser.PROXY = {"fedrdma": {"gateway": "unix:///a"}}
    monkeypatch.setattr("fate_flow.__version__", "2.1.0")

    with pytest.raises(FateError) as caught:
        Task().generate_federation_conf()
    assert caught.value.code is ErrorCode.FATE_VERSION


@pytest.mark.parametrize("target", sorted(EXTENSIONS))
def test_a_module_that_is_not_as_expected_is_warned_of_and_left_alone(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = types.ModuleType(target)
    before = dict(vars(module))

    with caplog.at_level(logging.WARNING), pytest.warns(FateVersionWarning, match="FR701") as warned:
        extend(module)

    missing = EXTENSIONS[target].relies_on[0]
    assert f"{target} has no {missing}" in str(warned[0].message)
    assert f"{target} has no {missing}" in caplog.text
    assert vars(module) == before


def test_another_version_that_looks_the_same_is_extended_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fate_flow.__version__", "2.3.0")
    module = types.ModuleType("fate_flow.entity.types._engine")
    module.FederationEngine = type("FederationEngine", (), {})  # type: ignore[attr-defined]

    with pytest.warns(FateVersionWarning, match=r"fate_flow is version 2\.3\.0, not 2\.2\.0"):
        extend(module)

    assert module.FederationEngine.FEDRDMA == "fedrdma"


def test_an_extension_that_fails_does_not_stop_fate() -> None:
    module = types.ModuleType("fate_flow.engine.relation_ship")
    module.Relationship = types.SimpleNamespace(Computing={"standalone": {}})  # type: ignore[attr-defined]

    with pytest.warns(FateVersionWarning, match="failed with KeyError"):
        extend(module)


def test_building_the_backend_on_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fate.__version__", "2.1.0")

    with pytest.raises(FateError) as caught:
        factory.build_federation("session", None, PARTIES[0], PARTIES, {"gateway": "unix:///g"})

    assert caught.value.code is ErrorCode.FATE_VERSION
