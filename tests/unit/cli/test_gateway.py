"""`fedrdma gateway`: checks its configuration, runs, and says in one line why it does not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from fedrdma_fate.cli.main import main
from tests.support.certificates import TestAuthority
from tests.support.ports import ports_of_this_process
from tests.support.sites import Site, eventually, gateway_site

RIGHT = {"site": "a", "parties": ["9999"], "security": "off"}


def check(path: Path) -> Result:
    return CliRunner().invoke(main, ["gateway", "--config", str(path), "--check"])


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_right_configuration_is_said_to_be_right_and_nothing_is_started(tmp_path: Path) -> None:
    path = written(tmp_path, {**RIGHT, "memory": {"directory": str(tmp_path / "nothing")}})
    result = check(path)
    assert (result.exit_code, result.output) == (0, f"{path} is right.\n")


def test_a_check_looks_at_the_certificates_too(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "tls")
    authority.issue("a")
    document = {"site": "a", "parties": ["9999"], "tls": authority.settings("a")}
    assert check(written(tmp_path, document)).exit_code == 0
    authority.issue("b", name="a")
    result = check(written(tmp_path, document))
    assert result.exit_code == 1
    assert "[FR108]" in result.output


def test_a_check_looks_for_the_users_too(tmp_path: Path) -> None:
    document = {**RIGHT, "task_users": [{"user": "nobody-of-this-name", "parties": RIGHT["parties"]}]}
    result = check(written(tmp_path, document))
    assert result.exit_code == 1
    assert "nobody-of-this-name" in result.output


@pytest.mark.parametrize(
    ("document", "code", "words"),
    [
        ({**RIGHT, "modee": "grpc"}, "FR101", "Did you mean 'mode'?"),
        ({**RIGHT, "mode": "fast"}, "FR102", "One of grpc, fedrdma, fedrdma-e, fedrdma-x."),
        ({"site": "a", "parties": ["9999"]}, "FR104", "`security: off`, on one host, does without"),
        (["no", "table"], "FR103", "not a table of keys and values"),
    ],
)
def test_a_wrong_configuration_ends_with_status_1_and_one_line_that_says_what_is_wrong(
    tmp_path: Path, document: object, code: str, words: str
) -> None:
    result = check(written(tmp_path, document))
    assert result.exit_code == 1
    first, second = result.output.splitlines()
    assert first.startswith(f"fedrdma: [{code}]")
    assert words in first
    assert second == f"`fedrdma explain {code}` says more."


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = check(tmp_path / "nothing.yaml")
    assert result.exit_code == 1
    assert "nothing.yaml" in result.output


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return gateway_site("a", ["guest:1"], home=tmp_path, sockets=tmp_path, port=ports_of_this_process(1)[0])


def run(site: Site) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "gateway", "--config", str(site.config_file)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_gateway_says_that_it_is_up_and_ends_in_order_when_it_is_told_to(site: Site, number: int) -> None:
    with run(site) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "gateway of a is up\n"
        assert site.status()["site"] == "a"
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    assert not Path(site.address.removeprefix("unix://")).exists()


def test_a_second_gateway_on_one_socket_is_refused_and_the_first_goes_on(site: Site) -> None:
    with run(site) as first:
        assert first.stderr is not None
        assert first.stderr.readline() == "gateway of a is up\n"
        site.config["listen"]["control"] = "127.0.0.1:0"
        # as another site on this host, which is given the same socket
        site.config["site"] = "b"
        with run(site) as second:
            assert second.stderr is not None
            output = second.stderr.read()
            assert second.wait(20) == 1
        assert "fedrdma: [FR601] another gateway serves" in output
        assert eventually(lambda: site.status()["site"]) == "a"
        first.terminate()
        assert first.wait(20) == 0


@pytest.mark.parametrize(("soft", "hard", "allowed"), [(256, 1024, 1024), (256, 256, 256)])
def test_a_gateway_may_open_as_many_files_as_the_host_lets_it(soft: int, hard: int, allowed: int) -> None:
    limit = "resource.getrlimit(resource.RLIMIT_NOFILE)"
    program = (
        "import resource; from fedrdma_fate.cli.gateway import allow_files; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); allow_files(); print({limit})"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.strip() == str((allowed, hard))
