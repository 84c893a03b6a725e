"""A journal holds what was written, whenever its writer is killed and whatever becomes of the file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.memory import journal_file
from fedrdma_fate.memory.journal_file import (
    HEADER_BYTES,
    MAGIC,
    DamagedJournalError,
    JournalFile,
    ShortenedJournalError,
    read_records,
)
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from tests.support.private_disks import private_disks


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fileno = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fileno
    os.close(fileno)


@settings(max_examples=30)
@given(bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_a_journal_that_is_cut_at_any_byte_holds_all_records_before_and_says_that_there_were_more(
    bodies: list[bytes],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        fileno = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        file = JournalFile(fileno, bodies[:1])
        ends = [file.size]
        for body in bodies[1:]:
            assert file.append(body)
            ends.append(file.size)
        file.close()
        path = Path(name) / "journal"
        whole = path.read_bytes()
        for length in range(len(whole) + 1):
            path.write_bytes(whole[:length])
            kept = sum(end <= length for end in ends)
            if length < HEADER_BYTES:
                assert read_records(fileno) == ([], length)
            elif kept == len(bodies):
                assert read_records(fileno) == (bodies, 0)
            else:
                with pytest.raises(ShortenedJournalError, match=f"of {ends[-1]}") as caught:
                    read_records(fileno)
                assert caught.value.records == bodies[:kept]
        os.close(fileno)


@pytest.mark.parametrize("written", range(1, 9 + len(b"third")))
def test_a_record_that_was_being_written_is_ignored(tmp_path: Path, directory: int, written: int) -> None:
    file = JournalFile(directory, [b"first"])
    file.append(b"second")
    before = (tmp_path / "journal").read_bytes()
    file.append(b"third")
    file.close()
    last = (tmp_path / "journal").read_bytes()[len(before) :]
    (tmp_path / "journal").write_bytes(before + last[:written])
    # all of it is there, and its end is not noted yet
    whole = written == len(last)
    assert read_records(directory) == ([b"first", b"second", *[b"third"] * whole], 0 if whole else written)


@settings(max_examples=60)
@given(bodies=st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=5), data=st.data())
def test_a_record_that_is_damaged_is_told_from_one_that_was_cut_short(bodies: list[bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        fileno = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        file = JournalFile(fileno, ())
        ends = [file.size]
        for body in bodies:
            file.append(body)
            ends.append(file.size)
        file.close()
        path = Path(name) / "journal"
        raw = bytearray(path.read_bytes())
        at = data.draw(st.integers(HEADER_BYTES, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        damaged = sum(end <= at for end in ends) - 1
        is_last = damaged == len(bodies) - 1
        what = "cut short, or damaged, behind byte" if is_last else "damaged at byte"
        with pytest.raises(DamagedJournalError, match=f"{what} {ends[damaged]}") as caught:
            read_records(fileno)
        assert caught.value.records == bodies[:damaged] + bodies[damaged + 1 :]
        assert isinstance(caught.value, ShortenedJournalError) == is_last
        os.close(fileno)


def _damaged(tmp_path: Path, directory: int, body: bytes, behind: bytes) -> None:
    """A journal whose first record has lost its length."""
    file = JournalFile(directory, [body, behind])
    file.close()
    raw = bytearray((tmp_path / "journal").read_bytes())
    raw[HEADER_BYTES + 3] ^= 255
    (tmp_path / "journal").write_bytes(raw)


def test_a_record_that_a_payload_imitates_is_not_read_behind_a_damaged_one(tmp_path: Path, directory: int) -> None:
    other = tmp_path / "other"
    other.mkdir()
    fileno = os.open(other, os.O_RDONLY | os.O_DIRECTORY)
    JournalFile(fileno, [b"forged"]).close()
    os.close(fileno)
    forged = (other / "journal").read_bytes()[HEADER_BYTES:]
    _damaged(tmp_path, directory, b"a payload: " + forged, b"true")
    with pytest.raises(DamagedJournalError) as caught:
        read_records(directory)
    assert caught.value.records == [b"true"]


def test_a_record_that_is_longer_than_is_searched_is_passed_by_its_length(tmp_path: Path, directory: int) -> None:
    JournalFile(directory, [bytes(2 << 20), b"behind"]).close()
    raw = bytearray((tmp_path / "journal").read_bytes())
    raw[HEADER_BYTES + 100] ^= 1
    (tmp_path / "journal").write_bytes(raw)
    with pytest.raises(DamagedJournalError) as caught:
        read_records(directory)
    assert caught.value.records == [b"behind"]


def test_a_record_that_is_too_long_to_be_read_is_not_written_and_hides_no_other(directory: int) -> None:
    file = JournalFile(directory, [b"first"])
    with pytest.raises(ValueError, match="a record has 16777217 bytes"):
        file.append(b"beside", bytes(journal_file.MOST_RECORD_BYTES + 1))
    assert file.append(bytes(journal_file.MOST_RECORD_BYTES))
    assert file.append(b"last")
    file.close()
    records, behind = read_records(directory)
    assert [len(record) for record in records] == [5, journal_file.MOST_RECORD_BYTES, 4]
    assert behind == 0


def test_bytes_that_look_like_many_long_records_are_not_all_looked_at(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "_MOST_CHECKED_BYTES", 1 << 20)
    lookalike = (1 << 18).to_bytes(4, "little")
    _damaged(tmp_path, directory, lookalike * 1000, bytes(1 << 19))
    looked_at = []
    frames = journal_file._frames
    monkeypatch.setattr(journal_file, "_frames", lambda *where: looked_at.append(where[1]) or frames(*where))
    with pytest.raises(DamagedJournalError) as caught:
        read_records(directory)
    assert caught.value.records == []
    assert len(looked_at) < 50


@pytest.mark.parametrize("start", [b"fedrdma journal 1\n", b"#!/bin/sh\n" * 3, bytes(64)])
def test_a_journal_of_another_version_is_refused_by_a_code(tmp_path: Path, directory: int, start: bytes) -> None:
    (tmp_path / "journal").write_bytes(start)
    with pytest.raises(MemoryPoolError) as caught:
        read_records(directory)
    assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE


def test_a_journal_that_is_a_link_is_not_followed(tmp_path: Path, directory: int) -> None:
    (tmp_path / "elsewhere").write_bytes(MAGIC)
    (tmp_path / "journal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        read_records(directory)


def test_what_is_appended_while_the_journal_is_compacted_stands_behind_what_is_left(directory: int) -> None:
    file = JournalFile(directory, [b"old", b"older"])

    def summarise(bodies: object) -> list[bytes]:
        assert list(bodies) == [b"old", b"older"]  # type: ignore[call-overload]
        file.append(b"meanwhile")
        return [b"short"]

    file.compact(summarise)
    file.append(b"later")
    assert read_records(directory) == ([b"short", b"meanwhile", b"later"], 0)
    file.close()


def test_who_appends_while_a_slow_disk_syncs_a_compacted_journal_does_not_wait_for_it(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JournalFile(directory, [b"1", b"2"], synced=True)
    appended: list[bytes] = []
    synced = os.fsync

    def slow(fileno: int) -> None:
        body = b"during %d" % len(appended)
        appending = threading.Thread(target=file.append, args=(body,), daemon=True)
        appending.start()
        appending.join(5.0)
        assert not appending.is_alive()
        appended.append(body)
        synced(fileno)

    monkeypatch.setattr(os, "fsync", slow)
    file.compact(lambda bodies: list(bodies)[1:])
    monkeypatch.undo()
    assert len(appended) == 3
    assert file.append(b"after")
    file.sync()
    assert read_records(directory)[0] == [b"2", *appended, b"after"]


def test_nobody_is_told_that_something_is_on_disk_while_one_journal_takes_the_place_of_another(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JournalFile(directory, [b"1"], synced=True)
    told = threading.Event()
    seen: list[bool] = []
    synced = os.fsync

    def sync() -> None:
        file.sync()
        told.set()

    syncing = threading.Thread(target=sync)

    def slow(fileno: int) -> None:
        seen.append(told.is_set())
        if len(seen) == 2:
            # the first is of what was there before, and nobody has to wait for that
            syncing.start()
        if len(seen) > 1:
            told.wait(0.1)
        synced(fileno)

    monkeypatch.setattr(os, "fsync", slow)
    file.compact(list)
    syncing.join(5.0)
    assert told.is_set()
    assert seen == [False] * 3


def test_a_journal_that_is_given_up_while_it_is_compacted_stays_empty(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JournalFile(directory, [b"1", b"2"])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def summarise(bodies: Iterable[bytes]) -> list[bytes]:
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.sync()
        return list(bodies)

    with pytest.raises(OSError, match="given up"):
        file.compact(summarise)
    assert read_records(directory)[0] == []


def test_a_journal_whose_directory_cannot_be_synced_is_given_up(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JournalFile(directory, [b"1"], synced=True)
    synced = os.fsync

    def fail(fileno: int) -> None:
        if fileno == directory:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced(fileno)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.compact(list)
    assert not file.append(b"2")
    assert read_records(directory)[0] == []


def test_a_journal_wants_compacting_when_it_has_doubled(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "COMPACT_FROM_BYTES", 1000)
    file = JournalFile(directory, [bytes(600)])
    file.append(bytes(500))
    assert not file.wants_compacting
    file.append(bytes(200))
    assert file.wants_compacting
    file.compact(lambda _: [bytes(600)])
    assert not file.wants_compacting
    file.close()


class _Disk:
    """Takes half of a write, and no more, while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fileno: int, data: bytes) -> int:
        if not self.full:
            return self._write(fileno, data)
        if len(data) < 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(fileno, bytes(data)[: len(data) // 2])


def test_a_disk_that_others_fill_keeps_no_record_out_for_long(tmp_path: Path) -> None:
    """There is room for 4 MiB of them, taken before."""
    with private_disks({tmp_path: "32m"}) as disks:
        if disks is None:
            pytest.skip("this user may mount nothing, with unshare and nsenter or without")
        script = [sys.executable, "-c", _FULL_DISK, str(tmp_path)]
        with subprocess.Popen(
            [*disks.enter, *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            disks.fill(tmp_path)
            said, _ = process.communicate("full\n", timeout=30)
    assert said.split() == ["True"] * 300 + ["journal"]


_FULL_DISK = """
import os, sys
from fedrdma_fate.memory.journal_file import JournalFile
os.chdir(sys.argv[1])
file = JournalFile(os.open(".", os.O_RDONLY), [b"first"])
print("begun", flush=True)
sys.stdin.readline()
for _ in range(300):
    print(file.append(bytes(10_000)))
print(*sorted(name for name in os.listdir() if name.startswith("journal")))
"""


def test_records_that_a_full_disk_does_not_take_are_written_when_there_is_room(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _Disk(monkeypatch)
    file = JournalFile(directory, [b"first"])
    disk.full = True
    assert not file.append(b"second")
    assert not file.append(b"third")
    disk.full = False
    assert file.append(b"fourth")
    assert read_records(directory) == ([b"first", b"second", b"third", b"fourth"], 0)
    file.close()


def test_a_journal_that_lacks_what_a_full_disk_did_not_take_is_not_read(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _Disk(monkeypatch)
    file = JournalFile(directory, [b"lies in slot 1"])
    disk.full = True
    file.append(b"is gone")
    disk.full = False
    file.compact(list)
    with pytest.raises(DamagedJournalError, match="its disk was full") as caught:
        read_records(directory)
    assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE
    assert caught.value.records == [b"lies in slot 1"]
    file.close()
    # the next gateway begins its own
    JournalFile(directory, [b"another"]).close()
    assert read_records(directory) == ([b"another"], 0)


def test_a_journal_whose_disk_fails_when_it_is_synced_is_given_up(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JournalFile(directory, [b"first"], synced=True)
    file.sync()
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", _fails)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    # nobody knows what is there, so no more is promised
    with pytest.raises(OSError, match="lacks records"):
        file.sync()
    assert not file.append(b"later")
    file.close()


def test_what_was_written_is_not_written_twice_where_the_journal_cannot_be_named_anew(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _Disk(monkeypatch)
    file = JournalFile(directory, [b"first"])
    disk.full = True
    file.append(b"second")
    disk.full = False
    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", _fails)
        assert not file.append(b"third")
    assert file.append(b"fourth")
    assert read_records(directory) == ([b"first", b"second", b"third", b"fourth"], 0)
    file.close()


def _fails(*_arguments: object, **_more: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_journal_that_could_not_be_written_for_too_long_is_emptied_rather_than_wrong(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_file, "MOST_UNWRITTEN_BYTES", 100)
    disk = _Disk(monkeypatch)
    file = JournalFile(directory, [b"first"])
    disk.full = True
    file.append(bytes(200))
    disk.full = False
    assert not file.append(b"later")
    with pytest.raises(MemoryPoolError, match="its disk was full"):
        read_records(directory)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]
    assert "the journal is given up" in caplog.text
    file.close()


def test_no_record_is_written_that_would_hide_those_behind_it(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of many records may be one that is longer than any that is read."""
    monkeypatch.setattr(journal_file, "MOST_RECORD_BYTES", 10)
    file = JournalFile(directory, [b"first", b"second"])

    with pytest.raises(OSError, match="longer than 10 bytes"):
        file.compact(lambda bodies: [b"".join(bodies), b"behind"])

    assert file.append(b"third")
    file.close()
    assert read_records(directory)[0] == [b"first", b"second", b"third"]


@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_proves_full_only_when_a_new_file_is_to_be_on_it_has_its_room_back(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    file = JournalFile(directory, [b"first"], synced=True)
    assert file.append(b"second")
    synced, left = os.fsync, iter([True] * after)

    def full(fileno: int) -> None:
        if not next(left, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(fileno)

    monkeypatch.setattr(os, "fsync", full)
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No space left"):
        file.compact(list)
    monkeypatch.setattr(os, "fsync", synced)
    assert file.append(b"third")
    file.close()
    assert os.listdir(tmp_path) == ["journal"]
    assert read_records(directory) == ([b"first", b"second", b"third"], 0)

    left = iter([True] * after)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        JournalFile(directory, [b"first", b"second", b"third"], synced=True)

    # that of the earlier run, or, where only the directory is not known to be on disk, one that says the same
    assert os.listdir(tmp_path) == ["journal"]
    assert read_records(directory) == ([b"first", b"second", b"third"], 0)
    assert len(os.listdir("/proc/self/fd")) == len(open_before) - 1
