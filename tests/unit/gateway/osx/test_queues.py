"""OSX's queues, by FATE's own client against two gateways.

More than 500 lines: every flow of a queue, good and bad, by the same calls against the same gateways.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrdma_fate.gateway.flow import call_watch, packet
from fedrdma_fate.gateway.messages import queue_numbers, sessions
from fedrdma_fate.gateway.osx import queues, requests, room, transport
from fedrdma_fate.gateway.osx.transport import SERVICE
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import Inline, MessageKey, Party, Undeliverable
from tests.support.flow import SECONDS, FlowSites, flow_sites
from tests.support.ports import ports_of_this_process
from tests.support.sites import eventually, start_gateways

federation = pytest.importorskip("fate.arch.federation.backends.osx._federation", reason="FATE is not installed")
osx_pb2 = pytest.importorskip("fate.arch.federation.backends.osx.osx_pb2", reason="FATE is not installed")

GUEST, HOST, ARBITER = ("guest", "9999"), ("host", "10000"), ("arbiter", "10000")
LAYOUT = {"a": ["9999"], "b": ["10000"]}
SITE = {GUEST: "a", HOST: "b", ARBITER: "b"}
LONG = 60.0
"""For what has to happen on a loaded machine."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowSites]:
    with flow_sites(tmp_path_factory.mktemp("sites"), LAYOUT) as made:
        yield made


_sessions = iter(range(10**6))


@pytest.fixture
def session() -> str:
    """With all that a session may have in its name."""
    return f"2024-01/job_{next(_sessions)}-fed"


def party(two: FlowSites, session: str, who: tuple[str, str], most: int | None = None) -> Any:
    mq = federation.MQ("127.0.0.1", two.port(SITE[who], "osx"))
    return federation.OSXFederation(session, None, who, [GUEST, HOST, ARBITER], most, mq)


def call(two: FlowSites, site: str, method: str, request: Any, timeout: float = LONG, **metadata: str) -> Any:
    """One call as FATE makes it; keywords are metadata."""
    with _calling(two, site, method, request, timeout, metadata) as future:
        return osx_pb2.TransportOutbound.FromString(future.result())


@contextlib.contextmanager
def _calling(
    two: FlowSites, site: str, method: str, request: Any, timeout: float, metadata: dict[str, str]
) -> Iterator[Any]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{two.port(site, 'osx')}", options) as channel:
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        named = tuple((f"x-ptp-{key.replace('_', '-')}", value) for key, value in metadata.items())
        yield channel.unary_unary(f"/{SERVICE}/{method}").future(raw, timeout=timeout, metadata=named)


def topic(session: str, name: str = "x") -> str:
    return f"{session}-guest-9999-host-10000-{name}"


def message(body: bytes = b"1") -> Any:
    return osx_pb2.Message(head=json.dumps({"message_id": "x"}).encode(), body=body)


def push_request(session: str, body: bytes, name: str = "x") -> Any:
    return osx_pb2.PushInbound(topic=topic(session, name), payload=message(body).SerializeToString())


def pushing(session: str) -> dict[str, str]:
    return {"session_id": session, "from_node_id": "9999", "target_node_id": "10000"}


def push(two: FlowSites, session: str, body: bytes, name: str = "x", **metadata: str) -> Any:
    return call(two, "a", "push", push_request(session, body, name), **{**pushing(session), **metadata})


def pop_request(session: str, seconds: float = LONG, name: str = "x") -> Any:
    return osx_pb2.PopInbound(topic=topic(session, name), timeout=int(seconds * 1000))


def pop(two: FlowSites, session: str, seconds: float = LONG, name: str = "x") -> Any:
    return call(two, "b", "pop", pop_request(session, seconds, name), session_id=session, from_node_id="10000")


def body_of(answer: Any) -> bytes:
    assert answer.code == "E0000000000"
    return bytes(osx_pb2.Message.FromString(answer.payload).body)


def waiting(two: FlowSites, site: str = "b") -> int:
    gateways: Any = two.sites.runner
    return int(gateways.gateways[site]._assembly.context.mailbox.waiting_pulls)


# -- good flows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 65_500, 65_536, 70_000, 3_000_000])
def test_what_fates_client_pushes_is_what_it_pulls(two: FlowSites, session: str, size: int) -> None:
    body = os.urandom(size)
    party(two, session, GUEST)._push_bytes(body, "a-name/with-all", "tag.0", [HOST])
    assert party(two, session, HOST)._pull_bytes("a-name/with-all", "tag.0", [GUEST]) == [body]


def test_a_pop_before_its_push_waits_for_it(two: FlowSites, session: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(party(two, session, HOST)._pull_bytes, "early", "t", [GUEST])
        eventually(lambda: waiting(two) > 0, SECONDS)
        party(two, session, GUEST)._push_bytes(b"late", "early", "t", [HOST])
        assert pulled.result(LONG) == [b"late"]


def test_a_queue_keeps_the_order_of_its_pushes_whatever_their_sizes(two: FlowSites, session: str) -> None:
    sizes = [1, 200_000, 2, 70_000, 3, 1_000_000, 4]
    sender, receiver = party(two, session, GUEST), party(two, session, HOST)
    for number, size in enumerate(sizes):
        sender._push_bytes(bytes([number]) * size, "n", f"t{number}", [HOST])
    for number, size in reversed(list(enumerate(sizes))):
        assert receiver._pull_bytes("n", f"t{number}", [GUEST]) == [bytes([number]) * size]


def test_parties_of_one_site_reach_each_other(two: FlowSites, session: str) -> None:
    party(two, session, HOST)._push_bytes(b"x" * 100_000, "n", "t", [ARBITER])
    assert party(two, session, ARBITER)._pull_bytes("n", "t", [HOST]) == [b"x" * 100_000]


def test_a_large_message_arrives_as_it_was(two: FlowSites, session: str) -> None:
    body = os.urandom(5_000_000)
    push(two, session, body)
    assert hashlib.sha256(body_of(pop(two, session))).digest() == hashlib.sha256(body).digest()


def test_a_pop_of_nothing_ends_with_the_code_that_fate_knows(two: FlowSites, session: str) -> None:
    assert pop(two, session, 0.2).code == "E0000000601"
    push(two, session, b"then")
    assert body_of(pop(two, session)) == b"then"


def test_a_peek_leaves_the_message_to_the_next_pop(two: FlowSites, session: str) -> None:
    def peek() -> Any:
        request = osx_pb2.PeekInbound(topic=topic(session))
        return call(two, "b", "peek", request, session_id=session, from_node_id="10000")

    assert peek().code == "E0000000601"
    push(two, session, b"y" * 100_000)
    eventually(lambda: peek().code == "E0000000000", SECONDS)
    assert body_of(peek()) == b"y" * 100_000
    assert body_of(pop(two, session)) == b"y" * 100_000


def test_two_pops_of_one_topic_get_one_message_each(two: FlowSites, session: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        popped = [pool.submit(pop, two, session) for _ in range(2)]
        eventually(lambda: waiting(two) > 0, SECONDS)
        push(two, session, b"1")
        push(two, session, b"2")
        assert sorted(body_of(each.result(LONG)) for each in popped) == [b"1", b"2"]


def test_a_message_of_a_pop_whose_client_has_died_goes_to_the_next(two: FlowSites, session: str) -> None:
    given = {"session_id": session, "from_node_id": "10000"}
    before = waiting(two)
    with _calling(two, "b", "pop", pop_request(session), LONG, given) as dying:
        eventually(lambda: waiting(two) == before + 1, SECONDS)
        dying.cancel()
    eventually(lambda: waiting(two) == before, SECONDS)
    push(two, session, b"kept")
    assert body_of(pop(two, session)) == b"kept"


def test_a_release_takes_no_messages_from_the_others_of_its_site(two: FlowSites, session: str) -> None:
    party(two, session, GUEST)._push_bytes(b"h", "n", "t", [HOST])
    party(two, session, GUEST)._push_bytes(b"a", "n", "t", [ARBITER])
    host, arbiter = party(two, session, HOST), party(two, session, ARBITER)
    assert host._pull_bytes("n", "t", [GUEST]) == [b"h"]
    host.destroy()
    assert arbiter._pull_bytes("n", "t", [GUEST]) == [b"a"]
    arbiter.destroy()


def test_a_release_in_the_middle_of_a_pop_and_before_a_push_loses_nothing(two: FlowSites, session: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        popped = pool.submit(pop, two, session)
        eventually(lambda: waiting(two) > 0, SECONDS)
        for site in ("a", "b"):
            call(two, site, "release", osx_pb2.ReleaseInbound(), session_id=session)
        push(two, session, b"still")
        assert body_of(popped.result(LONG)) == b"still"


def test_released_parties_live_here_no_longer(two: FlowSites, session: str) -> None:
    gateways: Any = two.sites.runner
    presence = gateways.gateways["a"]._assembly.tasks.sessions.presence
    push(two, session, b"1")
    assert presence.has_tasks(session)
    call(two, "a", "release", osx_pb2.ReleaseInbound(), session_id=session)
    assert not presence.has_tasks(session)


def test_queues_go_on_where_they_were_when_all_their_messages_are_forgotten_and_they_are_found_anew(
    two: FlowSites, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_REMEMBERED", 4)
    monkeypatch.setattr(queues, "MOST_ENDS", 1)
    for number in range(12):
        push(two, session, b"%d" % number)
        assert body_of(pop(two, session)) == b"%d" % number
    # takes the place of the first one, and its messages those of it
    for _ in range(8):
        push(two, session, b"other", "y")
        assert body_of(pop(two, session, name="y")) == b"other"
    push(two, session, b"12")
    assert body_of(pop(two, session)) == b"12"


def test_a_push_that_is_given_up_while_it_is_made_keeps_its_number_from_the_next(
    two: FlowSites, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(two, session, b"first")
    reply = queues._reply

    async def given_up(conversation: Any, request: Any) -> Any:
        await reply(conversation, request)
        raise asyncio.CancelledError

    monkeypatch.setattr(queues, "_reply", given_up)
    assert refusal(two, "a", "push", push_request(session, b"gone, or not"), **pushing(session))
    monkeypatch.undo()
    push(two, session, b"last")
    assert [body_of(pop(two, session)) for _ in range(3)] == [b"first", b"gone, or not", b"last"]


# -- bad input ----------------------------------------------------------------------------------------------------


def refusal(two: FlowSites, site: str, method: str, request: Any, **metadata: str) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        call(two, site, method, request, **metadata)
    return str(refused.value.details())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"session_id": ""}, "FR621"),
        ({"session_id": "another"}, "FR621"),
        ({"session_id": "s" * 2000}, "FR621"),
        ({"from_node_id": "10000"}, "FR621"),
        ({"from_node_id": ""}, "FR621"),
        ({"target_node_id": "4711"}, "FR621"),
        ({"topic": ""}, "FR621"),
        ({"topic": "s"}, "FR621"),
        ({"topic": "s-guest-9999-host-10000"}, "FR621"),
        ({"topic": "s-guest-9999-host-10000-" + "n" * 1500}, "FR610"),
        ({"topic": "s-guest-9999-host-10000-" + "n" * 5000}, "FR621"),
        ({"topic": "s-guest-9999-host-4711-n", "target_node_id": "4711"}, "FR602"),
        ({"topic": "s-host-10000-guest-9999-n", "from_node_id": "10000", "target_node_id": "9999"}, "FR602"),
        ({"payload": b""}, "FR621"),
        ({"payload": b"\xff" * 100}, "FR621"),
        ({"payload": b"\x12\x05[1,2]"}, "FR621"),
        ({"payload": b'\x12\x03{"a'}, "FR621"),
        ({"payload": b"\x12\x80\x80\x08" + b" " * (1 << 17)}, "FR621"),
    ],
)
def test_a_push_that_is_none_is_refused_with_a_code(two: FlowSites, changes: dict[str, Any], code: str) -> None:
    given: dict[str, Any] = {
        "session_id": "s",
        "from_node_id": "9999",
        "target_node_id": "10000",
        "topic": "s-guest-9999-host-10000-n",
        "payload": message().SerializeToString(),
        **changes,
    }
    inbound = osx_pb2.PushInbound(topic=given.pop("topic"), payload=given.pop("payload"))
    assert f"[{code}]" in refusal(two, "a", "push", inbound, **{key: value for key, value in given.items() if value})


@pytest.mark.parametrize("raw", [b"", b"\xff" * 30, b"\x0a\xff", b"\x0a\x01\xff", bytes(100)], ids=range(5))
@pytest.mark.parametrize("method", ["push", "pop", "peek"])
def test_what_is_no_request_is_refused_with_a_code(two: FlowSites, method: str, raw: bytes) -> None:
    metadata = {"session_id": "s", "from_node_id": "9999", "target_node_id": "10000"}
    assert "[FR621]" in refusal(two, "a", method, raw, **metadata)


@pytest.mark.parametrize("method", ["pop", "peek", "release"])
def test_a_long_request_without_a_payload_is_refused_before_it_is_looked_at(two: FlowSites, method: str) -> None:
    raw = osx_pb2.PopInbound(topic=topic("s")).SerializeToString() + b"\x18\x01" * (requests.MOST_HEAD_BYTES // 2)
    told = refusal(two, "b", method, raw, session_id="s", from_node_id="10000")
    assert "[FR621]" in told
    assert f"{len(raw)} bytes" in told


def test_a_release_without_a_session_is_refused(two: FlowSites) -> None:
    assert "[FR621]" in refusal(two, "a", "release", b"")


def test_a_pop_of_a_party_of_another_site_is_refused(two: FlowSites) -> None:
    request = osx_pb2.PopInbound(topic="s-guest-9999-host-10000-n", timeout=1000)
    assert "[FR602]" in refusal(two, "a", "pop", request, session_id="s", from_node_id="10000")


def test_a_push_that_is_broken_off_leaves_nothing_and_the_next_one_is_served(
    two: FlowSites, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gone = threading.Event(), threading.Event()
    read, note_over = transport.requests.pushed, transport._Call._over

    def slow(request: memoryview) -> Any:
        begun.set()
        assert gone.wait(LONG)
        return read(request)

    def told(call: Any) -> None:
        note_over(call)
        # that of an earlier call may come late
        if call.metadata.get("x-ptp-session-id") == session:
            gone.set()

    given = {"session_id": session, "from_node_id": "9999", "target_node_id": "10000"}
    inbound = osx_pb2.PushInbound(topic=topic(session), payload=message(b"z" * 100_000).SerializeToString())
    monkeypatch.setattr(transport.requests, "pushed", slow)
    monkeypatch.setattr(transport._Call, "_over", told)
    with _calling(two, "a", "push", inbound, LONG, given) as dying:
        assert begun.wait(LONG)
        dying.cancel()
        assert gone.wait(LONG)
    monkeypatch.undo()
    push(two, session, b"next")
    assert body_of(pop(two, session)) == b"next"


def test_large_pushes_that_wait_for_memory_for_one_site_hold_up_none_to_another(
    two: FlowSites, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, go, waiting_for = queues.Queues.begin_push, threading.Event(), list[str]()

    async def wait(self: Any, queue: Any, total_bytes: int) -> Any:
        if queue.destination == Party(*HOST):
            waiting_for.append(queue.name)
            while not go.is_set():
                await asyncio.sleep(0.02)
        return await begin(self, queue, total_bytes)

    monkeypatch.setattr(queues.Queues, "begin_push", wait)
    body = b"z" * 100_000
    with ThreadPoolExecutor(room.MOST_READ) as pool:
        waits = [pool.submit(push, two, session, body, f"n{number}") for number in range(room.MOST_READ)]
        eventually(lambda: len(waiting_for) == room.MOST_READ, SECONDS)
        given = {"session_id": session, "from_node_id": "9999", "target_node_id": "9999"}
        own = osx_pb2.PushInbound(topic=f"{session}-guest-9999-host-9999-n", payload=message(body).SerializeToString())
        assert call(two, "a", "push", own, **given).code == "E0000000000"
        assert not any(each.done() for each in waits)
        go.set()
        assert all(each.result(LONG).code == "E0000000000" for each in waits)


def test_pushes_that_are_begun_and_not_sent_hold_up_no_other(
    two: FlowSites, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PATIENT_SECONDS", 0.2)
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(LONG)
        yield from ()

    metadata = tuple((f"x-ptp-{key.replace('_', '-')}", value) for key, value in pushing(session).items())
    with grpc.insecure_channel(f"127.0.0.1:{two.port('a', 'osx')}") as channel:
        half: Any = channel.stream_unary(f"/{SERVICE}/push")
        begun = [half.future(nothing(), metadata=metadata) for _ in range(room.MOST_READ + 1)]
        push(two, session, b"whole")
        assert body_of(pop(two, session)) == b"whole"
        assert not any(each.done() for each in begun)
        for each in begun:
            each.cancel()
        never.set()


def test_pushes_beyond_what_may_lie_in_memory_are_refused_with_a_code(
    two: FlowSites, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_PUSH_BYTES", 50_000)
    assert "[FR610]" in refusal(two, "a", "push", push_request(session, b"z" * 60_000), **pushing(session))
    push(two, session, b"short")
    assert body_of(pop(two, session)) == b"short"


def test_a_push_of_many_fields_is_refused_before_they_are_looked_at(two: FlowSites, session: str) -> None:
    raw = push_request(session, b"1").SerializeToString()
    assert "[FR621]" in refusal(two, "a", "push", raw + b"\x18\x01" * packet.MOST_FIELDS, **pushing(session))
    nested = osx_pb2.PushInbound(
        topic=topic(session), payload=message().SerializeToString() + b"\x18\x01" * packet.MOST_FIELDS
    )
    assert "[FR621]" in refusal(two, "a", "push", nested, **pushing(session))


def test_a_stop_waits_for_a_push_that_is_being_written(
    tmp_path: Path, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written, events = queues.Push.write, threading.Event(), list[str]()

    def slow(self: Any, payload: memoryview) -> None:
        events.append("writes")
        written.wait(LONG)
        write(self, payload)
        events.append("has written")

    monkeypatch.setattr(queues.Push, "write", slow)
    close = transport.QueueTransport.close
    monkeypatch.setattr(transport.QueueTransport, "close", lambda self: (events.append("closed"), close(self)))
    with ThreadPoolExecutor(1) as pool:
        with flow_sites(tmp_path, LAYOUT) as few:
            pushed = pool.submit(push, few, session, b"z" * 100_000)
            eventually(lambda: events == ["writes"], SECONDS)
            threading.Timer(0.5, written.set).start()
        assert isinstance(pushed.exception(LONG), grpc.RpcError)
    assert events[:3] == ["writes", "has written", "closed"]


def test_a_stop_waits_for_no_push_for_ever() -> None:
    copying = transport.Copying()
    assert copying.wait(0.01)
    with copying.under_way():
        assert not copying.wait(0.01)
    assert copying.wait(0.01)


@pytest.mark.parametrize(("receiver", "site"), [(HOST, "a"), (ARBITER, "b")])
def test_a_message_that_no_answer_can_bring_is_told_at_both_ends_and_the_next_pop_goes_on(
    two: FlowSites, session: str, receiver: tuple[str, str], site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = GUEST if site == "a" else HOST
    named = f"{session}-{'-'.join(sender)}-{'-'.join(receiver)}-n"
    pushed = {"session_id": session, "from_node_id": sender[1], "target_node_id": receiver[1]}
    popped = {"session_id": session, "from_node_id": receiver[1]}
    for body in (b"z" * 200_000, b"next"):
        inbound = osx_pb2.PushInbound(topic=named, payload=message(body).SerializeToString())
        call(two, site, "push", inbound, **pushed)
    eventually(lambda: call(two, "b", "peek", osx_pb2.PeekInbound(topic=named), **popped).payload, SECONDS)
    monkeypatch.setattr(queues, "MOST_PAYLOAD_BYTES", 100_000)
    for _ in range(2):
        assert "[FR402]" in refusal(two, "b", "peek", osx_pb2.PeekInbound(topic=named), **popped)
    request = osx_pb2.PopInbound(topic=named, timeout=int(LONG * 1000))
    assert "[FR402]" in refusal(two, "b", "pop", request, **popped)
    assert body_of(call(two, "b", "pop", request, **popped)) == b"next"

    def told() -> str:
        try:
            call(two, site, "push", inbound, **pushed)
        except grpc.RpcError as error:
            return str(error)
        return ""

    eventually(lambda: "[FR402]" in told(), LONG)


def test_a_message_that_will_not_come_is_told_once_and_the_next_pop_goes_on(two: FlowSites, session: str) -> None:
    push(two, session, b"first")
    assert body_of(pop(two, session)) == b"first"
    key = MessageKey(session, "x", f"{queue_numbers.QUEUE_TAG}1", Party(*GUEST), Party(*HOST))
    runner: Any = two.sites.runner
    runner.tell("a", "b", Undeliverable(key, ErrorCode.MESSAGE_LOST.value, "it was lost"))
    mailbox = runner.gateways["b"]._assembly.context.mailbox
    eventually(lambda: key in mailbox._failed, SECONDS)
    given = {"session_id": session, "from_node_id": "10000"}
    for _ in range(2):
        assert "[FR612]" in refusal(two, "b", "peek", osx_pb2.PeekInbound(topic=topic(session)), **given)
    assert "[FR612]" in refusal(two, "b", "pop", pop_request(session), **given)
    assert pop(two, session, 0.2).code == "E0000000601"


def test_a_queue_beyond_those_that_are_remembered_is_refused_and_known_ones_go_on(
    two: FlowSites, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(two, session, b"1")
    assert body_of(pop(two, session)) == b"1"
    monkeypatch.setattr(queue_numbers, "MOST_QUEUES", 0)
    assert "[FR610]" in refusal(two, "a", "push", push_request(session, b"n", "new"), **pushing(session))
    push(two, session, b"2")
    assert body_of(pop(two, session)) == b"2"


def test_more_pops_than_may_wait_are_refused_with_a_code(
    tmp_path: Path, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MOST_POPS", 1)
    given = {"session_id": session, "from_node_id": "10000"}
    with flow_sites(tmp_path, LAYOUT) as few, _calling(few, "b", "pop", pop_request(session), LONG, given) as first:
        eventually(lambda: waiting(few) == 1, SECONDS)
        assert "[FR610]" in refusal(few, "b", "pop", pop_request(session, name="y"), **given)
        push(few, session, b"1")
        assert body_of(osx_pb2.TransportOutbound.FromString(first.result())) == b"1"


# -- two engines --------------------------------------------------------------------------------------------------


def test_connections_without_a_call_end_where_there_are_too_many_and_calls_go_on(
    two: FlowSites, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, count = 10, 40
    monkeypatch.setattr(call_watch, "MOST_CONNECTIONS", most)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(pop, two, session)
        eventually(lambda: waiting(two) > 0, LONG)
        front = ("127.0.0.1", two.port("b", "osx"))
        idle = [stack.enter_context(socket.create_connection(front, LONG)) for _ in range(count)]
        for each in idle:
            each.setblocking(False)
        ended: set[int] = set()

        def has_ended() -> bool:
            ended.update(at for at, each in enumerate(idle) if at not in ended and _is_at_its_end(each))
            return len(ended) >= count - most

        eventually(has_ended, LONG)
        stack.pop_all().close()
        monkeypatch.undo()
        push(two, session, b"still")
        assert body_of(waits.result(LONG)) == b"still"


def _is_at_its_end(connection: socket.socket) -> bool:
    try:
        # settings of HTTP/2 come first
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_queues_need_no_fate_flow(tmp_path: Path) -> None:
    (front,) = ports_of_this_process(1)
    with start_gateways({"a": ["guest:9999", "host:10000"]}, tmp_path, listen={"osx": f"127.0.0.1:{front}"}):
        mq = federation.MQ("127.0.0.1", front)
        guest, host = (federation.OSXFederation("s", None, who, [GUEST, HOST], None, mq) for who in (GUEST, HOST))
        guest._push_bytes(b"body", "n", "t", [HOST])
        assert host._pull_bytes("n", "t", [GUEST]) == [b"body"]


def test_a_push_to_a_party_that_uses_fedrdma_is_told_at_both_ends(two: FlowSites, session: str) -> None:
    with two.sites["b"].client(session, "host:10000") as task, ThreadPoolExecutor(1) as pool:
        got = pool.submit(task.get, "n", "t", Party(*GUEST), timeout=LONG)
        eventually(lambda: waiting(two) > 0, SECONDS)
        push(two, session, b"1")
        with pytest.raises(FedRDMAError) as refused:
            got.result(LONG)
        assert refused.value.code is ErrorCode.ENGINES_MIXED
        eventually(lambda: "[FR622]" in _pushed(two, session), LONG)


def test_a_put_to_a_party_that_uses_queues_is_told_at_both_ends(two: FlowSites, session: str) -> None:
    given = {"session_id": session, "from_node_id": "10000"}
    with two.sites["a"].client(session, "guest:9999") as task:
        with _calling(two, "b", "pop", pop_request(session), LONG, given) as popped:
            eventually(lambda: waiting(two) > 0, SECONDS)
            task.put_inline("n", "t", [Party(*HOST)], "bytes", b"1")
            assert "[FR622]" in str(popped.exception(LONG))
        eventually(lambda: _put(task) is ErrorCode.ENGINES_MIXED, LONG)


def test_a_party_does_not_use_two_engines_in_one_session(two: FlowSites, session: str) -> None:
    push(two, session, b"1")
    with pytest.raises(FedRDMAError) as refused, two.sites["a"].client(session, "guest:9999"):
        pass
    assert refused.value.code is ErrorCode.ENGINES_MIXED


def test_parties_of_one_site_that_use_two_engines_are_told(two: FlowSites, session: str) -> None:
    with two.sites["b"].client(session, "arbiter:10000"):
        local = osx_pb2.PushInbound(
            topic=f"{session}-host-10000-arbiter-10000-n", payload=message().SerializeToString()
        )
        given = {"session_id": session, "from_node_id": "10000", "target_node_id": "10000"}
        assert "[FR622]" in refusal(two, "b", "push", local, **given)


def test_a_peer_that_names_a_message_of_others_breaks_no_session_by_it(two: FlowSites, session: str) -> None:
    given = {"session_id": session, "from_node_id": "10000"}
    with _calling(two, "b", "pop", pop_request(session), LONG, given) as popped:
        eventually(lambda: waiting(two) > 0, SECONDS)
        gateway = two.sites.runner.gateways["b"]._assembly  # type: ignore[attr-defined]
        key = MessageKey(session, "x", "t", Party("guest", "4711"), Party(*HOST))
        two.sites.runner.tell("a", "b", Inline(1 << 40, key, "bytes", b"1"))  # type: ignore[attr-defined]
        push(two, session, b"1")
        assert body_of(osx_pb2.TransportOutbound.FromString(popped.result(LONG))) == b"1"
        assert session not in {pair[0] for pair in gateway.context.mailbox._mixed}


def _pushed(two: FlowSites, session: str) -> str:
    try:
        push(two, session, b"2")
    except grpc.RpcError as error:
        return str(error)
    return ""


def _put(task: Any) -> ErrorCode | None:
    try:
        task.put_inline("n", f"t{next(_sessions)}", [Party(*HOST)], "bytes", b"2")
    except FedRDMAError as error:
        return error.code
    return None
