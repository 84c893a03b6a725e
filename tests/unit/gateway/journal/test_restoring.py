"""What is put back counts as it did."""

from __future__ import annotations

from fedrdma_fate.gateway.journal.earlier_run import EarlierRun
from fedrdma_fate.gateway.journal.state import replay
from fedrdma_fate.gateway.journal_records import Received, encode_record
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
