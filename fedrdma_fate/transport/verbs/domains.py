"""What each peer has of a device: a protection domain, so that no other peer's queue pairs can use its keys.

Keys of devices are not secrets: Soft-RoCE counts them up and has 8 random bits in each, and a wrong guess on an
unreliable queue pair is dropped without a word to anybody. In a domain of its own, a peer can guess nothing but what it
was granted.
"""

from __future__ import annotations

import contextlib
import threading

from fedrdma_fate.ports import Region, Slot
from fedrdma_fate.transport.verbs.interface import Device, LocalPort, MemoryWindow, VerbsError
from fedrdma_fate.transport.verbs.regions import OpenedRegion, RegionTable, WindowBinder


class PeerDomain:
    """The protection domain of one peer. May be used by several threads."""

    def __init__(self, device: Device, port: LocalPort, *, windows: bool) -> None:
        """Make it.

        Args:
            device: the device.
            port: the port that queue pairs use.
            windows: whether windows will do to open slots; else each is registered by itself.

        Raises:
            VerbsError: the device has no more of something.
        """
        with contextlib.ExitStack() as undo:
            self.domain = device.domain()
            undo.callback(self.domain.close)
            self.regions = RegionTable(self.domain)
            undo.callback(self.regions.close)
            self._binder: WindowBinder | None = None
            if windows:
                self._binder = WindowBinder(device, self.domain, port)
                undo.callback(self._binder.close)
            self._undo = undo.pop_all()

    def open_slot(self, slot: Slot) -> MemoryWindow:
        """Open a slot to the peer, and nothing beside it.

        Raises:
            VerbsError: the device does not do it.
            TransportError: TRANSPORT_UNAVAILABLE when its region cannot be registered.
        """
        address = slot.region.address + slot.offset
        if self._binder is not None:
            return self._binder.open(self.regions.register(slot.region), address, slot.length)
        # no bytes cannot be registered, and a write of none needs no key that opens anything
        return OpenedRegion(self.domain, address, slot.length) if slot.length else self.domain.window()

    def close(self) -> None:
        """Give everything back; after the queue pairs of its links. May be repeated."""
        self._undo.close()


class PeerDomains:
    """The domains of all peers, each made when its first link is, and kept: what it takes time for is registration.

    One is made ahead, with the regions registered, so that a device or a memlock limit that will not do shows at once.
    """

    def __init__(self, device: Device, port: LocalPort, *, windows: bool) -> None:
        """
        Args:
            device: the device.
            port: the port that queue pairs use.
            windows: see `PeerDomain`.

        Raises:
            VerbsError: the device has no more of something.
        """
        self._device, self._port, self._windows = device, port, windows
        self._lock = threading.Lock()
        self._spare: PeerDomain | None = self._make()
        self._domains: dict[str, PeerDomain] = {}

    @property
    def registrations(self) -> int:
        """How often a region has been registered, in all domains together."""
        with self._lock:
            return sum(domain.regions.registrations for domain in self._all())

    def prepare(self, region: Region) -> None:
        """Register a region in the domain that is made ahead.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when it cannot be.
        """
        if self._spare is not None:
            self._spare.regions.register(region)

    def of(self, peer: str) -> PeerDomain:
        """The domain of a peer.

        Raises:
            VerbsError: the device has no more of something.
        """
        with self._lock:
            found = self._domains.get(peer)
            if found is None:
                found, self._spare = self._spare or self._make(), None
                self._domains[peer] = found
            return found

    def close(self) -> None:
        """Give all of them back."""
        with self._lock:
            for domain in self._all():
                with contextlib.suppress(VerbsError):
                    domain.close()

    def _all(self) -> list[PeerDomain]:
        return [*self._domains.values(), *([self._spare] if self._spare is not None else [])]

    def _make(self) -> PeerDomain:
        return PeerDomain(self._device, self._port, windows=self._windows)
