"""`fedrdma` with one thing more: a signal forces a queue pair of the newest link into error.

SIGUSR1: the last for writes; SIGUSR2: the last for chunks.
"""

from __future__ import annotations

import signal
import weakref

from fedrdma_fate.cli.main import main
from fedrdma_fate.transport.verbs.easy import QueuePair
from fedrdma_fate.transport.verbs.interface import RetrySettings
from fedrdma_fate.transport.verbs.queue_pairs import LinkQueuePairs, PeerAddress


def break_on_signal() -> None:
    """Remember the newest link, and break it when told."""
    links: list[weakref.ref[LinkQueuePairs]] = []
    connect = LinkQueuePairs.connect

    def remember(pairs: LinkQueuePairs, peer: PeerAddress, first_packet: int, retry: RetrySettings) -> None:
        connect(pairs, peer, first_packet, retry)
        links.append(weakref.ref(pairs))

    def fail(number: int, _: object) -> None:
        newest = links[-1]() if links else None
        if newest is None:
            # it has just been started, or its link has just been lost
            return
        pairs = newest.data if number == signal.SIGUSR1 else newest.chunks.pairs
        if not pairs:
            # its link is being closed
            return
        assert isinstance(pairs[-1], QueuePair)
        pairs[-1].fail()

    LinkQueuePairs.connect = remember  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, fail)
    signal.signal(signal.SIGUSR2, fail)


if __name__ == "__main__":
    break_on_signal()
    main()
