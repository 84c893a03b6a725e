"""A peer that goes on with another journal than before has lost what it had: sessions that it had part in end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Party
from tests.support.twin import PARTIES
from tests.support.twin_play import BODY, Play, peer_of, work
from tests.unit.gateway.tasks.test_session_ends import Site, Sites, ended_with, play_sites

TO_B = MessageKey("s", "m", "t", PARTIES["a"], PARTIES["b"])
TO_A = MessageKey("s", "m", "t", PARTIES["b"], PARTIES["a"])


async def come_back(sites: Sites, journal: str = "another", *, with_goodbye: bool = False) -> None:
    """The control channel is lost, and b comes back with this journal."""
    a, b = sites.a.half, sites.b.half
    if with_goodbye:
        b.peer.end("it ends", forgets=True)
        await work(sites.twin)
    else:
        await sites.twin.lose_control("b")
    b.context.journal_identity = journal
    await sites.twin.connect()
    await work(sites.twin)
    assert a.peer.connected


async def deliver(sites: Sites, by: str) -> None:
    """Something was delivered, and is pulled where it comes from b."""
    site = getattr(sites, by)
    site.note_push(sites.twin.put(by, "m", BODY))
    await work(sites.twin)
    if by == "b":
        assert await sites.twin.get(TO_A) == BODY


async def waits(site: Site) -> asyncio.Task[Any]:
    waiting = asyncio.create_task(site.half.context.mailbox.take(TO_A, None))
    await asyncio.sleep(0)
    return waiting


@pytest.mark.parametrize("part", ["confirmed", "sent", "awaited", "sent, and not pulled"])
def test_a_session_that_the_peer_had_part_in_is_over_at_both_and_nobody_waits(play: Play, part: str) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.b.attach()
        if part == "confirmed":
            await deliver(sites, "a")
        elif part == "sent":
            await deliver(sites, "b")
        elif part == "sent, and not pulled":
            sites.b.note_push(sites.twin.put("b", "m", BODY))
            await work(sites.twin)
        waiting = await waits(sites.a) if part == "awaited" else None
        assert not sites.a.is_over
        await come_back(sites)
        assert sites.a.is_over
        assert sites.b.is_over
        assert "has lost its journal" in str(sites.a.half.context.mailbox.sessions.ended.reason("s"))
        if waiting is not None:
            with pytest.raises(FedRDMAError) as caught:
                await waiting
            assert ended_with(caught)
        assert (sites.a.slots, sites.b.slots) == (0, 0)

    play_sites(play, scenario)


@pytest.mark.parametrize("how", ["the same", "it does not say", "it had told of all", "it had no part"])
def test_a_session_of_which_nothing_was_lost_goes_on(play: Play, how: str) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.b.attach()
        if how != "it had no part":
            await deliver(sites, "a")
        journal = sites.b.half.context.journal_identity if how == "the same" else "another"
        journal = "" if how == "it does not say" else journal
        await come_back(sites, journal, with_goodbye=how == "it had told of all")
        assert not sites.a.is_over
        assert not sites.b.is_over
        if how != "it had no part":
            assert await sites.twin.get(TO_B) == BODY
        # the same once more: what it says now is what counts
        await come_back(sites, journal)
        assert not sites.a.is_over

    play_sites(play, scenario)


def test_a_peer_that_lies_about_its_journal_ends_no_session_that_it_is_not_in(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        mailbox = sites.a.half.context.mailbox
        others = (PARTIES["a"], Party("host", "77"))
        mailbox.join("theirs", PARTIES["a"], others)
        mailbox.sessions.note_pull(MessageKey("theirs", "m", "t", others[1], others[0]))
        waiting = asyncio.create_task(mailbox.take(MessageKey("theirs", "n", "t", others[1], others[0]), None))
        await asyncio.sleep(0)
        for number in range(5):
            await come_back(sites, f"lie {number}")
        assert mailbox.sessions.ended.reason("theirs") is None
        assert not waiting.done()
        waiting.cancel()
        assert peer_of(sites.twin, "a").connected

    play_sites(play, scenario)


def test_a_session_of_which_it_had_only_sent_something_ends_for_the_task_that_names_it(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.b.note_push(sites.twin.put("b", "m", BODY))
        await work(sites.twin)
        await come_back(sites)
        assert sites.a.slots == 0, "what came ahead of the rest goes"
        with pytest.raises(FedRDMAError) as caught:
            sites.a.attach()
        assert caught.value.code is ErrorCode.SESSION_ENDED

    play_sites(play, scenario)
