"""FATE Flow has killed a task: its session ends at all sites, whatever FATE Flow knows of it, and it never notices."""

from __future__ import annotations

import logging
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.fate import stopping
from fedrdma_fate.fate.registration import extend, factory
from fedrdma_fate.fate.stopping import end_session_of
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.sites import Sites, eventually, party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
PARTIES = [("guest", "1"), ("host", "2")]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path) as running:
        yield running


def parameters(gateway: str | None, engine: str = "fedrdma") -> dict[str, Any]:
    """Of a task of the guest, as FATE Flow keeps them."""
    parties = [{"role": role, "partyid": number} for role, number in PARTIES]
    metadata = {
        "federation_id": "s",
        "parties": {"local": parties[0], "parties": parties},
        "fedrdma_config": {"gateway": gateway},
    }
    return {"conf": {"federation": {"type": engine, "metadata": metadata}}}


def push(sites: Sites) -> GatewayClient:
    """A message for the host, which waits there; the guest's task lives."""
    client = sites["a"].client()
    client.put_inline("m", "t", [party("host:2")], "bytes", b"m")
    eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 1)
    return client


def ends(client: GatewayClient) -> ErrorCode:
    """What a task gets that pulls."""
    with pytest.raises(GatewayError) as caught:
        client.get("never", "t", party("host:2"), timeout=20.0)
    return caught.value.code


def test_the_session_of_a_stopped_task_ends_at_all_sites(sites: Sites) -> None:
    with push(sites) as client:
        end_session_of(parameters(sites["a"].address))

        assert ends(client) is ErrorCode.SESSION_ENDED
        eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 0)


def test_a_user_who_may_end_no_session_leaves_it(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_address: str, _session: str) -> None:
        raise GatewayError(ErrorCode.USER_REFUSED, "user 7 may not drop a session.")

    monkeypatch.setattr(stopping, "drop_session", refuse)
    with push(sites) as client:
        end_session_of(parameters(sites["a"].address))

        assert ends(client) is ErrorCode.SESSION_CLOSED
        assert sites["b"].status()["mailbox"]["messages"] == 1


@pytest.mark.parametrize(
    "known",
    [
        parameters("unix:///nowhere", "osx"),
        parameters(None),
        pytest.param(parameters("unix:///nowhere"), id="no gateway"),
        pytest.param({}, id="another version"),
        pytest.param(None, id="nothing known"),
    ],
)
def test_fate_flow_goes_on_whatever_is_known_of_the_task(known: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        end_session_of(known)

    has_gateway = bool(known) and known["conf"]["federation"]["metadata"]["fedrdma_config"]["gateway"] is not None
    is_ours = bool(known) and known["conf"]["federation"]["type"] == "fedrdma"
    assert len(caplog.records) == int(not known or (is_ours and has_gateway))


def test_a_session_that_has_ended_already_is_no_news(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    with push(sites), caplog.at_level(logging.WARNING, stopping.logger.name):
        end_session_of(parameters(sites["a"].address))
        end_session_of(parameters(sites["a"].address))

    assert [record for record in caplog.records if record.name == stopping.logger.name] == []


class Controller:
    """As much of FATE Flow's TaskController as is extended."""

    killed: list[Any]

    @classmethod
    def kill_task(cls, task: Any) -> str:
        cls.killed.append(task)
        return f"killed by {cls.__name__}"


@pytest.mark.parametrize(("status", "ended"), [("running", ["known"]), ("failed", ["known"]), ("success", [])])
def test_fate_flow_ends_the_session_of_a_task_that_it_kills_unless_all_is_well(
    status: str, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(stopping, "end_session_of", told.append)
    controller = type("TaskController", (Controller,), {"killed": [], "kill_task": Controller.__dict__["kill_task"]})
    module = types.ModuleType("fate_flow.controller.task")
    module.TaskController = controller  # type: ignore[attr-defined]
    extend(module)
    task = types.SimpleNamespace(f_party_status=status, f_component_parameters="known")

    assert type("BfiaTaskController", (controller,), {}).kill_task(task) == "killed by BfiaTaskController"

    assert (controller.killed, told) == ([task], ended)


def test_what_cleans_up_after_a_session_that_has_ended_has_nothing_to_do_at_the_gateway(sites: Sites) -> None:
    with push(sites):
        end_session_of(parameters(sites["a"].address))
    settings = {"gateway": sites["a"].address}

    with pytest.raises(GatewayError) as caught:
        factory.build_federation("s", None, PARTIES[0], PARTIES, settings)
    assert caught.value.code is ErrorCode.SESSION_ENDED
    factory.build_federation_to_destroy("s", None, PARTIES[0], PARTIES, settings).destroy()


def test_what_cleans_up_where_no_gateway_is_says_so(tmp_path: Path) -> None:
    settings = {"gateway": f"unix://{tmp_path}/none", "connect_timeout": 0.01}

    with pytest.raises(GatewayError) as caught:
        factory.build_federation_to_destroy("s", None, PARTIES[0], PARTIES, settings)
    assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE
