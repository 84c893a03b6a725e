"""`fedrdma` with one thing more: a signal forces a queue pair of the newest link into error.

SIGUSR1: the last for writes; SIGUSR2: the last for chunks.
"""

from __future__ import annotations

import signal
import weakref

from fedrdma_fate.cli.main import main
from fedrdma_fate.transport.verbs.easy import QueuePair
from fedrdma_fate.transport.verbs.interface import Patience
from fedrdma_fate.transport.verbs.queue_pairs import LinkParts, PeerOffer


def break_on_signal() -> None:
    """Remember the newest link, and break it when told."""
    links: list[weakref.ref[LinkParts]] = []
    connect = LinkParts.connect

    def remember(parts: LinkParts, peer: PeerOffer, first_packet: int, patience: Patience) -> None:
        connect(parts, peer, first_packet, patience)
        links.append(weakref.ref(parts))

    def fail(number: int, _: object) -> None:
        parts = links[-1]()
        assert parts is not None
        pair = (parts.data if number == signal.SIGUSR1 else parts.chunks.pairs)[-1]
        assert isinstance(pair, QueuePair)
        pair.fail()

    LinkParts.connect = remember  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, fail)
    signal.signal(signal.SIGUSR2, fail)


if __name__ == "__main__":
    break_on_signal()
    main()
