"""A TCP proxy on loopback that a test can slow down, freeze and cut."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType


class Proxy:
    """Forwards every connection to a port; counts the bytes.

    Attributes:
        port: where it listens.
        forwarded: bytes carried towards the target.
        connections: accepted so far.
    """

    def __init__(self, target_port: int, cut_after: int | None = None) -> None:
        """
        Args:
            target_port: where connections are forwarded to.
            cut_after: cut all connections, once, when so many bytes were carried towards the target.
        """
        self._target = target_port
        self._cut_after = cut_after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._inbound: set[socket.socket] = set()
        self._stop = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.forwarded = 0
        self.connections = 0
        self.cuts = 0
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(10)
        self._cut()
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pairs:
                    self._forward(key.fileobj)

    def _accept(self) -> None:
        inbound, _ = self._listener.accept()
        try:
            outbound = socket.create_connection(("127.0.0.1", self._target), 5)
        except OSError:
            inbound.close()
            return
        self.connections += 1
        self._inbound.add(inbound)
        for one, other in ((inbound, outbound), (outbound, inbound)):
            one.settimeout(10)
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        try:
            data = source.recv(1 << 16)
            if data:
                self._pairs[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(source)
            return
        if source in self._inbound:
            self.forwarded += len(data)
            if self._cut_after is not None and self.forwarded >= self._cut_after:
                self._cut_after = None
                self._cut()

    def _cut(self) -> None:
        self.cuts += 1
        for each in list(self._pairs):
            self._drop(each)

    def _drop(self, one: socket.socket) -> None:
        other = self._pairs.pop(one, None)
        for each in (one, other):
            if each is None:
                continue
            self._pairs.pop(each, None)
            self._inbound.discard(each)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
            each.close()
