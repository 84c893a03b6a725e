"""What an earlier run has left is either what its journal says, or said to be lost: also where a start goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedrdma_fate import memory_files
from fedrdma_fate.gateway import kept_memory
from fedrdma_fate.gateway.assembly import _turn_away
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.journal.earlier_run import StateDirectory, start_keeper
from fedrdma_fate.gateway.journal.journal import Journal
from fedrdma_fate.gateway.journal_records import (
    Began,
    Gone,
    Joined,
    Leased,
    Outgoing,
    Pulled,
    Received,
    Sent,
    SumAdded,
    SumBegan,
    SumGone,
    encode_record,
)
from fedrdma_fate.gateway.kept_memory import KeptMemory, boot_identity
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.memory import journal_file
from fedrdma_fate.memory.allocator import SlotAllocator
from fedrdma_fate.memory.journal_file import MAGIC, MOST_RECORD_BYTES, JournalFile, read_records
from fedrdma_fate.memory.keeper import Keeper
from fedrdma_fate.memory.region_directory import RECEIVE_REGION, SEND_REGION, RegionDirectory
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from fedrdma_fate.wire.frames import MOST_PARTIES, MOST_PARTY_CHARACTERS, MessageKey, Offer, Party
from tests.support.endpoints import HeapRegion

A, B = Party("guest", "1"), Party("host", "2")
LENGTH = 1 << 20


def key(name: str) -> MessageKey:
    return MessageKey("s", name, "t", B, A)


IN_REGION = Received("b", 7, key("large"), "object", 5000, offset=8192)
MAPPED = Received("b", 8, key("mapped"), "object", 5000, offset=32768, handed=True)
TO_BE_SENT = Outgoing("b", 10, MessageKey("s", "m", "t", A, B), "object", 5000, "fedrdma-x", offset=8192)
SMALL = Received("b", 9, key("small"), "bytes", 5, body=b"hello")


class Runs:
    """Runs of one gateway, one after another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = parse_config(
            {
                "site": "a",
                "parties": ["guest:1"],
                "security": "off",
                "memory": {
                    "receive_bytes": LENGTH,
                    "send_bytes": LENGTH,
                    "ring_slot_bytes": 65536,
                    "directory": str(directory),
                    "spill_directory": str(directory),
                },
                "peers": [{"site": "b", "parties": ["host:2"]}],
                "timeouts": {"restart": 30.0},
            }
        )

    def left(self, *records: Any, synced: bool = False) -> None:
        """A run was killed that had written these, and its keeper was killed as well."""
        state = StateDirectory(self.directory, "a")
        nowhere = str(self.directory / "none")
        began = Began("a", boot_identity(), 1, LENGTH, 2, LENGTH, nowhere, "its journal", synced)
        JournalFile(state.fileno, map(encode_record, (began, *records))).close()
        state.close()

    @contextlib.contextmanager
    def run(self) -> Iterator[tuple[KeptMemory, Journal]]:
        """One that is killed as soon as its memory is there."""
        with contextlib.ExitStack() as undo:
            regions = RegionDirectory.open(self.directory, "a")
            undo.callback(regions.close)
            kept = KeptMemory.open(self.config, regions, undo)
            receive = kept.receive_region or regions.create_region(RECEIVE_REGION, LENGTH, warm=False)
            send = kept.send_region or regions.create_region(SEND_REGION, LENGTH, warm=False)
            _, journal = kept.begin(receive, send, undo)
            yield kept, journal

    def end(self) -> None:
        """The last one, which ends in order."""
        with self.run() as (kept, _):
            kept.forget()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    runs.end()


def test_messages_whose_memory_is_gone_are_not_looked_for_in_that_of_a_run_that_was_killed_before_it_said_so(
    runs: Runs,
) -> None:
    runs.left(IN_REGION, MAPPED, SMALL, TO_BE_SENT, Leased("client", 3, 1, 0, 8192))
    with runs.run():
        pass
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert kept.receive_region is not None
        assert list(kept.earlier.state.messages.values()) == [SMALL]
        assert [lost.key.name for lost in kept.earlier.state.lost.values()] == ["large"]
        (outgoing,) = kept.earlier.state.outgoing.values()
        assert not SlotAllocator(LENGTH).allocate_at(outgoing.offset, outgoing.total_bytes)
        assert not kept.earlier.state.leases


def test_a_journal_that_cannot_be_begun_anew_is_not_read_by_a_later_run(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs.left(SMALL)
    with monkeypatch.context() as full:
        full.setattr(journal_file, "_write_all", full_disk)
        with runs.run() as (kept, journal):
            assert not journal.is_kept
            assert kept.earlier is not None
            # its task gets it from this run, and of that nothing is written down
            assert list(kept.earlier.state.messages.values()) == [SMALL]
    assert "no journal in" in caplog.text
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert not kept.earlier.state.messages


def full_disk(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_where_no_keeper_starts_that_of_the_earlier_run_stays(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.left(SMALL)
    with runs.run() as (_, journal):
        journal.write(IN_REGION)
    with monkeypatch.context() as none:
        none.setattr(Keeper, "start", _no_process)
        with runs.run():
            pass
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert kept.receive_region is not None, kept.earlier.why_gone
        assert IN_REGION in kept.earlier.state.messages.values()


def _no_process(*_arguments: object, **_more: object) -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def _watch(kept: KeptMemory, until: Callable[[], object]) -> None:
    """Let it look after its keeper until something holds."""

    async def watch() -> None:
        watching = asyncio.ensure_future(kept.watch_keeper())
        deadline = time.monotonic() + 30
        while not until() and not watching.done():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        watching.cancel()
        await asyncio.wait([watching])

    asyncio.run(watch())


def test_where_a_keeper_is_killed_another_one_is_started(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_memory, "KEEPER_LOOK_SECONDS", 0.01)
    runs.left(SMALL)
    with runs.run() as (kept, journal):
        journal.write(IN_REGION)
        first = _keeper_of(kept)
        first._process.kill()  # type: ignore[union-attr]
        _watch(kept, lambda: kept._keeper is not first)
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert kept.receive_region is not None, kept.earlier.why_gone
        assert IN_REGION in kept.earlier.state.messages.values()


def _keeper_of(kept: KeptMemory) -> Keeper:
    assert kept._keeper is not None
    return kept._keeper


def test_a_keeper_that_is_there_when_its_gateway_has_ended_meanwhile_is_ended_as_well(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_memory, "KEEPER_LOOK_SECONDS", 0.01)
    started: list[Keeper] = []

    def start(*arguments: Any) -> Keeper | None:
        keeper = start_keeper(*arguments)
        assert keeper is not None
        started.append(keeper)
        kept.forget()
        return keeper

    runs.left(SMALL)
    with runs.run() as (kept, _):
        _keeper_of(kept)._process.kill()  # type: ignore[union-attr]
        with monkeypatch.context() as slow:
            slow.setattr(kept_memory, "start_keeper", start)
            _watch(kept, lambda: started and kept._keeper is None)
        assert not started[0].is_there


def test_of_a_journal_that_is_damaged_all_messages_are_told_to_be_lost_and_what_was_to_be_sent_goes_on(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    small_to_be_sent = msgspec.structs.replace(TO_BE_SENT, transfer=11, body=b"hello", offset=0)
    runs.left(IN_REGION, SMALL, Pulled(key("pulled")), small_to_be_sent)
    state = StateDirectory(runs.directory, "a")
    path = state.path / "journal"
    state.close()
    raw = path.read_bytes()
    # the one that says that it was pulled
    at = raw.index(encode_record(Pulled(key("pulled"))))
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert not kept.earlier.state.messages
        assert [lost.key.name for lost in kept.earlier.state.lost.values()] == ["large", "small"]
        assert list(kept.earlier.state.outgoing.values()) == [small_to_be_sent]
    assert "[FR406] the journal of an earlier run lacks records: it is damaged" in caplog.text


@pytest.mark.parametrize("what", ["found", "not writable", "missing", "lacks records"])
def test_peers_are_told_of_another_journal_where_the_earlier_one_does_not_say_all(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with runs.run() as (kept, _):
        before = kept.journal_identity
        kept.leave()
    state = StateDirectory(runs.directory, "a")
    if what == "missing":
        (state.path / "journal").unlink()
    elif what == "lacks records":
        (state.path / "journal").rename(state.path / "journal.behind")
    state.close()
    if what == "not writable":
        monkeypatch.setattr(journal_file, "_write_all", full_disk)
    with runs.run() as (kept, _):
        assert before
        assert (kept.journal_identity == before) is (what in ("found", "not writable"))
        assert kept.earlier is not None
        # tasks that came before are told
        assert bool(kept.earlier.why_unknown) is (what in ("missing", "lacks records"))
        kept.leave()


def test_of_a_journal_that_a_full_disk_has_kept_short_all_messages_are_told_to_be_lost(runs: Runs) -> None:
    runs.left(IN_REGION)
    state = StateDirectory(runs.directory, "a")
    (state.path / "journal").rename(state.path / "journal.behind")
    state.close()
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        (lost,) = kept.earlier.state.lost.values()
        assert (lost.key.name, "its disk was full" in lost.reason) == ("large", True)


def test_what_is_on_disk_is_not_lost_when_the_machine_was_started_anew_and_what_was_not_told_comes_again(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = msgspec.structs.replace(IN_REGION, copy="payload")
    pending = msgspec.structs.replace(IN_REGION, transfer=12, pending=True)
    runs.left(on_disk, pending, msgspec.structs.replace(IN_REGION, transfer=13))
    monkeypatch.setattr(kept_memory, "boot_identity", lambda: "another")
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert list(kept.earlier.state.messages.values()) == [on_disk]
        assert [lost.transfer for lost in kept.earlier.state.lost.values()] == [13]
        assert kept.earlier.state.ended("b") == [on_disk.transfer, 13]


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("shortened", [False, True])
def test_a_journal_that_was_not_synced_does_not_say_all_when_the_machine_was_started_anew(
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    synced: bool,
    shortened: bool,
) -> None:
    """What was written last may be on no disk; what was synced is, and of the rest nobody was told."""
    runs.left(SMALL, Gone("b", 100), synced=synced)
    if shortened:
        (path,) = runs.directory.glob("journal-*/journal")
        os.truncate(path, path.stat().st_size - 1)
    monkeypatch.setattr(kept_memory, "boot_identity", lambda: "another")
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert (kept.journal_identity == "its journal") is synced
        assert list(kept.earlier.state.messages.values()) == [SMALL] * synced
        assert len(kept.earlier.state.lost) == (not synced)
    assert ("[FR406]" in caplog.text) is not synced


def _another_version(path: Path) -> None:
    path.write_bytes(MAGIC[:-2] + b"9\n" + path.read_bytes()[len(MAGIC) :])


def _another_site(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    JournalFile(directory, [encode_record(Began("elsewhere", "boot", 1, 1, 2, 1, "/"))]).close()
    os.close(directory)


def _a_record_of_another_version(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    JournalFile(directory, [b"\x92\x7f\x01"]).close()
    os.close(directory)


def _a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_another_version, "it begins with b'fedrdma journal 9"),
        (_another_site, "it is of the site 'elsewhere'"),
        (_a_record_of_another_version, "a record does not parse"),
        (_a_link, "cannot be read"),
    ],
)
def test_a_journal_that_cannot_be_read_keeps_its_gateway_from_starting_and_loses_nothing(
    runs: Runs, spoil: Callable[[Path], None], told: str
) -> None:
    runs.left(SMALL)
    with runs.run() as (_, journal):
        journal.write(IN_REGION)
    state = StateDirectory(runs.directory, "a")
    path = state.path / "journal"
    state.close()
    before = path.read_bytes()
    spoil(path)
    with pytest.raises(MemoryPoolError, match=told) as caught, runs.run():
        pass
    assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE
    # once that is put right
    path.unlink()
    path.write_bytes(before)
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert list(kept.earlier.state.messages.values()) == [SMALL, IN_REGION]


def test_memory_of_another_size_than_the_journal_names_is_not_used(runs: Runs) -> None:
    runs.left(SMALL)
    with runs.run() as (_, journal):
        journal.write(IN_REGION)
    state = StateDirectory(runs.directory, "a")
    taken = Keeper.take_over(state.path)
    assert taken is not None
    taken[0].end()
    short = memory_files.make("fedrdma-receive")
    os.ftruncate(short, LENGTH // 2)
    memory_files.seal(short)
    Keeper.start(state.path, 30.0, {**taken[1], RECEIVE_REGION: short}).leave()
    os.close(short)
    for descriptor in taken[1].values():
        os.close(descriptor)
    state.close()
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert kept.earlier.region is None
        assert kept.send_region is not None
        assert [lost.key.name for lost in kept.earlier.state.lost.values()] == ["large"]


def test_a_payload_that_two_data_paths_bring_is_taken_and_written_down_once(runs: Runs) -> None:
    runs.left(SMALL)
    with runs.run() as (_, journal):
        offer = Offer("tcp", 7, key("large"), "object", 5000, "fedrdma-x", 1, 1000, 0)
        slots = [Slot(HeapRegion(LENGTH), offset, 8192) for offset in (0, 16384)]
        assert journal.received("b", offer, slots[0], 4096)
        assert not journal.received("b", offer, slots[1], 4096)
        assert journal.received("c", offer, slots[1], 4096), "another site's transfer of that number"
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        found = [(each.origin, each.offset) for each in kept.earlier.state.messages.values() if each != SMALL]
        assert found == [("b", 0), ("c", 16384)]


def test_the_longest_record_is_read_again(tmp_path: Path) -> None:
    # each character takes four bytes at most
    name = "\U0001f600" * MOST_PARTY_CHARACTERS
    parties = tuple(Party(name, f"{number}{name}"[:MOST_PARTY_CHARACTERS]) for number in range(MOST_PARTIES))
    body = encode_record(Joined("s", A, parties))
    assert len(body) <= MOST_RECORD_BYTES
    fileno = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = JournalFile(fileno, ())
        file.append(body, b"later")
        file.close()
        assert read_records(fileno) == ([body, b"later"], 0)
    finally:
        os.close(fileno)


def test_nothing_is_told_to_a_site_of_which_an_earlier_run_had_messages_and_that_is_a_peer_no_more() -> None:
    _turn_away(None, {}, Message(key("m"), "object", 1, origin="gone"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("region", "record"), [("receive", IN_REGION), ("send", TO_BE_SENT)])
def test_memory_that_is_to_have_another_length_is_left_with_what_waits_in_it(
    runs: Runs, region: str, record: Any
) -> None:
    runs.left(SMALL)
    with runs.run() as (_, journal):
        journal.write(Gone("b", 9), record)
    was = runs.config
    changed = msgspec.structs.replace(was.memory, **{f"{region}_bytes": 2 * LENGTH})
    runs.config = msgspec.structs.replace(was, memory=changed)
    with (
        pytest.raises(MemoryPoolError, match=f"{region}_bytes is {2 * LENGTH}, and was {LENGTH}") as caught,
        runs.run(),
    ):
        pass
    assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE
    assert f"Start it with {LENGTH}" in caught.value.remedy
    runs.config = was
    with runs.run() as (kept, journal):
        assert kept.receive_region is not None
        assert kept.send_region is not None
        assert kept.earlier is not None
        assert [*kept.earlier.state.messages.values(), *kept.earlier.state.outgoing.values()] == [record]
        journal.write(Gone("b", 7), Sent("b", 10))


def test_memory_that_nothing_waits_in_may_have_another_length(runs: Runs) -> None:
    runs.left(SMALL)
    with runs.run() as (_, journal):
        journal.write(MAPPED)
    runs.config = msgspec.structs.replace(
        runs.config, memory=msgspec.structs.replace(runs.config.memory, receive_bytes=2 * LENGTH)
    )
    with runs.run() as (kept, _):
        assert kept.receive_region is None
        assert kept.send_region is not None


def test_memory_with_a_sum_in_it_is_left_with_it(runs: Runs) -> None:
    runs.left(SMALL)
    sources = (key("m"), key("n"))
    with runs.run() as (_, journal):
        journal.write(Gone("b", 9), SumBegan(5, "task", sources, "exact", ((3,),), 0, 9), SumAdded(5, 1, 0.5, "b", 3))
    was = runs.config
    runs.config = msgspec.structs.replace(was, memory=msgspec.structs.replace(was.memory, receive_bytes=2 * LENGTH))
    with pytest.raises(MemoryPoolError, match="1 message would be lost"), runs.run():
        pass
    runs.config = was
    with runs.run() as (kept, journal):
        assert kept.earlier is not None
        (found,) = kept.earlier.state.sums
        assert [added.party for added in found.added] == [1]
        journal.write(SumGone(5))
