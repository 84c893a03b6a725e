"""`fedrdma probe`: measurements between two real gateways, for people, for programs, and into a configuration."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from fedrdma_fate.cli.main import main
from fedrdma_fate.cli.probe import render, settings
from fedrdma_fate.client.protocol import Error, encode_message
from fedrdma_fate.gateway.config.schema import load_config
from fedrdma_fate.gateway.peers import probing
from fedrdma_fate.unix_sockets import address_of
from tests.support.sites import Sites, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MEMORY = {"send_bytes": "32MiB", "receive_bytes": "32MiB"}


def trial(chunk_mib: int, seconds: float, bits_per_second: float) -> dict[str, Any]:
    return {
        "chunk_bytes": chunk_mib << 20,
        "payload_bytes": 8 << 20,
        "seconds": seconds,
        "survived": bits_per_second > 0,
        "bits_per_second": bits_per_second,
    }


REPORT: dict[str, Any] = {
    "site": "a",
    "peer": "b",
    "transport": "verbs",
    "reason": "both gateways have an RDMA device",
    "mode": "fedrdma-e",
    "lends": False,
    "rtt_least_seconds": 0.0201,
    "rtt_median_seconds": 0.0204,
    "pings": 10,
    "link_enable": "always",
    "link_enable_reason": "1 of 2 large first chunks did not survive",
    "first_chunks": [],
    "chunks": [trial(1, 0.2, 3.3e8), trial(4, 0.0812, 8.26e8), trial(8, 3.0, 0.0)],
    "not_measured": [64 << 20],
    "best_chunk_bytes": 4 << 20,
    "bits_per_second": 8.26e8,
    "rate_bits_per_second": 1.03e9,
    "sent_bytes": 24 << 20,
    "seconds": 4.2,
}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is never cold."""
    monkeypatch.setattr(probing, "COLD_SECONDS", 0.01)


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path, memory=MEMORY) as running:
        yield running


def probe(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["probe", *arguments], env={"COLUMNS": "200"})


def probe_b(sites: Sites, *options: str) -> Result:
    return probe("b", "--socket", sites["a"].address, "--bytes", "48MiB", *options)


def test_the_table_shows_the_round_trip_goodput_by_chunk_the_choice_and_the_verdict(sites: Sites) -> None:
    result = probe_b(sites)
    assert result.exit_code == 0, result.output
    assert "a to b  by tcp (reachable by TCP), mode fedrdma-e" in result.output
    for words in ("round trip of the control channel", "256.0 KiB", "Mbit/s", "chosen", "Link-Enable: ", "chunk: "):
        assert words in result.output


def test_the_document_for_programs_has_everything_and_the_settings_that_follow(sites: Sites) -> None:
    document = json.loads(probe_b(sites, "--json").output)
    assert (document["site"], document["peer"], document["transport"]) == ("a", "b", "tcp")
    assert 0 < document["rtt_least_seconds"] <= document["rtt_median_seconds"] < 5
    assert document["sent_bytes"] <= 48 << 20
    sizes = [trial["chunk_bytes"] for trial in document["chunks"]]
    assert sizes == sorted(sizes)
    assert sizes[0] == 256 << 10
    assert document["best_chunk_bytes"] in sizes
    assert set(sizes).isdisjoint(document["not_measured"])
    assert len(document["first_chunks"]) == 4
    assert set(document["settings"]) >= {"chunk", "rate"}


def test_the_running_gateway_uses_what_was_found_at_once_and_shows_it(sites: Sites) -> None:
    document = json.loads(probe_b(sites, "--json").output)
    (path,) = sites["a"].status()["peers"][0]["paths"]
    tuning = path["tuning"]
    assert (tuning["bits_per_second"], tuning["known_by"]) == (document["rate_bits_per_second"], "probed")
    assert (tuning["link_enable"], tuning["link_enable_reason"]) == (
        document["link_enable"],
        document["link_enable_reason"],
    )


def test_what_was_found_is_written_to_the_peer_and_the_restart_is_mentioned(sites: Sites) -> None:
    path = sites["a"].config_file
    path.write_text(f"# mine\n{path.read_text()}")
    result = probe_b(sites, "--json", "--write", str(path))
    assert result.exit_code == 0, result.output
    assert f"of b to {path}; restart the gateway to use it." in result.stderr
    (peer,) = load_config(path).peers
    document = json.loads(result.stdout)
    assert peer.chunk is not None
    assert peer.chunk.size_bytes == document["best_chunk_bytes"]
    assert (peer.rate, peer.link_enable) == (document["settings"]["rate"], document["link_enable"])
    assert path.read_text().startswith("# mine\n")


def test_the_configuration_of_another_gateway_is_not_written(sites: Sites) -> None:
    path = sites["a"].config_file
    text = path.read_text().replace("site: a\n", "site: c\n")
    path.write_text(text)
    result = probe_b(sites, "--write", str(path))
    assert result.exit_code == 1
    assert "is the configuration of 'c'" in result.output
    assert path.read_text() == text


def test_a_configuration_without_the_peer_is_refused_before_anything_is_sent(sites: Sites) -> None:
    result = probe_b(sites, "--write", str(sites["b"].config_file))
    assert result.exit_code == 1
    assert "has no peer 'b'" in result.output
    assert not sites["a"].events("probed")


def test_an_unknown_peer_is_told_with_those_that_there_are(sites: Sites) -> None:
    result = probe("z", "--socket", sites["a"].address)
    assert result.exit_code == 1
    assert "[FR503] no peer is named 'z'. Peers here: b." in result.output


def test_without_a_gateway_it_ends_with_status_1_and_what_to_do(tmp_path: Path) -> None:
    result = probe("b", "--socket", f"unix://{tmp_path}/none.sock")
    assert result.exit_code == 1
    assert "[FR601]" in result.output


@pytest.mark.parametrize("options", [["--bytes", "much"], ["--bytes", "0"]])
def test_bounds_that_are_none_are_refused(options: list[str]) -> None:
    result = probe("b", *options)
    assert result.exit_code == 1
    assert "[FR102] --bytes" in result.output


def test_a_gateway_of_an_older_version_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "old.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        with address_of(path) as address:
            listener.bind(address)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(
                    encode_message(Error("FR201", "a request does not parse: Invalid value 'probe'.", ""))
                )

        server = threading.Thread(target=answer)
        server.start()
        result = probe("b", "--socket", f"unix://{path}")
        server.join(10)
    assert result.exit_code == 1
    assert "[FR608]" in result.output
    assert "knows no probes" in result.output


# --- reports that loopback does not give ---


def shown(report: dict[str, Any]) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(report))
    return capture.get()


def test_a_size_that_was_lost_and_those_that_were_not_measured_are_shown() -> None:
    text = shown(REPORT)
    assert "lost" in text
    assert "not measured, within the bounds of this probe: chunks of 64.0 MiB" in text
    assert "Link-Enable: always (1 of 2 large first chunks did not survive)" in text
    assert "chunk: 4MiB, link_enable: always, rate: 1.0e+09" in text


def test_where_messages_are_lent_the_report_says_so() -> None:
    assert "messages are lent" in shown({**REPORT, "lends": True})


def test_only_what_was_found_becomes_a_setting() -> None:
    assert settings(REPORT) == {"chunk": "4MiB", "link_enable": "always", "rate": 1.0e9}
    nothing = {**REPORT, "best_chunk_bytes": None, "link_enable": None, "rate_bits_per_second": None, "chunks": []}
    assert settings(nothing) == {}
    assert "settings of this peer that follow: none" in shown(nothing)
    assert settings({**REPORT, "best_chunk_bytes": 256 << 10})["chunk"] == "256KiB"
