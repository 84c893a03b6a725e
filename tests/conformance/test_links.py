"""How links come about, break and end: the same over every transport."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrdma_fate.gateway.transports import TransportSet
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import RemoteSlot, Slot, Transport
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.conformance.pairs import (
    ONE_OF_EACH,
    TRANSPORTS,
    MakeTransport,
    Pair,
    Side,
    Site,
    await_loss,
    connect,
    wait_for,
)
from tests.support.rdma import skip_without_device
from tests.support.sites import eventually

ALIKE_ONCE = True
"""How links come about and end is the same over transports that are alike."""

MIB = 1024 * 1024
BOUNDED = 8.0
"""Seconds within which a loss must show."""

SESSIONS = 16
"""What each leaves behind shows exactly; tests/nic/test_verbs_leaks.py has fifty over verbs."""


@pytest.fixture
def transport(
    make: MakeTransport, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion]
) -> Iterator[Transport]:
    made = make(Site(shared_directory, regions[0]))
    yield made
    made.close()


def loss(side: Side) -> str:
    """Progress until the link is lost, and say why."""

    def step() -> None:
        wait_for(side.endpoint)
        side.progress()

    return await_loss(step, BOUNDED)


# -- breaking ---------------------------------------------------------------------------------------------------------


def test_a_peer_that_closes_is_noticed(pair: Pair) -> None:
    pair.active.endpoint.close()
    assert "closed" in loss(pair.passive) or "gone" in loss(pair.passive)


def test_a_peer_that_closes_in_the_middle_of_a_write_is_noticed(pair: Pair) -> None:
    target = pair.active.expose(1, 0, 64 * MIB)
    pair.passive.write(1, 0, 64 * MIB, target)
    pair.active.progress()
    pair.active.endpoint.close()
    loss(pair.passive)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_killed_peer_is_noticed(name: str, shared_directory: Path) -> None:
    skip_without_device(name)
    region = SharedRegion.create(f"killed-{name}", MIB)
    transport = TRANSPORTS[name](Site(shared_directory, region))
    draft = transport.open("passive")
    command = [sys.executable, "-m", "tests.conformance.peer_process", name, str(shared_directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = json.loads(process.stdout.readline())
            process.stdin.write(json.dumps(dict(draft.address)) + "\n")
            process.stdin.flush()
            side = Side(draft.connect(address, 10), region)
            target = RemoteSlot(**json.loads(process.stdout.readline()))
            side.write(1, 0, MIB, target)
            while not side.done:
                wait_for(side.endpoint)
                side.progress()
        finally:
            process.kill()
    began = time.monotonic()
    loss(side)
    assert time.monotonic() - began < BOUNDED
    side.endpoint.close()
    transport.close()
    region.close()


def test_what_completed_before_a_loss_is_still_reported(pair: Pair) -> None:
    target = pair.passive.expose(1, 0, MIB)
    pair.active.write(1, 0, MIB, target)
    pair.active.endpoint.post_bytes(2, b"h" * 64, target, 0, 9)
    pair.pump(lambda: pair.active.done == [1, 2])
    pair.active.endpoint.post_bytes(3, b"h" * 64, target, 0, 10)
    pair.passive.progress()
    pair.active.endpoint.close()
    loss(pair.passive)
    assert pair.passive.immediates[0] == 9


def test_after_a_loss_every_call_says_so_and_close_still_works(pair: Pair) -> None:
    target = pair.active.expose(1, 0, 4096)
    pair.passive.endpoint.close()
    reason = loss(pair.active)
    endpoint = pair.active.endpoint
    slot = Slot(pair.active.region, 0, 16)
    for call in (
        endpoint.progress,
        endpoint.poll_set,
        lambda: endpoint.expose(2, slot),
        lambda: endpoint.withdraw(1),
        lambda: endpoint.post_write(1, slot, target, 0),
        lambda: endpoint.post_bytes(1, b"x", target, 0, 1),
    ):
        with pytest.raises(TransportError) as error:
            call()
        assert error.value.code is ErrorCode.LINK_LOST
        assert error.value.message == reason
    endpoint.close()
    endpoint.close()


def test_a_closed_endpoint_refuses_further_calls(pair: Pair) -> None:
    pair.active.endpoint.close()
    pair.active.endpoint.close()
    with pytest.raises(TransportError) as error:
        pair.active.endpoint.progress()
    assert error.value.code is ErrorCode.LINK_LOST


# -- violations -------------------------------------------------------------------------------------------------------


def _violation_shows_at_both_ends(pair: Pair, word: str) -> None:
    assert word in loss(pair.passive)
    assert word in loss(pair.active)


def test_an_unknown_key_breaks_the_link_and_writes_nothing(pair: Pair) -> None:
    pair.passive.bytes_at(0, 8192)[:] = 0xEE
    target = pair.passive.expose(1, 0, 8192)
    pair.active.write(1, 0, 4096, RemoteSlot(target.key ^ 2**40, target.address, target.length))
    _violation_shows_at_both_ends(pair, "key")
    assert (pair.passive.bytes_at(0, 8192) == 0xEE).all()


def test_a_fenced_write_under_an_unknown_key_breaks_the_link_and_writes_nothing(pair: Pair) -> None:
    pair.passive.bytes_at(0, 8192)[:] = 0xEE
    target = pair.passive.expose(1, 0, 8192)
    forged = RemoteSlot(target.key ^ 2**40, target.address, target.length)
    pair.active.endpoint.post_bytes(1, b"h" * 64, forged, 0, 1)
    _violation_shows_at_both_ends(pair, "key")
    assert (pair.passive.bytes_at(0, 8192) == 0xEE).all()
    assert pair.passive.immediates == []


def test_a_write_that_comes_after_its_grant_was_withdrawn_touches_nothing(pair: Pair) -> None:
    target = pair.passive.expose(1, 0, 8192)
    pair.passive.endpoint.withdraw(1)
    pair.passive.bytes_at(0, 8192)[:] = 0xEE
    pair.active.write(1, 0, 4096, target)
    _violation_shows_at_both_ends(pair, "withdrawn")
    assert (pair.passive.bytes_at(0, 8192) == 0xEE).all()


def test_a_grant_withdrawn_in_the_middle_of_a_write_is_not_touched_any_more(pair: Pair) -> None:
    _begin(pair, chunk=False, rounds=8)
    pair.passive.endpoint.withdraw(1)
    pair.passive.bytes_at(0, 64 * MIB)[:] = 0xEE
    with ThreadPoolExecutor(1) as executor:
        told = executor.submit(loss, pair.active)
        assert "withdrawn" in loss(pair.passive)
        told.result()
    assert (pair.passive.bytes_at(0, 64 * MIB) == 0xEE).all()


# -- a slot is somebody else's afterwards -----------------------------------------------------------------------------


def _begin(pair: Pair, *, chunk: bool, rounds: int = 1) -> None:
    """A long write of the active side is on its way, and some of it is there; over and over if need be, to last."""
    slot = pair.passive.bytes_at(0, 64 * MIB)
    slot[:] = 0
    pair.active.fill(0, 64 * MIB, seed=1)
    target = pair.passive.expose(1, 0, 64 * MIB)
    for number in range(16 * rounds):
        place = number % 16 * 4 * MIB
        if chunk:
            pair.active.write_chunk(number, place, 4 * MIB, target, place, number)
        else:
            pair.active.write(number, place, 4 * MIB, target, place)
    # a look at every byte would take as long as the write
    while not slot[::4096].any():
        pair.active.progress()
        pair.passive.progress()


def _is_left_alone(pair: Pair, seconds: float = 0.5) -> bool:
    """Whether the slot stays as its next owner fills it, though the active side goes on for as long as it can."""
    slot = pair.passive.bytes_at(0, 64 * MIB)
    slot[:] = 0xEE
    deadline = time.monotonic() + seconds
    with contextlib.suppress(TransportError):
        while time.monotonic() < deadline:
            pair.active.progress()
            wait_for(pair.active.endpoint, timeout=0.01)
    return bool((slot == 0xEE).all())


@pytest.mark.parametrize("chunk", [False, True], ids=["write", "chunk"])
def test_an_end_that_was_closed_in_the_middle_of_writes_leaves_its_slots_alone(pair: Pair, chunk: bool) -> None:
    _begin(pair, chunk=chunk)
    pair.passive.endpoint.close()
    assert _is_left_alone(pair)
    assert not list(pair.passive.endpoint.still_open)


@pytest.mark.parametrize("chunk", [False, True], ids=["write", "chunk"])
def test_an_end_that_lost_its_link_in_the_middle_of_writes_leaves_its_slots_alone(pair: Pair, chunk: bool) -> None:
    _begin(pair, chunk=chunk)
    # another write of the peer, which may not be, ends the link under way
    other = pair.passive.expose(2, 70 * MIB, 4096)
    pair.active.write(99, 0, 4096, RemoteSlot(other.key ^ 2**40, other.address, other.length))
    with ThreadPoolExecutor(1) as executor:
        told = executor.submit(loss, pair.active)
        loss(pair.passive)
        pair.passive.endpoint.close()
        pair.passive.bytes_at(0, 64 * MIB)[:] = 0xEE
        told.result()
    assert _is_left_alone(pair)


def test_a_key_of_another_peer_opens_nothing(pair: Pair) -> None:
    pair.passive.bytes_at(0, 8192)[:] = 0xEE
    stolen = pair.passive.expose(1, 0, 8192)
    transports = TransportSet()
    name = pair.transports[0].name
    transports[name] = pair.transports[1]
    waiting, dialling = transports.open(name, "passive", "thief"), pair.transports[0].open("active")
    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(waiting.connect, dialling.address, 5.0)
        active, passive = dialling.connect(waiting.address, 5.0), answered.result()
    thief = Pair(Side(active, pair.active.region), Side(passive, pair.passive.region), pair.transports)
    try:
        thief.active.write(1, 0, 4096, stolen)
        _violation_shows_at_both_ends(thief, "key")
        assert (pair.passive.bytes_at(0, 8192) == 0xEE).all()
        pair.active.write(2, 0, 4096, stolen)
        pair.pump(lambda: pair.active.done == [2])
    finally:
        active.close()
        passive.close()


def test_a_key_of_a_link_that_was_lost_opens_nothing_on_the_next(pair: Pair) -> None:
    stolen = pair.passive.expose(1, 0, 8192)
    pair.active.endpoint.close()
    loss(pair.passive)
    pair.passive.endpoint.close()
    pair.passive.bytes_at(0, 8192)[:] = 0xEE
    active, passive = connect(*pair.transports)
    again = Pair(Side(active, pair.active.region), Side(passive, pair.passive.region), pair.transports)
    try:
        again.passive.expose(2, 8192, 8192)
        again.active.write(1, 0, 4096, stolen)
        _violation_shows_at_both_ends(again, "key")
        assert (again.passive.bytes_at(0, 8192) == 0xEE).all()
    finally:
        active.close()
        passive.close()


# -- connecting -------------------------------------------------------------------------------------------------------


def test_waiting_for_a_peer_that_does_not_come_ends_in_time(transport: Transport) -> None:
    other = transport.open("active")
    draft = transport.open("passive")
    began = time.monotonic()
    with pytest.raises(TransportError) as error:
        draft.connect(other.address, 0.2)
    other.close()
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    assert 0.15 < time.monotonic() - began < BOUNDED


def test_dialling_a_peer_that_does_not_wait_ends_in_time(transport: Transport) -> None:
    draft, silent = transport.open("active"), transport.open("passive")
    began = time.monotonic()
    with pytest.raises(TransportError) as error:
        draft.connect(silent.address, 0.3)
    silent.close()
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    assert time.monotonic() - began < BOUNDED


def test_dialling_a_closed_transport_fails(
    transport: Transport,
    make: MakeTransport,
    shared_directory: Path,
    regions: tuple[SharedRegion, SharedRegion],
) -> None:
    gone = make(Site(shared_directory, regions[1]))
    address = dict(gone.open("passive").address)
    gone.close()
    gone.close()
    with pytest.raises(TransportError) as error:
        transport.open("active").connect(address, 5)
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE


@pytest.mark.parametrize("spoil", ["missing", "wrong"])
def test_a_senseless_address_is_refused(transport: Transport, spoil: str) -> None:
    waiting = transport.open("passive")
    for name in waiting.address:
        if name == "streams" and spoil == "wrong":
            continue
        address = dict(waiting.address)
        if spoil == "missing":
            del address[name]
        else:
            address[name] = -1 if isinstance(address[name], int) else "no such thing"
        with pytest.raises(TransportError) as error:
            transport.open("active").connect(address, 0.5)
        assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    waiting.close()


def test_an_unknown_token_is_not_let_in(transport: Transport) -> None:
    waiting = transport.open("passive")
    address = {**waiting.address, "token": "00" * 16}
    dialling = transport.open("active")
    with ThreadPoolExecutor(1) as executor:
        passive = executor.submit(waiting.connect, dialling.address, 0.5)
        with pytest.raises(TransportError):
            dialling.connect(address, 2)
        with pytest.raises(TransportError):
            passive.result()


def test_several_links_of_one_transport_connect_at_once_each_with_its_own_peer(
    transport: Transport, make: MakeTransport, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion]
) -> None:
    other = make(Site(shared_directory, regions[1]))
    waiting = [transport.open("passive") for _ in range(4)]
    dialling = [other.open("active") for _ in range(4)]
    with ThreadPoolExecutor(8) as executor:
        answered = [executor.submit(w.connect, d.address, 5) for w, d in zip(waiting, dialling, strict=True)]
        dialled = [executor.submit(d.connect, w.address, 5) for w, d in zip(waiting, dialling, strict=True)]
    pairs = [(a.result(), b.result()) for a, b in zip(dialled, answered, strict=True)]
    for active, passive in pairs:
        active.close()
        loss(Side(passive, regions[0]))
        passive.close()
    other.close()


def test_closing_the_transport_wakes_those_who_wait(transport: Transport) -> None:
    waiting = transport.open("passive")
    peer_address = dict(transport.open("active").address)
    failures: list[TransportError] = []

    def wait() -> None:
        try:
            waiting.connect(peer_address, 30)
        except TransportError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    transport.close()
    thread.join(BOUNDED)
    assert [error.code for error in failures] == [ErrorCode.TRANSPORT_UNAVAILABLE]


def test_a_closed_transport_opens_nothing(transport: Transport) -> None:
    transport.close()
    with pytest.raises(TransportError) as error:
        transport.open("passive")
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE


# -- giving back ------------------------------------------------------------------------------------------------------


def _open_descriptors() -> dict[str, str]:
    """What each descriptor of this process is open on."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def _opened_since(before: dict[str, str]) -> list[str]:
    """What is open in excess of what was, by what it is: a descriptor may have got another's number."""
    kinds = Counter(target.split(":")[0] for target in _open_descriptors().values())
    kinds.subtract(target.split(":")[0] for target in before.values())
    return sorted(kinds.elements())


def test_sessions_leave_no_descriptor_thread_or_file(
    make: MakeTransport, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion]
) -> None:
    transports = make(Site(shared_directory, regions[0])), make(Site(shared_directory, regions[1]))
    _session(transports, regions)
    with _without_collection():
        descriptors, threads = _open_descriptors(), _threads_of_links()
        files = set(shared_directory.iterdir())
        for _ in range(SESSIONS):
            _session(transports, regions)
        # grpcio ends its own some time after the call
        with contextlib.suppress(AssertionError):
            eventually(lambda: not _opened_since(descriptors))
        assert _opened_since(descriptors) == []
        eventually(lambda: len(_threads_of_links()) <= len(threads))
        assert set(shared_directory.iterdir()) == files
    for transport in transports:
        transport.close()


def _threads_of_links() -> list[str]:
    """Names of all threads but the workers of a grpc server: it keeps these, as many as calls have overlapped."""
    return [thread.name for thread in threading.enumerate() if not thread.name.startswith("grpc-data_")]


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """What is open must not hang on when cycles are collected; what earlier tests left is collected before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_closed_transports_leave_nothing(
    make: MakeTransport, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion]
) -> None:
    files, threads = set(shared_directory.iterdir()), set(threading.enumerate())
    transports = make(Site(shared_directory, regions[0])), make(Site(shared_directory, regions[1]))
    _session(transports, regions)
    abandoned = transports[0].open("passive"), transports[0].open("active")
    for draft in abandoned:
        draft.close()
    for transport in transports:
        transport.close()
    assert set(shared_directory.iterdir()) == files
    deadline = time.monotonic() + BOUNDED
    while not set(threading.enumerate()) <= threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= threads


def _session(transports: tuple[Transport, Transport], regions: tuple[SharedRegion, SharedRegion]) -> None:
    active, passive = connect(*transports)
    pair = Pair(Side(active, regions[0]), Side(passive, regions[1]), transports)
    target = pair.passive.expose(1, 0, 4096)
    pair.active.write(1, 0, 4096, target)
    pair.pump(lambda: pair.active.done == [1])
    active.close()
    passive.close()
