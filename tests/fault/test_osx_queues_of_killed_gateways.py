"""Gateways that are killed while FATE's own client for OSX pushes and pops through their queues."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import psutil
import pytest

from tests.support.ports import ports_of_this_process
from tests.support.sites import InProcesses, Sites, eventually, runner_of, start_gateways

federation = pytest.importorskip("fate.arch.federation.backends.osx._federation", reason="FATE is not installed")

GUEST, HOST = ("guest", "9999"), ("host", "10000")
LAYOUT = {"a": ["9999"], "b": ["10000"]}
SITE = {GUEST: "a", HOST: "b"}
SECONDS = 60.0
"""For what has to happen on a loaded machine."""

LARGE = 60_000_000
"""Bytes of a message whose handing over takes longer than to kill a gateway: gRPC in Python makes some 100 MB/s."""


@pytest.fixture(scope="module", params=["sent", "lent"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Two gateways as processes, whose messages go by TCP, or lie in the memory of the one that sends them."""
    ports = dict(zip(LAYOUT, ports_of_this_process(len(LAYOUT)), strict=True))

    def of_site(name: str) -> dict[str, Any]:
        return {"listen": {"osx": f"127.0.0.1:{ports[name]}"}, "flow": {"server": "127.0.0.1:1"}}

    lent = {"transport": "auto", "shm": {"lend": True}} if request.param == "lent" else {}
    memory = {"send_bytes": "160MiB", "receive_bytes": "160MiB"}
    home = tmp_path_factory.mktemp(request.param)
    with start_gateways(LAYOUT, home, runner=InProcesses(SECONDS), of_site=of_site, memory=memory, **lent) as running:
        yield running


def party(sites: Sites, session: str, who: tuple[str, str]) -> Any:
    port = int(sites[SITE[who]].config["listen"]["osx"].rpartition(":")[2])
    client = federation.OSXFederation(session, None, who, [GUEST, HOST], 2**31 - 2, federation.MQ("127.0.0.1", port))
    connect = client._get_channel

    def less_patient(**named: Any) -> Any:
        channel = connect(**named)
        # FATE waits for ten hours
        channel._timeout = int(SECONDS * 1000)
        return channel

    client._get_channel = less_patient
    return client


def restart(sites: Sites, name: str) -> None:
    runner_of(sites).kill(sites[name])
    runner_of(sites).start(sites[name])
    eventually(lambda: all(site.connected() for site in sites.values()), SECONDS)


def pulled(sites: Sites, session: str, tags: list[str], client: Any = None) -> list[bytes]:
    host = client or party(sites, session, HOST)
    return [host._pull_bytes("n", tag, [GUEST])[0] for tag in tags]


def left_over(sites: Sites, session: str) -> str:
    """What a pop says where nothing is left."""
    client = party(sites, session, HOST)
    (info,) = client._get_channels(client._get_party_topic_infos_by_name([federation_party(GUEST)], "n"))
    info._timeout = 500
    return str(info.consume().code)


def federation_party(who: tuple[str, str]) -> Any:
    from fate.arch.federation.message_queue._federation import Party

    return Party(role=who[0], party_id=who[1])


@pytest.mark.parametrize("killed", ["a", "b"])
def test_what_was_pushed_before_a_gateway_is_killed_comes_once_and_in_order(
    sites: Sites, session: str, killed: str
) -> None:
    bodies = [os.urandom(size) for size in (10, 200_000, 0, 65_536, 3_000_000)]
    guest = party(sites, session, GUEST)
    for number, body in enumerate(bodies):
        guest._push_bytes(body, "n", str(number), [HOST])
    restart(sites, killed)
    guest._push_bytes(b"after", "n", "after", [HOST])
    tags = [str(number) for number in range(len(bodies))]
    assert pulled(sites, session, [*tags, "after"]) == [*bodies, b"after"]
    assert left_over(sites, session) == "E0000000601"


def test_a_pop_whose_gateway_is_killed_has_an_error_and_made_again_gets_the_message(sites: Sites, session: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(pulled, sites, session, ["t"])
        eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] > 0, SECONDS)
        restart(sites, "b")
        with pytest.raises(grpc.RpcError) as caught:
            waits.result(SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    party(sites, session, GUEST)._push_bytes(b"late", "n", "t", [HOST])
    assert pulled(sites, session, ["t"]) == [b"late"]
    assert left_over(sites, session) == "E0000000601"


def test_a_message_whose_gateway_is_killed_while_it_is_handed_over_goes_to_the_pop_made_again(
    sites: Sites, session: str
) -> None:
    body = os.urandom(1 << 20) * (LARGE >> 20)
    guest = party(sites, session, GUEST)
    guest._push_bytes(b"first", "n", "0", [HOST])
    guest._push_bytes(body, "n", "1", [HOST])
    guest._push_bytes(b"last", "n", "2", [HOST])
    assert pulled(sites, session, ["0"]) == [b"first"]
    with ThreadPoolExecutor(1) as pool:
        pops = pool.submit(pulled, sites, session, ["1"])
        eventually(lambda: len([1 for each in sites["b"].events("get") if each["session"] == session]) == 2, SECONDS)
        restart(sites, "b")
        with pytest.raises(grpc.RpcError):
            pops.result(SECONDS)
    again, last = pulled(sites, session, ["1", "2"])
    assert hashlib.sha256(again).digest() == hashlib.sha256(body).digest()
    assert last == b"last"
    assert left_over(sites, session) == "E0000000601"


def test_while_gateways_are_killed_again_and_again_nothing_that_was_pushed_is_lost(sites: Sites, session: str) -> None:
    count, doubts = 160, set[str]()
    pushed, came = threading.Event(), dict[str, bytes]()

    def push() -> None:
        guest = party(sites, session, GUEST)
        for number in range(count):
            while True:
                try:
                    guest._push_bytes(b"%d" % number, "n", str(number), [HOST])
                    break
                except grpc.RpcError:
                    # it may have gone, or not: what comes twice by it has the tag of one that came
                    doubts.add(str(number))
        pushed.set()

    def pull() -> None:
        host = party(sites, session, HOST)
        for number in range(count):
            while str(number) not in came:
                try:
                    (came[str(number)],) = pulled(sites, session, [str(number)], host)
                except grpc.RpcError:
                    continue

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(push), pool.submit(pull)]
        kills = 0
        while not pushed.is_set() or kills < 4:
            at = len(came)
            eventually(lambda at=at: len(came) > at + 20 or pushed.is_set(), SECONDS)  # type: ignore[misc]
            restart(sites, "ab"[kills % 2])
            kills += 1
        for end in ends:
            end.result(SECONDS)
    assert came == {str(number): b"%d" % number for number in range(count)}
    assert len(doubts) <= kills


def test_hundreds_of_short_connections_leave_no_descriptors_and_no_threads(sites: Sites, session: str) -> None:
    guest, host = party(sites, session, GUEST), party(sites, session, HOST)
    processes = [psutil.Process(runner_of(sites).processes[name].pid) for name in LAYOUT]

    def has() -> int:
        return sum(process.num_fds() + process.num_threads() for process in processes)

    guest._push_bytes(b"first", "n", "first", [HOST])
    assert pulled(sites, session, ["first"], host) == [b"first"]
    before = has()
    # FATE's client makes a connection for each call; one descriptor of each eight that stayed would show
    for number in range(200):
        guest._push_bytes(b"%d" % number, "n", str(number), [HOST])
        assert pulled(sites, session, [str(number)], host) == [b"%d" % number]
    # some that the client still has, and threads that wait for work
    eventually(lambda: has() < before + 50, SECONDS)
