"""How fast FATE's own client is through OSX's queues of two gateways, beside a front that keeps messages in a dict.

`python -m tests.support.osx_queue_times [--megabytes 100] [--rounds 3] [--small] [--whole]` prints a row for each case:
100 MB by ctx.put and ctx.get, not with `--rounds 0`; with `--small` 10,000 pushes of 100 bytes; with `--whole` one
message of 500 MB and one of 1.9 GB, by their hashes. All is on this host.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import os
import queue
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from tests.support.ports import ports_of_this_process
from tests.support.sites import InProcesses, start_gateways

READY_SECONDS = 120.0
"""For gateways to begin: large pools take long on a loaded machine."""

GUEST, HOST = ("guest", "9999"), ("host", "10000")
LAYOUT = {"a": ["9999"], "b": ["10000"]}
FEW_BYTES = 128 << 20
LARGEST = 2**31 - 2
"""Bytes: `max_message_size` with which FATE cuts nothing."""


@contextlib.contextmanager
def gateways(directory: Path, pool_bytes: int) -> Iterator[dict[str, int]]:
    """Ports of two gateways, each in a process of its own."""
    ports = dict(zip(LAYOUT, ports_of_this_process(len(LAYOUT)), strict=True))

    def of_site(name: str) -> dict[str, Any]:
        # all goes one way
        send, receive = (pool_bytes, FEW_BYTES) if name == "a" else (FEW_BYTES, pool_bytes)
        memory = {"send_bytes": send, "receive_bytes": receive}
        # of scheduling calls, which nobody makes here
        flow = {"server": "127.0.0.1:1"}
        return {"listen": {"osx": f"127.0.0.1:{ports[name]}"}, "memory": memory, "flow": flow}

    with start_gateways(LAYOUT, directory, runner=InProcesses(READY_SECONDS), of_site=of_site):
        yield ports


@contextlib.contextmanager
def dict_front() -> Iterator[dict[str, int]]:
    """The port, for both sites, of a server that keeps what is pushed in a dict."""
    command = [sys.executable, "-m", "tests.support.osx_queue_times", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield dict.fromkeys(LAYOUT, int(server.stdout.readline()))
        finally:
            server.terminate()


def serve() -> None:
    """Be that server, until it is ended."""
    from fate.arch.federation.backends.osx import osx_pb2, osx_pb2_grpc

    queues: collections.defaultdict[str, queue.Queue[bytes]] = collections.defaultdict(queue.Queue)

    class Front(osx_pb2_grpc.PrivateTransferTransportServicer):  # type: ignore[misc, name-defined]
        def push(self, request: Any, _context: Any) -> Any:
            queues[request.topic].put(request.payload)
            return osx_pb2.TransportOutbound(code="E0000000000")

        def pop(self, request: Any, _context: Any) -> Any:
            return osx_pb2.TransportOutbound(payload=queues[request.topic].get(), code="E0000000000")

        def release(self, _request: Any, _context: Any) -> Any:
            return osx_pb2.TransportOutbound(code="E0000000000")

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(32), options=options)
    osx_pb2_grpc.add_PrivateTransferTransportServicer_to_server(Front(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


def federation(session: str, computing: Any, who: tuple[str, str], port: int, most: int | None) -> Any:
    """FATE's own, of one party."""
    from fate.arch.federation.backends.osx._federation import MQ, OSXFederation

    return OSXFederation(session, computing, who, [GUEST, HOST], most, MQ("127.0.0.1", port))


def exchange(ports: dict[str, int], most: int | None, total_bytes: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds of ctx.put, then of ctx.get, of an array of so many bytes, in each round; the first is none of them.

    Raises:
        ValueError: what came is not what was sent.
    """
    from fate.arch.computing.backends.standalone import CSession
    from fate.arch.context import Context

    session, times = f"times-{secrets.token_hex(4)}", []
    with tempfile.TemporaryDirectory() as home:
        contexts = []
        for who, site in ((GUEST, "a"), (HOST, "b")):
            computing = CSession(f"{session}_{who[0]}", data_dir=home, options={"task_cores": 2})
            made = federation(session, computing, who, ports[site], most)
            contexts.append(Context(computing=computing, federation=made))
        guest, host = contexts
        for number in range(rounds + 1):
            sent = np.random.rand((total_bytes if number else 8000) // 8)
            begun = time.perf_counter()
            guest.hosts[0].put(f"x{number}", sent)
            put = time.perf_counter()
            came = host.guest.get(f"x{number}")
            times.append((put - begun, time.perf_counter() - put))
            if not np.array_equal(sent, came):
                raise ValueError("what came is not what was sent")
        for context in contexts:
            context.destroy()
    return times[1:]


def whole(ports: dict[str, int], total_bytes: int) -> str:
    """One push_bytes of so many, and its pull, by their hashes."""
    session = f"whole-{secrets.token_hex(4)}"
    guest, host = (federation(session, None, who, ports[at], LARGEST) for who, at in ((GUEST, "a"), (HOST, "b")))
    body = os.urandom(1 << 20) * (total_bytes >> 20) + os.urandom(total_bytes & 0xFFFFF)
    expected = hashlib.sha256(body).hexdigest()
    begun = time.perf_counter()
    guest._push_bytes(body, "n", "t", [HOST])
    pushed = time.perf_counter() - begun
    del body
    begun = time.perf_counter()
    (came,) = host._pull_bytes("n", "t", [GUEST])
    pulled = time.perf_counter() - begun
    same = hashlib.sha256(came).hexdigest() == expected
    guest.destroy()
    host.destroy()
    return f"push {pushed:.2f} s, pull {pulled:.2f} s, hash {'the same' if same else 'ANOTHER'}"


def small(ports: dict[str, int], count: int) -> str:
    """So many pushes of 100 bytes, one after the other, each with a connection of its own."""
    session, body = f"small-{secrets.token_hex(4)}", bytes(100)
    guest = federation(session, None, GUEST, ports["a"], None)
    # the first finds the other party, and imports
    guest._push_bytes(body, "first", "0", [HOST])
    begun = time.perf_counter()
    for number in range(count):
        guest._push_bytes(body, "n", str(number), [HOST])
    seconds = time.perf_counter() - begun
    host, begun = federation(session, None, HOST, ports["b"], None), time.perf_counter()
    came = [host._pull_bytes("n", str(number), [GUEST])[0] for number in range(count)]
    pulled = time.perf_counter() - begun
    guest.destroy()
    host.destroy()
    return f"{count / seconds:.0f} pushes a second, {count / pulled:.0f} pulls, all came: {came == [body] * count}"


def main() -> None:
    """See the module."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--megabytes", type=int, default=100)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--whole", action="store_true")
    asked.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.serve:
        serve()
        return
    total_bytes = given.megabytes * 10**6
    # a message of 1.9 GB, and some room
    pool_bytes = 9 << 28 if given.whole else max(256 << 20, 4 * total_bytes)
    with tempfile.TemporaryDirectory() as home, gateways(Path(home), pool_bytes) as ours, dict_front() as dictionary:
        for most in (None, LARGEST) if given.rounds else ():
            for name, ports in (("dict", dictionary), ("gateways", ours)):
                times = exchange(ports, most, total_bytes, given.rounds)
                put, get = (statistics.median(each) for each in zip(*times, strict=True))
                rate = statistics.median(total_bytes / 1e6 / sum(each) for each in times)
                print(f"{name} max_message_size={most}: put {put:.2f} s, get {get:.2f} s, {rate:.1f} MB/s", flush=True)
        if given.small:
            for name, ports in (("dict", dictionary), ("gateways", ours)):
                print(f"{name}, 10,000 of 100 B: {small(ports, 10_000)}", flush=True)
        if given.whole:
            for name, ports, size in (
                ("dict", dictionary, 500_000_000),
                ("gateways", ours, 500_000_000),
                ("gateways", ours, 1_900_000_000),
            ):
                print(f"{name}, {size} bytes: {whole(ports, size)}", flush=True)


if __name__ == "__main__":
    main()
