"""Tells when transfers stand still because tasks hold the memory that they would need, and who holds how much of it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from fedrdma_fate.client.protocol import Attach
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.obs.complaints import EACH_TELLS
from fedrdma_fate.wire.frames import Party

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.5
"""Two looks, between which nobody got room, find out within 3 s; who waits is to know within 5."""

MOST_SHOWN = 8
"""Of those who hold most, in one sentence."""


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """A pool in which somebody waits for room and nobody gets any, and what tasks hold there.

    Attributes:
        pool: `send` or `receive`.
        waiting: how many wait.
        length: bytes of the region.
        parties: session, party and bytes of those that hold any, the most first.
    """

    pool: str
    waiting: int
    length: int
    parties: tuple[tuple[str, Party, int], ...]

    def told(self, may_know: Callable[[Party], bool]) -> str:
        """For somebody who may know what these parties of the site hold, and of the others only how much."""
        shown = [each for each in self.parties if may_know(each[1])][:MOST_SHOWN]
        rest = sum(count for _, _, count in self.parties) - sum(count for _, _, count in shown)
        held = [f"{party} in {session} {count:,}" for session, party, count in shown]
        held += [f"others {rest:,}"] if rest else []
        return (
            f"no room in {self.pool} memory for {self.waiting} that wait: of its {self.length:,} bytes, tasks here "
            f"hold in what they got before: {', '.join(held)}"
        )


class HeldMemory:
    """Belongs to the event loop's thread.

    Attributes:
        holdings: as they were at the latest look.
    """

    def __init__(
        self, context: GatewayContext, received: Callable[[], Iterable[tuple[Attach, Iterable[Message]]]]
    ) -> None:
        """
        Args:
            context: the gateway's.
            received: of each task, what it got and holds.
        """
        self._context = context
        self._received = received
        self._leases: dict[str, int] = {}
        self.holdings: tuple[Holding, ...] = ()

    async def keep_watch(self, tell: Callable[[], object]) -> None:
        """Look again and again, and call `tell` each time."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()
            tell()

    def receive_holders(self) -> tuple[tuple[Party, int], ...]:
        """Who holds the receive memory that peers wait for, and how much; nobody where none waits in vain."""
        held: Counter[Party] = Counter()
        for holding in self.holdings:
            if holding.pool == self._context.receive_pool.stats().name:
                for _, party, count in holding.parties:
                    held[party] += count
        return tuple(held.most_common())

    def look(self) -> None:
        """See whether anybody got room since the last look."""
        pools = (self._context.send_pool, self._context.receive_pool)
        found = [holding for pool in pools if self._stands_still(pool) if (holding := self._holding(pool)).parties]
        self.holdings = tuple(found)
        for holding in found:
            self._context.complaints.add(
                logger,
                "memory is held",
                holding.pool,
                "%s",
                holding.told(lambda _party: True),
                level=logging.WARNING,
                lines=EACH_TELLS,
            )

    def _stands_still(self, pool: SlotPool) -> bool:
        stats = pool.stats()
        before = self._leases.pop(stats.name, None)
        if not stats.waiting:
            return False
        self._leases[stats.name] = stats.total_leases
        return before == stats.total_leases

    def _holding(self, pool: SlotPool) -> Holding:
        held: Counter[tuple[str, Party]] = Counter()
        for attach, messages in self._received():
            for message in messages:
                if lies_in(message, pool):
                    held[attach.session, attach.party] += message.total_bytes
        stats = pool.stats()
        parties = tuple((session, party, count) for (session, party), count in held.most_common())
        return Holding(stats.name, stats.waiting, stats.length, parties)


def told_of_peers(peers: Mapping[str, Sending]) -> str:
    """What a put may wait for at other sites, or an empty string."""
    return "; ".join(
        f"{site} takes no more: tasks there hold in what they got before: "
        + ", ".join(f"{party} {count:,}" for party, count in peer.held_there)
        for site, peer in peers.items()
        if peer.held_there
    )


def lies_in(message: Message, pool: SlotPool) -> bool:
    """Whether a message takes room of a pool."""
    return message.lease is not None and message.lease.slot.region is pool.region
