"""Between two gateways that seal, somebody sits on the path of the data connection, and reads, changes and cuts it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedrdma_fate.gateway import assembly as assembly_module
from fedrdma_fate.gateway.config.schema import GatewayConfig, parse_config
from fedrdma_fate.gateway.transports import make_transports
from fedrdma_fate.transport.sealed_pieces import introduction_bytes, sealed_length
from fedrdma_fate.transport.stream_frames import HEAD_BYTES, Head, Op, unpack_head
from fedrdma_fate.wire.frames import Mode
from fedrdma_fate.wire.sealed import COUNTER_BYTES, TAG_BYTES
from tests.support import sites as sites_module
from tests.support.certificates import TestAuthority
from tests.support.proxy import Proxy
from tests.support.same_digest import with_same_digest
from tests.support.sites import Sites, eventually, party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(3_000_000)
HELLO_BYTES = 28
"""What a data connection begins with: magic, token, its number, and how many there are."""

TURNED = 5
"""The write that the enemy turns."""

READ_SECONDS = 0.5
"""In which a gateway that has nothing else to do reads what came."""


class Redirected:
    """A transport whose peers dial another port, and one of their drafts."""

    def __init__(self, inner: Any, port: int) -> None:
        self._inner = inner
        self._port = port

    @property
    def address(self) -> dict[str, Any]:
        # with the control channel's port, too: else nobody looks at this one
        offered = {key: value for key, value in self._inner.address.items() if key != "control"}
        return {**offered, "port": self._port} if "port" in offered else offered

    def open(self, role: Any) -> Redirected:
        return Redirected(self._inner.open(role), self._port)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Enemy(Proxy):
    """Takes one write, once: puts other bytes of the same digest in its place, confirms it in b's name, and cuts.

    Attributes:
        turned: the head of that write, once it came.
    """

    def __init__(self, target_port: int) -> None:
        self.turned: Head | None = None
        self._came: dict[socket.socket, bytearray] = {}
        self._greeted: set[socket.socket] = set()
        super().__init__(target_port)

    def _forward(self, source: socket.socket) -> None:
        if source not in self._inbound or self.turned is not None:
            super()._forward(source)
            return
        came = self._came.setdefault(source, bytearray())
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(source)
            return
        came += data
        other = self._pairs[source]
        while (frame := self._next(source, came)) is not None and self.turned is None:
            head, raw = frame
            if head is None or head.sequence != TURNED or head.op not in (Op.WRITE, Op.CHUNK):
                other.sendall(raw)
                continue
            self.turned = head
            self._turn(source, other, head, raw)

    def _next(self, source: socket.socket, came: bytearray) -> tuple[Head | None, bytes] | None:
        """A whole frame, or the greeting, as soon as it is there."""
        head = None
        length = HELLO_BYTES
        if source in self._greeted:
            if len(came) < HEAD_BYTES:
                return None
            head = unpack_head(came[:HEAD_BYTES])
            length = HEAD_BYTES + (0 if head.op == Op.ACK else sealed_length(head))
        if len(came) < length:
            return None
        self._greeted.add(source)
        raw = bytes(came[:length])
        del came[:length]
        return head, raw

    def _turn(self, source: socket.socket, other: socket.socket, head: Head, raw: bytes) -> None:
        start = HEAD_BYTES + introduction_bytes(head) + COUNTER_BYTES
        block = raw[start:-TAG_BYTES]
        assert len(block) == head.length
        # no tag: nobody has looked at these bytes when the connection is gone
        other.sendall(raw[:start] + with_same_digest(block))
        with contextlib.suppress(OSError):
            source.sendall(Head(Op.ACK, sequence=head.sequence).pack())
            # until both have read what was sent to them: a connection that is cut takes along what was not
            until = time.monotonic() + READ_SECONDS
            while (left := until - time.monotonic()) > 0:
                source.settimeout(left)
                if not source.recv(1 << 20):
                    break
        self._cut()


@pytest.fixture
def enemies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Enemy]]:
    """Who sits before b, once it has started."""
    with contextlib.ExitStack() as stack:
        made: list[Enemy] = []

        def make(config: Any, *arguments: Any) -> Any:
            transports: Any = make_transports(config, *arguments)
            if config.site == "b":
                made.append(stack.enter_context(Enemy(transports["tcp"].port)))
                transports["tcp"] = Redirected(transports["tcp"], made[0].port)
            return transports

        monkeypatch.setattr(assembly_module, "make_transports", make)
        yield made


def sealing(monkeypatch: pytest.MonkeyPatch, seal: str) -> None:
    def parse(document: dict[str, Any]) -> GatewayConfig:
        return msgspec.structs.replace(parse_config(document), seal=seal)

    monkeypatch.setattr(sites_module, "parse_config", parse)


def exchange(sites: Sites, mode: Mode) -> bytes:
    with sites["a"].client(mode=mode) as a, sites["b"].client() as b:
        lease = a.lease(len(BODY))
        lease.buffer[:] = BODY
        lease.commit("m", "t", [party("host:2")], "object")
        return bytes(b.get("m", "t", party("guest:1"), timeout=60).buffer)


@pytest.mark.parametrize("seal", ["on", "integrity"])
@pytest.mark.parametrize("mode", ["fedrdma-e", "fedrdma-x"])
def test_a_write_that_is_confirmed_by_somebody_else_than_the_peer_is_not_taken_for_one_that_has_arrived(
    enemies: list[Enemy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    seal: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What lies there was never looked at, and has the digest of what should: only that it comes again mends it."""
    sealing(monkeypatch, seal)
    authority = TestAuthority(tmp_path / "tls")
    with start_gateways(LAYOUT, tmp_path, authority=authority, chunk="100KB", tcp={"streams": 1}) as sites:
        assert exchange(sites, mode) == BODY
        (enemy,) = enemies
        assert enemy.turned is not None
        eventually(lambda: "a forged ACK" in caplog.text)
