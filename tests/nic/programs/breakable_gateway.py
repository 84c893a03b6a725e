"""`fedrdma` with one thing more: on SIGUSR1 the last queue pair for writes of the newest link is forced into error."""

from __future__ import annotations

import signal
import weakref

from fedrdma_fate.cli.main import main
from fedrdma_fate.transport.verbs.boundary import Patience
from fedrdma_fate.transport.verbs.easy import QueuePair
from fedrdma_fate.transport.verbs.link_parts import LinkParts, PeerOffer


def break_on_signal() -> None:
    """Remember the newest link, and break it when told."""
    links: list[weakref.ref[LinkParts]] = []
    connect = LinkParts.connect

    def remember(parts: LinkParts, peer: PeerOffer, first_packet: int, patience: Patience) -> None:
        connect(parts, peer, first_packet, patience)
        links.append(weakref.ref(parts))

    def fail(*_: object) -> None:
        parts = links[-1]()
        assert parts is not None
        pair = parts.data[-1]
        assert isinstance(pair, QueuePair)
        pair.fail()

    LinkParts.connect = remember  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, fail)


if __name__ == "__main__":
    break_on_signal()
    main()
