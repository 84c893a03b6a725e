"""Whether a device keeps writes inside a memory window, found out by trying: Soft-RoCE does not.

The InfiniBand specification asks for it (volume 1, section 10.6.7). Nothing that a device says of itself tells whether
it does so, and what it does may change with its driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import select
import time

from fedrdma_fate.transport.verbs.interface import (
    CompletionQueue,
    Device,
    LocalPort,
    Outcome,
    PairAddress,
    Piece,
    RetrySettings,
    Target,
    VerbsError,
    WorkCompletion,
)

CHECK_SECONDS = 2.0
"""A bind and a write within the device take less than a millisecond; one that takes so long does not work."""

_PACKET = 1
"""First packet sequence number of a queue pair that is connected to itself: any is as good."""
_BIND, _INSIDE, _BEYOND = 1, 2, 3
"""Work requests, in this order."""
_DEPTH = 4
"""Entries of the send queue: one for each work request, and one to spare."""
_WRITTEN = b"w"


def windows_are_checked(device: Device, port: LocalPort) -> bool:
    """Whether a write inside a window lands and one behind its end is refused. False also where neither can be seen.

    Everything is made for this, in a protection domain of its own, and given back: a refused write ends its queue pair.
    """
    try:
        with contextlib.ExitStack() as undo:
            return _try(device, port, undo)
    except VerbsError:
        return False


def _try(device: Device, port: LocalPort, undo: contextlib.ExitStack) -> bool:
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    source, inside, beyond = 0, page, 2 * page
    memory[source : source + 1] = _WRITTEN
    domain = device.domain()
    undo.callback(domain.close)
    region = domain.register(address, 3 * page, windows=True)
    undo.callback(region.close)
    queue = device.completion_queue(2 * _DEPTH)
    undo.callback(queue.close)
    pair = domain.queue_pair(queue, port.port, sends=_DEPTH, receives=1)
    undo.callback(pair.close)
    pair.connect(port, PairAddress(pair.number, _PACKET, port.gid), _PACKET, port.mtu, RetrySettings())
    window = pair.bind(_BIND, region, address + inside, page)
    undo.callback(window.close)
    if _completion(queue).outcome is not Outcome.DONE:
        return False
    for request, at in ((_INSIDE, inside), (_BEYOND, beyond)):
        pair.write(
            request, Piece(address + source, 1, region.local_key), Target(address + at, window.key), signalled=True
        )
        outcome = _completion(queue).outcome
        landed = memory[at : at + 1] == _WRITTEN
        if request == _INSIDE and not (outcome is Outcome.DONE and landed):
            return False
    return outcome is Outcome.REFUSED and not landed


def _completion(queue: CompletionQueue) -> WorkCompletion:
    """The next completion.

    Raises:
        VerbsError: none comes.
    """
    poller = select.poll()
    poller.register(queue.fileno, select.POLLIN)
    deadline = time.monotonic() + CHECK_SECONDS
    while True:
        queue.arm()
        if found := queue.poll(1):
            return found[0]
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise VerbsError(f"nothing completed within {CHECK_SECONDS:g} s")
