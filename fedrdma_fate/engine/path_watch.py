"""Finds out why nothing arrives on a data path whose losses nobody is told of, and tells when the path is at fault."""

from __future__ import annotations

from collections.abc import Callable

from fedrdma_fate.core.packet_fate import MOST_PACKETS, Fate, PacketTest
from fedrdma_fate.engine.events import Emit, PathStalled
from fedrdma_fate.engine.link_datagrams import LinkDatagrams
from fedrdma_fate.ports import Endpoint
from fedrdma_fate.wire.datagrams import (
    DATAGRAM_BYTES,
    PADDED_DATAGRAM_BYTES,
    PathEcho,
    PathEchoAnswer,
    PathLongEcho,
    long_echo,
)

STILL_SECONDS = 0.5
"""Without any chunk that arrives, though some are under way: then it is tested why. With the second that a test takes,
it is known within two; and longer than a round trip."""

FIRST_PAUSE_SECONDS = 2.0
"""Between two tests that found nothing; doubled up to `LONGEST_PAUSE_SECONDS`, as long as nothing arrives: a test is up
to 0.6 MB."""

LONGEST_PAUSE_SECONDS = 16.0
"""Then a test takes 0.3 Mbit/s at most."""

SILENT_TESTS = 2
"""In a row without any answer, before the path counts as silent: a queue may hold what was sent first for seconds."""

Waiting = Callable[[], "float | None"]
"""Since when chunks are under way, or lost, and none has arrived, seconds; None where nobody waits."""


class PathWatch:
    """Both halves, of one link. Runs on the link's thread."""

    def __init__(self, datagrams: LinkDatagrams, emit: Emit, waiting: Waiting) -> None:
        """
        Args:
            datagrams: of the link.
            emit: tells the link's owner.
            waiting: whether, and since when, its transfers wait.
        """
        self._datagrams = datagrams
        self._emit = emit
        self._waiting = waiting
        self._attempt = 0
        self._mtu_bytes: int | None = None
        self._test: PacketTest | None = None
        self._number = 1
        self._silent = 0
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0

    def path_up(self, endpoint: Endpoint, attempt: int) -> None:
        """The data path is new."""
        self.path_lost()
        service = endpoint.chunk_service
        # others know what is lost, send packet by packet, or find out themselves that the peer is gone
        is_blind = not service.self_paced and not service.reliable and not service.repairs_packets
        self._attempt, self._mtu_bytes = attempt, service.mtu_bytes if is_blind else None

    def path_lost(self) -> None:
        """Nothing can be tested until it is renewed."""
        self._mtu_bytes = self._test = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._silent, self._pause, self._not_before = 0, FIRST_PAUSE_SECONDS, 0.0

    def on_datagram(self, datagram: PathEcho | PathLongEcho | PathEchoAnswer) -> None:
        """The peer tests the path, or has got what was sent to test it."""
        if isinstance(datagram, PathEcho | PathLongEcho):
            self._datagrams.post(PathEchoAnswer(datagram.number))
        elif self._test is not None:
            self._test.on_answer(datagram.number)

    def timer(self) -> float | None:
        """When `on_timer` wants to be called."""
        if self._mtu_bytes is None:
            return None
        if self._test is not None:
            return self._test.due
        since = self._waiting()
        return None if since is None else max(since + STILL_SECONDS, self._not_before)

    def on_timer(self, now: float) -> None:
        """Test the path where nothing arrives, and judge it."""
        due, since, mtu_bytes = self.timer(), self._waiting(), self._mtu_bytes
        if since is None or mtu_bytes is None:
            # nothing is waited for any more
            self._end_test()
            self._begin_anew()
            return
        arrives = now < since + STILL_SECONDS
        if arrives and self._test is None:
            self._begin_anew()
            return
        if due is None or now < due:
            return
        if self._test is None:
            self._test = PacketTest(self._number, now)
        for number, is_long in self._test.on_time(now):
            if is_long:
                posted = self._datagrams.post(long_echo(number), padding=_padding(mtu_bytes))
            else:
                posted = self._datagrams.post(PathEcho(number))
            if not posted:
                self._test.on_unsent(number)
        if (fate := self._test.fate(now, _packets(mtu_bytes))) is not None:
            self._end_test()
            if arrives and fate is not Fate.LONG_ONES_FAIL:
                self._begin_anew()
            else:
                # a chunk that comes now and then, its packets in order by chance, does not speak for the path
                self._judge(fate, now)

    def _end_test(self) -> None:
        if self._test is not None:
            self._number = self._test.next_number
            self._test = None

    def _judge(self, fate: Fate, now: float) -> None:
        self._silent = self._silent + 1 if fate is Fate.SILENT else 0
        if fate is Fate.LONG_ONES_FAIL:
            reason = "messages of several packets do not come, though single packets do: they overtake each other"
            self._emit(PathStalled(self._attempt, reason, silent=False))
        elif self._silent >= SILENT_TESTS:
            self._emit(PathStalled(self._attempt, "nothing comes by it", silent=True))
        if fate is Fate.SILENT and self._silent < SILENT_TESTS:
            self._not_before = now
            return
        self._not_before = now + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)


def _padding(mtu_bytes: int) -> int:
    """Behind the longest datagram, so that it has MOST_PACKETS packets; more where the packets are very short."""
    return max(mtu_bytes, min(MOST_PACKETS * mtu_bytes, PADDED_DATAGRAM_BYTES) - DATAGRAM_BYTES)


def _packets(mtu_bytes: int) -> int:
    return -(-(DATAGRAM_BYTES + _padding(mtu_bytes)) // mtu_bytes)
