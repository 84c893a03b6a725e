"""A journal that is written anew, shorter, says the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedrdma_fate.gateway.journal.state import JournalState, replay, summarise
from fedrdma_fate.gateway.journal_records import (
    Began,
    Coming,
    Confirmed,
    Copied,
    Dropped,
    Ended,
    EndedTogether,
    Gone,
    Handed,
    Joined,
    Leased,
    Left,
    Lost,
    Met,
    Missed,
    Numbered,
    Outgoing,
    Over,
    Pulled,
    Pushed,
    PushFailed,
    Received,
    Returned,
    Sent,
    Spilled,
    Stopped,
    SumAdded,
    SumAdding,
    SumBegan,
    SumClosed,
    SumGone,
    SumHanded,
    SumMerged,
    SumMerging,
    SumMoved,
    Told,
    Undelivered,
    Unleased,
    Unpulled,
    Unpushed,
    Whole,
    decode_record,
    encode_record,
    encode_together,
)
from fedrdma_fate.gateway.tasks.last_addition import MOST_PARTIES_MOVED
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from fedrdma_fate.wire.frames import MOST_NAME_CHARACTERS, MOST_PARTY_CHARACTERS, MessageKey, Offer, Party
from fedrdma_fate.wire.site_sum import MOST_TRANSFER

A, B = Party("guest", "1"), Party("host", "2")
BEGAN = Began("a", "boot", 1, 4096, 2, 4096, "/spill")

names = st.sampled_from(("m", "n"))
sites = st.sampled_from(("b", ""))
transfers = st.integers(1, 3)
parties = st.sampled_from((A, B))
tags = st.sampled_from(("t", "osx queue #0", "osx queue #1"))
keys = st.builds(MessageKey, st.sampled_from(("s", "t")), names, tags, parties, parties)
ends = st.sampled_from(("push", "pop"))
codes = st.sampled_from((ErrorCode.MESSAGE_LOST.value, ErrorCode.TRANSFER_ABORTED.value))
offers = st.builds(
    Offer,
    st.just("tcp"),
    transfers,
    keys,
    st.just("object"),
    st.just(9),
    st.just("grpc"),
    st.integers(1, 2),
    st.just(4),
    st.just(0),
)
pieces = st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9), st.integers(0, 2**64 - 1)), max_size=2).map(tuple)
records = st.one_of(
    st.builds(Coming, sites, offers, transfers, st.just(9), st.just(0), st.booleans(), st.booleans(), pieces),
    st.builds(Stopped, sites, transfers),
    st.builds(Received, sites, transfers, keys, st.just("object"), st.just(5), st.none() | st.just(b"12345")),
    st.builds(Received, sites, transfers, keys, st.just("object"), st.just(5), pending=st.booleans()),
    st.builds(Copied, sites, transfers, st.just("copy")),
    st.builds(Spilled, sites, transfers, st.just("file")),
    st.builds(Handed, sites, transfers),
    st.builds(Returned, sites, transfers),
    st.builds(Gone, sites, transfers),
    st.builds(Ended, sites, transfers),
    st.builds(EndedTogether, sites, st.lists(transfers).map(tuple)),
    st.builds(Lost, sites, transfers, keys, st.just("why")),
    st.builds(Joined, st.sampled_from(("s", "t")), parties, st.none() | st.just((A, B))),
    st.builds(Left, st.sampled_from(("s", "t")), parties),
    st.builds(Over, st.sampled_from(("s", "t")), st.just("why"), st.sampled_from(((), ("b",), ("b", "c")))),
    st.builds(Outgoing, sites, transfers, keys, st.just("object"), st.just(5), st.just("grpc"), whole=st.booleans()),
    st.builds(Whole, sites, transfers),
    st.builds(Sent, sites, transfers),
    st.builds(Undelivered, sites, transfers, keys, codes, st.just("why")),
    st.builds(Dropped, sites, transfers),
    st.builds(Confirmed, sites, transfers, keys),
    st.builds(PushFailed, keys, codes, st.just("why")),
    st.builds(Told, st.sampled_from(("s", "t")), parties),
    st.builds(Leased, names, st.just(1), transfers, st.just(0), st.just(9)),
    st.builds(Unleased, names, transfers),
    st.builds(Pushed, keys),
    st.builds(Unpushed, keys),
    st.builds(Missed, sites, transfers, keys),
    st.builds(SumBegan, transfers, names, st.tuples(keys), st.just("rank"), st.just(((3,),)), st.just(0), st.just(9)),
    st.builds(SumAdding, transfers, st.integers(0, 2)),
    st.builds(SumAdded, transfers, st.integers(0, 2), st.none() | st.just(0.5), sites, transfers),
    st.builds(SumMerging, transfers, st.none() | keys),
    st.builds(SumMerged, transfers, st.just(((1, 0.5), (2, None))), sites, st.just((7, 8))),
    st.builds(
        SumMerged, transfers, st.just(((1, 0.5), (2, 1.5))), sites, st.just((7, 8)), st.just((("b", 1), ("c", 1)))
    ),
    st.builds(SumClosed, transfers, st.just("why"), st.none() | st.just(1)),
    st.builds(SumMoved, transfers, st.sampled_from((4096, 8192)), st.just(4096)),
    st.builds(SumHanded, transfers, st.sampled_from((0, 2)), st.just(3)),
    st.builds(SumGone, transfers),
    st.builds(Met, sites, names),
    st.builds(Pulled, keys, st.sampled_from(("", "task")), transfers),
    st.builds(Unpulled, keys),
    st.builds(Numbered, st.sampled_from(("s", "t")), names, parties, parties, ends, st.integers(1, 3)),
)


def said(state: JournalState) -> list[Any]:
    """All of it, in an order that means nothing."""
    return sorted(repr(encode_record(record)) for record in state.records())


PUSHED_KEY = MessageKey("s", "m", "t", A, B)


@settings(max_examples=300)
@given(before=st.lists(records, max_size=25), after=st.lists(records, max_size=10))
@example(before=[PushFailed(PUSHED_KEY, ErrorCode.MESSAGE_LOST.value, "why"), Pushed(PUSHED_KEY)], after=[])
@example(before=[Pushed(PUSHED_KEY), PushFailed(PUSHED_KEY, ErrorCode.MESSAGE_LOST.value, "why")], after=[])
def test_a_journal_that_was_compacted_says_what_it_said_before(before: list[Any], after: list[Any]) -> None:
    bodies = [encode_record(record) for record in (BEGAN, *before)]
    later = [encode_record(record) for record in after]
    assert said(replay([*summarise(bodies), *later])) == said(replay([*bodies, *later]))


@given(record=records)
def test_a_record_is_read_as_it_was_written(record: Any) -> None:
    assert decode_record(encode_record(record)) == record


@given(together=st.lists(records, min_size=1, max_size=20))
def test_records_written_together_say_what_they_say_one_by_one(together: list[Any]) -> None:
    bodies = encode_together(together)
    assert len(bodies) == 1, "all or none of them"
    assert said(replay(bodies)) == said(replay(map(encode_record, together)))


def test_more_than_one_record_can_hold_is_written_one_by_one() -> None:
    key = MessageKey("s", "m", "t", A, B)
    long = Received("", 1, key, "bytes", 5 << 20, body=bytes(5 << 20))
    bodies = encode_together((long, Received("", 2, key, "bytes", 5 << 20, body=bytes(5 << 20))))
    assert len(bodies) == 2
    assert set(replay(bodies).messages) == {("", 1), ("", 2)}


def test_that_a_sum_has_moved_is_one_record_with_all_that_were_pulled_by_that() -> None:
    role = "\U0001f600" * MOST_PARTY_CHARACTERS
    longest, who = "\U0001f600" * MOST_NAME_CHARACTERS, Party(role, role)
    pulled = [Pulled(MessageKey(longest, longest, longest, who, who))] * (MOST_PARTIES_MOVED + 1)
    transfers = (MOST_TRANSFER,) * MOST_PARTIES_MOVED
    # of a tree of sites, each of a site of its own
    weights, of_site = tuple((party, 1.5) for party in range(MOST_PARTIES_MOVED)), ((role, 1),) * MOST_PARTIES_MOVED
    merged = SumMerged(1 << 62, weights, longest, transfers, of_site)
    together = (
        SumMoved(1 << 62, 1 << 62, 1 << 62),
        *pulled,
        merged,
        *(EndedTogether(role, (MOST_TRANSFER,)) for _ in transfers),
        Gone(longest, 1),
    )
    assert len(encode_together(together)) == 1


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x92\x63\x01", encode_record(Gone("b", 1))[:-1]])
def test_what_is_no_record_is_refused_by_a_code(body: bytes) -> None:
    with pytest.raises(MemoryPoolError) as caught:
        replay([body])
    assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE


def test_a_message_that_came_twice_is_one() -> None:
    key = MessageKey("s", "m", "t", B, A)
    state = replay(map(encode_record, (BEGAN, *[Received("b", 1, key, "object", 5, offset=at) for at in (0, 8192)])))
    assert [message.offset for message in state.messages.values()] == [0]
    assert state.ended("b") == [1]


def _coming(offset: int, *pieces: tuple[int, int, int]) -> Coming:
    offer = Offer("tcp", 1, MessageKey("s", "m", "t", B, A), "object", 9, "grpc", 1, 4, 0)
    return Coming("b", offer, offset, 9, 0, tagged=False, digested=False, pieces=pieces)


def test_what_has_come_is_what_all_records_of_one_slot_say() -> None:
    first, more, elsewhere = _coming(0, (0, 4, 7)), _coming(0, (4, 8, 8)), _coming(8192, (0, 2, 9))
    state = replay(map(encode_record, (BEGAN, first, more)))
    assert [each.pieces for each in state.coming.values()] == [((0, 4, 7), (4, 8, 8))]
    state.apply(elsewhere)
    assert list(state.coming.values()) == [elsewhere]


def test_a_message_that_is_here_is_not_coming_whichever_record_is_first() -> None:
    here = Received("b", 1, MessageKey("s", "m", "t", B, A), "object", 9)
    for written in (
        (_coming(0), here),
        (here, _coming(0)),
        (here, Gone("b", 1), _coming(0)),
        (_coming(0), Stopped("b", 1)),
    ):
        assert not replay(map(encode_record, (BEGAN, *written))).coming


def test_a_sum_that_its_task_has_not_got_is_handed_to_it_again() -> None:
    keys = (MessageKey("s", "m", "t", A, B),)
    began = SumBegan(1, "task", keys, "exact", ((3,),), 0, 9)
    state = JournalState()
    for record in (began, SumHanded(1, 7, 3)):
        state.apply(record)
    assert [kept.handed for kept in state.sums] == [SumHanded(1, 7, 3)]
    state.apply(SumHanded(1, 0, 0))
    assert [kept.handed for kept in state.sums] == [None]
    assert list(state.records()) == [began]


def test_a_sum_lies_where_it_was_moved_to_with_all_that_is_in_it() -> None:
    state = JournalState()
    keys = tuple(MessageKey("s", "m", "t", source, B) for source in (A, Party("host", "3")))
    began, added = SumBegan(1, "c", keys, "exact", ((2,),), 0, 4096), SumAdded(1, 0, 1.0, "b", 7)
    for record in (began, added, SumMoved(1, 8192, 4096), SumAdded(1, 1, 1.0, "b", 8)):
        state.apply(record)
    (kept,) = state.sums
    assert (kept.began.offset, kept.began.length, kept.parties_in) == (8192, 4096, {0, 1})
    # and so does what the journal is made short to
    again = JournalState()
    for record in kept.records():
        again.apply(record)
    assert list(again.sums) == [kept]
