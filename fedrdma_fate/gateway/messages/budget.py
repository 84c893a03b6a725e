"""How much of each peer or user, and of each session of it, waits: messages nobody has pulled, notices of failure."""

from __future__ import annotations

import dataclasses
import math

from fedrdma_fate.wire.frames import MessageKey

NAME_CHARACTERS = 256
"""In the names of one message; one with more counts as several: it takes as much more of the heap."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What may wait: messages and their bytes, of one peer and of one session of a peer."""

    messages: float = math.inf
    total_bytes: float = math.inf
    session_messages: float = math.inf
    session_bytes: float = math.inf


@dataclasses.dataclass(slots=True)
class _Use:
    messages: int = 0
    total_bytes: int = 0


class Budget:
    """Counts what waits; one entry for each peer and session that anything waits of."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._uses: dict[tuple[str, ...], _Use] = {}

    def objection(self, origin: str, key: MessageKey, total_bytes: int) -> str:
        """Why nothing more of a peer may wait, or an empty string. What is of nobody may always."""
        if not origin:
            return ""
        limits = self._limits
        peer = self._uses.get((origin,), _Use())
        session = self._uses.get((origin, key.session), _Use())
        counts = units(key)
        for what, used, more, most in (
            ("messages", peer.messages, counts, limits.messages),
            ("bytes", peer.total_bytes, total_bytes, limits.total_bytes),
            ("messages of one session", session.messages, counts, limits.session_messages),
            ("bytes of one session", session.total_bytes, total_bytes, limits.session_bytes),
        ):
            if used + more > most:
                return f"{used} {what} from {origin} wait here to be pulled; {most:.0f} may"
        return ""

    def add(self, origin: str, key: MessageKey, total_bytes: int) -> None:
        """A message, or a notice that none will come, begins to wait."""
        self._change(origin, key, units(key), total_bytes)

    def remove(self, origin: str, key: MessageKey, total_bytes: int) -> None:
        """It waits no longer."""
        self._change(origin, key, -units(key), -total_bytes)

    def used(self, origin: str) -> tuple[int, int]:
        """Messages and bytes of a peer."""
        use = self._uses.get((origin,), _Use())
        return use.messages, use.total_bytes

    def has(self, origin: str, session: str) -> bool:
        """Whether anything of a peer's waits in a session."""
        return (origin, session) in self._uses

    def sessions(self, origin: str) -> set[str]:
        """Those of which anything of a peer's waits."""
        return {place[1] for place in self._uses if len(place) > 1 and place[0] == origin}

    def _change(self, origin: str, key: MessageKey, messages: int, total_bytes: int) -> None:
        if not origin:
            return
        for place in ((origin,), (origin, key.session)):
            use = self._uses.setdefault(place, _Use())
            use.messages += messages
            use.total_bytes += total_bytes
            if not use.messages:
                del self._uses[place]


def units(key: MessageKey) -> int:
    """As how many messages one counts: more where its names are long."""
    return 1 + (len(key.session) + len(key.name) + len(key.tag)) // NAME_CHARACTERS
