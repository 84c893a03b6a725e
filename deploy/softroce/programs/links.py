"""Links of the verbs transport between the programs of two hosts."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Sequence

from deploy.softroce.programs.control import PATIENCE_SECONDS, Control, this_host
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.ports import Completion, Draft, Endpoint
from fedrdma_fate.transport.verbs.transport import VerbsTransport


@contextlib.contextmanager
def shared_region(length: int) -> Iterator[SharedRegion]:
    """A region of at least so many bytes."""
    region = SharedRegion.create("program's", -(-length // PAGE_BYTES) * PAGE_BYTES)
    try:
        yield region
    finally:
        region.close()


def open_draft(transport: VerbsTransport, peer: str = "") -> Draft:
    """This host's half of a link, to what it takes for the peer of that name; host 0 is active."""
    return transport.open("passive" if this_host() else "active", peer)


def connect(transport: VerbsTransport, control: Control, peer: str = "") -> Endpoint:
    """A link between the two hosts."""
    draft = open_draft(transport, peer)
    return draft.connect(control.exchange(dict(draft.address)), PATIENCE_SECONDS)


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
        if time.monotonic() > deadline:
            raise SystemExit(f"a completion is missing; there are {completions[-3:]}")
        wait_for(endpoint)


def wait_for(endpoint: Endpoint) -> None:
    """Sleep until it can make progress."""
    poller = select.poll()
    for descriptor, mask in endpoint.poll_set():
        poller.register(descriptor, mask)
    poller.poll(1000)
