"""Targets: scheduling calls of FATE Flow, as HTTP and as OSX's packets; what is taken can be forwarded as it is."""

from __future__ import annotations

import asyncio
import contextlib
import json

from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.gateway.flow.packet import answer_in, call_of, packet_of
from fedrdma_fate.gateway.flow.request import BadRequestError, read_call
from fedrdma_fate.gateway.flow.rules import CallRules
from fedrdma_fate.gateway.osx.envelope import inbound, outbound, outcome_of, pushed_by
from fedrdma_fate.gateway.osx.requests import FROM_NODE, SESSION, TARGET_NODE, pushed, queue_by_broker, queue_of
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.wire.errors import GatewayError
from tests.fuzz.target import Target, require

_BODY = json.dumps({"role": "host", "party_id": "10000", "dag": {"conf": {"initiator_party_id": "9999"}}}).encode()
_HEADERS = {"dest-party-id": "10000", "service": "fateflow", "initiator-party-id": "9999", "Nonce": "1234"}
_TOKENS = (
    b"\r\n",
    b"\n",
    b"Content-Length: ",
    b"Transfer-Encoding: chunked",
    b"dest-party-id",
    b"/v2/job/",
    b"..",
    b"%2e",
)


def _rules() -> CallRules:
    peer = {"site": "b", "parties": ["10000"]}
    document = {"site": "a", "parties": ["9999"], "security": "off", "peers": [peer]}
    return CallRules(Routes(parse_config(document)))


def _check(rules: CallRules, call: SchedulingCall) -> bool:
    require(rules.check(call, "a") in ("a", "b"), "a call goes to nobody")
    require(call.path.startswith(("/v2/partner/", "/v2/scheduler/")), "another path is forwarded")
    text = "".join(f"{name}{value}" for name, value in call.headers)
    require(all(" " <= char <= "~" for char in text), "a header would begin another")
    return True


def requests() -> Target:
    """HTTP requests to the front."""
    rules = _rules()
    lines = "".join(f"{name}: {value}\r\n" for name, value in _HEADERS.items())
    seeds = [
        f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(_BODY)}\r\n\r\n".encode() + _BODY
        for path in ("/v2/partner/job/create", "/v2/partner/task/stop")
    ]
    loop = asyncio.new_event_loop()

    async def read_one(data: bytes) -> SchedulingCall:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await read_call(reader, _NoWriter())  # type: ignore[arg-type]

    def read(data: bytes) -> bool:
        return _check(rules, loop.run_until_complete(read_one(data)))

    return Target(
        "flow-requests", seeds, read, (BadRequestError, GatewayError, EOFError), close=loop.close, tokens=_TOKENS
    )


class _NoWriter:
    """Where nobody reads what is answered ahead of the body."""

    def write(self, data: bytes) -> None:
        require(data.startswith(b"HTTP/1.1 100"), "something else is answered ahead of the body")


def packets() -> Target:
    """Packets of OSX."""
    rules = _rules()

    def message(*fields: tuple[int, bytes]) -> bytes:
        return b"".join(bytes([number << 3 | 2]) + _length(value) + value for number, value in fields)

    model = message((1, b"headers"), (2, json.dumps({**_HEADERS, "dest-party-id": "10000"}).encode()))
    without = {name: value for name, value in _HEADERS.items() if name != "dest-party-id"}
    good = message((1, b"headers"), (2, json.dumps(without).encode()))
    topic = message((1, b"job"), (2, b"10000"), (3, b"fateflow"))
    seeds = [
        message(
            (1, message((1, message((1, b"job"), (2, headers))), (2, topic), (3, topic), (5, b"POST"))),
            (2, message((1, b"/v2/partner/job/create"), (2, _BODY))),
        )
        for headers in (good, good, model)
    ]

    def read(data: bytes) -> bool:
        call = call_of(data)
        require(packet_of(call, Answer(200, call.body)).endswith(call.body), "an answer is not what it was")
        return _check(rules, call)

    return Target("flow-packets", seeds, read, (GatewayError,), tokens=_TOKENS)


def queue_pushes() -> Target:
    """Pushes to OSX's queues."""
    topic, metadata = b"s-1-guest-9999-host-10000-a/b-0", {SESSION: "s-1", FROM_NODE: "9999", TARGET_NODE: "10000"}
    seeds = []
    for body in (b"", b"body" * 40):
        head = b'{"message_id": "a/b"}'
        payload = b"\x12" + _length(head) + head + b"\x1a" + _length(body) + body
        seeds.append(b"\x0a" + _length(topic) + topic + b"\x12" + _length(payload) + payload)

    def read(data: bytes) -> bool:
        named, payload = pushed(memoryview(data))
        queue = queue_of(metadata, named, pops=False)
        text = f"s-1-guest-{queue.source.party_id}-host-{queue.destination.party_id}-{queue.name}"
        same_roles = (queue.source.role, queue.destination.role) == ("guest", "host")
        require(not same_roles or text == named, "a topic is not what it was")
        require(bytes(payload) in data, "a payload is not what it was")
        return True

    return Target("queue-pushes", seeds, read, (GatewayError,), tokens=(b"s-1-", b"-", b"{}", b"\x12"))


def broker_pushes() -> Target:
    """Pushes that OSX brokers bring, and what they answer."""
    topic = b"s-1-host-10000-guest-9999-a"
    payload = b"\x12" + _length(b"{}") + b"{}"
    push = b"\x0a" + _length(topic) + topic + b"\x12" + _length(payload) + payload
    seeds = [inbound(push), outbound("E0000000000") + b"\x22\x04gone"]
    metadata = {SESSION: "s-1", TARGET_NODE: "9999"}

    def read(data: bytes) -> bool:
        with contextlib.suppress(ValueError):
            outcome_of(data)
        with contextlib.suppress(ValueError):
            answer_in(data)
        named, payload = pushed(pushed_by(memoryview(data)))
        queue = queue_by_broker(metadata, named)
        require(queue.destination.party_id == "9999", "a push is for another party than it says")
        require(bytes(payload) in data, "a payload is not what it was")
        return True

    return Target("broker-pushes", seeds, read, (GatewayError,), tokens=(b"s-1-", b"-", b"{}", b"\x12", b"\x1a"))


def _length(value: bytes) -> bytes:
    return bytes([len(value)]) if len(value) < 128 else bytes([len(value) & 0x7F | 0x80, len(value) >> 7])
