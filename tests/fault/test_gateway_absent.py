"""Tasks that are gone without having left: what their session held comes back, and who comes late is told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedrdma_fate.cli.main import main
from fedrdma_fate.client.sessions import ask_sessions, drop_session
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from tests.support.files import files_below
from tests.support.sites import InProcesses, Site, Sites, eventually, party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = bytes(600_000)
PATIENCE = 1.0

TASK = """
import sys
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party

address, own, other = sys.argv[1], Party(*sys.argv[2].split(":")), Party(*sys.argv[3].split(":"))
client = GatewayClient(address, "s", own, parties=[own, other])
for name in ("got", "waits"):
    lease = client.lease(600_000)
    lease.commit(name, "t", [other], "object")
    client.put_inline(f"small {name}", "t", [other], "bytes", b"x")
kept = client.get("got", "t", other)
unwritten = client.lease(300_000)
print("ready", flush=True)
client.get("never", "t", other)
"""
"""A task that holds one of everything: messages that wait, one that it keeps, a slot that it writes to, a pull."""


def start_task(site: Site, other: Site) -> subprocess.Popen[str]:
    own, others = site.config["parties"][0], other.config["parties"][0]
    command = [sys.executable, "-c", TASK, site.address, own, others]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def held(sites: Sites) -> list[Any]:
    """What the gateways hold: slots but for those that are granted ahead, messages, files."""
    return [
        (
            site.pool("send")["slots"],
            max(0, site.pool("receive")["slots"] - site.standing_grants(2)),
            site.status()["mailbox"],
            files_below(site.home / "spill"),
        )
        for site in sites.values()
    ]


def sessions_at(site: Site) -> list[dict[str, Any]]:
    listed: Any = ask_sessions(site.address)["sessions"]
    return list(listed)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_pools_are_back_within_the_time_out_when_all_tasks_of_a_session_were_killed(
    tmp_path: Path, transport: str
) -> None:
    settings = {"timeouts": {"session": PATIENCE}, "shm": {"lend": True}, "transport": transport}
    with start_gateways(LAYOUT, tmp_path, **settings) as sites:
        before = held(sites)
        tasks = [start_task(sites["a"], sites["b"]), start_task(sites["b"], sites["a"])]
        try:
            for task in tasks:
                assert task.stdout is not None
                assert task.stdout.readline() == "ready\n"
            assert held(sites) != before
        finally:
            for task in tasks:
                task.kill()
                task.communicate()
        # and what is under way, on a machine with other work; the next time-out would come after 20 s
        eventually(lambda: held(sites) == before, PATIENCE + 9)
        for site in sites.values():
            assert sessions_at(site) == []
            with pytest.raises(GatewayError) as late:
                site.client()
            assert late.value.code is ErrorCode.SESSION_ENDED
            assert "no site had a task in it" in site.events("session_ended")[0]["reason"]


def test_sessions_with_tasks_outlive_a_gateway_that_is_suspended_for_longer_than_every_time_out(tmp_path: Path) -> None:
    runner = InProcesses()
    settings = {"timeouts": {"session": 1.0, "peer_silence": 0.8}, "runner": runner}
    with start_gateways(LAYOUT, tmp_path, **settings) as sites, sites["a"].client() as a, sites["b"].client() as b:
        runner.signal(sites["b"], signal.SIGSTOP)
        try:
            a.lease(len(BODY)).commit("m", "t", [party("host:2")], "object")
            eventually(lambda: "silent for 0.8 s" in (sites["a"].home / "log").read_text())
            time.sleep(1.5)
        finally:
            runner.signal(sites["b"], signal.SIGCONT)
        assert len(b.get("m", "t", party("guest:1"), timeout=20).buffer) == len(BODY)
        assert not [*sites["a"].events("session_ended"), *sites["b"].events("session_ended")]


def test_a_gateway_that_gets_sighup_opens_its_trace_anew_and_goes_on(tmp_path: Path) -> None:
    runner = InProcesses()
    with start_gateways({"a": ["guest:1", "host:2"]}, tmp_path, runner=runner) as sites:
        path = sites["a"].home / "trace.jsonl"
        with sites["a"].client("s", "guest:1") as task:
            task.put_inline("m", "t", [party("host:2")], "bytes", b"x")
            path.rename(path.with_name("old"))
            runner.signal(sites["a"], signal.SIGHUP)
            eventually(path.exists)
            task.put_inline("n", "t", [party("host:2")], "bytes", b"x")
            assert [event["name"] for event in sites["a"].events("put")] == ["n"]


@pytest.mark.parametrize("came", [True, False], ids=["came and went", "never came"])
def test_what_waits_for_a_party_without_a_task_is_kept_while_another_site_has_one(tmp_path: Path, came: bool) -> None:
    with start_gateways(LAYOUT, tmp_path, timeouts={"session": 0.3}) as sites:
        # first, so that one of them is there all the time, however slowly the other one comes and goes
        with sites["a"].client() as sender:
            if came:
                with sites["b"].client() as receiver:
                    receiver.status()
            sender.lease(300_000).commit("m", "t", [party("host:2")], "object")
            with pytest.raises(GatewayError):
                # what takes five times as long as a session without a task would
                sender.get("nothing", "t", party("host:2"), timeout=1.5)
            assert sites["b"].status()["mailbox"]["messages"] == 1
        eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 0)


def test_a_session_that_is_dropped_ends_at_all_sites_and_its_tasks_are_told(tmp_path: Path) -> None:
    with start_gateways(LAYOUT, tmp_path) as sites:
        before = held(sites)
        with sites["a"].client("job") as a, sites["b"].client("job") as b:
            lease = a.lease(len(BODY))
            lease.commit("m", "t", [party("host:2")], "object", keep=True)
            eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 1)
            (listed,) = sessions_at(sites["b"])
            assert (listed["session"], listed["sites"], listed["ended"]) == ("job", ["a"], None)
            (own,) = listed["parties"]
            assert (own["party"], own["tasks"], own["waiting_bytes"]) == ("host:2", 1, len(BODY))
            (at_a,) = sessions_at(sites["a"])
            assert at_a["parties"][0]["task_bytes"] == len(BODY)

            ran = CliRunner().invoke(main, ["sessions", "--socket", sites["a"].address, "drop", "job"])
            assert ran.exit_code == 0, ran.output
            assert "told b" in ran.output
            eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 0)
            for task, other in ((a, "host:2"), (b, "guest:1")):
                for use in (
                    lambda task=task, other=other: task.put_inline("x", "t", [party(other)], "bytes", b"x"),
                    lambda task=task, other=other: task.get("m", "t", party(other), timeout=5),
                    lambda task=task: task.lease(100_000),
                ):
                    with pytest.raises(FedRDMAError) as told:
                        use()
                    assert told.value.code is ErrorCode.SESSION_ENDED
                    assert "dropped at a" in told.value.message
            assert sessions_at(sites["b"])[0]["ended"] is not None
        eventually(lambda: held(sites) == before)
        eventually(lambda: all(sessions_at(site) == [] for site in sites.values()))
        for site in sites.values():
            with pytest.raises(GatewayError) as twice:
                drop_session(site.address, "job")
            assert twice.value.code is ErrorCode.SESSION_ENDED


def test_the_command_lists_sessions_for_people_and_programs(tmp_path: Path) -> None:
    job = "202401010000_an-id-as-flow-makes-them_0_homo_nn_0"
    with start_gateways(LAYOUT, tmp_path) as sites:
        base = ["sessions", "--socket", sites["a"].address]
        assert CliRunner().invoke(main, base).output == "no sessions\n"
        with sites["a"].client(job):
            shown = CliRunner().invoke(main, base, env={"COLUMNS": "80"})
            document = json.loads(CliRunner().invoke(main, [*base, "--json"]).output)
        assert shown.exit_code == 0, shown.output
        assert f"{job}\n" in shown.output, "whole, for `drop` takes it"
        assert "guest:1" in shown.output
        assert [each["session"] for each in document["sessions"]] == [job]
        # the options may stand behind `drop` as well
        refused = CliRunner().invoke(main, ["sessions", "drop", "none", "--socket", sites["a"].address])
        assert refused.exit_code == 1
        assert "[FR614] this gateway knows no session 'none'" in refused.output
