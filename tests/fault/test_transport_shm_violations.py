"""What a `shm` endpoint does when the peer's notices, offers or grants are not what they should be."""

from __future__ import annotations

import contextlib
import struct
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrdma_fate import unix_sockets
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.memory.shared_slots import PresentedRegion
from fedrdma_fate.ports import Completion, CompletionKind, RemoteSlot, Slot
from fedrdma_fate.transport.shm import ShmTransport
from fedrdma_fate.transport.shm_endpoint import MOST_TEXT, Op, ShmEndpoint
from fedrdma_fate.wire.errors import ErrorCode, TransferError, TransportError
from tests.conformance.pairs import await_loss

_NOTICE = struct.Struct("<B3xIQQQ")
GRANT = 5


class Ends:
    """A victim, its one exposed slot, and the peer's endpoint whose socket the tests write to by hand."""

    def __init__(self, victim: ShmEndpoint, peer: ShmEndpoint, region: SharedRegion) -> None:
        self.victim = victim
        self.peer = peer
        self.region = region
        self.completions: list[Completion] = []
        self.target: RemoteSlot = victim.expose(GRANT, Slot(region, 4096, 4096))

    def notify(self, op: int, key: int, address: int, length: int, immediate: int = 0, text: bytes = b"") -> None:
        self.peer._connection.sendall(_NOTICE.pack(op, immediate, key, address, length) + text)

    def progress(self) -> None:
        self.completions += self.victim.progress()

    def loss(self) -> str:
        """Why the link is lost."""
        return await_loss(self.progress)


def own_directory(parent: Path) -> Path:
    """As a gateway's is called, beside which its peers have theirs."""
    directory = parent / "fedrdma-test"
    directory.mkdir()
    return directory


@pytest.fixture
def ends() -> Iterator[Ends]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, ThreadPoolExecutor(1) as executor:
        directory = own_directory(Path(name))
        regions = [SharedRegion.create(side, 16384) for side in "ab"]
        transports = [ShmTransport(directory, region, SharedRegion.attach, PresentedRegion) for region in regions]
        waiting, dialling = transports[0].open("passive"), transports[1].open("active")
        answered = executor.submit(waiting.connect, dialling.address, 5)
        peer = dialling.connect(waiting.address, 5)
        victim = answered.result()
        assert isinstance(victim, ShmEndpoint)
        assert isinstance(peer, ShmEndpoint)
        yield Ends(victim, peer, regions[0])
        victim.close()
        peer.close()
        for transport, region in zip(transports, regions, strict=True):
            transport.close()
            region.close()


def test_a_correct_hand_made_notice_is_believed(ends: Ends) -> None:
    ends.notify(Op.WRITTEN, ends.target.key, ends.target.address + 8, 16)
    assert ends.victim.progress() == [Completion(CompletionKind.LANDED, immediate=GRANT, offset=8, length=16)]


def test_a_notice_that_comes_byte_by_byte_is_understood(ends: Ends) -> None:
    for byte in _NOTICE.pack(Op.IMMEDIATE, 9, ends.target.key, ends.target.address, 64):
        ends.peer._connection.sendall(bytes([byte]))
        ends.completions += ends.victim.progress()
    assert ends.completions == [Completion(CompletionKind.IMMEDIATE, immediate=9)]


@pytest.mark.parametrize(
    ("op", "key", "address", "length", "words"),
    [
        (Op.WRITTEN, 1, 0, 16, "key"),
        (Op.IMMEDIATE, 1, 0, 16, "key"),
        (Op.WRITTEN, 0, -8, 16, "out of range"),
        (Op.WRITTEN, 0, 4090, 16, "out of range"),
        (Op.IMMEDIATE, 0, 0, 4097, "out of range"),
        (Op.CHUNK, 0, 0, 0, "no bytes"),
        (77, 0, 0, 0, "unknown kind 77"),
        (Op.VIOLATION, 0, 0, MOST_TEXT + 1, "text of"),
    ],
)
def test_a_false_notice_ends_the_link(ends: Ends, op: int, key: int, address: int, length: int, words: str) -> None:
    ends.notify(op, ends.target.key ^ key, ends.target.address + address, length)
    assert words in ends.loss()
    assert ends.completions == []


def test_the_peers_accusation_is_repeated_to_the_caller(ends: Ends) -> None:
    ends.notify(Op.VIOLATION, 0, 0, 9, text=b"you wrote")
    assert "the peer says: you wrote" in ends.loss()


def test_a_notice_of_a_write_that_ended_before_its_grant_was_withdrawn_is_no_violation(ends: Ends) -> None:
    ends.peer.post_write(1, Slot(ends.region, 0, 16), ends.target, 0)
    ends.victim.withdraw(GRANT)
    assert ends.victim.progress() == []
    assert [entry.kind for entry in ends.peer.progress()] == [CompletionKind.WRITE_DONE]


def test_a_lost_link_ends_every_grant_for_a_peer_that_has_not_noticed(ends: Ends) -> None:
    ends.region.view[:] = bytes(16384)
    ends.victim.close()
    ends.peer.post_write(1, Slot(ends.region, 0, 16), ends.target, 0)
    assert bytes(ends.region.view) == bytes(16384)
    with pytest.raises(TransportError, match="withdrawn"):
        ends.peer.progress()


@pytest.mark.parametrize("target", [RemoteSlot(1, 16384, 1), RemoteSlot(1, 0, 16385), RemoteSlot(1, 2**62, 4096)])
def test_a_grant_beyond_the_mapped_region_is_refused(ends: Ends, target: RemoteSlot) -> None:
    with pytest.raises(TransferError) as error:
        ends.peer.post_write(1, Slot(ends.region, 0, 1), target, 0)
    assert error.value.code is ErrorCode.GRANT_VIOLATION


def test_a_slot_of_another_region_cannot_be_exposed(ends: Ends) -> None:
    other = SharedRegion.create("other", 4096)
    with pytest.raises(ValueError, match="other"):
        ends.victim.expose(9, Slot(other, 0, 4096))
    other.close()


def test_a_peer_that_does_not_read_its_notices_holds_up_copies_and_not_memory(ends: Ends) -> None:
    posts = 20_000
    for number in range(posts):
        ends.peer.post_bytes(number, b"x", ends.target, 0, 1)
    done = sum(len(ends.peer.progress()) for _ in range(10))
    assert done < posts / 2
    assert len(ends.peer._unsent) < 100_000
    deadline = time.monotonic() + 5
    while len(ends.completions) < posts and time.monotonic() < deadline:
        ends.completions += ends.victim.progress()
        done += len(ends.peer.progress())
    assert done == len(ends.completions) == posts


def test_a_directory_that_cannot_hold_a_socket_makes_the_transport_unavailable(tmp_path: Path) -> None:
    region = SharedRegion.create("region", 4096)
    no_directory = tmp_path / "region"
    for directory in (no_directory, tmp_path / "absent"):
        with pytest.raises(TransportError) as error:
            ShmTransport(directory, region, SharedRegion.attach, PresentedRegion)
        assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
        assert "memory.directory" in error.value.remedy
    region.close()


def test_where_proc_is_missing_a_long_directory_makes_the_transport_unavailable_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_sockets, "_DESCRIPTORS", "/no-proc")
    long = tmp_path / ("x" * 120)
    long.mkdir()
    with contextlib.closing(SharedRegion.create("region", 4096)) as region:
        with pytest.raises(TransportError) as error:
            ShmTransport(long, region, SharedRegion.attach, PresentedRegion)
        assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
        assert "a short path" in error.value.remedy
