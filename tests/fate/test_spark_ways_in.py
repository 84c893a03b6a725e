"""FATE's own processes that compute with Spark: launched, as components, and by FATE Flow; a Spark for each party.

Skipped where pyspark or a Java is missing; `pip install pyspark==3.5.3` and a Java 17 are all it takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fate.conftest import GUEST, HOST
from tests.fate.test_component_entrypoint import task_config
from tests.support.fate_flow import running_fate_flow
from tests.support.gateways import PartyTuple, Silos
from tests.support.spark_cluster import for_processes, local_cluster, missing

pytestmark = [pytest.mark.fate, pytest.mark.timeout(600), pytest.mark.skipif(bool(missing()), reason=missing())]

JOB = Path(__file__).parent / "jobs" / "exchange.py"
TOY = Path(__file__).parent / "jobs" / "toy.py"
PARTIES = ["guest:9999", "host:10000", "arbiter:10000"]
SAMPLES, PARTITIONS = 300, 3


def test_a_launched_job_computes_with_spark(silos: Silos, tmp_path: Path) -> None:
    gateways = ",".join(f"{party}={address}" for party, address in silos.addresses.items())
    asked = ["--federation_engine=fedrdma", "--computing_engine=spark", f"--fedrdma_gateways={gateways}"]
    told = ["--log_level", "WARNING", "--federation_session_id=launched", "--fedrdma_get_timeout=500"]

    spark = for_processes("local[2]", tmp_path / "spark")
    # workers run the launcher's own
    del spark["PYSPARK_PYTHON"]
    done = subprocess.run(
        [sys.executable, str(JOB), "--parties", *PARTIES, *asked, *told],
        env={
            **os.environ,
            **spark,
            "EXPECTED_FEDERATION": "FedRDMAFederation",
            "EXPECTED_COMPUTING": "fate.arch.computing.backends.spark._csession",
            # 190 kB: too long for an object
            "EXCHANGE_REPEATS": "1000",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=560,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert silos.pushed() == silos.delivered()
    assert sum(name.startswith("table") and "#" in name for _, name, *_ in silos.pushed().elements()) == 3


def task_of(party: PartyTuple, silos: Silos, home: Path) -> dict[str, Any]:
    """FATE's toy example: both parties exchange the index of a table and bring theirs into the same order."""
    federation = {
        "type": "fedrdma",
        "metadata": {"fedrdma_config": {"gateway": silos.address(party), "get_timeout": 500}},
    }
    task = task_config(party, federation, home)
    task["parameters"] = {"data_num": SAMPLES, "partition": PARTITIONS}
    task["output_artifacts"]["output_data"]["uri"] = f"file://{home}/output"
    task["conf"]["computing"] = {"type": "spark", "metadata": {"computing_id": f"toy_{party[0]}"}}
    return task


def test_a_component_computes_with_two_executors_of_spark_and_its_peer_with_one_process(
    silos: Silos, tmp_path: Path
) -> None:
    running = []
    for party, master in ((GUEST, local_cluster()), (HOST, "local[2]")):
        home = tmp_path / party[0]
        home.mkdir()
        (home / "task.yaml").write_text(yaml.safe_dump(task_of(party, silos, home)))
        command = [sys.executable, "-m", "fate.components", "component", "execute", "--config", str(home / "task.yaml")]
        meta = ["--execution-final-meta-path", str(home / "meta.json")]
        environment = {**os.environ, **for_processes(master, home / "spark")}
        with (home / "log").open("wb") as log:
            process = subprocess.Popen([*command, *meta], stdout=log, stderr=log, cwd=home, env=environment)
        running.append((home, process))
    try:
        for home, process in running:
            assert process.wait(560) == 0, (home / "log").read_text()[-6000:]
            assert json.loads((home / "meta.json").read_text())["status"] == {"code": 0}
    finally:
        for _, process in running:
            process.kill()

    assert silos.pushed() == silos.delivered()
    assert {name.partition("__table")[0] for _, name, *_ in silos.pushed()} == {"guest_index", "host_index"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_of_fate_flow_computes_with_spark(silos: Silos, tmp_path: Path) -> None:
    spark = for_processes("local[2]", tmp_path / "spark")
    engines = {"computing": "spark", "storage": "file"}
    backend = {"gateways": silos.addresses, "get_timeout": 600}

    with running_fate_flow(tmp_path / "flow", backend, engines=engines, environment=spark) as flow:
        done = subprocess.run(
            [flow.python, str(TOY), "--port", str(flow.port)],
            env=flow.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + flow.logs()

    assert silos.pushed() == silos.delivered()
    assert {name.partition("__table")[0] for _, name, *_ in silos.pushed()} == {"guest_index", "host_index"}
