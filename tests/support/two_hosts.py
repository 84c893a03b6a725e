"""What programs on the two hosts of a testbed share: a control connection, and links of the verbs transport."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedrdma_fate.ports import Completion, Endpoint, RemoteSlot
from fedrdma_fate.transport.verbs.transport import VerbsTransport

CONTROL_PORT = 7481
PATIENCE_SECONDS = 30.0


class Control:
    """A TCP connection to the other host, for lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._heard = connection.makefile("r")
        self._said = connection.makefile("w")

    def say(self, what: object) -> None:
        """Tell the other host."""
        print(json.dumps(what), file=self._said, flush=True)

    def hear(self) -> Any:
        """What the other host says next.

        Raises:
            SystemExit: it is gone.
        """
        line = self._heard.readline()
        if not line:
            raise SystemExit("the other host is gone")
        return json.loads(line)

    def exchange(self, what: object) -> Any:
        """Tell it, and hear what it says."""
        self.say(what)
        return self.hear()

    def close(self) -> None:
        """Hang up."""
        for part in (self._heard, self._said, self._connection):
            part.close()


def this_host() -> int:
    """The number of this host."""
    return int(os.environ["TESTBED_HOST"])


@contextlib.contextmanager
def control_connection() -> Iterator[Control]:
    """Meet the other host; host 1 waits, host 0 dials."""
    connection = _wait() if this_host() else _dial()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.closing(Control(connection)) as control:
        yield control


def _address() -> tuple[str, int]:
    return os.environ["TESTBED_HOSTS"].split(",")[1], CONTROL_PORT


def _wait() -> socket.socket:
    with socket.create_server(_address()) as server:
        return server.accept()[0]


def _dial() -> socket.socket:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection(_address(), timeout=PATIENCE_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def connect(transport: VerbsTransport, control: Control) -> Endpoint:
    """A link between the two hosts."""
    draft = transport.open("passive" if this_host() else "active")
    return draft.connect(control.exchange(dict(draft.offer)), PATIENCE_SECONDS)


def slot_to_json(slot: RemoteSlot) -> dict[str, int]:
    """A remote slot as it is told to the other host."""
    return dataclasses.asdict(slot)


def progress_until(endpoint: Endpoint, enough: Callable[[Sequence[Completion]], bool]) -> list[Completion]:
    """Drive an endpoint until what has completed is enough.

    Raises:
        SystemExit: it takes too long.
    """
    completions: list[Completion] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        completions += endpoint.progress()
        if enough(completions):
            return completions
        poller = select.poll()
        for descriptor, mask in endpoint.poll_set():
            poller.register(descriptor, mask)
        if time.monotonic() > deadline:
            raise SystemExit(f"a completion is missing; there are {completions[-3:]}")
        poller.poll(1000)
