"""What a `tcp` endpoint does when the peer does not keep to the rules: hand-made frames over raw sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedrdma_fate.core.digest import chunk_digest
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Completion, CompletionKind, Endpoint, RemoteSlot, Slot
from fedrdma_fate.transport.exposure import MOST_DRAINING
from fedrdma_fate.transport.inbound import MOST_DRAINED_PIECE_BYTES
from fedrdma_fate.transport.listener import dial
from fedrdma_fate.transport.stream_frames import (
    HEAD_BYTES,
    INLINE_BYTES,
    SEQUENCE_WINDOW,
    Head,
    Op,
    unpack_head,
    violation_frame,
)
from fedrdma_fate.transport.tcp import TcpEndpoint, TcpSettings, TcpTransport
from tests.conformance.pairs import await_loss

SLOT_AT, SLOT_BYTES = 4096, 8192
UNTOUCHED = 0xEE
GRANT = 5


class Victim:
    """An endpoint with one exposed slot, and the raw sockets of its hand-driven peer."""

    def __init__(self, region: SharedRegion, endpoint: Endpoint, sockets: list[socket.socket]) -> None:
        self.region = region
        self.endpoint = endpoint
        self.sockets = sockets
        self.completions: list[Completion] = []
        region.view[:] = bytes([UNTOUCHED]) * region.length
        self.target: RemoteSlot = endpoint.expose(GRANT, Slot(region, SLOT_AT, SLOT_BYTES))

    def send(self, head: Head, body: bytes = b"", stream: int = 0) -> None:
        self.sockets[stream].sendall(head.pack() + body)

    def write_head(self, **changes: int) -> Head:
        """The head of a correct write of 100 bytes, all in one piece, with these fields changed."""
        plain = Head(Op.WRITE, 0, 0, self.target.key, self.target.address, 100, 0, 100)
        return plain._replace(**changes)

    def settle(self, until: Callable[[], bool] = lambda: False) -> None:
        """Progress until the condition holds, for a short while at most."""
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline and not until():
            self.completions += self.endpoint.progress()

    def progress(self) -> None:
        self.completions += self.endpoint.progress()

    def loss(self) -> str:
        """Why the link is lost."""
        return await_loss(self.progress)

    def read_to_the_end(self, raw: bytearray | None = None, stream: int = 0) -> None:
        """Collect what comes until the endpoint closes the stream."""
        self.sockets[stream].settimeout(5)
        while more := self.sockets[stream].recv(65536):
            if raw is not None:
                raw += more

    def last_words(self, stream: int = 0) -> str:
        """What the endpoint tells the peer before it hangs up."""
        raw = bytearray()
        with contextlib.suppress(ConnectionResetError):
            self.read_to_the_end(raw, stream)
        while raw:
            head = unpack_head(raw[:HEAD_BYTES])
            if head.op == Op.VIOLATION:
                return raw[HEAD_BYTES : HEAD_BYTES + head.piece_length].decode()
            del raw[: HEAD_BYTES + head.piece_length]
        return ""

    @property
    def untouched(self) -> bool:
        return bytes(self.region.view) == bytes([UNTOUCHED]) * self.region.length


@pytest.fixture
def victim() -> Iterator[Victim]:
    with ThreadPoolExecutor(1) as executor:
        region = SharedRegion.create("region", 16384)
        transport = TcpTransport(TcpSettings(streams=2))
        draft = transport.open("passive")
        waiting = executor.submit(draft.connect, {"streams": 2}, 5)
        address = ("127.0.0.1", transport.port)
        token = bytes.fromhex(str(draft.address["token"]))
        sockets = dial(lambda seconds: socket.create_connection(address, seconds), token, 2, 5)
        for connection in sockets:
            connection.setblocking(True)
        endpoint = waiting.result()
        yield Victim(region, endpoint, sockets)
        endpoint.close()
        for connection in sockets:
            connection.close()
        transport.close()
        region.close()


def landed(data: bytes) -> Completion:
    return Completion(CompletionKind.LANDED, immediate=GRANT, offset=0, length=len(data), digest=chunk_digest(data))


def test_a_correct_hand_made_write_lands_and_is_acknowledged(victim: Victim) -> None:
    victim.send(victim.write_head(), b"w" * 100)
    victim.settle(lambda: bool(victim.completions))
    assert victim.completions == [landed(b"w" * 100)]
    assert bytes(victim.region.view[SLOT_AT : SLOT_AT + 100]) == b"w" * 100
    assert unpack_head(victim.sockets[0].recv(HEAD_BYTES)) == Head(Op.ACK, sequence=0)


def test_a_frame_that_comes_byte_by_byte_is_understood(victim: Victim) -> None:
    for byte in victim.write_head().pack() + b"w" * 100:
        victim.sockets[0].sendall(bytes([byte]))
        victim.completions += victim.endpoint.progress()
    victim.settle(lambda: bool(victim.completions))
    assert [entry.kind for entry in victim.completions] == [CompletionKind.LANDED]


VIOLATIONS = {
    "unknown-key": ({"key": 12345}, "key"),
    "past-the-end": ({"address": SLOT_BYTES - 99}, "out of range"),
    "too-long": ({"length": SLOT_BYTES + 1}, "out of range"),
    "far-address": ({"address": 2**64 - 50}, "out of range"),
    "piece-outside-its-write": ({"piece_at": 1}, "frame of kind 1"),
    "piece-longer-than-its-write": ({"piece_length": 101}, "frame of kind 1"),
    "empty-piece-of-a-write": ({"piece_at": 100, "piece_length": 0}, "kind 1 with 0 bytes at 100"),
    "empty-chunk": ({"op": int(Op.CHUNK), "length": 0, "piece_length": 0}, "kind 5 with 0 bytes"),
    "unknown-op": ({"op": 99}, "frame of kind 99"),
    "op-zero": ({"op": 0}, "frame of kind 0"),
    "ack-with-a-body": ({"op": int(Op.ACK)}, "frame of kind 3"),
    "ack-of-nothing": ({"op": int(Op.ACK), "piece_length": 0}, "ACK for write 0"),
    "fenced-too-long": ({"op": int(Op.FENCED), "length": INLINE_BYTES + 1, "piece_length": INLINE_BYTES + 1}, "kind 2"),
    "fenced-out-of-range": ({"op": int(Op.FENCED), "address": SLOT_BYTES - 99}, "out of range"),
    "fenced-unknown-key": ({"op": int(Op.FENCED), "key": 1}, "key"),
    "too-far-ahead": ({"sequence": SEQUENCE_WINDOW}, "too far ahead"),
}


@pytest.mark.parametrize("name", sorted(VIOLATIONS))
def test_a_violation_ends_the_link_names_itself_at_both_ends_and_writes_nothing(victim: Victim, name: str) -> None:
    changes, words = VIOLATIONS[name]
    victim.send(victim.write_head(**changes), b"w" * 100)
    assert words in victim.loss()
    assert words in victim.last_words()
    assert victim.untouched
    assert victim.completions == []


def test_garbage_ends_the_link(victim: Victim) -> None:
    victim.sockets[1].sendall(bytes(range(256)))
    assert "protocol" in victim.loss()
    assert victim.untouched


def test_a_write_that_comes_twice_ends_the_link(victim: Victim) -> None:
    victim.send(victim.write_head(), b"w" * 100)
    victim.settle(lambda: bool(victim.completions))
    victim.send(victim.write_head(), b"X" * 100, stream=1)
    assert "came twice" in victim.loss()
    assert b"X" not in bytes(victim.region.view)


def test_two_overlapping_pieces_on_two_streams_end_the_link(victim: Victim) -> None:
    victim.send(victim.write_head(), b"")
    victim.settle()
    victim.send(victim.write_head(), b"X" * 100, stream=1)
    assert "came twice" in victim.loss()
    assert victim.untouched


@pytest.mark.parametrize("again", [(0, 50), (25, 50), (49, 51)])
def test_a_piece_that_comes_again_does_not_stand_in_for_another(victim: Victim, again: tuple[int, int]) -> None:
    """Else the write would count as whole, with what an earlier message left in the place that was not written."""
    victim.send(victim.write_head(piece_length=50), b"w" * 50)
    victim.settle()
    at, length = again
    victim.send(victim.write_head(piece_at=at, piece_length=length), b"X" * length, stream=1)
    assert "came twice" in victim.loss()
    assert victim.completions == []
    assert b"X" not in bytes(victim.region.view)


def test_pieces_in_any_order_make_a_write(victim: Victim) -> None:
    for number, at in enumerate((60, 0, 80, 20, 40)):
        victim.send(victim.write_head(piece_at=at, piece_length=20), bytes([at]) * 20, stream=number % 2)
        victim.settle()
    assert [entry.length for entry in victim.completions] == [100]
    written = bytes(victim.region.view[SLOT_AT : SLOT_AT + 100])
    assert written == b"".join(bytes([at]) * 20 for at in range(0, 100, 20))


def test_a_write_in_more_pieces_than_any_sender_cuts_ends_the_link(victim: Victim) -> None:
    for at in range(0, 100, 2):
        with contextlib.suppress(OSError):
            victim.send(victim.write_head(piece_at=at, piece_length=1), b"w")
    assert "pieces" in victim.loss()
    assert victim.completions == []


def test_pieces_that_disagree_on_their_write_end_the_link(victim: Victim) -> None:
    victim.send(victim.write_head(length=200), b"w" * 100)
    victim.settle()
    victim.send(victim.write_head(length=200, address=1000, piece_at=100), b"X" * 100)
    assert "disagree" in victim.loss()
    assert b"X" not in bytes(victim.region.view)


def test_an_ack_that_comes_twice_ends_the_link(victim: Victim) -> None:
    victim.endpoint.post_bytes(8, b"h" * 64, RemoteSlot(1, 0, 64), 0, 1)
    ack = Head(Op.ACK, sequence=0)
    victim.send(ack)
    victim.settle(lambda: bool(victim.completions))
    assert victim.completions == [Completion(CompletionKind.WRITE_DONE, work_request=8)]
    victim.send(ack)
    assert "ACK for write 0" in victim.loss()


def test_a_piece_that_is_under_way_when_its_grant_is_withdrawn_writes_no_further(victim: Victim) -> None:
    victim.send(victim.write_head(), b"w" * 40)
    victim.settle()
    victim.endpoint.withdraw(GRANT)
    victim.region.view[:] = bytes([UNTOUCHED]) * victim.region.length
    victim.sockets[0].sendall(b"w" * 60)
    assert "withdrawn" in victim.loss()
    assert "withdrawn" in victim.last_words()
    assert victim.untouched


def test_a_later_piece_of_a_withdrawn_grant_writes_nothing(victim: Victim) -> None:
    victim.send(victim.write_head(length=200), b"w" * 100)
    victim.settle()
    victim.endpoint.withdraw(GRANT)
    victim.region.view[:] = bytes([UNTOUCHED]) * victim.region.length
    victim.send(victim.write_head(length=200, piece_at=100), b"w" * 100, stream=1)
    assert "withdrawn" in victim.loss()
    assert victim.untouched


def test_what_comes_into_a_grant_that_drains_is_thrown_away_and_harms_nothing(victim: Victim) -> None:
    """In the middle of a piece, of a write that has more of them, and of a fenced one; a later write comes whole."""
    victim.send(victim.write_head(), b"w" * 40)
    victim.send(victim.write_head(sequence=1, length=200), b"w" * 100, stream=1)
    victim.settle()
    victim.endpoint.drain(GRANT)
    victim.region.view[:] = bytes([UNTOUCHED]) * victim.region.length
    victim.sockets[0].sendall(b"w" * 60)
    victim.send(victim.write_head(sequence=1, length=200, piece_at=100), b"w" * 100, stream=1)
    victim.send(victim.write_head(op=int(Op.FENCED), sequence=2, address=4096), b"F" * 100)
    victim.settle()
    assert victim.untouched
    assert victim.completions == [], "nobody counts what was thrown away"
    other = victim.endpoint.expose(6, Slot(victim.region, 0, 4096))
    victim.send(victim.write_head(sequence=3, key=other.key), b"n" * 100)
    victim.settle(lambda: len(victim.completions) == 1)
    assert bytes(victim.region.view[:100]) == b"n" * 100


@pytest.mark.parametrize("in_its_midst", [False, True])
def test_no_room_is_made_for_a_piece_that_is_thrown_away_and_longer_than_any_of_ours(
    victim: Victim, in_its_midst: bool
) -> None:
    length = MOST_DRAINED_PIECE_BYTES + 8192
    with contextlib.closing(SharedRegion.create("large", length)) as region:
        target = victim.endpoint.expose(6, Slot(region, 0, length))
        head = victim.write_head(key=target.key, address=target.address, length=length, piece_length=length)
        if in_its_midst:
            victim.send(head, b"w")
            victim.settle(lambda: bytes(region.view[:1]) == b"w")
        victim.endpoint.drain(6)
        if not in_its_midst:
            victim.send(head, b"w")
        assert "was withdrawn" in victim.loss()


def test_of_grants_that_drain_only_the_newest_are_remembered(victim: Victim) -> None:
    victim.endpoint.drain(GRANT)
    for grant in range(100, 100 + MOST_DRAINING):
        victim.endpoint.expose(grant, Slot(victim.region, 0, 4096))
        victim.endpoint.drain(grant)
    victim.send(victim.write_head(), b"w" * 100)
    assert "withdrawn" in victim.loss()


def test_a_fenced_write_waits_for_an_earlier_write_on_another_stream(victim: Victim) -> None:
    fenced = victim.write_head(op=int(Op.FENCED), sequence=1, immediate=77, address=4096)
    victim.send(fenced, b"F" * 100, stream=1)
    victim.send(victim.write_head(), b"w" * 99, stream=0)
    victim.settle()
    assert victim.completions == []
    assert b"F" not in bytes(victim.region.view)
    victim.sockets[0].sendall(b"w")
    victim.settle(lambda: len(victim.completions) == 2)
    assert victim.completions == [
        landed(b"w" * 100),
        Completion(CompletionKind.IMMEDIATE, immediate=77),
    ]
    assert bytes(victim.region.view[SLOT_AT + 4096 : SLOT_AT + 4196]) == b"F" * 100


def test_fences_on_both_streams_open_in_turn(victim: Victim) -> None:
    fenced = victim.write_head(op=int(Op.FENCED), address=4096)
    victim.send(fenced._replace(sequence=2, immediate=2), b"B" * 100, stream=1)
    victim.settle()
    victim.send(victim.write_head(), b"w" * 100, stream=0)
    victim.send(fenced._replace(sequence=1, immediate=1), b"A" * 100, stream=0)
    victim.settle(lambda: len(victim.completions) == 3)
    assert [entry.immediate for entry in victim.completions] == [GRANT, 1, 2]
    assert bytes(victim.region.view[SLOT_AT + 4096 : SLOT_AT + 4196]) == b"B" * 100


def test_a_withdrawn_grant_is_not_written_by_a_fenced_write_that_waited(victim: Victim) -> None:
    victim.send(victim.write_head(op=int(Op.FENCED), sequence=1, address=4096), b"F" * 100, stream=1)
    other = victim.endpoint.expose(6, Slot(victim.region, 0, 4096))
    victim.settle()
    victim.endpoint.withdraw(GRANT)
    victim.send(victim.write_head(key=other.key), b"w" * 100)
    assert "withdrawn" in victim.loss()
    assert b"F" not in bytes(victim.region.view)


def test_a_stream_that_breaks_while_it_waits_at_a_fence_ends_the_link(victim: Victim) -> None:
    victim.send(victim.write_head(op=int(Op.FENCED), sequence=1), b"F" * 100, stream=1)
    victim.settle()
    victim.sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    victim.sockets[1].close()
    assert "reset" in victim.loss()


def test_one_stream_that_ends_takes_the_link_with_it(victim: Victim) -> None:
    victim.sockets[1].close()
    assert "closed" in victim.loss()


def test_what_came_on_other_streams_before_one_ended_is_still_taken_in(victim: Victim) -> None:
    victim.send(victim.write_head(), b"w" * 100, stream=1)
    victim.sockets[0].close()
    victim.loss()
    assert [entry.kind for entry in victim.completions] == [CompletionKind.LANDED]


def test_the_peers_accusation_is_repeated_to_the_caller(victim: Victim) -> None:
    victim.sockets[1].sendall(violation_frame("you wrote beyond your grant"))
    victim.sockets[0].close()
    assert "you wrote beyond your grant" in victim.loss()


def test_closing_with_unacknowledged_writes_stops_the_kernel_from_sending_on(victim: Victim) -> None:
    """Else it would go on to send pages that their owner may use for another message by then."""
    victim.endpoint.post_bytes(1, b"h" * 64, RemoteSlot(1, 0, 64), 0, 1)
    victim.endpoint.close()
    with pytest.raises(ConnectionResetError):
        victim.read_to_the_end()


def test_closing_with_everything_acknowledged_ends_the_streams_in_order(victim: Victim) -> None:
    victim.endpoint.post_bytes(1, b"h" * 64, RemoteSlot(1, 0, 64), 0, 1)
    victim.send(Head(Op.ACK, sequence=0))
    victim.settle(lambda: bool(victim.completions))
    victim.endpoint.close()
    assert len(victim.sockets[0].recv(1000)) == HEAD_BYTES + 64
    assert [connection.recv(1000) for connection in victim.sockets] == [b"", b""]


class Scripted(socket.socket):
    """A connected socket whose reads come as scripted: each read gives one block, and then nothing."""

    script: list[bytes]

    def recv_into(self, buffer, *_: int) -> int:  # type: ignore[no-untyped-def]
        if not self.script:
            raise BlockingIOError
        block = self.script.pop(0)
        buffer[: len(block)] = block
        return len(block)


def test_progress_leaves_no_fence_closed_that_could_open(victim: Victim) -> None:
    """Nothing would wake the loop for it: the parked stream is not waited for, and the other has no more to say."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        streams = [Scripted(fileno=end.detach()) for end in ends]
        endpoint = TcpEndpoint(streams, TcpSettings())
        target = endpoint.expose(GRANT, Slot(victim.region, SLOT_AT, SLOT_BYTES))
        write = victim.write_head(key=target.key)
        fenced = write._replace(op=int(Op.FENCED), sequence=1, immediate=9)
        streams[0].script = [fenced.pack(), b"F" * 100]
        streams[1].script = [write.pack(), b"w" * 99, b"w"]
        completions: list[Completion] = []
        while any(stream.script for stream in streams):
            completions += endpoint.progress()
            kinds = [entry.kind for entry in completions]
            assert kinds in ([], [CompletionKind.LANDED, CompletionKind.IMMEDIATE])
        assert completions
        endpoint.close()


def test_a_write_that_somebody_has_left_out_breaks_the_link_as_soon_as_no_stream_can_bring_it(victim: Victim) -> None:
    header = victim.write_head(op=Op.FENCED, sequence=1, length=8, piece_length=8)
    victim.send(header, b"x" * 8)
    victim.settle()
    assert victim.completions == []
    victim.send(header._replace(sequence=2), b"y" * 8, stream=1)
    assert "none of them can bring" in victim.loss()
    assert victim.untouched
    assert "none of them can bring" in victim.last_words()
