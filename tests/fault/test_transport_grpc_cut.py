"""A call of mode `grpc` whose connection was cut gives its socket back with the endpoint, and not hours later."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedrdma_fate.ports import Endpoint
from fedrdma_fate.transport.grpc import GrpcSettings, GrpcTransport
from tests.support.connections import cut, reset, strike
from tests.support.sites import eventually

CONNECT_SECONDS = 20.0


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def transport() -> Iterator[GrpcTransport]:
    made = GrpcTransport(GrpcSettings())
    yield made
    made.close()


def connect(transport: GrpcTransport) -> tuple[Endpoint, Endpoint]:
    passive = transport.open("passive")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(passive.connect, {}, CONNECT_SECONDS)
        active = transport.open("active").connect(passive.address, CONNECT_SECONDS)
        return waiting.result(), active


def unconnected_sockets() -> set[str]:
    """Of this process: streams of IP that neither listen nor have another end."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            copy = socket.socket(fileno=os.dup(int(name))) if target.startswith("socket:") else None
        except OSError:
            # closed meanwhile
            continue
        if copy is None:
            continue
        with copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                try:
                    copy.getpeername()
                except OSError:
                    found |= set() if listens else {target}
    return found


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("what", [cut, reset])
def test_a_connection_that_was_cut_leaves_no_socket(
    what: Callable[[socket.socket], None], transport: GrpcTransport
) -> None:
    before = unconnected_sockets()
    ends = connect(transport)
    assert strike(os.getpid(), lambda own, _other: own == transport.port, what)
    eventually(lambda: unconnected_sockets() != before, CONNECT_SECONDS)
    for end in ends:
        end.close()
    del end, ends
    eventually(lambda: unconnected_sockets() <= before, CONNECT_SECONDS)
