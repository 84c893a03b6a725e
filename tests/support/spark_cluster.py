"""A Spark of two executors, each a process of its own, as tests and measurements start it.

By `local-cluster`: a master and two workers of Spark's in the driver's process, and an executor of one core for each,
whose Python workers are processes of theirs. Needs pyspark and a Java; `missing` says which is not here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context

from fedrdma_fate.fate.federation import FedRDMAFederation
from tests.support.repository import ROOT
from tests.support.sites import InProcesses, Runner, start_gateways

EXECUTORS = 2

READY_SECONDS = 180.0
"""For a gateway beside a Spark that starts, on a busy machine."""


def missing() -> str:
    """What Spark wants and is not here, or empty."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: `python -c 'import pyspark'` fails"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return "no Java: `$JAVA_HOME/bin/java -version` fails" if home else "no Java: `java -version` fails"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    if '"17' not in told and '"11' not in told:
        return f"Spark 3.5 runs on Java 11 or 17, {java} is {told.partition(os.linesep)[0]}"
    return ""


@contextlib.contextmanager
def running_spark(master: str, directory: Path, **settings: str) -> Iterator[Any]:
    """A SparkContext, whose Python workers import the tree's package; stopped in the end.

    Args:
        master: as Spark calls it: `local[2,4]`, or what `local_cluster` says.
        directory: for what executors keep and log; made here.
        **settings: of Spark, with `_` for `.`, over those of the tests.
    """
    from pyspark import SparkConf, SparkContext

    directory.mkdir(parents=True, exist_ok=True)
    given = {
        **_settings(directory),
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    # the workers are Python processes of Spark's own
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(directory)}
    with mock.patch.dict(os.environ, environment):
        context = SparkContext(conf=SparkConf().setMaster(master).setAll(list(given.items())))
        context.setLogLevel("ERROR")
        try:
            yield context
        finally:
            context.stop()


def for_processes(master: str, directory: Path) -> dict[str, str]:
    """What the environment of FATE's processes has besides, that compute with a Spark of their own: it reads a file.

    Args:
        master: as Spark calls it.
        directory: for that file, and what executors keep and log; made here.
    """
    directory.mkdir(parents=True, exist_ok=True)
    settings = {**_settings(directory), "spark.master": master}
    (directory / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return {
        "SPARK_CONF_DIR": str(directory),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(directory),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }


def _settings(directory: Path) -> dict[str, str]:
    """What all Sparks of tests have."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory),
    }


def local_cluster(megabytes: int = 1024) -> str:
    """The master of two executors of one core and so much memory each."""
    return f"local-cluster[{EXECUTORS},1,{megabytes}]"


Engine = Callable[[str], Any]
"""Makes a computing session of that name."""


def by_spark(session: str) -> Any:
    """Computing by the SparkContext that runs."""
    from fate.arch.computing.backends.spark import CSession as SparkSession

    return SparkSession(session)


@contextlib.contextmanager
def joined(
    site_of: Mapping[tuple[str, str], str], engines: Sequence[Engine], directory: Path, runner: Runner, **gateway: Any
) -> Iterator[dict[tuple[str, str], Context]]:
    """Contexts of the parties of one session, joined by gateways.

    Args:
        site_of: the site of each party.
        engines: what each of them computes with.
        directory: for the gateways.
        runner: what runs these.
        **gateway: of their configuration.
    """
    session = f"spark-{secrets.token_hex(4)}"
    layout = {site: [party[1]] for party, site in site_of.items()}
    with start_gateways(layout, directory, runner=runner, **gateway) as sites:
        made = {}
        for (party, site), engine in zip(site_of.items(), engines, strict=True):
            computing = engine(session)
            federation = FedRDMAFederation(session, computing, party, list(site_of), gateway=sites[site].address)
            made[party] = Context(computing=computing, federation=federation)
        yield made


@contextlib.contextmanager
def standalone_and_spark(
    site_of: Mapping[tuple[str, str], str], directory: Path
) -> Iterator[dict[tuple[str, str], Context]]:
    """Two parties of one session: the first one computes with the standalone engine, the second one with Spark.

    Args:
        site_of: the site of each party.
        directory: for gateways and tables.
    """

    def by_standalone(session: str) -> CSession:
        return CSession(f"{session}-standalone", data_dir=str(directory / "data"), options={"task_cores": 2})

    with joined(site_of, [by_standalone, by_spark], directory, InProcesses(READY_SECONDS)) as made:
        yield made
        next(iter(made.values())).computing.destroy()
