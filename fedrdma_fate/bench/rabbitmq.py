"""RabbitMQ as a child of this process: its ports, configuration, directory, cookie and epmd are its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fedrdma_fate.bench.ports import PORTS_TRIED, free_ports, is_taken, listens
from fedrdma_fate.bench.processes import kill_with_parent
from fedrdma_fate.bench.protocols.brokers import RABBITMQ_MOST_BYTES, RabbitMq, find_rabbitmq

START_WITHIN_SECONDS = 120.0
"""A broker that does not take connections by then will not: 8 s of CPU where nothing else runs."""
STOP_WITHIN_SECONDS = 30.0
"""A broker that has not ended by then, when it was asked to, is killed."""
MANAGEMENT = "rabbitmq_management"
"""The plugin by which users and queues are made over HTTP."""
FEDERATION = "rabbitmq_federation"
"""The plugin by which a broker fetches what another holds for its queues."""
USER = "bench"
_LOOK_AGAIN_SECONDS = 0.02
"""Between two looks at whether the broker listens."""
_LOOPBACK = "127.0.0.1"
_FRUGAL = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none +A 1"
"""One scheduler that does not spin: in virtual time a spinning one never lets time pass."""
_FREE_DISK = "10MB"
"""Below which it takes no messages. They stay in memory; its own limit of 50 MB is much of a small /tmp."""


@dataclasses.dataclass(frozen=True, slots=True)
class Broker:
    """One that runs.

    Attributes:
        address: that it listens on.
        port: for AMQP.
        management_port: for HTTP; None without that plugin.
        password: of `USER`, who may do all.
        pid: of the broker's own process.
        said: the file of what it prints.
    """

    address: str
    port: int
    management_port: int | None
    password: str
    pid: int
    said: str = ""


@contextlib.contextmanager
def running_rabbitmq(address: str, plugins: Sequence[str] = ()) -> Iterator[Broker]:
    """A broker on an address of this host, with nothing kept of it afterwards; both its processes are ended by id.

    The kernel ends them where this process is killed.

    Raises:
        SystemExit: there is no RabbitMQ, or it does not start; with what it said last.
    """
    found = find_rabbitmq()
    if found is None:
        raise SystemExit("there is no RabbitMQ")
    for tries in range(PORTS_TRIED):
        # of loopback and of this address alike: nobody else is on either where the hosts are those of a testbed
        ports = free_ports(4)
        # it may still write there while it ends
        with tempfile.TemporaryDirectory(prefix="fedrdma-rabbitmq-", ignore_cleanup_errors=True) as name:
            with contextlib.ExitStack() as stack:
                broker = _start(stack, Path(name), found, address, ports, plugins)
                if isinstance(broker, Broker):
                    yield broker
                    return
            taken = any(is_taken(where, port) for port in ports for where in {address, _LOOPBACK})
        if not taken or tries == PORTS_TRIED - 1:
            raise SystemExit(f"RabbitMQ does not start: {broker}")


def _start(
    stack: contextlib.ExitStack,
    home: Path,
    found: RabbitMq,
    address: str,
    ports: Sequence[int],
    plugins: Sequence[str],
) -> Broker | str:
    """The broker, which the stack ends; or what it said last before it ended."""
    port, management_port, distribution_port, epmd_port = ports
    managed = management_port if MANAGEMENT in plugins else None
    password = secrets.token_hex(16)
    _configure(home, found, address, port, managed, password, plugins)
    environment = _environment(home, found, distribution_port, epmd_port)
    epmd = [str(found.binaries / "epmd"), "-port", str(epmd_port), "-address", _LOOPBACK]
    stack.enter_context(_child(epmd, environment, home, "epmd"))
    broker = stack.enter_context(_child([str(found.server)], environment, home, "broker"))
    said = home / "broker.said"
    for listening in (port, *([] if managed is None else [managed])):
        if not _comes_to_listen(broker, address, listening):
            lines = [line.strip() for line in said.read_text(errors="replace").splitlines() if line.strip()]
            return lines[-1] if lines else "it said nothing"
    return Broker(address, port, managed, password, broker.pid, str(said))


def _configure(
    home: Path,
    found: RabbitMq,
    address: str,
    port: int,
    management_port: int | None,
    password: str,
    plugins: Sequence[str],
) -> None:
    lines = [
        f"listeners.tcp.1 = {address}:{port}",
        "loopback_users = none",
        f"default_user = {USER}",
        f"default_pass = {password}",
        f"max_message_size = {RABBITMQ_MOST_BYTES}",
        f"disk_free_limit.absolute = {_FREE_DISK}",
    ]
    if management_port is not None:
        lines += [f"management.tcp.ip = {address}", f"management.tcp.port = {management_port}"]
    (home / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    (home / "plugins").write_text(f"[{','.join(plugins)}].\n")
    # Debian's erl knows one place only, whatever it is told
    starter = home / "bin" / "erl"
    starter.parent.mkdir()
    starter.write_text(f'#!/bin/sh\nexec "{found.binaries}/erlexec" "$@"\n')
    starter.chmod(0o755)


def _environment(home: Path, found: RabbitMq, distribution_port: int, epmd_port: int) -> dict[str, str]:
    """All that the broker is told; nothing of this process's own, which may have RABBITMQ_* of another."""
    return {
        "PATH": os.pathsep.join([str(home / "bin"), str(found.binaries), "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "ROOTDIR": str(found.erlang),
        "BINDIR": str(found.binaries),
        "EMU": "beam",
        "PROGNAME": "erl",
        "ERL_CRASH_DUMP": os.devnull,
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": _LOOPBACK,
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_NODENAME": f"{USER}@localhost",
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} {_FRUGAL}",
        # the starter becomes the broker, so that its id is the broker's
        "RABBITMQ_ALLOW_INPUT": "1",
        "RABBITMQ_SERVER_START_ARGS": "-noinput",
    }


@contextlib.contextmanager
def _child(
    command: Sequence[str], environment: Mapping[str, str], home: Path, name: str
) -> Iterator[subprocess.Popen[bytes]]:
    before: Callable[[], None] = kill_with_parent()
    with (home / f"{name}.said").open("wb") as said:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            preexec_fn=before,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _comes_to_listen(broker: subprocess.Popen[bytes], address: str, port: int) -> bool:
    deadline = time.monotonic() + START_WITHIN_SECONDS
    while broker.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((address, port), START_WITHIN_SECONDS):
            # who answers may be somebody else, who has taken the port
            if listens(broker.pid, port):
                return True
        time.sleep(_LOOK_AGAIN_SECONDS)
    return False
