"""What follows the last frame of a burst on a control channel, so that TCP notices soon when it is lost.

TCP repeats a lost packet a quarter of a round trip after what was sent behind it has been acknowledged (RACK, RFC 8985,
section 6). What nothing follows is repeated after two round trips, and Linux adds 200 ms where it is the only packet on
its way, in case its acknowledgement is held back (section 7.2). So where the last frame is not acknowledged soon, a
short one goes behind it.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable

from fedrdma_fate.wire.frames import Pong, encode_frame

FOLLOW_UP_SECONDS = 0.004
"""After the last frame. On shorter round trips it is acknowledged by then; on longer ones it is lost less often than
with the frame itself, where packets are lost in bursts."""

FOLLOW_UP = encode_frame(Pong(math.inf))
"""An answer to no ping: whoever reads it has nothing to do."""

_UNACKED_AT = 24
"""Where `tcpi_unacked` lies in `struct tcp_info` of linux/tcp.h: eight fields of a byte and four of four before it."""

_UNACKED_BYTES = 4
"""Of it: a `__u32`."""


class FollowUp:
    """Of one control channel. Belongs to the event loop's thread."""

    def __init__(self, write: Callable[[bytes], None], has_unacked: Callable[[], bool]) -> None:
        """
        Args:
            write: sends a frame.
            has_unacked: whether something is on its way that the other side has not acknowledged.
        """
        self._write = write
        self._has_unacked = has_unacked
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._last_at = 0.0

    def note_sent(self) -> None:
        """A frame was sent."""
        self._last_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(FOLLOW_UP_SECONDS, self._on_timer)

    def close(self) -> None:
        """Nothing follows any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        left = self._last_at + FOLLOW_UP_SECONDS - self._loop.time()
        if left > 0:
            # others came since
            self._timer = self._loop.call_later(left, self._on_timer)
        elif self._has_unacked():
            self._write(FOLLOW_UP)


def unacked_packets(connection: socket.socket) -> int:
    """Of a TCP connection: on their way, and not acknowledged.

    Raises:
        OSError: there is no connection any more.
    """
    end = _UNACKED_AT + _UNACKED_BYTES
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, end)
    return int.from_bytes(info[_UNACKED_AT:end], "little")
