"""FATE Flow as gateways see it, without FATE: a server that notes its calls, and a client that makes them."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.ports import ports_of_this_process
from tests.support.sites import Runner, Sites, start_gateways

SECONDS = 20.0
"""For whatever a loaded machine may hold up."""

JSON = "application/json"


@dataclasses.dataclass(frozen=True)
class Seen:
    """A call that came to a server."""

    path: str
    headers: dict[str, str]
    body: bytes


class FakeFlow:
    """A server on loopback.

    Attributes:
        calls: those that came, in order.
        answer: what it says to a call: status, content type, body; by default that all is well. May wait.
        port: where it listens.
    """

    def __init__(self) -> None:
        self.calls: list[Seen] = []
        self.answer: Callable[[Seen], tuple[int, str, bytes]] = lambda _call: (200, JSON, b'{"code": 0}')
        flow = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                seen = Seen(self.path, dict(self.headers.items()), body)
                flow.calls.append(seen)
                status, kind, content = flow.answer(seen)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                return

            def handle(self) -> None:
                # whoever called may be gone by the time of an answer
                with contextlib.suppress(OSError):
                    super().handle()

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def fake_flows(count: int) -> Iterator[list[FakeFlow]]:
    """So many servers."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            flow = FakeFlow()
            stack.callback(flow.close)
            made.append(flow)
        yield made


LAYOUT = {"a": ["9999"], "b": ["host:10000", "arbiter:10000"]}


@dataclasses.dataclass
class FlowSites:
    """Two gateways, each with a server.

    Attributes:
        sites: the gateways.
        flows: servers by site.
    """

    sites: Sites
    flows: dict[str, FakeFlow]

    def port(self, site: str, front: str = "flow") -> int:
        """Of a front of a gateway: `flow` or `osx`."""
        return int(self.sites[site].config["listen"][front].rpartition(":")[2])


@contextlib.contextmanager
def flow_sites(
    directory: Path,
    layout: Mapping[str, Sequence[str]] | None = None,
    runner: Runner | None = None,
    without_server: Collection[str] = (),
    **settings: Any,
) -> Iterator[FlowSites]:
    """Gateways with a front and a server each, but for those that are to know none."""
    layout = layout or LAYOUT
    with fake_flows(len(layout)) as made:
        flows = dict(zip(layout, made, strict=True))
        ports, osx_ports = (dict(zip(layout, ports_of_this_process(len(layout)), strict=True)) for _ in range(2))

        def of_site(name: str) -> dict[str, Any]:
            if name in without_server:
                return {}
            return {
                "flow": {"server": f"127.0.0.1:{flows[name].port}"},
                "listen": {"flow": f"127.0.0.1:{ports[name]}", "osx": f"127.0.0.1:{osx_ports[name]}"},
            }

        with start_gateways(layout, directory, runner=runner, of_site=of_site, **settings) as sites:
            yield FlowSites(sites, flows)


def body_for(role: str, party_id: str, **more: object) -> dict[str, object]:
    """What FATE Flow says to a party of a job."""
    return {"job_id": "20240101", "role": role, "party_id": party_id, **more}


@dataclasses.dataclass(frozen=True)
class Told:
    """What came of a call."""

    status: int
    reason: str
    document: Any


def call(
    port: int,
    path: str = "/v2/partner/job/create",
    body: object = None,
    to: str = "10000",
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> Told:
    """Make a call as FATE Flow does: a connection of its own, JSON, the party in a header."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        given = body_for("host", to) if body is None else body
        content = given if isinstance(given, bytes) else json.dumps(given).encode()
        sent = {"dest-party-id": to, "service": "fateflow", "initiator-party-id": "", "Content-Type": JSON}
        connection.request(method, path, content, {**sent, **(headers or {})})
        answer = connection.getresponse()
        return Told(answer.status, answer.reason, json.loads(answer.read()))
    finally:
        connection.close()


def raw(port: int, request: bytes, *, ends: bool = False) -> bytes:
    """All that is answered to some bytes; nothing where the connection is just ended."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                answer += data
        return answer
