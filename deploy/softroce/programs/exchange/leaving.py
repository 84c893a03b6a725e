"""A host that leaves in the middle of a round ends it: who waits for its model would wait for minutes, or for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from deploy.softroce.programs.meeting import Chair

LOOK_SECONDS = 1.0
"""Between two looks at whether all hosts are there."""
GRACE_SECONDS = 5.0
"""In which the server may find out by itself what is wrong, and say it better: a broker's end is that of silos, too."""
UNWIND_SECONDS = 30.0
"""In which what the server had open is closed: what RabbitMQ is given to stop. Threads of a protocol may wait for who
has left, and no signal reaches them."""
_LOOK_AGAIN_SECONDS = 0.01
"""Between two looks, where the server has failed already."""

Watch = Callable[[Chair, int], AbstractContextManager[None]]


def nobody_watches(chair: Chair, number: int) -> AbstractContextManager[None]:
    """Where hosts are threads of one process, which no signal may end."""
    del chair, number
    return contextlib.nullcontext()


@contextlib.contextmanager
def ended_by_who_leaves(chair: Chair, number: int) -> Iterator[None]:
    """The server's part in a round; to be used by the main thread.

    Raises:
        SystemExit: a host left; raised wherever the main thread is, by a signal: protocols wait in many ways.
    """
    over, gone = threading.Event(), list[int]()
    main = threading.get_ident()

    def told() -> str:
        return f"{_named(gone)} left: models of round {number + 1} were not delivered"

    def end(*_: object) -> None:
        raise SystemExit(told())

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            gone.extend(chair.gone())
            if gone:
                if not over.wait(GRACE_SECONDS):
                    _end_later(told())
                    signal.pthread_kill(main, signal.SIGUSR1)
                return

    before = signal.signal(signal.SIGUSR1, end)
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    except (Exception, SystemExit) as error:
        if gone:
            raise
        looking_until = time.monotonic() + LOOK_SECONDS
        while not (left := chair.gone()) and time.monotonic() < looking_until:
            time.sleep(_LOOK_AGAIN_SECONDS)
        if not left:
            raise
        why = f"{_named(left)} left in round {number + 1}: {error}"
        _end_later(why)
        raise SystemExit(why) from error
    finally:
        over.set()
        looking.join()
        signal.signal(signal.SIGUSR1, before)


def _end_later(why: str) -> None:
    """End this process if it has not ended by then."""
    late = threading.Timer(UNWIND_SECONDS, end_now, [why])
    late.daemon = True
    late.start()


def end_now(why: str) -> None:
    """End this process whatever its threads wait for; brokers that it started end with it."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def _named(gone: Sequence[int]) -> str:
    return " and ".join(f"host {host}" for host in gone)
