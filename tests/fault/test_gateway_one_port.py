"""Two gateways with one TCP port open between them, at one side: everything of theirs passes there."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.ports import EndpointAddress
from fedrdma_fate.transport import listener
from fedrdma_fate.transport.tcp import PassiveDraft
from tests.support.certificates import TestAuthority
from tests.support.control import connect
from tests.support.ports import ports_of_this_process
from tests.support.proxy import Proxy
from tests.support.sites import InThread, Sites, eventually, linked_sites, party

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(1_000_000)
STREAMS = 2
"""Of a data path, as configured by default."""


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path / "tls")


@contextlib.contextmanager
def only_a_dials(
    tmp_path: Path, authority: TestAuthority | None = None, *, at: int | None = None, **of_b: Any
) -> Iterator[Sites]:
    """b has no address of a, and a one of b: that of its control channel, or another port of this host."""

    def of_site(name: str) -> dict[str, Any]:
        return of_b if name == "b" else {}

    sites = linked_sites(LAYOUT, tmp_path, tmp_path, authority=authority, of_site=of_site)
    del sites["b"].config["peers"][0]["address"]
    if at is not None:
        sites["a"].config["peers"][0]["address"] = f"127.0.0.1:{at}"
    with Sites.running(sites, InThread()) as running:
        running.wait_until_connected()
        yield running


def control_port(sites: Sites) -> int:
    return int(sites["b"].config["listen"]["control"].rpartition(":")[2])


def exchange(sites: Sites, name: str) -> None:
    """A message each way, which must come whole."""
    with sites["a"].client() as a, sites["b"].client() as b:
        for source, destination, of, to in ((a, b, "guest:1", "host:2"), (b, a, "host:2", "guest:1")):
            lease = source.lease(len(BODY))
            lease.buffer[:] = BODY
            lease.commit(name, "t", [party(to)], "object")
            assert bytes(destination.get(name, "t", party(of), timeout=30).buffer) == BODY


def paths(sites: Sites) -> list[str]:
    """Transports that are up at a."""
    return [path["transport"] for path in sites["a"].status()["peers"][0]["paths"] if path["up"]]


@pytest.mark.parametrize("sealed", [False, True], ids=["unsealed", "sealed"])
def test_everything_passes_by_the_one_port_that_is_open_whatever_its_number_is_outside(
    tmp_path: Path, authority: TestAuthority, sealed: bool
) -> None:
    """As behind address translation: a dials another port than b listens on."""
    (inside,) = ports_of_this_process(1)
    with Proxy(inside) as gate:
        listen = {"control": f"127.0.0.1:{inside}"}
        with only_a_dials(tmp_path, authority if sealed else None, at=gate.port, listen=listen) as sites:
            exchange(sites, "m")
            assert paths(sites) == ["tcp"]
            assert gate.connections == 1 + STREAMS
            assert gate.forwarded > len(BODY)


@pytest.mark.parametrize("with_two", ["a", "b"])
def test_sites_with_one_port_and_with_two_understand_each_other(tmp_path: Path, with_two: str) -> None:
    """Of which a dials."""
    sites = linked_sites(LAYOUT, tmp_path, tmp_path)
    sites[with_two].config["listen"]["data"] = "127.0.0.1:0"
    with Sites.running(sites, InThread()) as running:
        running.wait_until_connected()
        exchange(running, "m")


def test_a_gateway_that_does_not_know_of_it_dials_the_port_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version looks at host and port alone, which are right where nothing is translated."""
    address = PassiveDraft.address.fget
    assert address is not None

    def as_before(draft: PassiveDraft) -> EndpointAddress:
        return {key: value for key, value in address(draft).items() if key != "control"}

    monkeypatch.setattr(PassiveDraft, "address", property(as_before))
    with only_a_dials(tmp_path) as sites:
        exchange(sites, "m")
        assert paths(sites) == ["tcp"]


def test_the_port_is_there_again_after_a_restart_of_either_side(tmp_path: Path, authority: TestAuthority) -> None:
    with only_a_dials(tmp_path, authority) as sites:
        for name in ("b", "a"):
            sites.runner.stop(sites[name])
            sites.runner.start(sites[name])
            sites.wait_until_connected()
            exchange(sites, f"after {name}")


def test_newcomers_that_say_nothing_or_little_keep_no_data_path_from_the_port(
    tmp_path: Path, authority: TestAuthority
) -> None:
    with only_a_dials(tmp_path, authority) as sites, contextlib.ExitStack() as stack:
        address = f"127.0.0.1:{control_port(sites)}"
        hello = listener._HELLO.pack(listener._HELLO_MAGIC, bytes(16), 0, 1)
        for number in range(150):
            idle = stack.enter_context(connect(address, "127.0.0.3"))
            with contextlib.suppress(OSError):
                idle.sendall((b"", hello[:1], hello[:-1], hello, b"\x16")[number % 5])
        sites.runner.stop(sites["a"])
        sites.runner.start(sites["a"])
        sites.wait_until_connected()
        exchange(sites, "m")


def test_datagrams_come_to_the_port_of_the_same_number(tmp_path: Path, authority: TestAuthority) -> None:
    changes = {"transport": "udp", "mode": "fedrdma-x"}
    sites = linked_sites(LAYOUT, tmp_path, tmp_path, authority=authority, **changes)
    with Sites.running(sites, InThread()) as running:
        running.wait_until_connected()
        eventually(lambda: paths(running) == ["udp"])
        exchange(running, "m")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken, pytest.raises(OSError, match="in use"):
            taken.bind(("127.0.0.1", control_port(running)))
