"""One silo of the example on a host of its own: what it is told, and how its gateway is configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from examples.gpt2_advertisegen.accounting import delivered_by_path
from examples.gpt2_advertisegen.gateways import Gateways, PoolBytes
from examples.gpt2_advertisegen.on_testbed import silo_arguments
from examples.gpt2_advertisegen.one_silo import Place
from examples.gpt2_advertisegen.options import JobOptions
from examples.gpt2_advertisegen.plan import ARBITER, GUEST, HOST, RunFiles
from examples.gpt2_advertisegen.processes import Child, Children, JobFailedError
from examples.gpt2_advertisegen.progress import Silent
from examples.gpt2_advertisegen.silo_command import main
from examples.gpt2_advertisegen.workspace import Workspace
from fedrdma_fate.gateway.config.schema import TransportName, parse_config
from fedrdma_fate.wire.frames import Party

CONTROLS = {GUEST: "10.77.0.1:9370", HOST: "10.77.0.2:9370", ARBITER: "10.77.0.3:9370"}
AT = [f"--at={party.role}={address}" for party, address in CONTROLS.items()]


def refusal(*arguments: str) -> str:
    """What the command says when it refuses its arguments."""
    result = CliRunner().invoke(main, [*arguments, "--preset", "tiny"])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_the_address_of_every_silo_has_to_be_given() -> None:
    assert "the address of host and arbiter is missing" in refusal("--silo", "guest", AT[0])


@pytest.mark.parametrize(
    ("first", "second"), [("guest", "nobody=10.77.0.1:1"), ("guest", "guest=10.77.0.9:1"), ("host", "guest=10.77.0.1")]
)
def test_an_address_has_a_port_and_names_one_of_the_three_silos_once(first: str, second: str) -> None:
    complaint = refusal("--silo", "guest", f"--at={first}=10.77.0.1:9370", f"--at={second}")
    assert f"{second!r}: write SILO=HOST:PORT, once for each of guest, host, arbiter" in complaint


@pytest.mark.parametrize("options", [(), ("--insecure", "--certificates=.")])
def test_a_silo_says_whether_it_has_certificates_or_does_without(options: tuple[str, ...]) -> None:
    assert "give --certificates DIRECTORY; or --insecure" in refusal("--silo", "guest", *AT, *options)


def test_a_testbed_host_runs_the_silo_of_its_number() -> None:
    environment = {
        "TESTBED_HOST": "1",
        "TESTBED_HOSTS": "10.77.0.1,10.77.0.2,10.77.0.3",
        "TESTBED_OUT": "/out",
    }
    assert silo_arguments(environment, ["--preset", "tiny"]) == [
        "--silo=host",
        *AT,
        "--insecure",
        "--output=/out/host",
        "--preset",
        "tiny",
    ]


@pytest.mark.parametrize("hosts", [None, "10.77.0.1,10.77.0.2"])
def test_without_three_testbed_hosts_it_says_how_to_get_them(hosts: str | None) -> None:
    with pytest.raises(ValueError, match="--hosts 3"):
        silo_arguments({} if hosts is None else {"TESTBED_HOSTS": hosts, "TESTBED_HOST": "0"}, [])


def configuration(tmp_path: Path, transport: TransportName, pool: PoolBytes) -> dict[str, object]:
    """The configuration that the gateway of the guest gets; it never finds its peers."""
    files = RunFiles(tmp_path)
    gateways = Gateways(files, tmp_path, "fedrdma-e", transport, CONTROLS, ready_seconds=0.0)
    try:
        with Children() as children, pytest.raises(JobFailedError):
            gateways.start(children, {GUEST: pool}, {}, tmp_path)
    finally:
        gateways.remove_files()
    document: dict[str, object] = yaml.safe_load((files.trace(GUEST).parent / "gateway.yaml").read_text())
    parse_config(document)
    return document


def test_a_gateway_listens_on_its_own_address_and_dials_the_others(tmp_path: Path) -> None:
    document = configuration(tmp_path, "auto", PoolBytes(2**20, 2**26))
    listen, peers = document["listen"], document["peers"]
    assert isinstance(listen, dict)
    assert isinstance(peers, list)
    assert (listen["control"], listen.get("data"), listen["grpc"]) == ("10.77.0.1:9370", None, "10.77.0.1:0")
    assert [(peer["site"], peer["address"]) for peer in peers] == [
        ("host", CONTROLS[HOST]),
        ("arbiter", CONTROLS[ARBITER]),
    ]


class IdleChildren(Children):
    """Starts something that does nothing, whatever it is told to start."""

    def start(self, name: str, _: Sequence[str], log: Path, environment: Mapping[str, str], root: Path) -> Child:
        return super().start(name, ["sleep", "60"], log, environment, root)


class TellingChildren(Children):
    """Starts something that tells what tokenizers are told, and fails."""

    def start(self, name: str, _: Sequence[str], log: Path, environment: Mapping[str, str], root: Path) -> Child:
        return super().start(name, ["sh", "-c", "echo $TOKENIZERS_PARALLELISM; exit 1"], log, environment, root)


class ScriptedGateways(Gateways):
    """Gateways with a status that a test writes."""

    connected: Sequence[Party] = (HOST, ARBITER)

    def _status(self, _: Party) -> dict[str, object]:
        return {"peers": [{"site": other.role, "connected": other in self.connected} for other in (HOST, ARBITER)]}


def test_a_job_ends_when_a_gateway_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.gpt2_advertisegen.gateways._LOOK_SECONDS", 0.0)
    gateways = ScriptedGateways(RunFiles(tmp_path), tmp_path, "fedrdma-e", "auto", CONTROLS, ready_seconds=0.0)
    try:
        with IdleChildren() as children:
            gateways.start(children, {GUEST: PoolBytes(2**20, 2**26)}, {}, tmp_path)
            gateways.check_peers()
            gateways.connected = (HOST,)
            with pytest.raises(JobFailedError, match="guest to arbiter;"):
                gateways.check_peers()
    finally:
        gateways.remove_files()


@pytest.mark.parametrize(("transport", "warm"), [("auto", False), ("verbs", True)])
def test_pools_for_verbs_are_taken_whole_however_large(tmp_path: Path, transport: TransportName, warm: bool) -> None:
    memory = configuration(tmp_path, transport, PoolBytes(2**50, 2**26))["memory"]
    assert isinstance(memory, dict)
    assert memory["warm"] is warm


def test_threads_are_those_asked_for_wherever_the_silo_runs(tmp_path: Path) -> None:
    options = JobOptions(output=tmp_path / "run", preset="tiny", threads=3)
    assert Workspace(options, "s", Silent(), silos_here=2).environment["OMP_NUM_THREADS"] == "3"


def test_only_the_process_that_trains_the_tokenizer_does_so_in_parallel(tmp_path: Path) -> None:
    workspace = Workspace(JobOptions(output=tmp_path / "run", preset="tiny"), "s", Silent(), silos_here=2)
    with TellingChildren() as children, pytest.raises(JobFailedError):
        workspace.prepare(children)
    assert workspace.files.log("prepare").read_text().strip() == "true"
    assert workspace.environment["TOKENIZERS_PARALLELISM"] == "false"


def test_delivered_bytes_are_told_by_mode_and_transport_and_repeated_ones_left_out() -> None:
    def delivered(size: int, mode: str, transport: str, kept: bool = True) -> dict[str, object]:
        return {"event": "delivered", "bytes": size, "mode": mode, "transport": transport, "kept": kept}

    events = [
        delivered(5, "inline", "control"),
        delivered(100, "fedrdma-e", "verbs"),
        delivered(200, "fedrdma-e", "verbs"),
        delivered(200, "fedrdma-e", "verbs", kept=False),
        {"event": "sent", "bytes": 7},
    ]
    assert delivered_by_path(events) == {"inline": 5, "fedrdma-e/verbs": 300}


def test_the_other_two_are_those_that_are_not_here() -> None:
    others: tuple[Party, ...] = Place(HOST, CONTROLS, "s", 1.0).others
    assert others == (GUEST, ARBITER)
