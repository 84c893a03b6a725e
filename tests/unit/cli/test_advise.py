"""`fedrdma advise`: a path that is described, or probed between two real gateways; and what cannot be advised on."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedrdma_fate.cli.advise import findings
from fedrdma_fate.cli.main import main
from fedrdma_fate.gateway.peers import probing
from tests.support.sites import Sites, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MEMORY = {"send_bytes": "32MiB", "receive_bytes": "32MiB"}
REPORT: dict[str, Any] = {"peer": "b", "rtt_least_seconds": 0.02, "rate_bits_per_second": 1448e3, "lends": False}
STATE: dict[str, Any] = {
    "peers": [
        {
            "site": "c",
            "paths": [{"transport": "verbs", "up": True, "found_bits_per_second": 9e9, "found_packet_loss": 0.4}],
        },
        {
            "site": "b",
            "paths": [{"transport": "udp", "up": True, "found_bits_per_second": None, "found_packet_loss": None}],
        },
    ]
}


def advise(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["advise", *arguments], env={"COLUMNS": "250"})


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    # loopback is never cold
    monkeypatch.setattr(probing, "COLD_SECONDS", 0.01)
    with start_gateways(LAYOUT, tmp_path, memory=MEMORY) as running:
        yield running


def test_a_path_that_is_described_needs_no_gateway_and_says_what_was_given_and_what_assumed() -> None:
    done = advise("--rate", "20mbit", "--rtt", "20ms", "--loss", "5%", "--silos", "4", "--model", "vgg8")
    assert done.exit_code == 0, done.output
    for words in (
        "4 silos with vgg8",
        "20.0 Mbit/s (given)",
        "5.00% (given)",
        "assumed: as the rate",
        "FATE's rabbitmq",
    ):
        assert words in done.output
    without = advise("--rate", "20mbit", "--rtt", "20ms", "--server-rate", "1gbit")
    assert "0.00% (assumed: no transfer has found any)" in without.output
    assert "1,000.0 Mbit/s (given)" in without.output


@pytest.mark.parametrize("columns", ["60", "80", "100"])
def test_what_is_to_be_set_is_whole_on_a_narrow_terminal(columns: str) -> None:
    arguments = ["advise", "--rate", "20mbit", "--rtt", "20ms", "--loss", "5%"]
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": columns})
    assert done.exit_code == 0, done.output
    assert "…" not in done.output
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.output.splitlines() if "│" in line]
    assert "net.ipv4.tcp_congestion_control" in "".join(cell[-1] for cell in cells)
    assert "docs/protocols.md" in "".join(cell[3] for cell in cells)


def test_a_peer_is_probed_and_what_is_given_goes_before(sites: Sites) -> None:
    asked = ("b", "--socket", sites["a"].address, "--bytes", "24MiB", "--json")
    probed = advise(*asked)
    assert probed.exit_code == 0, probed.output
    document = json.loads(probed.stdout)
    assert document["sources"]["rtt"] == "probe"
    assert "with headers" in document["sources"]["rate"]
    assert document["path"]["rate_bps"] > 1e6
    assert [one["seconds"] for one in document["ways"]] == sorted(one["seconds"] for one in document["ways"])
    given = json.loads(advise(*asked, "--rate", "20mbit", "--loss", "1%").stdout)
    assert (given["sources"]["rate"], given["path"]["rate_bps"], given["path"]["loss"]) == ("given", 20_000_000, 0.01)


def test_what_transfers_have_found_of_a_peer_s_paths_counts_and_nothing_of_another_s() -> None:
    found, notes = findings(REPORT, STATE, 1500)
    assert (found["rate"].value, found["rate"].source) == (1514e3, "probe, with headers")
    assert "loss" not in found
    assert notes == []
    state = copy.deepcopy(STATE)
    state["peers"][1]["paths"][0] |= {"found_bits_per_second": 2896e3, "found_packet_loss": 0.03, "transport": "verbs"}
    found, notes = findings({**REPORT, "rate_bits_per_second": None, "lends": True}, state, 1500)
    assert (found["rate"].value, found["rate"].source) == (3028e3, "transfers by verbs, with headers")
    assert (found["loss"].value, found["loss"].source) == (0.03, "transfers by verbs")
    assert len(notes) == 2


# --- what cannot be advised on ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing is known of the path's rate and rtt"),
        (["--rate", "20mbit"], "nothing is known of the path's rtt"),
        (["--rate", "0mbit", "--rtt", "1ms"], "--rate"),
        (["--rate", "20mbit", "--rtt", "soon"], "--rtt"),
        (["--rate", "20mbit", "--rtt", "1ms", "--loss", "100%"], "--loss"),
        (["--rate", "20mbit", "--rtt", "1ms", "--loss", "60%"], "beyond 50% no formula says anything"),
        (["--rate", "20mbit", "--rtt", "1ms", "--model", "vgg6"], "--model"),
        (["--rate", "20mbit", "--rtt", "1ms", "--server-rate", "x"], "--server-rate"),
    ],
)
def test_what_is_not_known_or_makes_no_sense_is_said(arguments: list[str], words: str) -> None:
    done = advise(*arguments)
    assert done.exit_code == 1
    assert words in done.output
    assert "Traceback" not in done.output


def test_more_silos_than_there_may_be_are_refused() -> None:
    assert advise("--rate", "20mbit", "--rtt", "1ms", "--silos", "65").exit_code == 2


def test_a_peer_that_the_gateway_does_not_know_is_named(sites: Sites) -> None:
    done = advise("nobody", "--socket", sites["a"].address)
    assert done.exit_code == 1
    assert "FR503" in done.output


def test_without_a_gateway_it_says_so(tmp_path: Path) -> None:
    done = advise("b", "--socket", f"unix://{tmp_path}/none.sock")
    assert done.exit_code == 1
    assert "FR6" in done.output
