"""What rows need beside this package: clients of protocols, and brokers; and what one of their messages carries."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from fedrdma_fate.bench.wan.rows import find_program

MQTT_MOST_BYTES = 268_435_455
"""MQTT 3.1.1, section 2.2.3: the largest remaining length of a packet."""
MQTT_BESIDE_BYTES = 64
"""Of a packet, for its topic, its number, the round and the sender."""
RABBITMQ_MOST_BYTES = 134_217_728
"""RabbitMQ's own `max_message_size`; its configuration takes four times as much at most."""
RABBITMQ_BESIDE_BYTES = 64
"""Of a message, for the round, the sender and the part."""
_UNPACK_RABBITMQ = "scripts.lib.rabbitmq"
"""Of a checkout: unpacks it into the environment of this Python."""
_UNPACKED_RABBITMQ = "lib/rabbitmq"
"""Where that lies, as in Debian's packages."""
_AIOQUIC = "lib/aioquic"
"""Where it lies with all that it needs, beside this Python: FATE's pins leave no release that can be installed."""
_INSTALL_AIOQUIC = "scripts.lib.aioquic"
"""Of a checkout: puts it there."""
_SYSTEM_PROGRAMS = "/usr/sbin"
"""Where Debian puts daemons; an ordinary user's path leaves it out."""


def find_mosquitto() -> str | None:
    """Where the broker is: beside this Python, on the path, or where Debian puts it."""
    return find_program("mosquitto") or shutil.which("mosquitto", path=_SYSTEM_PROGRAMS)


@dataclasses.dataclass(frozen=True, slots=True)
class RabbitMq:
    """Where RabbitMQ is.

    Attributes:
        server: that starts it.
        erlang: the directory of Erlang.
        binaries: of Erlang's emulator.
    """

    server: Path
    erlang: Path
    binaries: Path


def find_rabbitmq() -> RabbitMq | None:
    """As unpacked beside this Python, or as Debian installs it; whether one runs does not matter."""
    for root in (Path(sys.prefix, _UNPACKED_RABBITMQ), Path("/")):
        erlang = root / "usr/lib/erlang"
        servers = sorted((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
        binaries = sorted(one.parent for one in erlang.glob("erts-*/bin/erlexec"))
        if servers and binaries:
            return RabbitMq(servers[-1], erlang, binaries[-1])
    return None


def provide_rabbitmq(checkout: Path) -> str | None:
    """Unpack it beside this Python, by the scripts of a checkout; why that cannot be done, or None."""
    done = subprocess.run(
        [sys.executable, "-m", _UNPACK_RABBITMQ],
        cwd=checkout,
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (said[-1] if said else f"it ended with status {done.returncode}")


def find_aioquic() -> Path | None:
    """The directory that has aioquic and all that it needs."""
    home = Path(sys.prefix, _AIOQUIC)
    return home if (home / "aioquic/__init__.py").is_file() else None


def prefer_aioquic() -> str:
    """Have this process, and those that multiprocessing starts from it, import from that directory before all others.

    What is imported already stays as it is: it comes first in a program, or for processes that are started yet.

    Raises:
        SystemExit: there is no such directory.
    """
    home = find_aioquic()
    if home is None:
        raise SystemExit("there is no aioquic")
    sys.path.insert(0, str(home))
    return str(home)


def missing_module(module: str, package: str) -> str | None:
    """What to install for a module that is not there."""
    top = module.partition(".")[0]
    return None if importlib.util.find_spec(top) is not None else f"needs {package}: pip install {package}"


def quic_problem(model_bytes: int = 0) -> str | None:
    """Why a model cannot go by QUIC; None when it can."""
    del model_bytes
    if find_aioquic() is not None:
        return None
    return (
        f"needs aioquic in a directory of its own: scripts/setup, or .venv/bin/python -m {_INSTALL_AIOQUIC}, in a clone"
    )


def zmtp_problem(model_bytes: int) -> str | None:
    """Why a model cannot go by ZMTP; None when it can."""
    del model_bytes
    return missing_module("zmq", "pyzmq")


def mqtt_problem(model_bytes: int) -> str | None:
    """Why a model cannot go by MQTT; None when it can."""
    if model_bytes > MQTT_MOST_BYTES - MQTT_BESIDE_BYTES:
        return f"MQTT carries {MQTT_MOST_BYTES:,} bytes in a message at most (its remaining length)"
    if (problem := missing_module("paho.mqtt", "paho-mqtt")) is not None:
        return problem
    if find_mosquitto() is None:
        return "needs the broker mosquitto: scripts/setup, or apt-get install mosquitto"
    return None


def amqp_messages(model_bytes: int) -> int:
    """How many messages a model is cut into."""
    return -(-model_bytes // (RABBITMQ_MOST_BYTES - RABBITMQ_BESIDE_BYTES))


def amqp_note(model_bytes: int) -> str | None:
    """What is to be said of a model that goes by AMQP; None: nothing."""
    if (messages := amqp_messages(model_bytes)) == 1:
        return None
    return f"cuts a model into {messages} messages: RabbitMQ's max_message_size is {RABBITMQ_MOST_BYTES:,} bytes"


def amqp_problem(model_bytes: int) -> str | None:
    """Why a model cannot go by AMQP; None when it can."""
    del model_bytes
    if (problem := missing_module("pika", "pika")) is not None:
        return problem
    if find_rabbitmq() is None:
        return f"needs RabbitMQ: .venv/bin/python -m {_UNPACK_RABBITMQ} in a clone, or apt-get install rabbitmq-server"
    return None


def fate_osx_problem(model_bytes: int) -> str | None:
    """Why a model cannot go by FATE's backend for OSX; None when it can."""
    del model_bytes
    return missing_module("fate", "pyfate")


def fate_pulsar_problem(model_bytes: int) -> str | None:
    """Why a model cannot go by FATE's backend for Pulsar; None when it can."""
    del model_bytes
    return missing_module("fate", "pyfate[pulsar]") or missing_module("pulsar", "pulsar-client==3.4.0")


def fate_rabbitmq_problem(model_bytes: int) -> str | None:
    """Why a model cannot go by FATE's own backend; None when it can."""
    return missing_module("fate", "pyfate[rabbitmq]") or amqp_problem(model_bytes)
