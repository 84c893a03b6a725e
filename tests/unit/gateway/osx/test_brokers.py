"""A peer that still has an OSX broker: what is pushed crosses both ways, or whoever pushed is told.

The broker is one written from OSX 2.2's wire; `tests/support/osx_bridge.py` does the same with FATE's own.

More than 500 lines: every flow of a broker, good and bad, by the same calls against the same gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrdma_fate.gateway.flow.osx_front import MOST_PACKET_BYTES
from fedrdma_fate.gateway.messages import queue_numbers
from fedrdma_fate.gateway.osx import broker_front, brokers, queues, room, transport
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MessageKey, Party
from tests.support.certificates import TestAuthority
from tests.support.flow import FakeFlow, body_for, call, fake_flows
from tests.support.osx_broker import DATA_TRANSFER, PROTOCOL, PUSH_URI, StandIn, stand_in
from tests.support.ports import ports_of_this_process
from tests.support.sites import Sites, eventually, start_gateways

federation = pytest.importorskip("fate.arch.federation.backends.osx._federation", reason="FATE is not installed")
osx_pb2 = pytest.importorskip("fate.arch.federation.backends.osx.osx_pb2", reason="FATE is not installed")

GUEST, HOST = ("guest", "9999"), ("host", "10000")
TRANSPORT = "org.ppc.ptp.PrivateTransferTransport"
LONG = 60.0
"""For what has to happen on a loaded machine."""

_sessions = iter(range(10**6))


@dataclasses.dataclass
class Bridged:
    """A gateway of 9999, and a broker of 10000.

    Attributes:
        sites: the gateway, as `a`.
        flow: its FATE Flow.
        osx: port of its own clients.
        brokers: port of brokers.
        broker: port of the broker.
    """

    sites: Sites
    flow: FakeFlow
    osx: int
    front: int
    brokers: int
    broker: int

    def state(self) -> dict[str, Any]:
        """What the gateway tells of the broker."""
        (state,) = self.sites["a"].status()["brokers"]
        return dict(state)


@contextlib.contextmanager
def bridged(directory: Path, peer: dict[str, Any] | None = None, **settings: Any) -> Iterator[Bridged]:
    osx, front, inter, broker = ports_of_this_process(4)
    told = {"site": "b", "kind": "osx", "parties": ["10000"], "address": f"127.0.0.1:{broker}", **(peer or {})}
    listen = {"osx": f"127.0.0.1:{osx}", "flow": f"127.0.0.1:{front}", "brokers": f"127.0.0.1:{inter}"}
    with (
        fake_flows(1) as (flow,),
        start_gateways(
            {"a": ["9999"]},
            directory,
            listen=listen,
            flow={"server": f"127.0.0.1:{flow.port}"},
            strangers=[told],
            connected=False,
            **settings,
        ) as sites,
    ):
        yield Bridged(sites, flow, osx, front, inter, broker)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridged]:
    with bridged(tmp_path_factory.mktemp("sites")) as made:
        yield made


@pytest.fixture
def broker(gateway: Bridged) -> Iterator[StandIn]:
    with broker_of(gateway) as made:
        yield made
    eventually(lambda: not _listens(gateway.broker))


@contextlib.contextmanager
def broker_of(gateway: Bridged, **options: Any) -> Iterator[StandIn]:
    with stand_in(("10000",), {"9999": f"127.0.0.1:{gateway.brokers}"}, gateway.broker, **options) as made:
        yield made


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture
def session() -> str:
    return f"2024-01/job_{next(_sessions)}-fed"


def party(session: str, who: tuple[str, str], port: int, most: int | None = None) -> Any:
    return federation.OSXFederation(session, None, who, [GUEST, HOST], most, federation.MQ("127.0.0.1", port))


def parties(gateway: Bridged, session: str) -> tuple[Any, Any]:
    """At the gateway, and at the broker."""
    most = 1 << 26
    return party(session, GUEST, gateway.osx, most), party(session, HOST, gateway.broker, most)


def message(body: bytes) -> bytes:
    return bytes(osx_pb2.Message(head=json.dumps({"message_id": "x"}).encode(), body=body).SerializeToString())


def topic(session: str, source: tuple[str, str] = HOST, destination: tuple[str, str] = GUEST) -> str:
    return f"{session}-{'-'.join(source)}-{'-'.join(destination)}-x"


def calling(port: int, method: str, raw: bytes, metadata: dict[str, str], timeout: float = LONG) -> bytes:
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_send_message_length", -1)]) as channel:
        return bytes(channel.unary_unary(method)(raw, timeout=timeout, metadata=tuple(metadata.items())))


def told_by(error: Any) -> str:
    """Status and details of an error of gRPC."""
    return f"{error.code().name} {error.details()}"


def push(gateway: Bridged, session: str, body: bytes = b"1", **metadata: str) -> str:
    """From the gateway's party to the broker's: the answer's code, or the details of the error."""
    request = osx_pb2.PushInbound(topic=topic(session, GUEST, HOST), payload=message(body))
    said = {"x-ptp-session-id": session, "x-ptp-from-node-id": "9999", "x-ptp-target-node-id": "10000"}
    try:
        raw = calling(gateway.osx, f"/{TRANSPORT}/push", request.SerializeToString(), {**said, **metadata})
    except grpc.RpcError as error:
        return told_by(error)
    return str(osx_pb2.TransportOutbound.FromString(raw).code)


def bring(gateway: Bridged, session: str, body: bytes = b"1", named: str | None = None, **changes: str) -> str:
    """What a broker brings; likewise."""
    pushed = osx_pb2.PushInbound(topic=named or topic(session), payload=message(body)).SerializeToString()
    said = {"x-ptp-session-id": session, "x-ptp-target-node-id": "9999", "x-ptp-uri": PUSH_URI}
    said.update({f"x-ptp-{key.replace('_', '-')}": value for key, value in changes.items()})
    inbound = osx_pb2.Inbound(payload=pushed).SerializeToString()
    try:
        raw = calling(gateway.brokers, f"/{PROTOCOL}/invoke", inbound, said)
    except grpc.RpcError as error:
        return told_by(error)
    return str(osx_pb2.Outbound.FromString(raw).code)


def pop(gateway: Bridged, session: str, seconds: float = LONG) -> bytes | None:
    """By the gateway's party, of the broker's."""
    request = osx_pb2.PopInbound(topic=topic(session), timeout=int(seconds * 1000))
    said = {"x-ptp-session-id": session, "x-ptp-from-node-id": "9999"}
    raw = calling(gateway.osx, f"/{TRANSPORT}/pop", request.SerializeToString(), said)
    answer = osx_pb2.TransportOutbound.FromString(raw)
    return None if answer.code == "E0000000601" else bytes(osx_pb2.Message.FromString(answer.payload).body)


def kept(broker: StandIn, session: str) -> list[bytes]:
    """Bodies that wait at the broker."""
    waiting = list(broker.queue_of(session, topic(session, GUEST, HOST)).queue)
    return [bytes(osx_pb2.Message.FromString(each).body) for each in waiting]


# -- good flows ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("size", [3, 200_000, 5 << 20])
def test_what_fates_client_pushes_at_one_is_what_it_pulls_at_the_other(
    gateway: Bridged, session: str, size: int
) -> None:
    guest, host = parties(gateway, session)
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    guest._push_bytes(body, "n", "t", [HOST])
    assert host._pull_bytes("n", "t", [GUEST]) == [body]
    host._push_bytes(body[::-1], "n", "u", [GUEST])
    assert guest._pull_bytes("n", "u", [HOST]) == [body[::-1]]


def test_messages_come_in_the_order_of_their_pushes_and_once(gateway: Bridged, broker: StandIn, session: str) -> None:
    sent = [b"%d" % number * (number * 9000 + 1) for number in range(12)]
    assert {push(gateway, session, each) for each in sent} == {"E0000000000"}
    assert kept(broker, session) == sent
    assert {bring(gateway, session, each) for each in sent} == {"E0000000000"}
    assert [pop(gateway, session) for _ in sent] == sent
    assert pop(gateway, session, 0.2) is None


@pytest.mark.usefixtures("broker")
def test_a_pop_before_the_broker_has_brought_anything_waits_for_it(gateway: Bridged, session: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        popped = pool.submit(pop, gateway, session)
        assert bring(gateway, session, b"late") == "E0000000000"
        assert popped.result(LONG) == b"late"


def test_a_broker_that_is_back_is_found_again(gateway: Bridged, session: str) -> None:
    assert "[FR623]" in push(gateway, session)
    assert gateway.state()["failed"] > 0
    with broker_of(gateway) as back:
        assert push(gateway, session, b"2") == "E0000000000"
        assert kept(back, session) == [b"2"]
        assert gateway.state()["last_error"] == ""


def test_parties_of_a_broker_live_here_no_longer_than_those_of_the_site(gateway: Bridged, session: str) -> None:
    tasks = gateway.sites["a"].status()["tasks"]
    assert bring(gateway, session) == "E0000000000"
    assert pop(gateway, session) == b"1"
    assert gateway.sites["a"].status()["tasks"] == tasks + 2
    calling(gateway.osx, f"/{TRANSPORT}/release", b"", {"x-ptp-session-id": session})
    eventually(lambda: gateway.sites["a"].status()["tasks"] == tasks)


def test_scheduling_calls_go_through_the_broker_and_come_from_it(gateway: Bridged, broker: StandIn) -> None:
    wrapping = pytest.importorskip("ofx.api.utils.grpc_utils", reason="FATE's client is not installed")
    proxy_pb2, packets = wrapping.proxy_pb2, []

    def unary(packet: bytes) -> bytes:
        packets.append(proxy_pb2.Packet.FromString(packet))
        data = proxy_pb2.Data(key="/v2/partner/job/create", value=b'{"code": 0, "message": "there"}')
        return bytes(proxy_pb2.Packet(body=data).SerializeToString())

    broker.unary = unary
    told = call(gateway.front, headers={"Signature": "ab"})
    assert (told.status, told.document) == (200, {"code": 0, "message": "there"})
    (packet,) = packets
    assert (packet.header.dst.partyId, packet.header.dst.role, packet.header.operator) == ("10000", "fateflow", "POST")
    assert packet.body.key == "/v2/partner/job/create"
    assert json.loads(packet.body.value) == body_for("host", "10000")
    assert {name.lower(): value for name, value in json.loads(packet.header.task.model.dataKey).items()} == {
        "service": "fateflow",
        "initiator-party-id": "",
        "signature": "ab",
    }
    gateway.flow.calls.clear()
    assert b'"code": 0' in scheduled(gateway, {"src-party-id": "10000"})
    (seen,) = gateway.flow.calls
    assert (seen.path, seen.body) == ("/v2/partner/job/create", json.dumps(body_for("guest", "9999")).encode())


def scheduled(gateway: Bridged, headers: dict[str, str]) -> bytes:
    """A call that a broker brings, by FATE's packet."""
    wrapping = pytest.importorskip("ofx.api.utils.grpc_utils", reason="FATE's client is not installed")
    path, body = "/v2/partner/job/create", body_for("guest", "9999")
    packet = wrapping.wrap_proxy_grpc_packet(body, "POST", path, "10000", "9999", "1", headers)
    return calling(gateway.brokers, f"/{DATA_TRANSFER}/unaryCall", packet.SerializeToString(), {})


# -- bad flows ----------------------------------------------------------------------------------------------------


def test_a_party_that_the_broker_does_not_know_is_told_to_who_pushes(
    gateway: Bridged, broker: StandIn, session: str
) -> None:
    broker.parties = ("11111",)
    told = push(gateway, session)
    assert told.startswith("ABORTED [FR623]")
    assert "can not found router info" in told


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target_node_id": "11111"}, "FR621"),
        ({"session_id": "another"}, "FR621"),
        ({"source_node_id": "12"}, "FR621"),
        ({"uri": "grpcs://fedai.org/org.ppc.ptp.PrivateTransferTransport/pop"}, "FR621"),
        ({"uri": ""}, "FR621"),
        ({"named": "{}-host-10000-guest-11111-x", "target_node_id": "11111"}, "FR602"),
        ({"named": "{}-guest-9999-host-9999-x"}, "FR602"),
        ({"named": "{}-host-12-guest-9999-x"}, "FR602"),
        ({"named": "{}-host-10000-host-10000-x", "target_node_id": "10000"}, "FR602"),
    ],
)
def test_what_a_broker_may_not_bring_is_refused_with_a_code_and_not_kept(
    gateway: Bridged, session: str, changes: dict[str, str], code: str
) -> None:
    given = {key: value.format(session) for key, value in changes.items()}
    assert f"[{code}]" in bring(gateway, session, **given)
    assert pop(gateway, session, 0.1) is None


@pytest.mark.parametrize("raw", [b"", b"\xff", b"\x12\x02\xff\xff", b"\x12\x00"])
def test_what_is_no_message_of_a_broker_is_refused_with_a_code(gateway: Bridged, session: str, raw: bytes) -> None:
    said = {"x-ptp-session-id": session, "x-ptp-target-node-id": "9999", "x-ptp-uri": PUSH_URI}
    with pytest.raises(grpc.RpcError, match=r"\[FR621\]"):
        calling(gateway.brokers, f"/{PROTOCOL}/invoke", raw, said)


@pytest.mark.parametrize("method", ["push", "pop", "peek", "release"])
def test_a_broker_reaches_no_queue_of_the_sites_own_clients(gateway: Bridged, session: str, method: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        calling(gateway.brokers, f"/{TRANSPORT}/{method}", b"", {"x-ptp-session-id": session})
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["pop", "peek", "push"])
def test_a_client_of_this_site_acts_for_no_party_of_the_brokers(gateway: Bridged, session: str, method: str) -> None:
    source, destination = (HOST, GUEST) if method == "push" else (GUEST, HOST)
    said = {"x-ptp-session-id": session, "x-ptp-from-node-id": "10000", "x-ptp-target-node-id": "9999"}
    request = osx_pb2.PushInbound(topic=topic(session, source, destination), payload=message(b"1"))
    if method != "push":
        request = osx_pb2.PopInbound(topic=topic(session, source, destination), timeout=100)
    with pytest.raises(grpc.RpcError, match=r"\[FR602\]"):
        calling(gateway.osx, f"/{TRANSPORT}/{method}", request.SerializeToString(), said)


def test_a_call_in_the_name_of_a_party_that_is_not_the_brokers_reaches_no_fate_flow(gateway: Bridged) -> None:
    gateway.flow.calls.clear()
    with pytest.raises(grpc.RpcError, match=r"\[FR602\]"):
        scheduled(gateway, {"src-party-id": "9999"})
    assert not gateway.flow.calls


def test_a_push_that_came_to_nothing_later_costs_a_broker_none_of_its_next_ones(gateway: Bridged, session: str) -> None:
    runner: Any = gateway.sites.runner
    sessions = runner.gateways["a"]._assembly.context.mailbox.sessions
    assert bring(gateway, session, b"1") == "E0000000000"
    key = MessageKey(session, "x", "osx queue #0", Party(*HOST), Party(*GUEST))
    lost = GatewayError(ErrorCode.MESSAGE_LOST, "it was here, and is lost")

    async def fail() -> None:
        sessions.push_failed(key, lost)

    runner.run(fail())
    assert bring(gateway, session, b"2") == "E0000000000"
    assert [pop(gateway, session) for _ in range(2)] == [b"1", b"2"]


def test_a_push_of_a_broker_that_finds_no_room_is_told_to_who_pops_and_none_is_taken_for_it(
    gateway: Bridged, session: str
) -> None:
    assert bring(gateway, session, b"1") == "E0000000000"
    # the send region has 8 MiB
    assert "[FR402]" in bring(gateway, session, bytes(9 << 20))
    assert bring(gateway, session, b"3") == "E0000000000"

    assert pop(gateway, session) == b"1"
    with pytest.raises(grpc.RpcError, match=r"\[FR402\].*the OSX broker of b has brought it"):
        pop(gateway, session)
    assert pop(gateway, session) == b"3"


def test_a_pop_that_waits_is_told_of_the_push_that_finds_no_room(gateway: Bridged, session: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pop, gateway, session)
        eventually(lambda: waits(gateway, session), LONG)
        assert "[FR402]" in bring(gateway, session, bytes(9 << 20))

        with pytest.raises(grpc.RpcError, match=r"\[FR402\]"):
            waiting.result()


def told_to_a_pop(gateway: Bridged, session: str, refused: Callable[[], str]) -> str:
    """What a pop that waits is told of a push that is refused, and the push; the next push is for the next pop."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pop, gateway, session)
        eventually(lambda: waits(gateway, session), LONG)
        to_the_broker = refused()
        with pytest.raises(grpc.RpcError) as told:
            waiting.result(LONG)
    assert bring(gateway, session, b"next") == "E0000000000"
    assert pop(gateway, session) == b"next"
    assert "the OSX broker of b has brought it" in told_by(told.value)
    return f"{to_the_broker}; {told_by(told.value)}"


@pytest.mark.parametrize(("limit", "most"), [("MOST_PUSHES", 0), ("MOST_PUSH_BYTES", 10)])
def test_a_pop_that_waits_is_told_of_a_push_that_is_refused_before_anybody_reads_it(
    gateway: Bridged, session: str, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    def refused() -> str:
        with monkeypatch.context() as patch:
            patch.setattr(room, limit, most)
            return bring(gateway, session, topic=topic(session))

    told = told_to_a_pop(gateway, session, refused)
    assert told.count("[FR610]") == 2


def test_a_pop_that_waits_is_told_of_a_push_that_is_not_sent_to_its_end(
    gateway: Bridged, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(LONG)
        yield from ()

    def refused() -> str:
        said = {"session-id": session, "target-node-id": "9999", "uri": PUSH_URI, "topic": topic(session)}
        with monkeypatch.context() as patch, grpc.insecure_channel(f"127.0.0.1:{gateway.brokers}") as channel:
            patch.setattr(transport, "MOST_SECONDS", 0.1)
            half: Any = channel.stream_unary(f"/{PROTOCOL}/invoke")
            call = half.future(nothing(), metadata=tuple((f"x-ptp-{name}", value) for name, value in said.items()))
            error = call.exception(LONG)
            never.set()
            return told_by(error)

    told = told_to_a_pop(gateway, session, refused)
    assert told.startswith("CANCELLED")
    assert "[FR623]" in told


@pytest.mark.parametrize(
    "named",
    [
        lambda _session: {},
        lambda session: {"topic": topic(session, ("host", "4711"))},
        lambda session: {"topic": topic(session, GUEST, GUEST)},
        lambda session: {"topic": topic(f"{session}-another")},
        lambda session: {"topic": topic(session, HOST, HOST)},
    ],
    ids=["none", "of a stranger", "of the site's own", "of another session", "for the broker's"],
)
def test_a_push_that_is_refused_unread_and_names_no_queue_of_the_brokers_breaks_none(
    gateway: Bridged, session: str, monkeypatch: pytest.MonkeyPatch, named: Callable[[str], dict[str, str]]
) -> None:
    before = places(gateway)
    with monkeypatch.context() as patch:
        patch.setattr(room, "MOST_PUSHES", 0)
        assert "[FR610]" in bring(gateway, session, **named(session))
    assert places(gateway) == before
    assert bring(gateway, session, b"1") == "E0000000000"
    assert pop(gateway, session) == b"1"


def test_a_push_that_is_refused_unread_comes_behind_those_of_its_queue_that_are_under_way(
    gateway: Bridged, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, go, begun = queues.Queues.begin_push, threading.Event(), threading.Event()

    async def wait(self: Any, queue: Any, total_bytes: int) -> Any:
        made = await begin(self, queue, total_bytes)
        begun.set()
        while not go.is_set():
            await asyncio.sleep(0.02)
        return made

    monkeypatch.setattr(queues.Queues, "begin_push", wait)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(bring, gateway, session, b"z" * 100_000)
        assert begun.wait(LONG)
        with monkeypatch.context() as patch:
            patch.setattr(room, "MOST_PUSHES", 0)
            assert "[FR610]" in bring(gateway, session, topic=topic(session))
        go.set()
        assert first.result(LONG) == "E0000000000"

    assert pop(gateway, session) == b"z" * 100_000
    with pytest.raises(grpc.RpcError, match=r"\[FR610\].*the OSX broker of b has brought it"):
        pop(gateway, session)


def waits(gateway: Bridged, session: str) -> bool:
    """Whether a pop of it waits."""
    runner: Any = gateway.sites.runner
    mailbox = runner.gateways["a"]._assembly.context.mailbox
    return any(key.session == session for key in list(mailbox.awaited_keys()))


def test_what_a_broker_brings_counts_as_its_own_and_leaves_the_site_its_room(tmp_path: Path, session: str) -> None:
    with bridged(tmp_path, limits={"messages": 2, "session_messages": 2}) as made:
        assert [bring(made, session) for _ in range(2)] == ["E0000000000"] * 2
        assert "RESOURCE_EXHAUSTED [FR610] 2 messages from the OSX broker of b wait here" in bring(made, session)
        assert [here(made, session) for _ in range(2)] == ["E0000000000"] * 2
        assert "[FR610] 2 messages from tasks of user" in here(made, session)

        # of it nothing can be kept, for there is no room: then whoever waits for more is told
        assert [pop(made, session) for _ in range(2)] == [b"1", b"1"]
        assert bring(made, session, b"4") == "E0000000000"
        with pytest.raises(grpc.RpcError, match=r"\[FR610\]"):
            pop(made, session)


def test_a_broker_that_has_no_room_takes_no_places_of_queues_by_what_is_refused(tmp_path: Path, session: str) -> None:
    with bridged(tmp_path, limits={"messages": 2, "session_messages": 2}) as made:
        assert [bring(made, session) for _ in range(2)] == ["E0000000000"] * 2
        before = places(made)
        for number in range(5):
            assert "[FR610]" in bring(made, session, named=f"{topic(session)}{number}")
            assert "[FR610]" in bring(made, f"{session}-{number}")
        assert places(made) == before

        # who pops is told all the same; and when there is room, the next one is brought
        with pytest.raises(grpc.RpcError, match=r"\[FR610\]"):
            pop(made, f"{session}-0")
        assert pop(made, session) == b"1"
        assert bring(made, f"{session}-0", b"2") == "E0000000000"
        assert pop(made, f"{session}-0") == b"2"


def test_with_half_of_the_queues_named_a_broker_begins_no_other_and_the_site_does(
    gateway: Bridged, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bring(gateway, session, b"1") == "E0000000000"
    monkeypatch.setattr(queue_numbers, "MOST_BROKER_QUEUES", places(gateway))

    assert "[FR610]" in bring(gateway, session, named=f"{topic(session)}y")
    assert here(gateway, session) == "E0000000000"
    assert bring(gateway, session, b"2") == "E0000000000"
    assert [pop(gateway, session) for _ in range(2)] == [b"1", b"2"]


def places(gateway: Bridged) -> int:
    """Of ends of queues that the gateway remembers."""
    runner: Any = gateway.sites.runner

    async def asked() -> int:
        return sum(1 for _ in runner.gateways["a"]._assembly.context.mailbox.sessions.queues.records())

    return int(runner.run(asked()))


def here(gateway: Bridged, session: str) -> str:
    """A push from one party of the site to another."""
    request = osx_pb2.PushInbound(topic=topic(session, GUEST, ("arbiter", "9999")), payload=message(b"1"))
    said = {"x-ptp-session-id": session, "x-ptp-from-node-id": "9999", "x-ptp-target-node-id": "9999"}
    try:
        raw = calling(gateway.osx, f"/{TRANSPORT}/push", request.SerializeToString(), said)
    except grpc.RpcError as error:
        return told_by(error)
    return str(osx_pb2.TransportOutbound.FromString(raw).code)


def test_a_broker_that_begins_scheduling_calls_and_sends_none_has_few_read_and_holds_up_its_own_alone(
    gateway: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_front, "READING_SECONDS", 0.2)
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    def refused() -> bool:
        try:
            scheduled(gateway, {"src-party-id": "10000"})
        except grpc.RpcError as error:
            return "[FR610]" in told_by(error)
        return False

    with grpc.insecure_channel(f"127.0.0.1:{gateway.brokers}") as channel:
        begin = channel.stream_unary(f"/{DATA_TRANSFER}/unaryCall")
        begun = [begin.future(nothing()) for _ in range(broker_front.MOST_READING)]
        eventually(refused, LONG)
        for each in begun:
            each.cancel()
        over.set()
        eventually(lambda: not refused(), LONG)


def test_a_call_for_a_broker_that_is_away_is_answered_with_a_code(gateway: Bridged) -> None:
    told = call(gateway.front)
    assert told.status >= 500
    assert "FR623" in json.dumps(told.document)


def test_of_two_calls_that_connect_at_once_one_channel_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = brokers.Broker("b", "127.0.0.1:1", None)
    made = list[_Channel]()

    def connect(*_: object) -> _Channel:
        made.append(channel := _Channel())
        if len(made) == 1:
            # the other one is faster
            assert broker._get_channel() is made[1]
        return channel

    monkeypatch.setattr(brokers.grpc, "insecure_channel", connect)
    assert broker._get_channel() is made[1]
    assert [channel.is_closed for channel in made] == [True, False]
    broker.close()
    assert made[1].is_closed


@dataclasses.dataclass
class _Channel:
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


def test_an_answer_that_is_far_too_long_is_not_read_into_memory(
    gateway: Bridged, broker: StandIn, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    long = bytes(MOST_PACKET_BYTES + 1)
    broker.unary = lambda _packet: long
    told = call(gateway.front)
    assert told.status >= 500
    assert "FR623" in json.dumps(told.document)
    monkeypatch.setattr(broker, "invoke", lambda _raw, _context: long)
    assert push(gateway, session).startswith("ABORTED [FR623]")
    assert "RESOURCE_EXHAUSTED" in gateway.state()["last_error"]


def test_a_broker_that_names_very_many_parties_costs_none_of_this_site_its_life(
    gateway: Bridged, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MOST_MEMBERS", 3)
    assert pop(gateway, session, 0.1) is None
    numbers = iter(range(queues.MOST_ENDS))

    def another_is_named() -> None:
        named = topic(session, (f"role{next(numbers)}", "10000"))
        assert bring(gateway, session, named=named) == "E0000000000"

    another_is_named()
    # those of earlier tests go first
    while lives(gateway, session, ("role0", "10000")):
        another_is_named()
    assert lives(gateway, session, GUEST)


def lives(gateway: Bridged, session: str, who: tuple[str, str]) -> bool:
    runner: Any = gateway.sites.runner
    presence = runner.gateways["a"]._assembly.tasks.sessions.presence
    return Party(*who) in presence.tasks(session)


@pytest.mark.usefixtures("broker")
def test_a_message_that_no_broker_keeps_is_refused_before_it_is_sent(
    gateway: Bridged, broker: StandIn, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "MOST_BROKER_BYTES", 1000)
    assert push(gateway, session, bytes(2000)).startswith("RESOURCE_EXHAUSTED [FR402]")
    assert kept(broker, session) == []


def test_a_broker_that_goes_away_while_it_takes_a_message_is_told_and_nothing_is_sent_twice(
    gateway: Bridged, session: str
) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def hold(_context: grpc.ServicerContext) -> None:
        arrived.set()
        go_on.wait(LONG)
        raise ConnectionAbortedError

    with ThreadPoolExecutor(1) as pool:
        with broker_of(gateway) as dying:
            dying.before = hold
            pushed = pool.submit(push, gateway, session, bytes(100_000))
            assert arrived.wait(LONG)
        told = pushed.result(LONG)
        go_on.set()
    assert told.startswith("ABORTED [FR623]")
    assert gateway.state()["last_error"]
    with broker_of(gateway) as back:
        assert push(gateway, session, b"next") == "E0000000000"
        assert kept(back, session) == [b"next"]


def test_a_message_whose_broker_goes_away_while_it_brings_it_is_not_kept_and_the_next_one_comes(
    gateway: Bridged, session: str
) -> None:
    pushed = osx_pb2.PushInbound(topic=topic(session), payload=message(bytes(1 << 20))).SerializeToString()
    said = (("x-ptp-session-id", session), ("x-ptp-target-node-id", "9999"), ("x-ptp-uri", PUSH_URI))
    inbound = osx_pb2.Inbound(payload=pushed).SerializeToString()
    # half of a message: what is between two reads of a socket
    with pytest.raises(grpc.RpcError):
        calling(gateway.brokers, f"/{PROTOCOL}/invoke", inbound[: len(inbound) // 2], dict(said))
    stopped = threading.Event()

    def requests() -> Iterator[bytes]:
        stopped.wait(LONG)
        yield inbound

    with grpc.insecure_channel(f"127.0.0.1:{gateway.brokers}") as channel:
        begun = channel.stream_unary(f"/{PROTOCOL}/invoke").future(requests(), metadata=said)
        begun.cancel()
        stopped.set()
    assert bring(gateway, session, b"whole") == "E0000000000"
    assert pop(gateway, session) == b"whole"
    assert pop(gateway, session, 0.1) is None


def test_a_client_that_goes_away_ends_its_call_at_the_broker(gateway: Bridged, session: str) -> None:
    arrived, gone = threading.Event(), threading.Event()

    def hold(context: grpc.ServicerContext) -> None:
        context.add_callback(gone.set)
        arrived.set()
        gone.wait(LONG)

    with broker_of(gateway) as held:
        held.before = hold
        request = osx_pb2.PushInbound(topic=topic(session, GUEST, HOST), payload=message(b"1")).SerializeToString()
        said = (("x-ptp-session-id", session), ("x-ptp-from-node-id", "9999"), ("x-ptp-target-node-id", "10000"))
        with grpc.insecure_channel(f"127.0.0.1:{gateway.osx}") as channel:
            pushed = channel.unary_unary(f"/{TRANSPORT}/push").future(request, metadata=said)
            assert arrived.wait(LONG)
            pushed.cancel()
            assert gone.wait(LONG)
        held.before = lambda _context: None
        assert push(gateway, session, b"2") == "E0000000000"


def test_a_task_of_the_other_engine_is_told_by_its_first_put_to_a_party_of_a_broker(
    gateway: Bridged, session: str
) -> None:
    with gateway.sites["a"].client(session, "guest:9999") as task, pytest.raises(GatewayError) as refused:
        task.put_inline("n", "t", [Party(*HOST)], "bytes", b"1")
    assert refused.value.code is ErrorCode.ENGINES_MIXED


def _something(port: int, kind: str) -> Callable[[], object]:
    """What listens there, and is no broker."""
    if kind == "grpc":
        server = grpc.server(ThreadPoolExecutor(1))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        return lambda: server.stop(None).wait()
    listening = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()

    def end() -> None:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(LONG)

    return end


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_what_is_marked_as_a_broker_and_is_none_is_told_to_who_pushes(
    gateway: Bridged, session: str, kind: str
) -> None:
    end = _something(gateway.broker, kind)
    try:
        assert "ABORTED [FR623]" in push(gateway, session)
    finally:
        end()


def test_a_gateway_that_is_marked_as_a_broker_is_told_to_who_pushes(tmp_path: Path, session: str) -> None:
    with start_gateways({"b": ["10000"]}, tmp_path / "b") as other:
        peer = {"address": other["b"].config["listen"]["control"]}
        with bridged(tmp_path / "a", peer) as made:
            assert "ABORTED [FR623]" in push(made, session)


def test_a_broker_that_is_not_marked_so_is_told_in_the_status_with_what_to_do(tmp_path: Path) -> None:
    (port,) = ports_of_this_process(1)
    peer = {"site": "b", "parties": ["10000"], "address": f"127.0.0.1:{port}"}
    with (
        stand_in(("10000",), {}, port),
        start_gateways({"a": ["9999"]}, tmp_path, strangers=[peer], connected=False) as sites,
    ):
        eventually(lambda: "kind: osx" in sites["a"].status()["peers"][0]["last_error"], LONG)


# -- certificates -------------------------------------------------------------------------------------------------


def test_with_certificates_both_know_each_other_and_another_site_is_refused(tmp_path: Path, session: str) -> None:
    authority = TestAuthority(tmp_path / "tls")
    pairs = {name: authority.issue(name) for name in ("b", "c")}
    root = authority.path.read_bytes()

    def channel_of(name: str) -> Callable[[str], grpc.Channel]:
        made = grpc.ssl_channel_credentials(root, pairs[name].key_pem, pairs[name].certificate_pem)
        options = [("grpc.ssl_target_name_override", "gateway.fedrdma.invalid")]
        return lambda address: grpc.secure_channel(address, made, options)

    def server_of(name: str) -> grpc.ServerCredentials:
        pair = [(pairs[name].key_pem, pairs[name].certificate_pem)]
        return grpc.ssl_server_credentials(pair, root, require_client_auth=True)

    with bridged(tmp_path, authority=authority) as made:
        with broker_of(made, credentials=server_of("b"), connect=channel_of("b")):
            assert push(made, session, b"1") == "E0000000000"
            assert by_client(made, session) == "E0000000000"
            assert pop(made, session) == b"brought"
        with broker_of(made, credentials=server_of("c"), connect=channel_of("c")) as another:
            assert "[FR623]" in push(made, session, b"2")
            # who it is now was not asked for the call that found the connection gone
            assert "'c', not of 'b'" in push(made, session, b"3")
            assert kept(another, session) == []
        said = (("x-ptp-session-id", session), ("x-ptp-target-node-id", "9999"), ("x-ptp-uri", PUSH_URI))
        pushed = osx_pb2.PushInbound(topic=topic(session), payload=message(b"1")).SerializeToString()
        inbound = osx_pb2.Inbound(payload=pushed).SerializeToString()
        with channel_of("c")(f"127.0.0.1:{made.brokers}") as stranger:
            for method, raw in ((f"/{PROTOCOL}/invoke", inbound), (f"/{DATA_TRANSFER}/unaryCall", b"")):
                with pytest.raises(grpc.RpcError, match=r"\[FR621\]"):
                    stranger.unary_unary(method)(raw, timeout=LONG, metadata=said)
        assert bring(made, session).startswith("UNAVAILABLE")
        assert pop(made, session, 0.1) is None


def by_client(gateway: Bridged, session: str) -> str:
    """A push of the broker's own client, which the broker hands on: the code of the answer."""
    request = osx_pb2.PushInbound(topic=topic(session), payload=message(b"brought")).SerializeToString()
    options = [("grpc.ssl_target_name_override", "gateway.fedrdma.invalid")]
    authority = gateway.sites["a"].config["tls"]["authorities"][0]
    directory = Path(authority).parent
    made = grpc.ssl_channel_credentials(
        Path(authority).read_bytes(), (directory / "b.key").read_bytes(), (directory / "b.pem").read_bytes()
    )
    said = (("x-ptp-session-id", session), ("x-ptp-from-node-id", "10000"), ("x-ptp-target-node-id", "9999"))
    with grpc.secure_channel(f"127.0.0.1:{gateway.broker}", made, options) as channel:
        raw = channel.unary_unary(f"/{TRANSPORT}/push")(request, timeout=LONG, metadata=said)
    return str(osx_pb2.TransportOutbound.FromString(raw).code)
