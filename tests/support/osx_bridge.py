"""A gateway at one site and FATE's own OSX broker at the other, by FATE's own client at both.

By hand: `GRPC_ENABLE_FORK_SUPPORT=1 GRPC_POLL_STRATEGY=poll python -m tests.support.osx_bridge BUILT [--tls]`, where
BUILT is `java/osx` of FATE 2.2's source after `mvn package`. Prints a row for each thing that crossed, both ways. With
`--tls` gateway and broker show each other certificates.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.certificates import TestAuthority
from tests.support.osx_broker import BrokerTls, built_broker
from tests.support.osx_queue_times import GUEST, HOST, federation
from tests.support.ports import ports_of_this_process
from tests.support.sites import InProcesses, start_gateways

READY_SECONDS = 240.0
"""For the gateway to start, also on a loaded machine."""

MOST_MESSAGE_BYTES = 64 << 20
"""Half of what a broker keeps."""

Way = Callable[[str, Any, Any], tuple[bool, float]]
"""Sends under a name from one to the other; whether that came whole, and seconds."""


HOST_NAME = "localhost"
"""By which the broker knows the gateway: it holds its certificate against the name in its route table."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("built", type=Path, help="java/osx of FATE's source, built")
    parser.add_argument("--tls", action="store_true", help="between the gateway and the broker")
    given = parser.parse_args()
    osx, brokers, broker, secure = ports_of_this_process(4)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        authority, tls = None, None
        if given.tls:
            authority = TestAuthority(home / "tls", hosts=(HOST_NAME,))
            authority.issue("b")
            files = authority.settings("b")
            tls = BrokerTls(secure, files["certificate"], files["key"], files["authorities"][0])
        port = broker if tls is None else tls.port
        peer = {"site": "b", "kind": "osx", "parties": ["10000"], "address": f"127.0.0.1:{port}"}
        listen = {"osx": f"127.0.0.1:{osx}", "brokers": f"127.0.0.1:{brokers}"}
        memory = {"send_bytes": "512MiB", "receive_bytes": "64MiB"}
        with (
            built_broker(
                given.built.resolve(), home / "broker", ("10000",), {"9999": f"{HOST_NAME}:{brokers}"}, broker, tls
            ),
            start_gateways(
                {"a": ["9999"]},
                home,
                runner=InProcesses(READY_SECONDS),
                listen=listen,
                memory=memory,
                strangers=[peer],
                authority=authority,
            ) as sites,
        ):
            for most in (None, MOST_MESSAGE_BYTES):
                _contexts(home, {GUEST: osx, HOST: broker}, most)
            for total_bytes in (100, 1 << 20, MOST_MESSAGE_BYTES):
                _bytes({GUEST: osx, HOST: broker}, total_bytes)
            print(json.dumps(sites["a"].status()["brokers"]))


def _both_ways(what: str, act: Way) -> None:
    for name, source, destination in (("to the broker", GUEST, HOST), ("from the broker", HOST, GUEST)):
        same, seconds = act(name.replace(" ", "-"), source, destination)
        print(f"{what}, {name}: {'whole' if same else 'NOT WHOLE'}, {seconds:.2f} s", flush=True)


def _contexts(home: Path, ports: dict[Any, int], most: int | None) -> None:
    """An object and a table."""
    from fate.arch.computing.backends.standalone import CSession
    from fate.arch.context import Context

    session, contexts = f"bridge-{secrets.token_hex(4)}", {}
    for who, port in ports.items():
        computing = CSession(f"{session}_{who[0]}", data_dir=str(home / who[0]), options={"task_cores": 2})
        contexts[who] = Context(computing=computing, federation=federation(session, computing, who, port, most))
    sent = {"weights": np.random.rand(1_000_000), "names": ["x", "y"]}
    rows = [(number, np.full(100, number)) for number in range(1000)]

    def ends(source: Any, destination: Any) -> tuple[Any, Any]:
        to, by = contexts[source], contexts[destination]
        return (to.hosts[0], by.guest) if source == GUEST else (to.guest, by.hosts[0])

    def act_object(name: str, source: Any, destination: Any) -> tuple[bool, float]:
        put, get = ends(source, destination)
        began = time.perf_counter()
        put.put(f"object-{name}", sent)
        came = get.get(f"object-{name}")
        seconds = time.perf_counter() - began
        return bool(np.array_equal(came["weights"], sent["weights"]) and came["names"] == sent["names"]), seconds

    def act_table(name: str, source: Any, destination: Any) -> tuple[bool, float]:
        put, get = ends(source, destination)
        table = contexts[source].computing.parallelize(rows, include_key=True, partition=4)
        began = time.perf_counter()
        put.put(f"table-{name}", table)
        came = dict(get.get(f"table-{name}").collect())
        seconds = time.perf_counter() - began
        return len(came) == len(rows) and all(np.array_equal(came[key], value) for key, value in rows), seconds

    _both_ways(f"ctx.put of 8 MB, max_message_size={most}", act_object)
    _both_ways(f"a table of 0.8 MB in 4 partitions, max_message_size={most}", act_table)
    for context in contexts.values():
        context.destroy()


def _bytes(ports: dict[Any, int], total_bytes: int) -> None:
    session = f"bytes-{secrets.token_hex(4)}"
    made = {who: federation(session, None, who, port, 2 * MOST_MESSAGE_BYTES) for who, port in ports.items()}
    body = os.urandom(total_bytes)
    expected = hashlib.sha256(body).digest()

    def act(name: str, source: Any, destination: Any) -> tuple[bool, float]:
        began = time.perf_counter()
        made[source]._push_bytes(body, "n", name, [destination])
        (came,) = made[destination]._pull_bytes("n", name, [source])
        return hashlib.sha256(came).digest() == expected, time.perf_counter() - began

    _both_ways(f"one message of {total_bytes} bytes", act)
    for each in made.values():
        each.destroy()


if __name__ == "__main__":
    main()
