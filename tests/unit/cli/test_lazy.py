"""The command line loads the command that is run, and the libraries of no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fedrdma_fate.cli.lazy import Subcommand
from fedrdma_fate.cli.main import SUBCOMMANDS, main

# how a user starts it, plus the names of the modules that are loaded in the end
RUN_AND_TELL = """
import json, sys
from fedrdma_fate.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print(json.dumps({"status": end.code, "modules": sorted(sys.modules)}))
"""

HEAVY = {"numpy", "matplotlib", "torch", "pandas", "fate", "fedrdma_fate.bench", "fedrdma_fate.cli.bench"}
GATEWAY = {"fedrdma_fate.gateway.daemon", "grpc", "prometheus_client"}


def loaded_by(*arguments: str, status: int = 0) -> set[str]:
    """The modules that a run of the command line loads."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_TELL, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["status"] == status, done.stderr
    return set(told["modules"])


def test_a_gateway_loads_nothing_of_the_benchmarks(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump({"site": "a", "parties": ["9999"], "security": "off"}))
    modules = loaded_by("gateway", "--config", str(config), "--check")
    assert modules >= GATEWAY
    assert modules.isdisjoint(HEAVY | {"rich", "fedrdma_fate.cli.status"})


def test_the_status_loads_nothing_of_the_gateway_itself(tmp_path: Path) -> None:
    modules = loaded_by("status", "--socket", f"unix://{tmp_path}/none.sock", status=1)
    assert "fedrdma_fate.client.client" in modules
    assert modules.isdisjoint(HEAVY | GATEWAY)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_loads_no_command(option: str) -> None:
    assert loaded_by(option).isdisjoint(subcommand.module for subcommand in SUBCOMMANDS)


@pytest.mark.parametrize("subcommand", SUBCOMMANDS, ids=lambda subcommand: subcommand.name)
def test_every_command_is_listed_and_has_help_of_its_own(subcommand: Subcommand) -> None:
    listed = CliRunner().invoke(main, ["--help"]).output
    width = max(len(each.name) for each in SUBCOMMANDS)
    assert f"  {subcommand.name:{width}}  {subcommand.summary}\n" in listed
    shown = CliRunner().invoke(main, [subcommand.name, "-h"])
    assert shown.exit_code == 0
    assert shown.output.startswith(f"Usage: main {subcommand.name} [OPTIONS]")


def test_an_unknown_command_is_refused_with_the_usage() -> None:
    result = CliRunner().invoke(main, ["gatewya"])
    assert result.exit_code == 2
    assert "No such command 'gatewya'" in result.output


def test_what_is_no_command_is_not_run_as_one() -> None:
    with pytest.raises(TypeError, match="is no click command"):
        Subcommand("DEFAULT_PAYLOAD", "fedrdma_fate.cli.bench", "").load()
