"""What is put back counts as it did."""

from __future__ import annotations

import pytest

from fedrdma_fate.gateway.journal.earlier_run import EarlierRun
from fedrdma_fate.gateway.journal.state import replay, summarise
from fedrdma_fate.gateway.journal_records import Began, Received, decode_record, encode_record
from fedrdma_fate.gateway.journal_records import Spilled as SpilledRecord
from fedrdma_fate.gateway.peers.receiving import pool_owner
from fedrdma_fate.gateway.restoring import restore
from fedrdma_fate.wire.frames import MessageKey
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import Play


def test_a_small_message_of_an_earlier_run_takes_memory_of_its_site_and_of_no_other(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        context = twin.halves["b"].context
        run = EarlierRun()
        key = MessageKey("s", "m", "t", PARTIES["a"], PARTIES["b"])
        run.state.apply(Received("a", 7, key, "bytes", 5, body=b"hello"))
        restore(context, run, {"a": twin.halves["b"].peer})
        (message,) = context.mailbox.all_messages()
        assert message.lease_owner == pool_owner("a")

    play(scenario)


def test_a_small_message_of_an_earlier_run_does_not_take_the_slot_of_a_large_one(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        half = twin.halves["b"]
        region = half.context.receive_pool.region
        run = EarlierRun()
        run.region = region  # type: ignore[assignment]
        # where a small slot is leased first
        offset = region.length - 8192
        region.view[offset : offset + 5000] = b"x" * 5000
        small = MessageKey("s", "small", "t", PARTIES["a"], PARTIES["b"])
        large = MessageKey("s", "large", "t", PARTIES["a"], PARTIES["b"])
        run.state.apply(Received("a", 7, small, "bytes", 5000, body=b"y" * 5000))
        run.state.apply(Received("a", 8, large, "object", 5000, offset=offset))
        restore(half.context, run, {"a": half.peer})
        for key, body in ((small, b"y" * 5000), (large, b"x" * 5000)):
            message = await half.context.mailbox.take(key, 1)
            assert message.small_body() == body

    play(scenario)


def test_what_is_missing_of_a_message_is_known_to_the_next_run(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        half = twin.halves["b"]
        region = half.context.receive_pool.region
        run = EarlierRun()
        run.region = region  # type: ignore[assignment]
        key = MessageKey("s", "m", "t", PARTIES["a"], PARTIES["b"])
        written = Received("a", 8, key, "object", 5000, offset=8192, missing=((64, 1088), (4096, 5000)))
        state = replay([encode_record(written)])
        run.state.apply(state.messages["a", 8])
        restore(half.context, run, {"a": half.peer})
        (message,) = half.context.mailbox.all_messages()
        assert message.missing == ((64, 1088), (4096, 5000))

    play(scenario)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_small_message_that_is_on_disk_in_its_record_outlives_the_file_that_it_was_spilled_to(
    play: Play, *, is_there: bool
) -> None:
    async def scenario(twin: Twin) -> None:
        half = twin.halves["b"]
        spilled = half.context.spill.spill_bytes(b"hello")
        if not is_there:
            spilled.discard()
        run = EarlierRun()
        run.spill = half.context.spill._directory  # type: ignore[assignment]
        key = MessageKey("s", "m", "t", PARTIES["a"], PARTIES["b"])
        written = (
            Began("b", "boot", 1, 1, 2, 1, "/", synced=True),
            Received("a", 7, key, "bytes", 5, body=b"hello"),
            SpilledRecord("a", 7, spilled.path.name),
        )
        for record in summarise(map(encode_record, written)):
            run.state.apply(decode_record(record))
        restore(half.context, run, {"a": half.peer})
        message = await half.context.mailbox.take(key, 1)
        # from the file where there is one: it takes no memory
        assert (message.spilled is not None) is is_there
        body = spilled.path.read_bytes() if is_there else message.small_body()
        assert body == b"hello"
        message.discard()
        assert not spilled.path.exists()

    play(scenario)


def test_of_a_small_message_that_was_spilled_a_journal_that_is_not_synced_keeps_no_second_copy() -> None:
    key = MessageKey("s", "m", "t", PARTIES["a"], PARTIES["b"])
    received = Received("a", 7, key, "bytes", 5, body=b"hello")
    state = replay(map(encode_record, (Began("b", "boot", 1, 1, 2, 1, "/"), received, SpilledRecord("a", 7, "file"))))
    assert state.messages["a", 7].body is None
