"""The sender's book of receive slots the peer has granted (paper, section 3.2: the pool of receive MRs)."""

from __future__ import annotations

from fedrdma_fate.wire.frames import Grant


class CreditBook:
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
