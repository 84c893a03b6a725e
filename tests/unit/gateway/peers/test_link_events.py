"""Events of a link on their way to the event loop: those of datagrams, which no limit holds back, do not pile up."""

from __future__ import annotations

import asyncio

import pytest

from fedrdma_fate.engine.events import FrameToSend, GrantRequested, LinkEvent, TransferAnnounced
from fedrdma_fate.gateway.peers.link_events import MOST_EARLY, LinkEvents
from fedrdma_fate.wire.frames import GrantRequest, MessageKey, Offer, Party, Ping

KEY = MessageKey("s", "m", "t", Party("guest", "1"), Party("host", "2"))
KINDS = ("offer", "request")
FLOOD = 20_000


def early(kind: str, number: int) -> LinkEvent:
    """What a datagram leads to."""
    if kind == "offer":
        return TransferAnnounced(Offer("udp", number, KEY, "bytes", 70_000, "fedrdma-x", number, 16384, 0))
    return GrantRequested(GrantRequest("udp", number, 70_000, KEY), early=True)


async def come(events: LinkEvents, emitted: list[LinkEvent]) -> None:
    """All of these happen before the event loop has its turn, and then it has."""
    for event in emitted:
        events.emit(event)
    await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_flood_of_datagrams_no_more_waits_for_the_loop_than_has_a_bound(kind: str) -> None:
    async def scenario() -> None:
        seen: list[LinkEvent] = []
        events = LinkEvents(asyncio.get_running_loop(), seen.append)
        flood = [early(kind, number) for number in range(FLOOD)]
        await come(events, flood)
        assert seen == flood[:MOST_EARLY]
        # what comes when these were taken is heard of
        await come(events, [flood[-1]])
        assert seen[MOST_EARLY:] == [flood[-1]]

    asyncio.run(scenario())


def test_whatever_else_happens_meanwhile_comes_in_its_order() -> None:
    async def scenario() -> None:
        seen: list[LinkEvent] = []
        events = LinkEvents(asyncio.get_running_loop(), seen.append)
        frames = [FrameToSend(Ping(float(number))) for number in range(MOST_EARLY + 50)]
        asked = [GrantRequested(GrantRequest("udp", number, 70_000, KEY)) for number in range(MOST_EARLY + 50)]
        emitted: list[LinkEvent] = []
        for number, (frame, request) in enumerate(zip(frames, asked, strict=True)):
            emitted += [frame, early("offer", number), request]
        await come(events, emitted)
        assert seen == [
            event for event in emitted if not isinstance(event, TransferAnnounced) or event.offer.transfer < MOST_EARLY
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_link_that_was_given_up_nothing_early_is_heard(kind: str) -> None:
    async def scenario() -> None:
        seen: list[LinkEvent] = []
        events = LinkEvents(asyncio.get_running_loop(), seen.append)
        events.emit(early(kind, 1))
        events.retire()
        await come(events, [early(kind, 2)])
        assert seen == []

    asyncio.run(scenario())
