"""Keys in shared memory: a writer sees a withdrawal before it writes, and a withdrawal waits for a writer."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.transport import shm_keys
from fedrdma_fate.transport.exposure import ProtocolViolation
from fedrdma_fate.transport.shm_keys import ENTRIES, TABLE_BYTES, KeyTable, PeerKeys, PeerStuck
from tests.support.descriptors import open_descriptors


@pytest.fixture
def table() -> Iterator[KeyTable]:
    made = KeyTable()
    yield made
    made.close()


@pytest.fixture
def peer(table: KeyTable) -> Iterator[PeerKeys]:
    opened = PeerKeys(table.open_for_reading())
    yield opened
    opened.close()


def test_a_live_key_can_be_held(table: KeyTable, peer: PeerKeys) -> None:
    keys = [table.publish() for _ in range(100)]
    for key in keys:
        with peer.holding(key):
            pass
    assert len(set(keys)) == 100


@pytest.mark.parametrize("forge", [lambda key: key ^ 2**30, lambda key: key + 1, lambda _: 0, lambda _: 2**63 - 1])
def test_a_key_that_was_never_published_cannot_be_held(
    table: KeyTable, peer: PeerKeys, forge: Callable[[int], int]
) -> None:
    key = table.publish()
    with pytest.raises(ProtocolViolation, match="never granted"), peer.holding(forge(key)):
        raise AssertionError("the body must not run")


def test_a_revoked_key_cannot_be_held_and_is_remembered(table: KeyTable, peer: PeerKeys) -> None:
    key, other = table.publish(), table.publish()
    table.revoke(key)
    assert table.was_revoked(key)
    assert not table.was_revoked(other)
    with pytest.raises(ProtocolViolation), peer.holding(key):
        raise AssertionError("the body must not run")


def test_revoking_waits_for_the_writer_and_for_no_other(table: KeyTable, peer: PeerKeys) -> None:
    key, other = table.publish(), table.publish()
    revoked = threading.Event()

    def revoke() -> None:
        table.revoke(key)
        revoked.set()

    with peer.holding(key):
        table.revoke(other)
        thread = threading.Thread(target=revoke)
        thread.start()
        assert not revoked.wait(0.05)
    assert revoked.wait(30)
    thread.join()


def test_a_writer_that_never_ends_is_reported(table: KeyTable, peer: PeerKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_keys, "REVOKE_SECONDS", 0.02)
    key = table.publish()
    with peer.holding(key), pytest.raises(PeerStuck):
        table.revoke(key)


def test_closing_the_table_ends_all_keys() -> None:
    table = KeyTable()
    peer = PeerKeys(table.open_for_reading())
    keys = [table.publish() for _ in range(3)]
    table.close()
    for key in keys:
        with pytest.raises(ProtocolViolation), peer.holding(key):
            raise AssertionError("the body must not run")
    peer.close()


def test_a_writer_that_is_killed_in_the_middle_does_not_keep_its_lock(table: KeyTable) -> None:
    key = table.publish()
    script = (
        "import sys, time; from fedrdma_fate.transport.shm_keys import PeerKeys\n"
        "with PeerKeys(int(sys.argv[1])).holding(int(sys.argv[2])): print('holding', flush=True); time.sleep(60)"
    )
    fileno = table.open_for_reading()
    command = [sys.executable, "-c", script, str(fileno), str(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[fileno]) as writer:
        os.close(fileno)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "holding\n"
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    table.revoke(key)


def test_more_live_keys_than_entries_are_refused_and_places_are_used_again(table: KeyTable) -> None:
    keys = [table.publish() for _ in range(ENTRIES)]
    with pytest.raises(ValueError, match=str(ENTRIES)):
        table.publish()
    table.revoke(keys[7])
    assert table.publish() != keys[7]


def test_a_table_has_all_its_bytes_from_the_start(table: KeyTable) -> None:
    status = os.fstat(table.open_for_reading())
    assert status.st_blocks * 512 >= TABLE_BYTES == status.st_size


def table_file(length: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fileno = os.memfd_create("keys", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fileno, length)
    fcntl.fcntl(fileno, fcntl.F_ADD_SEALS, seals)
    return fileno


def test_nobody_can_cut_a_table_short(table: KeyTable) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(table._fileno, 4)


def test_a_reader_of_a_table_cannot_write_keys_into_it(table: KeyTable) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(table.open_for_reading(), bytes(8), 0)


def test_a_table_that_was_never_filled_has_no_live_key() -> None:
    peer = PeerKeys(table_file(TABLE_BYTES))
    with pytest.raises(ProtocolViolation), peer.holding(1 << 62):
        raise AssertionError("the body must not run")
    peer.close()


def test_a_table_that_cannot_be_filled_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_descriptors()
    with pytest.raises(OSError, match="No space left"):
        KeyTable()
    assert open_descriptors() == before


@pytest.mark.parametrize("length", [5, TABLE_BYTES - 1, TABLE_BYTES + 1])
def test_a_file_that_is_no_table_is_refused(length: int) -> None:
    before = open_descriptors()
    with pytest.raises(ValueError, match=f"has {length} bytes, not {TABLE_BYTES}"):
        PeerKeys(table_file(length))
    assert open_descriptors() == before


def test_a_table_that_could_be_cut_short_is_refused() -> None:
    with pytest.raises(ValueError, match="cut short"):
        PeerKeys(table_file(TABLE_BYTES, seals=fcntl.F_SEAL_GROW))
