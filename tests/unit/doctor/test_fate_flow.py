"""Checks of a FATE Flow home: files, engine, proxy, ports, party, room."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedrdma_fate import __version__
from fedrdma_fate.doctor.fate_flow import (
    BROKER_BYTES,
    LOCAL,
    MOST_FILE_BYTES,
    SERVICE,
    check_flow,
    connects,
    lines_to_add,
    read_home,
)
from fedrdma_fate.doctor.findings import Finding
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.ports import ports_of_this_process

SHIPPED: dict[str, Any] = {
    "party_id": "9999",
    "fateflow": {"host": "127.0.0.1", "http_port": 9380, "grpc_port": 9360, "proxy_name": "osx"},
    "default_engines": {"computing": "standalone", "federation": "standalone", "storage": "standalone"},
    "federation": {"osx": {"host": "127.0.0.1", "port": 9370, "mode": "stream"}},
    "log_level": 20,
}
"""As FATE Flow ships it, as far as it matters here."""

QUEUES = {
    "default_engines": {"federation": "osx"},
    "federation": {"osx": {"host": "127.0.0.1", "port": 9390, "mode": "queue", "max_message_size": 2147483646}},
}
FEDRDMA = {
    "default_engines": {"federation": "fedrdma"},
    "fateflow": {"http_port": 9380, "grpc_port": 9360, "proxy_name": "nginx"},
    "federation": {
        "nginx": {"host": "127.0.0.1", "http_port": 9390},
        "fedrdma": {"gateway": "unix:///run/a.sock", "gateways": {"10000": "unix:///run/b.sock"}},
    },
}
PEER = {
    "site": "bank-b",
    "parties": ["10000"],
    "connected": True,
    "version": __version__,
    "largest_payload_bytes": 1000,
    "paths": [{"up": True, "transport": "tcp", "reason": "as wished"}],
}
STATUS: dict[str, Any] = {
    "site": "bank-a",
    "version": __version__,
    "parties": ["guest:9999"],
    "peers": [PEER],
    "pools": [{"name": "send", "length": 1000}, {"name": "receive", "length": 1000}],
}


def home(directory: Path, local: object = None, service: object = SHIPPED) -> Path:
    (directory / "conf").mkdir(exist_ok=True)
    for name, document in ((SERVICE, service), (LOCAL, local)):
        if document is not None:
            text = document if isinstance(document, str) else yaml.safe_dump(document)
            (directory / "conf" / name).write_text(text)
    return directory


def findings(
    directory: Path,
    status: Mapping[str, Any] = STATUS,
    problem: str = "",
    address: str | None = "unix:///a",
    model_bytes: int | None = None,
) -> dict[str, Finding]:
    _, flow = read_home(directory)
    assert flow is not None
    found = check_flow(flow, address, lambda _: status, lambda _host, _port: problem, model_bytes)
    return {finding.check: finding for finding in found}


def levels(found: Mapping[str, Finding]) -> dict[str, str]:
    return {check: finding.level for check, finding in found.items() if finding.level != "ok"}


@pytest.mark.parametrize("local", [QUEUES, FEDRDMA], ids=["osx", "fedrdma"])
def test_a_home_that_fits_its_gateway_has_nothing_wrong(tmp_path: Path, local: object) -> None:
    assert levels(findings(home(tmp_path, local), model_bytes=1000)) == {}


def test_the_folder_of_the_files_will_do_as_well_as_the_home(tmp_path: Path) -> None:
    assert read_home(home(tmp_path, QUEUES) / "conf") == read_home(tmp_path)


def test_each_value_is_told_with_the_file_that_fate_flow_takes_it_from(tmp_path: Path) -> None:
    found = findings(home(tmp_path, QUEUES))
    assert found["fate flow engine"].found == f"federation osx, from {LOCAL}"
    assert f"named in {SERVICE}, with its entry in {LOCAL}" in found["fate flow proxy"].found


def test_fate_flow_as_it_is_shipped_does_not_pass_the_gateway(tmp_path: Path) -> None:
    found = findings(home(tmp_path), problem="Connection refused")
    assert levels(found) == {"fate flow engine": "warning", "fate flow proxy": "error"}
    assert "osx at 127.0.0.1:9370" in found["fate flow proxy"].found
    assert "Connection refused" in found["fate flow proxy"].found


BROKER = {**QUEUES["federation"]["osx"], "port": 9370}


@pytest.mark.parametrize(
    ("host", "port", "front", "level"),
    [
        ("127.0.0.1", 9390, "127.0.0.1:9390", None),
        ("localhost", 9390, "127.0.0.1:9390", None),
        ("127.0.0.1", 9370, "127.0.0.1:9390", "warning"),
        ("10.20.0.9", 9390, "127.0.0.1:9390", "warning"),
        ("127.0.0.1", 9390, None, "warning"),
    ],
    ids=["the gateway's", "by its name", "a broker's", "of another host", "the gateway has none"],
)
def test_queues_that_are_not_the_gateways_are_told_whatever_listens_there(
    tmp_path: Path, host: str, port: int, front: str | None, level: str | None
) -> None:
    queues = {**QUEUES["federation"]["osx"], "host": host, "port": port}
    status = {**STATUS, "fronts": {"flow": None, "osx": front}}

    found = findings(home(tmp_path, {**QUEUES, "federation": {"osx": queues}}), status)

    assert levels(found) == ({} if level is None else {"fate flow engine": level})
    if level is None:
        assert "the gateway's `listen.osx`" in found["fate flow proxy"].found
    else:
        assert (
            f"{host}:{port}: that is no gateway's `listen.osx` ({front or 'not set'})"
            in found["fate flow engine"].found
        )
        assert "something listens there, and no gateway's `listen.osx`" in found["fate flow proxy"].found


def test_calls_that_a_broker_carries_beside_the_gateway_are_told_and_right(tmp_path: Path) -> None:
    local = {**FEDRDMA, "fateflow": SHIPPED["fateflow"], "federation": {**FEDRDMA["federation"], "osx": BROKER}}
    found = findings(home(tmp_path, local), {**STATUS, "fronts": {"flow": "127.0.0.1:9390", "osx": None}})
    assert levels(found) == {}
    assert "9370" in found["fate flow proxy"].found
    assert "something listens there, and no gateway's `listen.osx`" in found["fate flow proxy"].found


@pytest.mark.parametrize(
    ("local", "fronts", "said"),
    [
        (FEDRDMA, {"flow": None, "osx": "127.0.0.1:9390"}, "the gateway's `listen.osx`, which is no nginx"),
        (QUEUES, {"flow": "127.0.0.1:9390", "osx": None}, "the gateway's `listen.flow`, which is no osx"),
    ],
    ids=["calls by HTTP to the front of OSX", "calls of OSX to the front for HTTP"],
)
def test_a_proxy_that_leads_to_the_other_front_of_the_gateway_is_an_error(
    tmp_path: Path, local: object, fronts: Mapping[str, str | None], said: str
) -> None:
    proxy = findings(home(tmp_path, local), {**STATUS, "fronts": fronts})["fate flow proxy"]
    assert (proxy.level, said in proxy.found) == ("error", True)
    assert "`fedrdma fate config` prints" in proxy.remedy


def test_a_gateway_that_does_not_say_its_fronts_is_believed_to_listen_there(tmp_path: Path) -> None:
    found = findings(home(tmp_path, {**QUEUES, "federation": {"osx": BROKER}}))
    assert levels(found) == {}
    assert found["fate flow proxy"].found.endswith("something listens there")


def test_stream_mode_and_slices_are_told(tmp_path: Path) -> None:
    engine = {"default_engines": {"federation": "osx"}}
    assert levels(findings(home(tmp_path, engine))) == {"fate flow osx.mode": "error"}
    without_size = {**engine, "federation": {"osx": {"host": "127.0.0.1", "port": 1, "mode": "queue"}}}
    found = findings(home(tmp_path, without_size))
    assert levels(found) == {"fate flow osx.mode": "warning"}
    # a broker keeps no message of the size that is right for gateways
    assert "2147483646" not in found["fate flow osx.mode"].remedy


@pytest.mark.parametrize(("size", "wrong"), [(2**31 - 2, True), (2**26, False)])
def test_messages_that_no_osx_broker_of_a_peer_keeps_are_an_error(tmp_path: Path, size: int, wrong: bool) -> None:
    queues = {**QUEUES["federation"]["osx"], "max_message_size": size}
    directory = home(tmp_path, {**QUEUES, "federation": {**QUEUES["federation"], "osx": queues}})
    broker = {"site": "c", "address": "10.0.0.3:9370", "parties": ["3"]}
    found = findings(directory, {**STATUS, "brokers": [broker]})
    assert levels(found) == ({"fate flow messages": "error"} if wrong else {})
    assert "3 at c" in found["fate flow party"].found
    assert levels(findings(directory)) == {}


def test_ports_that_differ_between_the_files_are_an_error(tmp_path: Path) -> None:
    local = {**QUEUES, "fateflow": {**SHIPPED["fateflow"], "http_port": 9381}}
    found = findings(home(tmp_path, local))
    assert levels(found) == {"fate flow ports": "error"}
    assert "http_port 9380 and 9381" in found["fate flow ports"].found


def test_a_proxy_without_an_entry_is_an_error(tmp_path: Path) -> None:
    local = {**QUEUES, "fateflow": {**SHIPPED["fateflow"], "proxy_name": "nginx"}}
    assert levels(findings(home(tmp_path, local))) == {"fate flow proxy": "error"}


@pytest.mark.parametrize(
    ("port", "what"), [(9380, "this FATE Flow, its own proxy"), (9390, "the gateway's `listen.flow`")]
)
def test_what_is_to_be_started_where_no_proxy_listens_is_told(tmp_path: Path, port: int, what: str) -> None:
    local = {**FEDRDMA, "federation": {**FEDRDMA["federation"], "nginx": {"host": "127.0.0.1", "http_port": port}}}
    found = findings(home(tmp_path, local), problem="Connection refused")
    assert f"Start what listens there: {what}." in found["fate flow proxy"].remedy


@pytest.mark.parametrize("parties", [["10000"], [], ["guest:99990"]])
def test_a_party_that_the_gateway_does_not_serve_is_an_error(tmp_path: Path, parties: list[str]) -> None:
    found = findings(home(tmp_path, QUEUES), {**STATUS, "parties": parties})
    assert levels(found) == {"fate flow party": "error"}


@pytest.mark.parametrize(
    "status",
    [{}, {**STATUS, "peers": [{"site": "b"}]}, {**STATUS, "parties": [9999]}, {**STATUS, "pools": [None]}],
)
def test_a_gateway_whose_answer_is_no_status_is_one_error_and_breaks_no_other_check(
    tmp_path: Path, status: dict[str, Any]
) -> None:
    found = findings(home(tmp_path, QUEUES), status, model_bytes=500)
    assert levels(found) == {"gateway": "error"}
    assert found["gateway"].found.startswith("[FR608]")


def test_a_peer_that_is_away_or_of_another_version_is_told(tmp_path: Path) -> None:
    away = {**PEER, "connected": False, "last_error": "it speaks protocol 1"}
    found = findings(home(tmp_path, QUEUES), {**STATUS, "peers": [away]})
    assert levels(found) == {"peer bank-b": "warning"}
    assert "protocol 1" in found["peer bank-b"].found
    older = {**PEER, "version": "0.0.1"}
    assert levels(findings(home(tmp_path, QUEUES), {**STATUS, "peers": [older]})) == {"peer bank-b": "warning"}


def test_every_gateway_that_the_files_name_is_asked(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(address: str) -> Mapping[str, Any]:
        asked.append(address)
        raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, "nobody is there.")

    _, flow = read_home(home(tmp_path, FEDRDMA))
    assert flow is not None
    found = check_flow(flow, None, ask, lambda _host, _port: "", None)
    assert asked == ["unix:///run/a.sock", "unix:///run/b.sock"]
    assert [finding.level for finding in found if finding.check == "gateway"] == ["error", "error"]


def test_a_model_for_which_a_region_is_too_small_is_an_error(tmp_path: Path) -> None:
    directory = home(tmp_path, QUEUES)
    too_small = dict.fromkeys(("room to send", "room to receive", "room at bank-b"), "error")
    assert levels(findings(directory, model_bytes=1001)) == too_small
    assert levels(findings(directory, model_bytes=1000)) == {}
    # with several peers, an eighth is kept for the others
    several = {**STATUS, "peers": [PEER, {**PEER, "site": "bank-c"}]}
    assert levels(findings(directory, several, model_bytes=900)) == {"room to receive": "error"}
    # another site may have less than this one
    less = {**STATUS, "peers": [{**PEER, "largest_payload_bytes": 500}]}
    assert levels(findings(directory, less, model_bytes=900)) == {"room at bank-b": "error"}


def test_a_site_that_has_not_said_how_much_it_takes_is_warned_of(tmp_path: Path) -> None:
    away = {**STATUS, "peers": [{**PEER, "connected": False, "largest_payload_bytes": None}]}
    told = levels(findings(home(tmp_path, QUEUES), away, model_bytes=900))
    assert told == {"peer bank-b": "warning", "room at bank-b": "warning"}


@pytest.mark.parametrize(
    ("service", "local"),
    [
        (None, None),
        ("- a\n", None),
        ("{", None),
        (SHIPPED, "just text"),
        (SHIPPED, "a: [" * 3000),
        ("#" * (MOST_FILE_BYTES + 1), None),
        ("a: 2020-13-45", None),
        ("a: !!int foo", None),
        ("a: !!bool x", None),
        ("a: !!timestamp foo", None),
        ("a: &a [1]\nb: [*a, *a]", None),
    ],
    ids=["none", "list", "broken", "text", "deep", "long", "no date", "no int", "no bool", "no time", "alias"],
)
def test_files_that_cannot_be_read_are_told(tmp_path: Path, service: object, local: object) -> None:
    found, flow = read_home(home(tmp_path, local, service))
    assert (found.level, flow) == ("error", None)
    assert found.remedy


def test_a_pipe_in_the_place_of_a_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    made = home(tmp_path)
    os.mkfifo(made / "conf" / LOCAL)
    found, flow = read_home(made)
    assert (found.level, flow) == ("error", None)
    assert "regular" in found.found


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "\ud800"], ids=["empty", "long", "surrogate"])
def test_what_cannot_be_the_name_of_a_host_is_told(host: str) -> None:
    assert connects(host, 1)


@pytest.mark.parametrize(
    "local", [{}, {"federation": None, "fateflow": []}, {"default_engines": "osx", "federation": {"osx": 1}}]
)
def test_settings_of_other_shapes_are_told_and_break_nothing(tmp_path: Path, local: object) -> None:
    assert levels(findings(home(tmp_path, local), problem="refused"))


@pytest.mark.parametrize("engine", ["fedrdma", "osx"])
def test_with_the_lines_that_are_printed_nothing_is_wrong(tmp_path: Path, engine: str) -> None:
    before = {
        "default_engines": {**SHIPPED["default_engines"], "computing": "spark"},
        "federation": {"pulsar": {"a": 1}},
    }
    _, flow = read_home(home(tmp_path, before))
    assert flow is not None
    lines = lines_to_add(flow, engine, "unix:///run/a.sock", ("127.0.0.1", 9390))
    assert levels(findings(home(tmp_path, lines))) == {}
    _, then = read_home(tmp_path)
    assert then is not None
    # what else FATE Flow takes of these keys is what it took before
    assert then.value("default_engines", "computing") == "spark"
    assert then.value("federation", "pulsar") == {"a": 1}
    assert then.proxy() == ({"fedrdma": "nginx", "osx": "osx"}[engine], "127.0.0.1", 9390)


@pytest.mark.parametrize(("to_brokers", "size"), [(True, BROKER_BYTES), (False, 2**31 - 2)])
def test_the_lines_that_are_printed_have_fate_cut_what_a_broker_would_not_keep(
    tmp_path: Path, to_brokers: bool, size: int
) -> None:
    _, flow = read_home(home(tmp_path))
    assert flow is not None
    home(tmp_path, lines_to_add(flow, "osx", "unix:///run/a.sock", ("127.0.0.1", 9390), to_brokers=to_brokers))
    _, then = read_home(tmp_path)
    assert then is not None
    assert then.value("federation", "osx", "max_message_size") == size


def test_whether_anything_listens_is_seen() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert connects("127.0.0.1", listener.getsockname()[1]) == ""
    assert connects("127.0.0.1", ports_of_this_process(1)[0])
