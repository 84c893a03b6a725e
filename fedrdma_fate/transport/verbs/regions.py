"""Registered memory: every region once in a domain, and for each granted slot what opens just that slot to the peer."""

from __future__ import annotations

import errno
import functools
import select
import threading
import time
import weakref

from fedrdma_fate.ports import Region, Slot
from fedrdma_fate.transport.endpoint_base import unavailable
from fedrdma_fate.transport.verbs.device_selection import NAME
from fedrdma_fate.transport.verbs.interface import (
    Device,
    LocalPort,
    MemoryRegion,
    MemoryWindow,
    Outcome,
    PairAddress,
    Piece,
    ProtectionDomain,
    RetrySettings,
    VerbsError,
    WorkCompletion,
)
from fedrdma_fate.wire.errors import TransportError

BIND_SECONDS = 5.0
"""A bind is local and takes microseconds; a device that takes longer is broken."""

_FIRST_PACKET = 1
"""Packet sequence number of a queue pair that is connected to itself: any is as good."""
_DEPTH = 16
"""Entries of its send queue. A bind is waited for before the next, so that more than one is to spare."""


class RegionTable:
    """The regions that are registered in a protection domain. May be used by several threads."""

    def __init__(self, domain: ProtectionDomain) -> None:
        self._domain = domain
        # re-entrant: a region may be collected, and so forgotten, by the thread that registers another
        self._lock = threading.RLock()
        self._registered: dict[int, MemoryRegion] = {}
        self.registrations = 0

    def register(self, region: Region) -> MemoryRegion:
        """The registration of a region, which is made when it is first asked for and lasts as long as the region.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the device, or the memlock limit, does not allow it.
        """
        with self._lock:
            found = self._registered.get(id(region))
            if found is None:
                found = self._registered[id(region)] = self._make(region)
                # not by address: what is mapped there later is other memory
                forgetting = weakref.finalize(region, self._forget, id(region))
                # at the end of the process the kernel takes back what is left
                forgetting.atexit = False  # type: ignore[misc]  # the stubs take it for read-only
            return found

    def piece(self, slot: Slot) -> Piece:
        """A slot as a work request names it.

        Raises:
            TransportError: see `register`.
        """
        return Piece(slot.region.address + slot.offset, slot.length, self.register(slot.region).local_key)

    def close(self) -> None:
        """Deregister everything."""
        with self._lock:
            while self._registered:
                self._registered.popitem()[1].close()

    def _make(self, region: Region) -> MemoryRegion:
        try:
            made = self._domain.register(region.address, region.length, windows=True)
        except VerbsError as error:
            raise registration_failed(region.length, error) from error
        self.registrations += 1
        return made

    def _forget(self, identity: int) -> None:
        with self._lock:
            registered = self._registered.pop(identity, None)
            if registered is not None:
                registered.close()


class OpenedRegion:
    """A slot that is registered by itself, for peers to write into. See `MemoryWindow`."""

    def __init__(self, domain: ProtectionDomain, address: int, length: int) -> None:
        """Register it.

        Raises:
            VerbsError: the device, or the memlock limit, does not allow it.
        """
        self._region = domain.register(address, length, remote_write=True)
        self.key = self._region.remote_key

    def close(self) -> None:
        """Deregister it: from now on no write gets in."""
        self._region.close()


def registration_failed(length: int, error: VerbsError) -> TransportError:
    """The error for memory that cannot be registered, with what is most often the cause."""
    if error.number in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
        return unavailable(
            NAME,
            f"cannot register {length} bytes of memory: the memlock limit is too small",
            "Raise it: `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the gateway's systemd unit.",
        )
    return unavailable(NAME, str(error), "Is the region larger than the device's max_mr_size?")


class WindowBinder:
    """Opens slots to a peer, by a queue pair that is connected to itself: a bind waits for no write of a link."""

    def __init__(self, device: Device, domain: ProtectionDomain, port: LocalPort) -> None:
        self._domain = domain
        self._lock = threading.Lock()
        self._next_request = 0
        self._queue = device.completion_queue(2 * _DEPTH)
        self._pair = domain.queue_pair(self._queue, port.port, sends=_DEPTH, receives=1)
        own = PairAddress(self._pair.number, _FIRST_PACKET, port.gid)
        self._pair.connect(port, own, _FIRST_PACKET, port.mtu, RetrySettings())

    def open(self, region: MemoryRegion, address: int, length: int) -> MemoryWindow:
        """A window onto [address, address + length).

        Raises:
            VerbsError: the device does not bind it.
        """
        if length == 0:
            # binding no bytes would close the window, and a write of no bytes needs none
            return self._domain.window()
        with self._lock:
            self._next_request += 1
            window = self._pair.bind(self._next_request, region, address, length)
            try:
                self._await(self._next_request)
            except VerbsError:
                window.close()
                raise
            return window

    def close(self) -> None:
        """Destroy the queue pair; windows stay open until they are closed."""
        self._pair.close()
        self._queue.close()

    def _await(self, request: int) -> None:
        poller = select.poll()
        poller.register(self._queue.fileno, select.POLLIN)
        deadline = time.monotonic() + BIND_SECONDS
        for done in iter(functools.partial(self._next_completion, poller, deadline), None):
            if done.outcome is not Outcome.DONE:
                raise VerbsError(f"the device does not bind a memory window: {done.text}")
            if done.work_request == request:
                return

    def _next_completion(self, poller: select.poll, deadline: float) -> WorkCompletion:
        while True:
            self._queue.arm()
            found = self._queue.poll(1)
            if found:
                return found[0]
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise VerbsError(f"the device did not bind a memory window within {BIND_SECONDS:g} s")
