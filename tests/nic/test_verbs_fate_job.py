"""A FATE-LLM job, its three parties on three hosts of the testbed: verbs carries it, and the model is FATE's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from examples.gpt2_advertisegen.accounting import delivered_messages, pushed_messages
from examples.gpt2_advertisegen.events import read_events
from examples.gpt2_advertisegen.plan import CLIENTS, PARTIES, RunFiles
from examples.gpt2_advertisegen.summary import check_delivered
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES
from tests.support.repository import ROOT
from tests.support.testbed import PATIENCE, run_on_hosts

pytestmark = [pytest.mark.nic, pytest.mark.fate, pytest.mark.timeout(450 * PATIENCE)]

EXAMPLE = ROOT / "examples" / "gpt2_advertisegen"
# rank 64: what the clients send in a round is too large to ride in a control frame
JOB = ["--preset", "tiny", "--tuning", "lora", "--lora-rank", "64", "--threads", "1"]
SESSION = "gpt2-advertisegen"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[dict[str, Any]]]:
    """The same job over FATE's standalone federation, on this machine, while the guest boots and runs."""
    output = tmp_path_factory.mktemp("standalone") / "run"
    options = ["--federation", "standalone", "--json", "--output", str(output)]

    def run() -> dict[str, Any]:
        command = [sys.executable, str(EXAMPLE / "run.py"), *JOB, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=output.parent)
        assert done.returncode == 0, done.stderr
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(run)


@pytest.mark.parametrize(
    ("mode", "rtt", "loss"),
    [("fedrdma-e", "0", "0"), pytest.param("fedrdma", "20ms", "0.1%", marks=[pytest.mark.slow, pytest.mark.sweep])],
)
def test_three_hosts_train_the_model_of_fate_s_standalone_federation_over_verbs(
    reference: Future[dict[str, Any]], tmp_path: Path, mode: str, rtt: str, loss: str
) -> None:
    options = [*JOB, "--mode", mode, "--transport", "verbs", "--session", SESSION, "--json"]
    command = [sys.executable, str(EXAMPLE / "on_testbed.py"), *options]
    results = run_on_hosts(
        command, hosts=3, rtt=rtt, loss=loss, kernel="stock", memory="3GiB", timeout=400, output=tmp_path
    )
    assert [result.exit_status for result in results] == [0, 0, 0], results
    silos = {str(party): json.loads(result.stdout) for party, result in zip(PARTIES, results, strict=True)}
    standalone = reference.result()
    for party in map(str, CLIENTS):
        assert silos[party]["model_sha256"] == standalone["model_sha256"][party]
        assert silos[party]["losses"] == standalone["losses"][party]
        assert silos[party]["held_out_losses"] == standalone["held_out_losses"][party]
    for silo in silos.values():
        assert [link["transport"] for link in silo["links"]] == ["verbs", "verbs"]
        assert set(silo["bytes_by_path"]) == {"inline", f"{mode}/verbs"}
    check_what_was_carried(tmp_path)


def check_what_was_carried(output: Path) -> None:
    """Every message that FATE pushed was delivered once, as long as it was, those of the model over verbs."""
    files = {party: RunFiles(output / party.role) for party in PARTIES}
    pushed = pushed_messages({party: read_events(files[party].silo(party).journal) for party in PARTIES})
    traces = [event for party in PARTIES for event in read_events(files[party].trace(party))]
    delivered = [event for event in traces if event["event"] == "delivered" and event["session"] == SESSION]
    check_delivered(pushed, delivered_messages(delivered))
    large = [event for event in delivered if event["bytes"] > INLINE_LIMIT_BYTES]
    # in each of two rounds, from two clients to the arbiter and back
    assert [event["transport"] for event in large] == ["verbs"] * 8
