"""Which updates of a sum may come now: of each site so many at once, and the next when one of them has been added.

Without it, all updates of a site would share its path, come to an end together, and lie in the receive region until
each has been added. Two at a time, the last one comes no later: they fill the path as well as all do. A request that is
held keeps its place; it passes at once where no sum awaits its message.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection

from fedrdma_fate.wire.frames import MessageKey

MOST_COMING = 2
"""Updates of a site that have a slot: one that comes while another is being added."""


class ExpectedUpdates:
    """The updates of one sum, from when it begins to take them until it takes no more."""

    def __init__(self, grants: SummandGrants, keys: Collection[MessageKey]) -> None:
        """Made by `SummandGrants.expect`."""
        self._grants = grants
        self._keys = set(keys)
        self._coming: dict[str, set[MessageKey]] = {}
        self._held: dict[str, OrderedDict[MessageKey, asyncio.Future[None]]] = {}

    def added(self, key: MessageKey) -> None:
        """One is in the sum, its slot is free: the next of its site may come. Sent once more, it is none of these."""
        self._grants.forget(self, (key,))
        for site, coming in self._coming.items():
            if key in coming:
                coming.remove(key)
                self._admit_held(site)

    def close(self) -> None:
        """The sum takes no more: whatever is held may come. May be repeated."""
        self._grants.forget(self, self._keys)
        held, self._held = self._held, {}
        for requests in held.values():
            for turn in requests.values():
                if not turn.done():
                    turn.set_result(None)

    def admit(self, site: str, key: MessageKey, *, is_coming: bool) -> bool:
        """Whether it may come now; what is coming anyway counts as well."""
        coming = self._coming.setdefault(site, set())
        if key not in coming and not is_coming and len(coming) >= MOST_COMING:
            return False
        coming.add(key)
        return True

    async def turn(self, site: str, key: MessageKey) -> None:
        """Wait until it may come. May be cancelled."""
        if self.admit(site, key, is_coming=False):
            return
        turn = asyncio.get_running_loop().create_future()
        held = self._held.setdefault(site, OrderedDict())
        # one message has one transfer, but for one that was given up and not withdrawn yet
        if (earlier := held.pop(key, None)) is not None and not earlier.done():
            earlier.set_result(None)
        held[key] = turn
        try:
            await turn
        finally:
            if held.get(key) is turn:
                del held[key]

    def _admit_held(self, site: str) -> None:
        held = self._held.get(site)
        while held and len(self._coming[site]) < MOST_COMING:
            key, turn = held.popitem(last=False)
            if not turn.done():
                self._coming[site].add(key)
                turn.set_result(None)


class SummandGrants:
    """Those of all sums of a gateway. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._sum_of: dict[MessageKey, ExpectedUpdates] = {}

    def expect(self, keys: Collection[MessageKey]) -> ExpectedUpdates:
        """A sum takes these, in whatever order they come; it has to be closed."""
        expected = ExpectedUpdates(self, keys)
        for key in keys:
            self._sum_of.setdefault(key, expected)
        return expected

    def forget(self, expected: ExpectedUpdates, keys: Collection[MessageKey]) -> None:
        """What `ExpectedUpdates.close` calls."""
        for key in keys:
            if self._sum_of.get(key) is expected:
                del self._sum_of[key]

    def may_come(self, site: str, key: MessageKey) -> bool:
        """Whether a message may have a slot at once; then it counts as coming."""
        expected = self._sum_of.get(key)
        return expected is None or expected.admit(site, key, is_coming=False)

    def begins(self, site: str, key: MessageKey) -> None:
        """A message comes: where it was granted a slot ahead, nobody was asked."""
        if (expected := self._sum_of.get(key)) is not None:
            expected.admit(site, key, is_coming=True)

    async def turn(self, site: str, key: MessageKey) -> None:
        """Wait until a message may have a slot."""
        if (expected := self._sum_of.get(key)) is not None:
            await expected.turn(site, key)
