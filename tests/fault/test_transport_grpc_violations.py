"""What a `grpc` endpoint does with calls and messages that are not what they should be, and with a slow peer."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Completion, CompletionKind, Endpoint, RemoteSlot, Slot
from fedrdma_fate.transport.grpc import METHOD, SERVICE, TOKEN_KEY, GrpcSettings, GrpcTransport
from fedrdma_fate.transport.grpc_pipe import QUEUED_MESSAGES, MessagePipe
from fedrdma_fate.transport.stream_frames import HEAD_BYTES, Head, Op, unpack_head, violation_frame
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.conformance.pairs import await_loss

GRANT = 5
UNTOUCHED = 0xEE


class Victim:
    """An endpoint with one exposed slot, and a call to it that the tests speak by hand."""

    def __init__(self, endpoint: Endpoint, region: SharedRegion, call: Iterator[bytes]) -> None:
        self.endpoint = endpoint
        self.region = region
        self.call = call
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.completions: list[Completion] = []
        region.view[:] = bytes([UNTOUCHED]) * region.length
        self.target: RemoteSlot = endpoint.expose(GRANT, Slot(region, 4096, 4096))

    def head(self, **changes: int) -> Head:
        return Head(Op.WRITE, 0, 0, self.target.key, 0, 100, 0, 100)._replace(**changes)

    def progress(self) -> None:
        self.completions += self.endpoint.progress()

    def loss(self) -> str:
        """Why the link is lost."""
        return await_loss(self.progress)


@pytest.fixture
def victim() -> Iterator[Victim]:
    region = SharedRegion.create("region", 16384)
    transport = GrpcTransport(GrpcSettings())
    draft = transport.open("passive")
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with grpc.insecure_channel(f"127.0.0.1:{transport.port}") as channel, ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(draft.connect, {}, 5)
        token = bytes.fromhex(str(draft.address["token"]))
        method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        call = method(iter(messages.get, None), metadata=((TOKEN_KEY, token),))
        endpoint = waiting.result()
        assert next(call), "the welcome"
        made = Victim(endpoint, region, call)
        made.outgoing = messages
        yield made
        messages.put(None)
        endpoint.close()
    transport.close()
    region.close()


def test_a_correct_hand_made_message_lands_and_is_acknowledged(victim: Victim) -> None:
    victim.outgoing.put(victim.head().pack() + b"w" * 100)
    deadline = time.monotonic() + 5
    while not victim.completions and time.monotonic() < deadline:
        victim.completions += victim.endpoint.progress()
    assert victim.completions == [Completion(CompletionKind.LANDED, immediate=GRANT, offset=0, length=100)]
    assert unpack_head(next(victim.call)) == Head(Op.ACK, sequence=0)


@pytest.mark.parametrize(
    ("changes", "body", "words"),
    [
        ({"key": 1}, b"w" * 100, "key"),
        ({"address": 4000}, b"w" * 100, "out of range"),
        ({"op": 99}, b"w" * 100, "kind 99"),
        ({}, b"w" * 99, "holds 99 of"),
        ({}, b"w" * 101, "ends 1 bytes into a frame"),
        ({"op": int(Op.FENCED), "sequence": 1}, b"w" * 100, "before what it waits for"),
        ({"op": int(Op.ACK), "piece_length": 0}, b"", "ACK for write 0"),
    ],
)
def test_a_violation_ends_the_link_and_is_named_at_both_ends(
    victim: Victim, changes: dict[str, int], body: bytes, words: str
) -> None:
    victim.outgoing.put(victim.head(**changes).pack() + body)
    assert words in victim.loss()
    victim.outgoing.put(None)
    told = b"".join(victim.call)
    assert words in told[-200:].decode(errors="replace")
    if words != "ends 1 bytes into a frame":
        assert bytes(victim.region.view) == bytes([UNTOUCHED]) * 16384


def test_the_peers_accusation_is_repeated_to_the_caller(victim: Victim) -> None:
    victim.outgoing.put(violation_frame("you wrote beyond your grant"))
    assert "the peer says: you wrote beyond your grant" in victim.loss()


def test_a_cancelled_call_ends_the_link(victim: Victim) -> None:
    victim.call.cancel()  # type: ignore[attr-defined]
    victim.loss()


def test_a_call_without_a_known_token_is_refused(victim: Victim) -> None:
    del victim
    transport = GrpcTransport(GrpcSettings())
    draft = transport.open("passive")
    with grpc.insecure_channel(f"127.0.0.1:{transport.port}") as channel:
        for metadata in ((), ((TOKEN_KEY, b"x" * 16),)):
            method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")
            call = method(iter(()), metadata=metadata)
            with pytest.raises(grpc.RpcError) as error:
                next(call)
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
    draft.close()
    transport.close()


def test_a_peer_that_does_not_read_holds_up_messages_and_not_memory(victim: Victim) -> None:
    source = Slot(victim.region, 0, 4096)
    for number in range(4000):
        victim.endpoint.post_write(number, source, RemoteSlot(1, 0, 4096), 0)
    pipe = victim.endpoint._pipe  # type: ignore[attr-defined]
    time.sleep(0.05)
    victim.endpoint.progress()
    assert len(pipe._outgoing) <= QUEUED_MESSAGES


def test_a_port_in_use_makes_the_transport_unavailable() -> None:
    first = GrpcTransport(GrpcSettings())
    with pytest.raises(TransportError) as error:
        GrpcTransport(GrpcSettings(port=first.port))
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    first.close()
    GrpcTransport(GrpcSettings(port=first.port)).close()


def test_nothing_polls_before_the_first_link() -> None:
    # those of tests before may end meanwhile
    before = set(threading.enumerate())
    transport = GrpcTransport(GrpcSettings())
    assert set(threading.enumerate()) <= before
    draft = transport.open("passive")
    assert not set(threading.enumerate()) <= before
    draft.close()
    transport.close()


def test_the_reader_waits_when_the_endpoint_does_not_take_and_ends_with_the_pipe() -> None:
    delivered: list[int] = []

    def endless() -> Iterator[bytes]:
        for number in range(1000):
            delivered.append(number)
            yield bytes(HEAD_BYTES)

    pipe = MessagePipe()
    pipe.start(endless(), lambda: None)
    assert pipe.wait(5) is not None
    time.sleep(0.05)
    assert len(delivered) <= QUEUED_MESSAGES + 2
    pipe.close(linger=5)
    assert len(delivered) == 1000, "what the peer still had to say is read and dropped"


def test_the_last_words_are_sent_also_when_the_peer_has_ended_its_half_of_the_call_meanwhile() -> None:
    pipe = MessagePipe()
    pipe.put(b"why the link is lost")
    pipe.finish()
    pipe.start(iter(()), lambda: None)
    while pipe.ended is None:
        time.sleep(0.001)
    assert list(pipe.outgoing()) == [b"why the link is lost"]
    pipe.close(linger=5)


def test_what_waits_in_a_call_that_breaks_is_dropped() -> None:
    pipe = MessagePipe()
    pipe.put(b"a write")
    pipe.end("the peer is gone")
    assert list(pipe.outgoing()) == []
    pipe.close(linger=0)


def test_connections_that_say_nothing_are_closed_after_some_seconds() -> None:
    transport = GrpcTransport(GrpcSettings())
    draft = transport.open("passive")
    try:
        silent = [socket.create_connection(("127.0.0.1", transport.port), timeout=30) for _ in range(20)]
        for connection in silent:
            # what grpcio says first, and then the end
            while connection.recv(4096):
                pass
            connection.close()
    finally:
        draft.close()
        transport.close()
