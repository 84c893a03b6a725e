"""Tells a peer that is gone from one that is only busy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

TICKS = 4
"""A peer is given up after so many quiet ticks in a row."""


async def until_silent(
    silence: float,
    last_sign: Callable[[], float],
    ping: Callable[[], object],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Return when the peer has given no sign of life for about `silence` seconds.

    Counting ticks and not seconds, a standstill of this process (suspended, or its event loop busy) is not held
    against the peer: what the peer sent meanwhile is heard before the next tick.

    Args:
        silence: seconds.
        last_sign: when the peer was last heard, by any clock: on the control channel or on a data path, so that a
            peer whose event loop is busy and whose transfers go on is not given up.
        ping: asks for a sign of life.
        sleep: waits for so many seconds.
    """
    quiet = 0
    while quiet < TICKS:
        before = last_sign()
        ping()
        await sleep(silence / TICKS)
        quiet = quiet + 1 if last_sign() == before else 0
