"""A FATE Flow server of a test's own, set up and started by FATE's own commands, as its guide says.

`fate_flow init` writes into the installed package, which tests must not do: each server has a virtual environment of
its own, in which only that package is a copy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import yaml

from fedrdma_fate.doctor.fate_flow import lines_to_add, read_home
from tests.support.ports import ports_of_this_process

FOR_OSX = {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_POLL_STRATEGY": "poll", "FEDRDMA_FATE_DISABLE": "1"}
"""Environment of FATE's processes: tables are sent by workers that are forked from one that uses gRPC."""

_READY_SECONDS = 120.0
_FRAGMENT = Path(__file__).resolve().parents[2] / "conf" / "fate_flow.yaml"


class FateFlow:
    """A running server.

    Attributes:
        home: its configuration, data, jobs and logs.
        port: its HTTP port on loopback.
        python: the interpreter of its environment, for clients that import its package.
        environment: what its processes run with: its virtual environment is the active one.
    """

    def __init__(self, directory: Path, port: int) -> None:
        self.home = directory / "home"
        self.port = port
        self.python = directory / "venv" / "bin" / "python"
        path = f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {**os.environ, "PATH": path}

    def logs(self, limit: int = 6000) -> str:
        """The ends of the logs that tell why something failed."""
        found = [*self.home.glob("logs/**/*ERROR*"), *self.home.glob("logs/**/stdout/**/*"), *self.home.glob("logs/*")]
        texts = [f"== {path}\n{path.read_text(errors='replace')[-limit:]}" for path in found if path.is_file()]
        return "\n".join(text for text in texts if text.count("\n") > 1)

    def command(self, *arguments: str) -> str:
        """Run FATE's command `fate_flow`; what it prints.

        Raises:
            AssertionError: it failed.
        """
        # what the installed script does, which names the interpreter of the environment that was copied
        command = [self.python, "-m", "fate_flow.commands.server_cli", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return re.sub(r"\x1b\[\d+m", "", done.stdout)

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/server/fateflow", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextlib.contextmanager
def running_fate_flow(
    directory: Path,
    backend: dict[str, Any],
    party_id: str = "9999",
    http_port: int | None = None,
    proxy_port: int | None = None,
    osx_port: int | None = None,
    osx_message_bytes: int | None = None,
    grpc_port: int | None = None,
    engines: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[FateFlow]:
    """Start a server with conf/fate_flow.yaml as it comes, and in the end stop it and the tasks it has started.

    Args:
        directory: does not exist yet.
        backend: the entry `fedrdma` of the `federation` section.
        party_id: of its site.
        http_port: where it listens; None takes a free one.
        proxy_port: where its scheduling calls go on loopback; None: to itself.
        osx_port: of a gateway's `listen.osx`: scheduling and jobs go there by FATE's own engine `osx`, with nothing of
            ours in its processes.
        osx_message_bytes: the longest message of that engine; None: what `fedrdma fate config` advises.
        grpc_port: where brokers reach it; None takes a free one.
        engines: default engines in place of those of conf/fate_flow.yaml.
        environment: what its processes' has besides.

    Raises:
        AssertionError: it does not answer, with its output.
    """
    free_port, free_grpc_port = ports_of_this_process(2)
    grpc_port = grpc_port or free_grpc_port
    http_port = http_port or free_port
    server = FateFlow(directory, http_port)
    server.environment |= environment
    _make_environment(server.python.parents[1])
    server.command("init", "--ip", "127.0.0.1", "--port", str(http_port), "--home", str(server.home))
    ports = {"http_port": http_port, "grpc_port": grpc_port}
    path = server.home / "conf" / "service_conf.yaml"
    conf = yaml.safe_load(path.read_text())
    conf["fateflow"] |= ports
    conf["party_id"] = party_id
    conf["computing"]["standalone"]["cores"] = 8
    path.write_text(yaml.safe_dump(conf))
    if osx_port is None:
        local = yaml.safe_load(_FRAGMENT.read_text())
        local["fateflow"] |= ports
        local["default_engines"] |= engines
        local["federation"]["nginx"] |= {**ports, "http_port": proxy_port or http_port}
        local["federation"]["fedrdma"] = backend
        lines = yaml.safe_dump(local)
    else:
        _, flow = read_home(server.home)
        assert flow is not None
        lines = lines_to_add(flow, "osx", "", ("127.0.0.1", osx_port))
        if osx_message_bytes is not None:
            local = yaml.safe_load(lines)
            local["federation"]["osx"]["max_message_size"] = osx_message_bytes
            lines = yaml.safe_dump(local)
        server.environment |= FOR_OSX
    path.with_name("local.service_conf.yaml").write_text(lines)
    process = _start(server)
    try:
        _wait_until_up(server, process)
        yield server
    finally:
        _end(process)


def _make_environment(venv: Path) -> None:
    """A virtual environment that has all that ours has, and a copy of FATE Flow."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    own = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # not a plain line with the path, which would leave out our own .pth file there
    ours = sysconfig.get_path("purelib")
    (own / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    spec = importlib.util.find_spec("fate_flow")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, own / "fate_flow", ignore=shutil.ignore_patterns("__pycache__"))


def _start(server: FateFlow) -> psutil.Process:
    """By `fate_flow start`, where its script works: it needs lsof, and no space in its path."""
    if shutil.which("lsof") and " " not in str(server.home):
        # it may say that the server is not up in time, and be right by a second
        started = re.search(r"Process ID \(PID\): (\d+)", said := server.command("start"))
        assert started is not None, said
        return psutil.Process(int(started[1]))
    program = server.python.parents[1].glob("lib/*/site-packages/fate_flow/fate_flow_server.py")
    (server.home / "logs").mkdir(exist_ok=True)
    with (server.home / "logs" / "console.log").open("wb") as console:
        return psutil.Popen([server.python, *program], stdout=console, stderr=console, env=server.environment)


def _wait_until_up(server: FateFlow, process: psutil.Process) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not server.answers():
        running = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        if not running or time.monotonic() > deadline:
            raise AssertionError(f"FATE Flow did not start: {server.logs()}")
        time.sleep(0.2)


def _end(process: psutil.Process) -> None:
    """End the server and every process under it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*process.children(recursive=True), process]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate()
        _, alive = psutil.wait_procs(family, timeout=10)
        for member in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
