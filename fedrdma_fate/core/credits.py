"""Receive slots that the peer has granted, the sender's credits (paper, section 3.2: the pool of receive MRs)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar

from fedrdma_fate.wire.frames import Grant, MessageKey

MOST_CREDITS = 1024
"""Standing grants that a sender keeps: `memory.ring_slots` may be 256, for each of two links that follow each other."""

MOST_REQUESTS = 256
"""Transfers of a link that have asked for a slot and not ended; the next wait their turn at the sender. Enough to keep
any path full, and a receiver need not remember more of one peer."""

MOST_SESSION_REQUESTS = MOST_REQUESTS // 2
"""Of these, transfers of one session: another that comes later is never behind more of them at the receiver, which
serves the requests of a peer in their order."""


class WantsSlot(Protocol):
    """A message that wants a slot: its transfer, and its key, which names its session."""

    @property
    def transfer(self) -> int:
        """Its number."""
        ...

    @property
    def key(self) -> MessageKey:
        """What it is."""
        ...


Asking = TypeVar("Asking", bound=WantsSlot)


class RequestShares:
    """Which transfers have asked for a slot and not ended: so many at once, of which the sessions have their shares.

    A request names no session, for a peer could name any: who asks shares them out.
    """

    def __init__(self) -> None:
        self._session_of: dict[int, str] = {}
        self._of_session: Counter[str] = Counter()

    def __contains__(self, transfer: int) -> bool:
        return transfer in self._session_of

    def admit(self, transfer: int, session: str) -> bool:
        """Whether it may ask now, or ask again; then it has."""
        if transfer in self._session_of:
            return True
        if len(self._session_of) >= MOST_REQUESTS or self._of_session[session] >= MOST_SESSION_REQUESTS:
            return False
        self._session_of[transfer] = session
        self._of_session[session] += 1
        return True

    def discard(self, transfer: int) -> bool:
        """It has ended, or begins anew; whether it had asked."""
        session = self._session_of.pop(transfer, None)
        if session is None:
            return False
        self._of_session[session] -= 1
        if not self._of_session[session]:
            del self._of_session[session]
        return True

    def keep(self, transfers: Collection[int]) -> None:
        """Forget that any other has asked."""
        for transfer in [each for each in self._session_of if each not in transfers]:
            self.discard(transfer)

    def next_of(self, waiting: Iterable[Asking]) -> Asking | None:
        """Who of these asks next: the first one of the session that has asked for the fewest."""
        fresh = (each for each in waiting if each.transfer not in self._session_of)
        return min(fresh, key=lambda each: self._of_session.get(each.key.session, 0), default=None)


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
