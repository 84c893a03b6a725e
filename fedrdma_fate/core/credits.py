"""Receive slots that the peer has granted, the sender's credits (paper, section 3.2: the pool of receive MRs)."""

from __future__ import annotations

from fedrdma_fate.wire.frames import Grant


class Credits:
    """Standing grants of one peer, not yet used."""

    def __init__(self) -> None:
        self._grants: dict[int, Grant] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def add(self, grant: Grant) -> None:
        """A credit came."""
        self._grants[grant.grant] = grant

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
        """A grant came by a datagram; whether it is new."""
        if grant.grant <= self._past or grant.grant in self._early:
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
