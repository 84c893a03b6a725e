"""What rows need beside this package: clients of protocols, and brokers; and what one of their messages carries."""

from __future__ import annotations

import importlib.util
import shutil

from fedrdma_fate.bench.wan.rows import find_program

MQTT_MOST_BYTES = 268_435_455
"""MQTT 3.1.1, section 2.2.3: the largest remaining length of a packet."""
MQTT_BESIDE_BYTES = 64
"""Of a packet, for its topic, its number, the round and the sender."""
_SYSTEM_PROGRAMS = "/usr/sbin"
"""Where Debian puts daemons; an ordinary user's path leaves it out."""


def find_mosquitto() -> str | None:
    """Where the broker is: beside this Python, on the path, or where Debian puts it."""
    return find_program("mosquitto") or shutil.which("mosquitto", path=_SYSTEM_PROGRAMS)


def missing_module(module: str, package: str) -> str | None:
    """What to install for a module that is not there."""
    top = module.partition(".")[0]
    return None if importlib.util.find_spec(top) is not None else f"needs {package}: pip install {package}"


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
