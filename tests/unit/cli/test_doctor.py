"""`fedrdma doctor`: all checks in one table or document, and the exit status."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from click.testing import CliRunner, Result

from fedrdma_fate import __version__
from fedrdma_fate.cli.main import main
from fedrdma_fate.doctor.examination import Machine, examine
from fedrdma_fate.doctor.fate_report import FateReport
from fedrdma_fate.doctor.udp import UdpSockets
from fedrdma_fate.transport.udp.socket_options import BUFFER_BYTES
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.fake_verbs import FakeVerbs, device_info
from tests.support.repository import ROOT
from tests.support.sites import start_gateways
from tests.support.sysfs import add_port, write

STATUS: dict[str, Any] = {"site": "bank-a", "version": __version__, "peers": []}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine on which everything is right."""
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    add_port(sysfs)
    write(sysfs / "kernel" / "mm" / "transparent_hugepage" / "shmem_enabled", "never [advise]")
    return Machine(
        python=(3, 11),
        system="Linux",
        processor="x86_64",
        sysfs=sysfs,
        proc=proc,
        memlock=lambda: None,
        available_bytes=lambda: 8 << 30,
        load_verbs=lambda: FakeVerbs(device_info("mlx5_0")),
        address_is_ours=lambda _: True,
        ask_status=lambda _: STATUS,
        ask_fate=lambda: FateReport(
            hooked=True, fate="2.2.0", registered=True, tables="restricted", table_names="/etc/names.yaml"
        ),
        look_at_udp=lambda: UdpSockets(BUFFER_BYTES, BUFFER_BYTES, cuts=True, joins=True),
    )


def doctor(machine: Machine, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    monkeypatch.setattr(Machine, "this", lambda: machine)
    return CliRunner().invoke(main, ["doctor", *options], env={"COLUMNS": "200"})


CHECKS = [
    *("python", "configuration", "certificates", "shared memory", "huge pages", "directories"),
    *("rdma mlx5_0 port 1", "pyverbs", "rdma choice", "memlock", "udp", "notices", "gateway"),
    *("fate", "fate hooks", "fate tables"),
]


def test_a_healthy_machine_has_a_line_for_every_check_and_status_0(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = doctor(machine, monkeypatch)
    assert result.exit_code == 0
    for check in CHECKS:
        assert f" {check} " in result.output
    assert f"{len(CHECKS)} ok, 0 warnings, 0 errors" in result.output


def test_the_document_for_programs_has_every_check(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(doctor(machine, monkeypatch, "--json").output)
    assert (document["worst"], document["version"]) == ("ok", __version__)
    assert [check["check"] for check in document["checks"]] == CHECKS
    assert all(set(check) == {"check", "level", "found", "remedy"} for check in document["checks"])


def test_an_error_ends_with_status_1_and_shows_the_remedy(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = dataclasses.replace(machine, python=(3, 13))
    result = doctor(bad, monkeypatch)
    assert result.exit_code == 1
    assert "Use Python 3.10 or 3.11" in result.output
    assert json.loads(doctor(bad, monkeypatch, "--json").output)["worst"] == "error"


def test_a_warning_alone_ends_with_status_0(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(dataclasses.replace(machine, processor="aarch64"), monkeypatch)
    assert result.exit_code == 0
    assert "1 warnings, 0 errors" in result.output


def test_the_configuration_decides_sizes_devices_and_socket(machine: Machine, tmp_path: Path) -> None:
    asked: list[str] = []
    config = tmp_path / "gateway.yaml"
    document = {
        "site": "a",
        "parties": ["1"],
        "security": "off",
        "listen": {"socket": "unix:///x/y.sock"},
        "memory": {"send_bytes": "3GiB", "receive_bytes": "6GiB"},
        "verbs": {"device": "mlx5_9"},
    }
    config.write_text(yaml.safe_dump(document))

    def ask(address: str) -> dict[str, Any]:
        asked.append(address)
        return STATUS

    findings = {each.check: each for each in examine(dataclasses.replace(machine, ask_status=ask), config, None)}
    assert asked == ["unix:///x/y.sock"]
    # the gateway that answers is another site's: its regions are not these
    assert findings["shared memory"].level == "error"
    assert "9.0 GiB" in findings["shared memory"].found
    assert "'mlx5_9'" in findings["rdma choice"].found


def test_a_configuration_that_is_wrong_does_not_keep_the_other_checks_away(machine: Machine, tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("site: 7")
    findings = {each.check: each for each in examine(machine, config, None)}
    assert findings["configuration"].level == "error"
    assert set(findings) == set(CHECKS)


def test_a_host_with_too_little_memory_is_told(machine: Machine) -> None:
    def nobody(_: str) -> NoReturn:
        raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, "no gateway answers.")

    small = dataclasses.replace(machine, available_bytes=lambda: 1 << 20, ask_status=nobody)
    findings = {each.check: each for each in examine(small, None, None)}
    assert findings["shared memory"].level == "error"


def test_a_spill_directory_that_cannot_be_made_is_told_before_the_gateway_is_started(
    machine: Machine, tmp_path: Path
) -> None:
    def nobody(_: str) -> NoReturn:
        raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, "no gateway answers.")

    (tmp_path / "file").write_text("")
    config = tmp_path / "gateway.yaml"
    config.write_text(
        f"{{site: a, parties: ['1'], security: 'off', memory: {{spill_directory: {tmp_path}/file/spill}}}}"
    )
    findings = {each.check: each for each in examine(dataclasses.replace(machine, ask_status=nobody), config, None)}
    assert findings["directories"].level == "error"
    assert "memory.spill_directory" in findings["directories"].found


def test_without_an_rdma_device_the_rule_is_not_asked(machine: Machine, tmp_path: Path) -> None:
    bare = dataclasses.replace(machine, sysfs=tmp_path / "none")
    checks = [each.check for each in examine(bare, None, None)]
    assert "rdma device" in checks
    assert "rdma choice" not in checks


def test_the_address_on_the_command_line_goes_before_the_configured_one(machine: Machine) -> None:
    def ask(address: str) -> dict[str, Any]:
        raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, f"none at {address}.", "Start it.")

    findings = {each.check: each for each in examine(dataclasses.replace(machine, ask_status=ask), None, "unix:///z")}
    assert "none at unix:///z" in findings["gateway"].found


def test_a_real_gateway_and_its_peer_are_seen_on_this_machine(tmp_path: Path) -> None:
    with start_gateways({"a": ["guest:1"], "b": ["host:2"]}, tmp_path) as sites:
        site = sites["a"]
        result = CliRunner().invoke(main, ["doctor", "--config", str(site.config_file), "--json"])
        checks = {check["check"]: check for check in json.loads(result.output)["checks"]}
    assert checks["gateway"]["level"] == "ok"
    assert (checks["peer b"]["level"], "tcp" in checks["peer b"]["found"]) == ("ok", True)
    assert "which the running gateway has" in checks["shared memory"]["found"]


def test_the_documentation_has_a_row_for_every_check() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    for check in (*CHECKS, "rdma device"):
        name = "rdma DEVICE port N" if check.startswith("rdma mlx5") else check
        assert f"| {name} |" in page
    assert "| peer SITE |" in page
