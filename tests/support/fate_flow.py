"""A FATE Flow server of a test's own: a copy of the installed package, laid out as in a deployment from source.

`fate_flow init` writes into the installed package, which tests must not do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support.gateways import free_ports

_READY_SECONDS = 120.0
_FRAGMENT = Path(__file__).resolve().parents[2] / "conf" / "fate_flow.yaml"


class FateFlow:
    """A running server.

    Attributes:
        home: its configuration, data, jobs and logs.
        port: its HTTP port on loopback.
        environment: what its processes, and clients that import its package, run with.
    """

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.port = port
        self.environment = {**os.environ, "PYTHONPATH": str(home / "python"), "FATE_PROJECT_BASE": str(home)}

    def logs(self, limit: int = 6000) -> str:
        """The ends of the logs that tell why something failed."""
        found = [*self.home.glob("logs/**/*ERROR*"), *self.home.glob("logs/**/stdout/**/*"), self.home / "console"]
        texts = [f"== {path}\n{path.read_text(errors='replace')[-limit:]}" for path in found if path.is_file()]
        return "\n".join(text for text in texts if text.count("\n") > 1)


@contextlib.contextmanager
def running_fate_flow(home: Path, backend: dict[str, Any]) -> Iterator[FateFlow]:
    """Start a server with conf/fate_flow.yaml as it comes, and in the end stop it and the tasks it has started.

    Args:
        home: an empty directory.
        backend: the entry `fedrdma` of the `federation` section.

    Raises:
        AssertionError: it does not answer, with its output.
    """
    http_port, grpc_port = free_ports(2)
    server = FateFlow(home, http_port)
    _lay_out(home)
    ports = {"http_port": http_port, "grpc_port": grpc_port}
    path = home / "conf" / "service_conf.yaml"
    conf = yaml.safe_load(path.read_text())
    conf["fateflow"] |= ports
    conf["computing"]["standalone"]["cores"] = 8
    path.write_text(yaml.safe_dump(conf))
    local = yaml.safe_load(_FRAGMENT.read_text())
    local["fateflow"] |= ports
    local["federation"]["nginx"] |= ports
    local["federation"]["fedrdma"] = backend
    path.with_name("local.service_conf.yaml").write_text(yaml.safe_dump(local))
    command = [sys.executable, str(home / "python" / "fate_flow" / "fate_flow_server.py")]
    with (
        (home / "console").open("wb") as console,
        subprocess.Popen(command, stdout=console, stderr=console, cwd=home, env=server.environment) as process,
    ):
        try:
            _wait_until_up(server, process)
            yield server
        finally:
            _end(process)


def _lay_out(home: Path) -> None:
    spec = importlib.util.find_spec("fate_flow")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    copied = home / "python" / "fate_flow"
    shutil.copytree(package, copied, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(package / "conf", home / "conf")
    shutil.copy(package / "fateflow.env", home)


def _wait_until_up(server: FateFlow, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not _answers(server):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"FATE Flow did not start: {(server.home / 'console').read_text()[-6000:]}")
        time.sleep(0.2)


def _answers(server: FateFlow) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v2/server/fateflow", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and every process under it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate()
        _, alive = psutil.wait_procs(family, timeout=10)
        for member in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
