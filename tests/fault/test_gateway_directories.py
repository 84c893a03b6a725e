"""Where a gateway's sockets and regions lie: on any path, also where shared memory is small and they lie on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.sites import InProcesses, InThread, Sites, gateway_site, linked_sites, party

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(700_000)

PLACES = {"long": "deep/" * 60, "space": "my files", "long with spaces": "my own files/" * 20}
"""Directories below a test's own."""


@contextlib.contextmanager
def gateways_in(directory: Path) -> Iterator[Sites]:
    """Two gateways with sockets, regions, spill and traces there, shared memory between them."""
    for name in ("memory", "sockets"):
        (directory / name).mkdir(parents=True)
    memory = {"directory": str(directory / "memory")}
    sites = linked_sites(LAYOUT, directory, directory / "sockets", transport="shm", memory=memory)
    with Sites.running(sites, InProcesses()) as running:
        running.wait_until_connected()
        yield running


@pytest.mark.parametrize("place", PLACES)
def test_two_gateways_share_memory_wherever_their_files_lie(tmp_path: Path, place: str) -> None:
    directory = tmp_path / PLACES[place]
    with gateways_in(directory) as sites, sites["a"].client() as a, sites["b"].client() as b:
        lease = a.lease(len(BODY))
        lease.buffer[:] = BODY
        lease.commit("object", "t", [B], "object")
        assert bytes(b.get("object", "t", A, timeout=20).buffer) == BODY
        assert (directory / "sockets" / "a.sock").is_socket()
    assert list((directory / "memory").iterdir()) == []
    assert list((directory / "sockets").iterdir()) == []


@pytest.mark.parametrize("place", PLACES)
def test_a_second_gateway_does_not_take_the_socket_of_one_that_runs(tmp_path: Path, place: str) -> None:
    with gateways_in(tmp_path / PLACES[place]) as sites:
        site = sites["a"]
        rival = gateway_site("c", ["host:3"], home=tmp_path / "c", sockets=tmp_path, port=0)
        rival.config["listen"]["socket"] = site.address
        runner = InThread()
        try:
            with pytest.raises(GatewayError, match="another gateway serves"):
                runner.start(rival)
        finally:
            runner.stop_all()
        assert site.status()["site"] == "a"


def test_who_asks_a_gateway_that_is_not_there_is_told_the_whole_path(tmp_path: Path) -> None:
    sockets = tmp_path / PLACES["long with spaces"]
    sockets.mkdir(parents=True)
    site = gateway_site("a", ["guest:1"], home=tmp_path, sockets=sockets, port=0)
    with pytest.raises(GatewayError) as error:
        site.status()
    assert error.value.code is ErrorCode.GATEWAY_UNREACHABLE
    assert site.address in error.value.message
    assert "No such file" in error.value.message
