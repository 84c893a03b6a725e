"""A gateway that is killed, at a site whose peer has an OSX broker: what the broker brought outlives it, once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.osx_broker import StandIn, stand_in
from tests.support.ports import ports_of_this_process
from tests.support.sites import InProcesses, Sites, runner_of, start_gateways

federation = pytest.importorskip("fate.arch.federation.backends.osx._federation", reason="FATE is not installed")

GUEST, HOST = ("guest", "9999"), ("host", "10000")
SECONDS = 60.0
"""For what has to happen on a loaded machine."""

Bridge = tuple[Sites, StandIn, dict[tuple[str, str], int]]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    """The gateway as a process, the broker, and where clients of each connect."""
    osx, front, port = ports_of_this_process(3)
    peer = {"site": "b", "kind": "osx", "parties": ["10000"], "address": f"127.0.0.1:{port}"}
    listen = {"osx": f"127.0.0.1:{osx}", "brokers": f"127.0.0.1:{front}"}
    home: Path = tmp_path_factory.mktemp("bridge")
    with (
        stand_in(("10000",), {"9999": f"127.0.0.1:{front}"}, port) as broker,
        start_gateways({"a": ["9999"]}, home, runner=InProcesses(SECONDS), listen=listen, strangers=[peer]) as sites,
    ):
        yield sites, broker, {GUEST: osx, HOST: port}


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    return f"job-{request.node.name}"


def party(bridge: Bridge, session: str, who: tuple[str, str]) -> Any:
    mq = federation.MQ("127.0.0.1", bridge[2][who])
    return federation.OSXFederation(session, None, who, [GUEST, HOST], 1 << 26, mq)


def restart(bridge: Bridge) -> None:
    sites = bridge[0]
    runner_of(sites).kill(sites["a"])
    runner_of(sites).start(sites["a"])


def test_what_a_broker_brought_before_the_gateway_is_killed_comes_once_and_in_order(
    bridge: Bridge, session: str
) -> None:
    host, guest = party(bridge, session, HOST), party(bridge, session, GUEST)
    bodies = [os.urandom(size) for size in (10, 200_000, 0, 65_536, 3_000_000)]
    for number, body in enumerate(bodies):
        host._push_bytes(body, "n", str(number), [GUEST])
    restart(bridge)
    host._push_bytes(b"after", "n", "after", [GUEST])
    tags = [*(str(number) for number in range(len(bodies))), "after"]
    assert [guest._pull_bytes("n", tag, [HOST])[0] for tag in tags] == [*bodies, b"after"]


def test_that_a_broker_s_push_found_no_room_is_told_to_who_pops_behind_a_kill_too(bridge: Bridge, session: str) -> None:
    host, guest = party(bridge, session, HOST), party(bridge, session, GUEST)
    host._push_bytes(b"first", "n", "first", [GUEST])
    # more than the send region has; FATE's client at the broker does not look at the answer
    host._push_bytes(bytes(9 << 20), "n", "second", [GUEST])
    restart(bridge)
    host._push_bytes(b"third", "n", "third", [GUEST])

    assert guest._pull_bytes("n", "first", [HOST]) == [b"first"]
    with pytest.raises(grpc.RpcError, match=r"\[FR612\].*the OSX broker of b has brought it"):
        guest._pull_bytes("n", "second", [HOST])
    assert party(bridge, session, GUEST)._pull_bytes("n", "third", [HOST]) == [b"third"]


def test_a_push_whose_gateway_is_killed_has_an_error_and_the_broker_has_it_once_at_most(
    bridge: Bridge, session: str
) -> None:
    _, broker, _ = bridge
    arrived, go_on = threading.Event(), threading.Event()

    def hold(_context: grpc.ServicerContext) -> None:
        arrived.set()
        go_on.wait(SECONDS)

    broker.before = hold
    guest = party(bridge, session, GUEST)
    with ThreadPoolExecutor(1) as pool:
        pushed = pool.submit(guest._push_bytes, b"first", "n", "first", [HOST])
        assert arrived.wait(SECONDS)
        restart(bridge)
        with pytest.raises(grpc.RpcError) as told:
            pushed.result(SECONDS)
    assert told.value.code() is grpc.StatusCode.UNAVAILABLE
    broker.before = lambda _context: None
    go_on.set()
    party(bridge, session, GUEST)._push_bytes(b"second", "n", "second", [HOST])
    host = party(bridge, session, HOST)
    assert host._pull_bytes("n", "second", [GUEST]) == [b"second"]
    assert len([each for each in broker.seen if each["x-ptp-session-id"] == session]) == 2
