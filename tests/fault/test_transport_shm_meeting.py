"""What the two halves of a `shm` link believe of each other: the kernel's word and sealed memory, and no path."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrdma_fate import memory_files
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.memory.shared_slots import PresentedRegion
from fedrdma_fate.ports import Endpoint, Slot
from fedrdma_fate.transport import shm_meeting
from fedrdma_fate.transport.listener import dial
from fedrdma_fate.transport.shm import ShmTransport
from fedrdma_fate.transport.shm_keys import TABLE_BYTES, KeyTable
from fedrdma_fate.transport.shm_meeting import _MAGIC, _PRESENT, MeetingPlace, reach
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.descriptors import open_descriptors

LENGTH = 16384


class Victim:
    """A gateway's transport, and a peer played by hand."""

    def __init__(self, parent: Path) -> None:
        self.directory = parent / "fedrdma-victim"
        self.directory.mkdir()
        self.receive = SharedRegion.create("receive", LENGTH)
        self.send = SharedRegion.create("send", LENGTH)
        self.transport = ShmTransport(self.directory, self.receive, SharedRegion.attach, PresentedRegion, self.send)
        self.keys = KeyTable()
        self.region = SharedRegion.create("peer", LENGTH)
        self.executor = ThreadPoolExecutor(1)

    def close(self) -> None:
        self.executor.shutdown()
        self.transport.close()
        self.keys.close()
        for region in (self.receive, self.send, self.region):
            region.close()

    def answered_by(
        self, descriptors: Callable[[], list[int]], lengths: tuple[int, int] = (LENGTH, 0), magic: bytes = _MAGIC
    ) -> Future[Endpoint]:
        """The victim waits, and the peer passes these."""
        waiting = self.transport.open("passive")
        answer = self.executor.submit(waiting.connect, {}, 2.0)
        place = MeetingPlace(self.directory)
        path = place.find(str(waiting.address["meeting"]))
        token = bytes.fromhex(str(waiting.address["token"]))
        connection = dial(lambda seconds: reach(path, seconds), token, 1, 2.0)[0]
        passed = descriptors()
        socket.send_fds(connection, [_PRESENT.pack(magic, *lengths)], passed)
        for each in passed:
            os.close(each)
        answer.add_done_callback(lambda _: connection.close())
        return answer

    def well(self) -> list[int]:
        """What a peer passes that is all right."""
        return [self.keys.open_for_reading(), os.dup(self.region.fileno)]


@pytest.fixture
def victim() -> Iterator[Victim]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="test-of-fedrdma-") as name:
        made = Victim(Path(name))
        yield made
        made.close()


def unsealed(length: int) -> int:
    fileno = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fileno, length)
    return fileno


def refusal(answer: Future[Endpoint]) -> str:
    with pytest.raises(TransportError) as caught:
        answer.result(10)
    assert caught.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    return caught.value.message


def test_a_peer_played_by_hand_is_taken_where_it_plays_well(victim: Victim) -> None:
    answer = victim.answered_by(victim.well)
    endpoint = answer.result(10)
    assert endpoint.lent_region is None
    endpoint.close()


def test_a_region_that_is_cut_short_after_it_was_presented_is_no_sigbus_for_it_is_not_taken(victim: Victim) -> None:
    assert "cut short" in refusal(victim.answered_by(lambda: [victim.well()[0], unsealed(LENGTH)]))


@pytest.mark.parametrize(
    ("lie", "lengths", "words"),
    [
        (lambda v: [v.well()[0], os.dup(v.region.fileno)], (LENGTH * 2, 0), f"has {LENGTH} bytes, not {LENGTH * 2}"),
        (lambda v: [v.well()[0], os.open("/dev/zero", os.O_RDWR)], (LENGTH, 0), "no file in memory"),
        (lambda v: [v.well()[0], memory_files.open_for_reading(v.region.fileno)], (LENGTH, 0), "ermission"),
        (lambda v: [v.well()[0], os.dup(v.receive.fileno)], (LENGTH, 0), "region of our own"),
        (lambda v: [v.well()[0], os.dup(v.send.fileno)], (LENGTH, 0), "region of our own"),
        (lambda v: [*v.well(), os.dup(v.receive.fileno)], (LENGTH, LENGTH), "region of our own"),
        (lambda v: [*v.well(), memory_files.open_for_reading(v.send.fileno)], (LENGTH, LENGTH), "region of our own"),
        (lambda v: [*v.well(), unsealed(LENGTH)], (LENGTH, LENGTH), "cut short"),
        (lambda v: [unsealed(TABLE_BYTES), v.well()[1]], (LENGTH, 0), "cut short"),
        (lambda v: [os.dup(v.region.fileno), v.well()[1]], (LENGTH, 0), f"has {LENGTH} bytes, not {TABLE_BYTES}"),
        (lambda v: v.well()[:1], (LENGTH, 0), "1 descriptors, not 2"),
        (lambda v: v.well(), (LENGTH, LENGTH), "2 descriptors, not 3"),
        (lambda v: [*v.well(), os.dup(v.region.fileno)], (LENGTH, 0), "3 descriptors, not 2"),
        (lambda v: [*v.well(), *v.well()], (LENGTH, LENGTH), "our own|3 descriptors|4 descriptors|cut short|has"),
    ],
    ids=[
        "a length that is not its own",
        "a device",
        "a region that cannot be written",
        "our receive region",
        "our send region",
        "our receive region to lend from",
        "our send region to lend from",
        "a region to lend from that can be cut short",
        "keys that can be cut short",
        "keys of another length",
        "too few",
        "too few to lend",
        "too many",
        "more than there is room for",
    ],
)
def test_what_a_peer_presents_is_checked_and_nothing_of_it_stays_open(
    victim: Victim, lie: Callable[[Victim], list[int]], lengths: tuple[int, int], words: str
) -> None:
    victim.transport.open("active").close()
    before = open_descriptors()
    found = refusal(victim.answered_by(lambda: lie(victim), lengths))
    assert any(each in found for each in words.split("|")), found
    left = open_descriptors() - before
    # what the lie opened itself beside what it passed
    assert left <= 2


def test_a_peer_of_another_version_is_told_apart(victim: Victim) -> None:
    assert "of this version" in refusal(victim.answered_by(victim.well, magic=b"FRDMfd\x00\x07"))


def test_a_peer_that_presents_nothing_is_waited_for_no_longer_than_a_connection_may_take(victim: Victim) -> None:
    waiting = victim.transport.open("passive")
    answer = victim.executor.submit(waiting.connect, {}, 0.3)
    path = MeetingPlace(victim.directory).find(str(waiting.address["meeting"]))
    token = bytes.fromhex(str(waiting.address["token"]))
    with contextlib.closing(dial(lambda seconds: reach(path, seconds), token, 1, 2.0)[0]):
        assert "nothing within 0.3 s" in refusal(answer)


def test_a_peer_that_goes_away_in_the_middle_of_it_is_an_error(victim: Victim) -> None:
    waiting = victim.transport.open("passive")
    answer = victim.executor.submit(waiting.connect, {}, 2.0)
    path = MeetingPlace(victim.directory).find(str(waiting.address["meeting"]))
    token = bytes.fromhex(str(waiting.address["token"]))
    connection = dial(lambda seconds: reach(path, seconds), token, 1, 2.0)[0]
    connection.send(b"FR")
    connection.close()
    assert "the peer went away" in refusal(answer)


def test_a_process_of_another_user_is_refused_on_both_sides(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    # the kernel would say so: here the other end is this very process
    other = os.geteuid() + 1
    monkeypatch.setattr(shm_meeting, "peer_user", lambda _: other)
    waiting, dialling = victim.transport.open("passive"), victim.transport.open("active")
    with pytest.raises(TransportError, match=f"belongs to user {other}"):
        dialling.connect(waiting.address, 1)
    waiting.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_kernel_tells_which_user_has_connected() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert shm_meeting.peer_user(ours) == os.geteuid()
    with tempfile.TemporaryDirectory(prefix="test-of-fedrdma-") as name:
        path = str(Path(name) / "socket")
        Path(name).chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            Path(path).chmod(0o777)
            listening.listen()
            child = os.fork()
            if not child:
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(path)
                    connection.recv(1)
                os._exit(0)
            accepted, _ = listening.accept()
            with accepted:
                assert shm_meeting.peer_user(accepted) == 65534
            os.waitpid(child, 0)


@pytest.mark.parametrize(
    "meeting",
    ["../../etc/passwd", "", "*", "0123456789abcdeX", "0123456789abcdef/../x", "0" * 15, "0" * 4096, "\0" * 16],
)
def test_what_a_peer_says_of_where_to_meet_is_never_a_path(victim: Victim, meeting: str) -> None:
    dialling = victim.transport.open("active")
    with pytest.raises(TransportError) as caught:
        dialling.connect({"meeting": meeting, "token": "00" * 16}, 1)
    assert caught.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    assert len(caught.value.message) < 400


def test_a_socket_that_nobody_of_this_user_serves_is_not_found(victim: Victim) -> None:
    with pytest.raises(TransportError, match="no gateway of this user"):
        victim.transport.open("active").connect({"meeting": "0" * 16, "token": "00" * 16}, 1)


@pytest.mark.parametrize("peer", [{}, {"meeting": 7, "token": "00"}, {"region": "/etc/passwd", "keys": "/etc/shadow"}])
def test_an_offer_without_a_place_to_meet_is_refused(victim: Victim, peer: Mapping[str, str | int]) -> None:
    with pytest.raises(TransportError, match="no valid 'meeting'"):
        victim.transport.open("active").connect(peer, 1)


def test_what_is_presented_names_no_file(victim: Victim) -> None:
    waiting = victim.transport.open("passive")
    assert set(waiting.address) == {"meeting", "token"}
    assert victim.transport.open("active").address == {}
    assert not any("/" in str(value) for value in waiting.address.values())
    waiting.close()


def test_connecting_leaves_no_descriptor_behind(victim: Victim) -> None:
    before = open_descriptors()
    for _ in range(3):
        waiting, dialling = victim.transport.open("passive"), victim.transport.open("active")
        answer = victim.executor.submit(waiting.connect, dialling.address, 2.0)
        # each has the other's regions, which are its own here
        with pytest.raises(TransportError, match="region of our own"):
            dialling.connect(waiting.address, 2.0)
        assert "region of our own" in refusal(answer)
    assert open_descriptors() == before


def test_two_gateways_lend_from_regions_that_the_other_can_only_read(victim: Victim) -> None:
    other_directory = victim.directory.with_name("fedrdma-other")
    other_directory.mkdir()
    receive, send = SharedRegion.create("receive", LENGTH), SharedRegion.create("send", 2 * LENGTH)
    other = ShmTransport(other_directory, receive, SharedRegion.attach, PresentedRegion, send)
    waiting, dialling = victim.transport.open("passive"), other.open("active")
    answer = victim.executor.submit(waiting.connect, dialling.address, 2.0)
    end, peer = dialling.connect(waiting.address, 2.0), answer.result(5)
    assert peer.lent_region is not None
    assert peer.lent_region.length == 2 * LENGTH
    with contextlib.ExitStack() as opened:
        fileno = peer.lent_region.open_for_reading()
        opened.callback(os.close, fileno)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(fileno, b"x", 0)
    slot = peer.expose(1, Slot(victim.receive, 4096, 4096))
    send.view[:4] = b"real"
    end.post_write(1, Slot(send, 0, 4096), slot, 0)
    assert bytes(victim.receive.view[4096:4100]) == b"real"
    end.close()
    peer.close()
    with pytest.raises(OSError, match="lost"):
        peer.lent_region.open_for_reading()
    other.close()
    receive.close()
    send.close()
    assert threading.active_count() >= 1
