"""`fedrdma status`: what a gateway is doing, for people and for programs."""

from __future__ import annotations

import copy
import importlib
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from rich.console import Console

from fedrdma_fate.cli.main import main
from fedrdma_fate.cli.status import render, size
from fedrdma_fate.wire.errors import FedRDMAError
from tests.support.certificates import TestAuthority
from tests.support.sites import Sites, eventually, party, start_gateways
from tests.support.task_port import task_ports

status_command = importlib.import_module("fedrdma_fate.cli.status")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path, transport="auto") as running:
        yield running


def status(address: str, *options: str) -> str:
    result = CliRunner().invoke(main, ["status", "--socket", address, *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_tables_show_peers_with_their_transport_and_why_pools_and_messages(sites: Sites) -> None:
    with sites["a"].client() as a, sites["b"].client():
        a.put_inline("m", "t", [party("host:2")], "bytes", b"hi")
        eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 1)
        text = status(sites["b"].address)
    assert "gateway of b" in text
    assert "1 task," in text
    assert "shm" in text
    assert "both gateways run on one host" in text
    assert "send" in text
    assert "receive" in text
    assert "Not pulled yet: 1 message (2 B), " in text


def test_the_port_for_tasks_on_other_hosts_is_shown_with_its_connections_and_refusals(tmp_path: Path) -> None:
    with task_ports(tmp_path) as ports:
        with pytest.raises(FedRDMAError):
            ports.task(secret="0" * 48)
        with ports.task():
            text = status(ports.sites["a"].address)
    assert f"at {ports.access['a'].address}: 1 connection; 1 refused" in text


def test_the_document_for_programs_is_json_with_everything(sites: Sites) -> None:
    document = json.loads(status(sites["a"].address, "--json"))
    assert document["site"] == "a"
    assert document["parties"] == ["guest:1"]
    (peer,) = document["peers"]
    assert (peer["site"], peer["connected"], peer["pending_messages"]) == ("b", True, 0)
    (path,) = peer["paths"]
    assert (path["transport"], path["up"], path["main"]) == ("shm", True, True)
    assert {pool["name"] for pool in document["pools"]} == {"send", "receive"}
    assert document["transfers"] == []


def test_with_mtls_it_shows_the_certificates_and_when_they_end_and_who_has_none(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "tls")
    stranger = {"site": "c", "parties": ["arbiter:3"]}
    with start_gateways(LAYOUT, tmp_path, authority=authority, connected=False, strangers=[stranger]) as sites:
        address = sites["a"].address
        eventually(lambda: sites["a"].status()["peers"][0]["connected"])
        document, text = json.loads(status(address, "--json")), status(address)
        shown = {site["site"]: site["certificate"] for site in (document, *document["peers"])}
        for name in LAYOUT:
            made = x509.load_pem_x509_certificate((authority.directory / f"{name}.pem").read_bytes())
            end = made.not_valid_after_utc
            serial = f"{made.serial_number:x}"
            assert shown[name] == {"name": f"fedrdma://site/{name}", "serial": serial, "end": end.timestamp()}
            row = next(line for line in text.splitlines() if f"fedrdma://site/{name}" in line)
            assert serial in row
            assert f"{end:%Y-%m-%d %H:%M}" in row
        assert shown["c"] is None
        assert "none: not connected" in text
        sites.runner.stop(sites["b"])
        eventually(lambda: sites["a"].status()["peers"][0]["certificate"] is None)


def test_without_mtls_there_are_no_certificates_to_show(sites: Sites) -> None:
    document = json.loads(status(sites["a"].address, "--json"))
    assert document["certificate"] is None
    assert [peer["certificate"] for peer in document["peers"]] == [None]
    assert "Certificates" not in status(sites["a"].address)


def test_a_transfer_that_waits_is_shown_with_its_message(sites: Sites) -> None:
    sites.runner.stop(sites["b"])
    eventually(lambda: not sites["a"].status()["peers"][0]["connected"])
    with sites["a"].client() as a:
        a.lease(300_000).commit("model", "round-1", [party("host:2")], "object")
        (transfer,) = eventually(lambda: sites["a"].status()["transfers"])
        assert (transfer["message"], transfer["total_bytes"], transfer["seconds_left"]) == (
            "s/model/round-1 guest:1->host:2",
            300_000,
            None,
        )
        text = status(sites["a"].address)
    assert "s/model/round-1" in text
    assert "293.0 KiB" in text


def test_what_peers_and_tasks_have_chosen_is_shown_as_it_is_and_is_nothing_to_the_terminal(sites: Sites) -> None:
    said = "[/b] [red]no\x1b[2J"
    sites.runner.stop(sites["b"])
    eventually(lambda: not sites["a"].status()["peers"][0]["connected"])
    with sites["a"].client() as a:
        a.lease(300_000).commit(said, "round-1", [party("host:2")], "object")
        eventually(lambda: sites["a"].status()["transfers"])
        document = sites["a"].status()
        document["peers"][0]["last_error"] = said
        shown = io.StringIO()
        Console(file=shown, force_terminal=True, width=300).print(render(document))
    assert shown.getvalue().count("[/b] [red]no\\x1b[2J") == 2
    assert "\x1b[2J" not in shown.getvalue()


@pytest.mark.parametrize(("due", "trial"), [(None, "it is being tried"), (23.4, "tried again in 23 s")])
def test_a_better_path_that_is_not_used_is_shown_with_the_reason_and_when_it_is_tried_again(
    sites: Sites, due: float | None, trial: str
) -> None:
    document = sites["a"].status()
    assert document["peers"][0]["unused_paths"] == []
    unused = {"transport": "udp", "reason": "could not be connected (\x1b[2J)", "trials": 1, "next_trial_seconds": due}
    document["peers"][0]["unused_paths"] = [unused]
    shown = io.StringIO()
    Console(file=shown, width=300).print(render(document))
    (line,) = [line for line in shown.getvalue().splitlines() if "udp" in line]
    assert "not used" in line
    assert f"could not be connected (\\x1b[2J); {trial}" in line


def test_who_sends_and_who_is_sent_to_is_shown_with_each_share_of_the_link(sites: Sites) -> None:
    document = sites["a"].status()
    assert document["send"]["senders"] == document["receive"]["senders"] == []
    one = {"sending": True, "share_bits_per_second": 1.25e8, "arriving_bits_per_second": 1e8}
    one |= {"ignores_share": False, "waits_for_turn": False}
    shares = {"sending": 2, "bits_per_second": 1e9, "found_by": "probed"}
    document["send"] |= {**shares, "senders": [{"site": site, **one} for site in ("silo-1", "silo-2")]}
    shown = io.StringIO()
    Console(file=shown, width=200).print(render(document))
    assert "Sending: 2 are sent to; the link: 1000.0 Mbit/s (probed)" in " ".join(shown.getvalue().split())
    assert all(site in shown.getvalue() for site in ("silo-1", "silo-2"))
    assert "Receiving" not in shown.getvalue()
    waiting = {"site": "silo-4", **one, "waits_for_turn": True}
    document["receive"] |= {**shares, "senders": [{"site": "silo-3", **one}, waiting]}
    document["send"]["sending"] = 1
    shown = io.StringIO()
    Console(file=shown, width=200).print(render(document))
    assert shown.getvalue().count("waits for its turn") == 1
    assert "Receiving: 2 send; the link" in " ".join(shown.getvalue().split())
    assert "Sending" not in shown.getvalue(), "what goes to one is not shared"


def test_the_status_can_be_asked_at_any_moment_of_a_transfer(sites: Sites) -> None:
    body = os.urandom(2 << 20)
    seen: list[dict[str, Any]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for site in sites.values():
                document = site.status()
                render(document)
                seen.extend(document["transfers"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with sites["a"].client() as a, sites["b"].client() as b:
            for number in range(20):
                lease = a.lease(len(body))
                lease.buffer[:] = body
                lease.commit(f"m{number}", "t", [party("host:2")], "object")
                assert bytes(b.get(f"m{number}", "t", party("guest:1"), timeout=20).buffer) == body
    finally:
        done.set()
        watcher.join(20)
    assert all(0 <= transfer["done_bytes"] <= transfer["total_bytes"] for transfer in seen)


def test_without_a_gateway_it_ends_with_status_1_and_what_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["status", "--socket", f"unix://{tmp_path}/none.sock"])
    assert result.exit_code == 1
    assert "[FR601] no gateway answers" in result.output
    assert "fedrdma gateway --config FILE" in result.output


def without(document: Any, way: tuple[Any, ...], value: Any) -> Any:
    """The document with another value there."""
    changed = copy.deepcopy(document)
    place = changed
    for key in way[:-1]:
        place = place[key]
    if value is None:
        del place[way[-1]]
    else:
        place[way[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("site",), None),
        (("peers",), 3),
        (("peers", 0, "paths"), None),
        (("pools", 0, "length"), "much"),
        (("pools",), {"send": 1}),
        (("uptime_seconds",), "long"),
        (("parties",), [1]),
        (("mailbox",), []),
        (("flow",), ["x"]),
    ],
)
def test_a_status_of_another_shape_is_told_with_a_code_and_what_to_do(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, way: tuple[Any, ...], value: Any
) -> None:
    document = without(sites["a"].status(), way, value)
    monkeypatch.setattr(status_command, "ask_status", lambda _address: document)
    result = CliRunner().invoke(main, ["status", "--socket", sites["a"].address])
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert "[FR608]" in result.output
    assert "--json" in result.output
    assert status(sites["a"].address, "--json").startswith("{")


def test_an_address_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(main, ["status", "--socket", "/run/x.sock"])
    assert result.exit_code == 1
    assert "[FR102]" in result.output


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (5 << 40, "5120.0 GiB")]
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text
