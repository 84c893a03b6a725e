"""The endpoint for Prometheus: HTTP, or HTTPS for those who show a certificate."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from fedrdma_fate.descriptors import RETRY_SECONDS, is_exhausted
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FedRDMAError

logger = logging.getLogger(__name__)

Secure = Callable[[socket.socket], ssl.SSLSocket]
"""Shakes hands on a connection that was accepted; raises OSError or FedRDMAError where nobody may be there."""

_SCRAPE_SECONDS = 10.0
"""For a connection from its begin to its end, the handshake included: Prometheus' own limit for a whole scrape."""

MOST_SCRAPES = 16
"""Connections at a time, each with a thread; who scrapes makes one after the other."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Not each scrape."""


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each connection, so that a slow one holds up no other."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, secure: Secure | None, refused: Callable[[str, Exception], object]
    ) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._secure = secure
        self._refused = refused
        self._room = threading.BoundedSemaphore(MOST_SCRAPES)
        self._ending = threading.Event()
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection; where there are no descriptors for it, after a pause, for the socket stays ready."""
        try:
            return super().get_request()
        except OSError as error:
            if is_exhausted(error):
                self._refused("", error)
                self._ending.wait(RETRY_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, where there is room for one."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            error = OSError(errno.EAGAIN, f"{MOST_SCRAPES} connections are served already")
            self._refused(str(client_address[0]), error)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # no thread could be started, so none gives it back
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In a thread of the connection's own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def end(self) -> None:
        """Accept nothing more; returns when nothing does."""
        self._ending.set()
        self.shutdown()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the connection's thread, too; all of it has one limit, however slowly somebody writes."""
        request.settimeout(_SCRAPE_SECONDS)
        with request.dup() as same:
            end = threading.Timer(_SCRAPE_SECONDS, _end, [same])
            end.daemon = True
            end.start()
            try:
                if self._secure is None:
                    super().finish_request(request, client_address)
                    return
                with self._secure(request) as secured:
                    super().finish_request(secured, client_address)
            finally:
                end.cancel()
                end.join()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - of socketserver's
        """A connection that failed, within an `except` of socketserver's."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError | FedRDMAError):
            self._refused(str(client_address[0]), error)
        else:
            logger.error("the metrics could not be served", exc_info=error)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class MetricsServer:
    """A running endpoint for Prometheus."""

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int,
        secure: Secure | None,
        refused: Callable[[str, Exception], object],
    ) -> None:
        """Serve from a thread.

        Args:
            registry: what to serve.
            host: to listen on.
            port: 0 takes a free one.
            secure: makes a connection one of TLS; None serves without.
            refused: told which host was refused, and why, from any thread; no host where nobody can be accepted.

        Raises:
            ConfigError: CONFIG_BAD_VALUE when the address cannot be bound.
        """
        try:
            self._server = _Server(host, port, secure, refused)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"metrics cannot be served on {host}:{port}: {error}.",
                "Set listen.metrics to a free address of this host, or to null.",
            ) from error
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop listening and wait for the thread; may be repeated."""
        if not self._thread.is_alive():
            return
        self._server.end()
        self._server.server_close()
        self._thread.join()
