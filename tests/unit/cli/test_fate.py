"""`fedrdma fate check` and `fedrdma fate config`, against a gateway that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fedrdma_fate.cli.main import main
from tests.support.ports import ports_of_this_process
from tests.support.sites import Site, start_gateways

FLOW = {"host": "127.0.0.1", "http_port": 9380, "grpc_port": 9360, "proxy_name": "osx"}


def fate(*options: str) -> Result:
    return CliRunner().invoke(main, ["fate", *options], env={"COLUMNS": "200"})


def home(directory: Path) -> Path:
    (directory / "conf").mkdir()
    shipped = {"party_id": "9999", "fateflow": FLOW, "default_engines": {"federation": "standalone"}, "federation": {}}
    (directory / "conf" / "service_conf.yaml").write_text(yaml.safe_dump(shipped))
    return directory


@pytest.mark.parametrize("engine", ["fedrdma", "osx"])
def test_what_config_prints_is_what_check_finds_right(tmp_path: Path, engine: str) -> None:
    flow_home = home(tmp_path)
    fronts = [f"127.0.0.1:{port}" for port in ports_of_this_process(2)]
    settings: dict[str, Any] = {"listen": {"flow": fronts[0], "osx": fronts[1]}, "flow": {"server": "127.0.0.1:9380"}}
    with start_gateways(
        {"a": ["9999"], "b": ["10000"]}, tmp_path, of_site=lambda name: settings if name == "a" else {}
    ) as sites:
        socket = ("--socket", sites["a"].address)
        before = fate("check", "--home", str(flow_home), *socket)
        assert before.exit_code == 1
        assert "fate flow proxy" in before.output

        printed = fate("config", "--home", str(flow_home), "--gateway", str(sites["a"].config_file), "--engine", engine)
        assert printed.exit_code == 0, printed.output
        (flow_home / "conf" / "local.service_conf.yaml").write_text(printed.output)

        after = fate("check", "--home", str(flow_home), *socket, "--model-bytes", "1MB", "--json")
        document = json.loads(after.output)
        assert (after.exit_code, document["worst"]) == (0, "ok"), document
        found = {check["check"]: check["found"] for check in document["checks"]}
        assert found.keys() >= {"fate flow party", "peer b", "room to send", "room at b"}
        assert "1000000 bytes" in found["room to send"]

        too_much = fate("check", "--home", str(flow_home), *socket, "--model-bytes", str(1 << 40))
        assert too_much.exit_code == 1
        assert "memory.receive_bytes" in too_much.output


def test_a_site_that_claims_another_party_than_the_configuration_gives_it_is_told(tmp_path: Path) -> None:
    claims = {"parties": ["10000", "10001"]}
    with start_gateways(
        {"a": ["9999"], "b": ["10000"]}, tmp_path, of_site=lambda name: claims if name == "b" else {}
    ) as sites:
        socket = ("--socket", sites["a"].address)
        checked = fate("check", "--home", str(home(tmp_path)), *socket, "--json")
        (peer,) = (each for each in json.loads(checked.output)["checks"] if each["check"] == "peer b")
        assert peer["level"] == "warning"
        assert "it serves 10000, 10001, and is configured here as serving 10000" in peer["found"]

        told = CliRunner().invoke(main, ["status", *socket], env={"COLUMNS": "200"})
        assert "it serves 10000, 10001" in told.output


@pytest.mark.parametrize("size", ["1TB", "-5", "0", "a model", "1e9", "1000000000000000000000"])
def test_a_size_of_a_model_that_is_none_is_told_with_how_one_is_written(tmp_path: Path, size: str) -> None:
    told = fate("check", "--home", str(home(tmp_path)), "--model-bytes", size)

    assert told.exit_code == 2
    assert f"Invalid value for '--model-bytes': '{size}' is " in told.output
    assert "bytes" in told.output.partition("value for")[2].partition(f"'{size}'")[2]


def test_a_file_that_the_shell_has_emptied_for_what_config_prints_is_told(tmp_path: Path) -> None:
    flow_home = home(tmp_path)
    (flow_home / "conf" / "local.service_conf.yaml").touch()
    gateway = Site("a", tmp_path, {"site": "a", "parties": ["9999"], "security": "off"}).config_file

    printed = fate("config", "--home", str(flow_home), "--gateway", str(gateway))

    assert printed.exit_code == 1
    assert "local.service_conf.yaml is empty" in printed.output
    assert "to another file first" in printed.output


def test_a_home_that_is_none_is_told(tmp_path: Path) -> None:
    checked = fate("check", "--home", str(tmp_path))
    assert checked.exit_code == 1
    assert "service_conf.yaml" in checked.output
    printed = fate("config", "--home", str(tmp_path), "--gateway", str(tmp_path / "none"))
    assert printed.exit_code == 1
    assert "fate_flow init" in printed.output


def test_a_gateway_without_the_front_that_is_needed_is_told(tmp_path: Path) -> None:
    gateway = Site("a", tmp_path, {"site": "a", "parties": ["9999"], "security": "off"}).config_file
    for engine, key in (("fedrdma", "listen.flow"), ("osx", "listen.osx")):
        options = ("--home", str(tmp_path), "--gateway", str(gateway), "--engine", engine)
        if engine == "fedrdma":
            home(tmp_path)
        printed = fate("config", *options)
        assert printed.exit_code == 1
        assert key in printed.output


def test_a_gateways_file_that_is_wrong_is_told_with_its_code(tmp_path: Path) -> None:
    printed = fate("config", "--home", str(home(tmp_path)), "--gateway", str(tmp_path / "none.yaml"))
    assert printed.exit_code == 1
    assert "[FR1" in printed.output
