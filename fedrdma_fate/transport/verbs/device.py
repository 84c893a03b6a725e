"""What all links of a transport share: the open device, its events, and the protection domains of the peers."""

from __future__ import annotations

import contextlib
import os
import threading

from fedrdma_fate.transport.verbs.domains import PeerDomains
from fedrdma_fate.transport.verbs.interface import Device, DeviceEvent, EventKind, LocalPort, VerbsError
from fedrdma_fate.transport.verbs.window_check import windows_are_checked


class DeviceEvents:
    """Events of the device, which any link may be the first to see, for all links to look at."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._fatal: DeviceEvent | None = None
        self._access_errors = 0
        self.fileno = device.events_fileno

    @property
    def access_errors(self) -> int:
        """How often a peer's write was refused so far, on any link: pyverbs does not say on which."""
        return self._access_errors

    def look(self) -> str | None:
        """Take in new events; why no link can go on, if so.

        Raises:
            VerbsError: the device cannot be asked.
        """
        with self._lock:
            while (event := self._device.next_event()) is not None:
                self._take_in(event)
            return None if self._fatal is None else _reason(self._fatal)

    def device_is_gone(self) -> bool:
        """Whether the device was removed; what was made from it is of no use any more, even when it is back."""
        try:
            self.look()
        except VerbsError:
            return True
        return self._fatal is not None and self._fatal.kind is EventKind.DEVICE_GONE

    def forget(self) -> None:
        """A new link is made: what befell the port before is over, or shows again. A device that has gone stays so."""
        with self._lock:
            if self._fatal is not None and self._fatal.kind is EventKind.PORT_DOWN:
                self._fatal = None

    def _take_in(self, event: DeviceEvent) -> None:
        if event.kind is EventKind.ACCESS_ERROR:
            self._access_errors += 1
        elif event.kind is EventKind.DEVICE_GONE or (event.kind is EventKind.PORT_DOWN and self._fatal is None):
            self._fatal = event


class DeviceContext:
    """The open device, and what its links share; closed when the transport is closed and its last link has gone."""

    def __init__(self, device: Device, port: LocalPort) -> None:
        """Take over the device.

        Raises:
            VerbsError: it does not give what every link needs.
        """
        self.device = device
        self.port = port
        self.windows_are_checked = windows_are_checked(device, port)
        self.domains = PeerDomains(device, port, windows=self.windows_are_checked)
        self.events = DeviceEvents(device)
        # a refused write is part of the check
        self.events.look()
        self.stop_fileno = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.stopped = False
        self._lock = threading.Lock()
        self._users = 1

    def stop(self) -> None:
        """Wake those who wait for a peer: the transport is closed."""
        self.stopped = True
        os.eventfd_write(self.stop_fileno, 1)

    def join(self) -> None:
        """Another link uses it."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """A link, or the transport, uses it no longer."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self.stop_fileno)
            undo.callback(self.device.close)
            undo.callback(self.domains.close)


def _reason(event: DeviceEvent) -> str:
    return "its port went down" if event.kind is EventKind.PORT_DOWN else "the device is gone"
