"""Receive slots that the peer has granted, the sender's credits (paper, section 3.2: the pool of receive MRs)."""

from __future__ import annotations

from fedrdma_fate.wire.frames import Grant

MOST_CREDITS = 1024
"""Standing grants that a sender keeps: `memory.ring_slots` may be 256, for each of two links that follow each other."""

MOST_REQUESTS = 256
"""Transfers of a link that have asked for a slot and not ended; the next wait their turn at the sender. Enough to keep
any path full, and a receiver need not remember more of one peer."""


class Credits:
    """Standing grants of one peer, not yet used: `MOST_CREDITS` at most."""

    def __init__(self) -> None:
        self._grants: dict[int, Grant] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def add(self, grant: Grant) -> bool:
        """A credit came; False when there are too many, and it is not kept."""
        if len(self._grants) >= MOST_CREDITS:
            return False
        self._grants[grant.grant] = grant
        return True

    def take(self, slot_bytes: int) -> Grant | None:
        """The smallest, and among equals the oldest, grant that holds `slot_bytes`; None when there is none."""
        fitting = [grant for grant in self._grants.values() if grant.length >= slot_bytes]
        if not fitting:
            return None
        best = min(fitting, key=lambda grant: (grant.length, grant.grant))
        return self._grants.pop(best.grant)

    def take_outgrown(self) -> list[Grant]:
        """Those beside the ring, when none was large enough: they only take room from what is asked for instead."""
        ring = min((grant.length for grant in self._grants.values()), default=0)
        return [self._grants.pop(grant.grant) for grant in list(self._grants.values()) if grant.length > ring]

    def recall(self, grant: int) -> bool:
        """The receiver wants a grant back; whether it was still unused."""
        return self._grants.pop(grant, None) is not None

    def clear(self) -> None:
        """The peer restarted: its memory is gone."""
        self._grants.clear()


class GrantDeduplicator:
    """Tells a grant that comes a second time from a new one: each may come by a datagram besides the control channel.

    Ids count up, and the control channel keeps their order, so a datagram of one that it has gone past is a late copy.
    """

    def __init__(self) -> None:
        self._past = -1
        self._early: dict[int, Grant] = {}

    def on_datagram(self, grant: Grant) -> bool:
        """A grant came by a datagram; whether it is new, and not one too many: its frame is to come."""
        if grant.grant <= self._past or grant.grant in self._early or len(self._early) >= MOST_CREDITS:
            return False
        self._early[grant.grant] = grant
        return True

    def on_frame(self, grant: Grant) -> bool:
        """A grant came by the control channel; whether it is new, be it under a new key."""
        self._past = max(self._past, grant.grant)
        return self._early.pop(grant.grant, None) != grant

    def control_lost(self) -> None:
        """Frames of the control channel were lost, and what comes next is no copy of what came by datagrams."""
        self._early.clear()
