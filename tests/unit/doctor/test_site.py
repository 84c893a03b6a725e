"""What the doctor says of configurations, gateways and peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate import __version__
from fedrdma_fate.client.access import TaskAccess
from fedrdma_fate.doctor.gateway_status import read_status
from fedrdma_fate.doctor.site import (
    check_config,
    check_gateway,
    check_open_ports,
    check_parent,
    check_peers,
    check_tasks_port,
    verbs_need,
)
from fedrdma_fate.gateway.config.schema import GatewayConfig, parse_config
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.task_port import SECRET, write_access

MINIMAL = {"site": "a", "parties": ["1"], "security": "off"}
PATH = {"transport": "tcp", "up": True, "reason": "reachable by TCP", "last_error": ""}
PEER = {"site": "b", "connected": True, "version": __version__, "last_error": "", "paths": [PATH]}


def status(**peer: Any) -> dict[str, Any]:
    return {"site": "a", "version": __version__, "peers": [{**PEER, **peer}]}


# --- configuration ---


def test_without_a_configuration_the_defaults_are_said_to_be_assumed() -> None:
    finding, config = check_config(None)
    assert (finding.level, config) == ("ok", None)
    assert "defaults" in finding.found


def test_a_right_configuration_is_told_by_its_site(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("{site: a, parties: ['1'], security: 'off'}")
    finding, config = check_config(path)
    assert finding.level == "ok"
    assert "site a, 0 peers" in finding.found
    assert config is not None


@pytest.mark.parametrize(
    ("text", "code"), [("site: a\nbogus: 1", "FR10"), ("[", "FR103"), ("{site: a, parties: ['1']}", "FR104")]
)
def test_a_wrong_configuration_is_an_error_with_its_code(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    finding, config = check_config(path)
    assert (finding.level, config) == ("error", None)
    assert f"[{code}" in finding.found
    assert finding.remedy


@pytest.mark.parametrize(
    ("changes", "need"),
    [
        ({}, "wanted"),
        ({"transport": "tcp"}, "unused"),
        ({"transport": "verbs"}, "required"),
        ({"transport": "tcp", "peers": [{"site": "b", "parties": ["2"], "transport": "verbs"}]}, "required"),
        ({"transport": "tcp", "peers": [{"site": "b", "parties": ["2"], "transport": "auto"}]}, "wanted"),
    ],
)
def test_what_a_configuration_asks_of_rdma_counts_its_peers(changes: dict[str, Any], need: str) -> None:
    assert verbs_need(parse_config({**MINIMAL, **changes})) == need


# --- gateway ---


def test_a_gateway_that_answers_is_fine() -> None:
    finding, document = check_gateway("unix:///s", lambda _: status())
    assert finding.level == "ok"
    assert "site a answers at unix:///s" in finding.found
    assert document == read_status(status())


def test_a_gateway_that_does_not_answer_is_an_error_with_the_remedy() -> None:
    def ask(_: str) -> dict[str, Any]:
        raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, "no gateway answers at unix:///s.", "Start it.")

    finding, document = check_gateway("unix:///s", ask)
    assert document is None
    assert (finding.level, finding.remedy) == ("error", "Start it.")
    assert finding.found.startswith("[FR601]")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"site": "a"},
        {**status(), "site": 3},
        {**status(), "version": None},
        {**status(), "peers": {"b": 1}},
        {**status(), "peers": [7]},
        {**status(), "parties": "9999"},
        {**status(), "pools": [{"name": "send"}]},
        {**status(), "pools": [{"name": "send", "length": -1}]},
        {**status(), "pools": [{"name": "send", "length": "8"}]},
        status(paths=None),
        status(paths=[{"transport": "tcp"}]),
        status(version=[]),
        status(connected="yes"),
    ],
)
def test_an_answer_that_is_no_status_is_told_with_a_code(answer: dict[str, Any]) -> None:
    finding, document = check_gateway("unix:///s", lambda _: answer)
    assert document is None
    assert finding.level == "error"
    assert finding.found.startswith("[FR608]")
    assert finding.remedy


def test_a_gateway_of_another_version_than_the_installed_one_is_warned_of() -> None:
    finding, _ = check_gateway("unix:///s", lambda _: {**status(), "version": "0.0.9"})
    assert finding.level == "warning"
    assert __version__ in finding.remedy


# --- peers ---


def test_a_connected_peer_is_shown_with_its_transport_and_why() -> None:
    (finding,) = check_peers(read_status(status()))
    assert (finding.check, finding.level, finding.found) == ("peer b", "ok", "connected; tcp (reachable by TCP)")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"connected": False, "last_error": "[FR502] b does not answer"}, "FR502"),
        ({"paths": []}, "without a data path"),
        ({"paths": [{**PATH, "up": False, "last_error": "refused"}]}, "refused"),
        ({"version": "0.0.9"}, "0.0.9"),
        ({"parties": ["2"], "parties_by_itself": ["2", "3"]}, "it serves 2, 3, and is configured here as serving 2"),
        ({"parties": ["2"], "parties_by_itself": []}, "configured here as serving 2"),
    ],
)
def test_a_peer_in_trouble_is_warned_of_with_what_to_do(changes: dict[str, Any], word: str) -> None:
    (finding,) = check_peers(read_status(status(**changes)))
    assert finding.level == "warning"
    assert word in finding.found
    assert finding.remedy


def test_of_a_path_that_is_still_to_come_nobody_is_sent_to_the_firewall() -> None:
    (early,) = check_peers(read_status(status(paths=[])))
    (refused,) = check_peers(read_status(status(paths=[{**PATH, "up": False, "last_error": "refused"}])))
    assert "Ask again in some seconds" in early.remedy
    assert "listen.data" not in early.remedy
    assert "listen.data" in refused.remedy


def test_a_peer_whose_parties_are_in_another_order_than_here_is_fine() -> None:
    (finding,) = check_peers(read_status(status(parties=["2", "3"], parties_by_itself=["3", "2"])))
    assert finding.level == "ok"


@pytest.mark.parametrize(("trouble", "level"), [("", "ok"), ("did not answer: UNAVAILABLE", "warning")])
def test_an_osx_broker_of_a_peer_is_told_with_the_latest_trouble(trouble: str, level: str) -> None:
    broker = {"site": "c", "address": "10.0.0.3:9370", "pushed": 7, "last_error": trouble, "parties": ["3"]}
    _, finding = check_peers(read_status({**status(), "brokers": [broker]}))
    assert (finding.check, finding.level) == ("OSX broker of c", level)
    assert finding.found.startswith("10.0.0.3:9370, took 7 messages")
    assert trouble in finding.found


# --- the port for tasks on other hosts ---


def config_with_port(path: Path, tasks: str = "10.0.0.5:9372") -> GatewayConfig:
    tls = {"certificate": "a.pem", "key": "a.key", "authorities": ["ca.pem"]}
    listen = {"tasks": tasks}
    return parse_config({**MINIMAL, "security": "mtls", "tls": tls, "listen": listen, "tasks_access": str(path)})


def test_without_a_port_for_tasks_on_other_hosts_there_is_nothing_to_say() -> None:
    assert check_tasks_port(parse_config(MINIMAL), lambda _access: pytest.fail("it was asked")) is None


def test_that_tasks_on_other_hosts_get_in_is_tried_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    write_access(TaskAccess("10.0.0.5:9372", "a", SECRET, "PEM"), path)
    asked: list[str] = []

    finding = check_tasks_port(config_with_port(path), lambda access: asked.append(access.address) or b"{}")

    assert finding is not None
    assert (finding.level, asked) == ("ok", ["10.0.0.5:9372"])
    assert "10.0.0.5:9372" in finding.found
    assert SECRET not in finding.found


def test_why_tasks_on_other_hosts_do_not_get_in_is_an_error_with_its_code(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    config = config_with_port(path)

    def refuse(_access: TaskAccess) -> bytes:
        raise GatewayError(ErrorCode.NO_TASK_ACCESS, "it has another secret.", "Copy the file.")

    absent = check_tasks_port(config, refuse)
    write_access(TaskAccess("10.0.0.5:9372", "a", SECRET, "PEM"), path)
    refused = check_tasks_port(config, refuse)

    assert absent is not None
    assert refused is not None
    assert (absent.level, refused.level) == ("error", "error")
    assert "[FR624]" in refused.found


@pytest.mark.parametrize(
    ("listens", "told", "level"),
    [
        ("0.0.0.0:9372", "127.0.0.1:9372", "warning"),
        ("[::]:9372", "[::1]:9372", "warning"),
        ("0.0.0.0:9372", "localhost:9372", "warning"),
        ("127.0.0.1:9372", "127.0.0.1:9372", "warning"),
        ("0.0.0.0:9372", "10.0.0.5:9372", "ok"),
    ],
)
def test_a_file_that_names_an_address_of_each_host_of_its_own_is_a_warning_though_it_is_reached_from_here(
    tmp_path: Path, listens: str, told: str, level: str
) -> None:
    path = tmp_path / "access.json"
    write_access(TaskAccess(told, "a", SECRET, "PEM"), path)

    finding = check_tasks_port(config_with_port(path, listens), lambda _access: b"{}")

    assert finding is not None
    assert finding.level == level
    assert ("every address of this host" in finding.found) == (not listens.startswith("127."))
    assert ("fedrdma access" in finding.remedy) == (level == "warning")


# --- what has to be open ---

OUTSIDE = {"control": "10.20.0.2:9370"}
DIALS_US = {"site": "b", "parties": ["2"]}


def reachable(**changes: Any) -> GatewayConfig:
    return parse_config({**MINIMAL, "security_off_beyond_loopback": True, "peers": [DIALS_US], **changes})


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"listen": OUTSIDE}, "sites that dial this one have to reach one TCP port, 10.20.0.2:9370"),
        (
            {"listen": {**OUTSIDE, "data": "10.20.0.2:9372"}},
            "sites that dial this one have to reach TCP 10.20.0.2:9370 and 10.20.0.2:9372",
        ),
        (
            {"listen": OUTSIDE, "mode": "fedrdma-x"},
            "sites that dial this one have to reach one TCP port, 10.20.0.2:9370, UDP 10.20.0.2:9370",
        ),
        (
            {"listen": {**OUTSIDE, "grpc": "10.20.0.2:9373"}, "mode": "grpc"},
            "sites that dial this one have to reach one TCP port, 10.20.0.2:9370, TCP 10.20.0.2:9373 for mode grpc",
        ),
        ({}, "other gateways of this host alone reach 127.0.0.1:9370 (`listen.control`)"),
        (
            {"listen": OUTSIDE, "peers": [{**DIALS_US, "address": "10.20.0.1:9370"}]},
            "none has to be open: this site dials its peers",
        ),
    ],
    ids=["one", "two", "udp", "grpc", "loopback", "dials"],
)
def test_which_ports_have_to_be_open_is_told(changes: dict[str, Any], found: str) -> None:
    finding = check_open_ports(reachable(**changes))
    assert (finding.level, finding.found) == ("ok", found)


def test_a_data_path_on_loopback_beside_a_control_port_for_others_is_warned_of() -> None:
    finding = check_open_ports(reachable(listen={**OUTSIDE, "data": "127.0.0.1:0"}))
    assert finding.level == "warning"
    assert "`listen.data` is 127.0.0.1:0" in finding.found
    assert "Leave `listen.data` out" in finding.remedy


# --- parents of sums ---


def of_sums(parent: str | None, **changes: Any) -> dict[str, Any]:
    """The status of a site whose sums go to a parent, and of two peers."""
    (peer,) = status(**{"sum_parent": "", "sum_fan_in": 16, **changes})["peers"]
    return {**status(), "sum_parent": parent, "peers": [peer, {**peer, "site": "c", "connected": True}]}


def test_a_parent_that_adds_is_shown_with_those_above_it_and_without_one_nothing_is_said() -> None:
    assert check_parent(read_status(of_sums(None))) == []
    (finding,) = check_parent(read_status(of_sums("b")))
    assert (finding.check, finding.level) == ("aggregate.parent", "ok")
    above = of_sums("b", sum_parent="c")
    above["peers"][1]["sum_parent"] = ""
    (finding,) = check_parent(read_status(above))
    assert (finding.level, finding.found) == ("ok", "sums of this site go to b and on to c first")


@pytest.mark.parametrize(
    ("document", "word"),
    [
        (
            {
                **of_sums("b"),
                "sum_parent_slow": {"bits_per_second": 9.4e8, "faster": [{"site": "c", "bits_per_second": 1e9}]},
            },
            "the path to b (940.0 Mbit/s) is no faster than that to c (1000.0 Mbit/s)",
        ),
        (of_sums("d"), "d is no peer"),
        (of_sums("b", connected=False), "b is not connected"),
        (of_sums("b", sum_fan_in=0), "b adds no sums"),
        (of_sums("b", sum_fan_in=None), "b adds no sums"),
        (of_sums("b", sum_parent="a"), "lead round: a to b to a"),
        (of_sums("b", sum_parent="c"), "lead round: c to c"),
    ],
)
def test_a_parent_that_does_not_add_is_warned_of_with_what_to_do(document: dict[str, Any], word: str) -> None:
    (finding,) = check_parent(read_status(document))
    assert finding.level == "warning"
    assert word in finding.found
    assert finding.remedy
