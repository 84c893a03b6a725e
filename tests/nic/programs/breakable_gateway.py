"""`fedrdma` with one thing more: on SIGUSR1 the queue pair that was connected last is forced into the error state."""

from __future__ import annotations

import signal
import weakref

from fedrdma_fate.cli.main import main
from fedrdma_fate.transport.verbs import easy


def break_on_signal() -> None:
    """Remember the queue pairs, and break the newest when told."""
    connected: list[weakref.ref[easy.QueuePair]] = []
    connect = easy.QueuePair.connect

    def remember(pair: easy.QueuePair, *arguments: object) -> None:
        connect(pair, *arguments)  # type: ignore[arg-type]
        connected.append(weakref.ref(pair))

    def fail(*_: object) -> None:
        # of a link, the one for notices is connected after those for data
        pair = connected[-2]()
        assert pair is not None
        pair.fail()

    easy.QueuePair.connect = remember  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGUSR1, fail)


if __name__ == "__main__":
    break_on_signal()
    main()
