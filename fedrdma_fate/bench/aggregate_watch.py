"""What waits at a gateway while a row runs, and waiting until something holds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from fedrdma_fate.bench.baselines.gateway_process import GatewayProcess
from fedrdma_fate.bench.baselines.interface import RowError

LOOK_SECONDS = 0.01
"""Between two looks at the gateways' status, which are answered by the event loop that is being measured."""


class Watch:
    """Keeps the most that ever waited, while it is entered."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        """
        Args:
            waiting: bytes that wait now.
        """
        self.most = 0
        self._waiting = waiting
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="waiting-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            with contextlib.suppress(RowError):
                self.most = max(self.most, self._waiting())


def leased(gateway: GatewayProcess) -> int:
    """Bytes of a gateway's receive region that are leased.

    Raises:
        RowError: it does not answer.
    """
    return _receive_pool(gateway)["leased_bytes"]


def most_leased(gateway: GatewayProcess) -> int:
    """The most bytes of its receive region that were ever leased at once.

    Raises:
        RowError: it does not answer.
    """
    return _receive_pool(gateway)["high_water_bytes"]


def _receive_pool(gateway: GatewayProcess) -> dict[str, int]:
    status = gateway.status()
    if status is None:
        raise RowError("the arbiter's gateway does not answer")
    return next(pool for pool in status["pools"] if pool["name"] == "receive")


def waiting(gateway: GatewayProcess, at_rest: int) -> int:
    """Bytes that a gateway's site has of updates now, beside what is leased at rest."""
    status = gateway.status()
    return 0 if status is None else leased(gateway) - at_rest + int(status["mailbox"]["spilled_bytes"])


def is_connected(gateway: GatewayProcess) -> bool:
    """Whether it has a data path to each of its peers."""
    status = gateway.status()
    if status is None:
        return False
    return all(peer["connected"] and any(path["up"] for path in peer["paths"]) for peer in status["peers"])


def wait(reached: Callable[[], bool], seconds: float, what: str) -> None:
    """Until something holds.

    Raises:
        RowError: it does not, so long.
    """
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise RowError(f"waited {seconds:.0f} s for {what}")
        time.sleep(LOOK_SECONDS)
