"""The program of a node of the rows over gRPC: it adds updates, stores and forwards them, or passes them on.

Argument: a JSON object, see `NodeSetting`. It writes the port that it listens on to standard output, and ends with its
parent. An update comes as a stream of pieces; whither it goes on from a node stands in the call's metadata.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import grpc
import msgspec
import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.processes import end_with_parent

STREAM_PIECE_BYTES = 1024 * 1024
"""Of a message of a stream: gRPC takes up to 4 MiB, and copies each."""

SERVICE = "fedrdma.bench.Node"
ROUTE = "route"
"""Metadata: the addresses that an update still goes to, with commas between."""

_THREADS = 80
"""Calls that a node serves at a time: each update under way is one, and so is whoever waits for the sum."""

_CALL_SECONDS = 300.0
"""That an update or a sum may take."""

_BLOCK_ITEMS = 32768
"""Added at once, as workers do."""


class NodeSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node does.

    Attributes:
        role: `add`: it adds so many updates, and sends their sum along `route`; `take`: it keeps an update, instead of
            the one before; `store`: it takes an update whole, says so, and forwards it; `proxy`: it passes an update on
            as it comes.
        updates: that are added; 0 for others.
        bytes: of an update.
        route: where the sum goes to; empty: it stays.
    """

    role: Literal["add", "take", "store", "proxy"]
    updates: int = 0
    bytes: int = 0
    route: tuple[str, ...] = ()


class Neighbours:
    """Channels to other nodes, made when they are used."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()

    def send(self, route: tuple[str, ...], pieces: Iterable[bytes]) -> None:
        """Send an update to the first of these, and from there to the others.

        Raises:
            grpc.RpcError: it has not arrived at the first.
        """
        first, *others = route
        put: Any = self._channel(first).stream_unary(f"/{SERVICE}/Put")
        put(iter(pieces), metadata=((ROUTE, ",".join(others)),), timeout=_CALL_SECONDS)

    def ask(self, address: str, method: str, body: bytes = b"") -> bytes:
        """Ask a node.

        Raises:
            grpc.RpcError: it does not answer.
        """
        ask: Any = self._channel(address).unary_unary(f"/{SERVICE}/{method}")
        answer: bytes = ask(body, timeout=_CALL_SECONDS)
        return answer

    def fetch(self, address: str) -> Iterator[bytes]:
        """The sum that a node has, in pieces."""
        get: Any = self._channel(address).unary_stream(f"/{SERVICE}/Get")
        pieces: Iterator[bytes] = get(b"", timeout=_CALL_SECONDS)
        return pieces

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            channel.close()

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if address not in self._channels:
                self._channels[address] = grpc.insecure_channel(address)
            return self._channels[address]


def cut(body: Any) -> Iterator[bytes]:
    """A body in pieces."""
    view = memoryview(body).cast("B")
    for at in range(0, len(view), STREAM_PIECE_BYTES):
        yield bytes(view[at : at + STREAM_PIECE_BYTES])


class Node:
    """What a node does with what comes."""

    def __init__(self, setting: NodeSetting) -> None:
        self._setting = setting
        self._neighbours = Neighbours()
        self._sum: npt.NDArray[np.float64] = np.zeros(setting.bytes // 8)
        self._changed = threading.Condition()
        self._added = 0
        self._rounds = 0

    def put(self, pieces: Iterator[bytes], route: tuple[str, ...]) -> bytes:
        """An update comes; the answer."""
        if self._setting.role == "proxy":
            self._neighbours.send(route, pieces)
        elif self._setting.role == "store":
            stored = list(pieces)
            threading.Thread(target=self._neighbours.send, args=(route, stored), daemon=True).start()
        elif self._setting.role == "take":
            self._take(pieces)
        else:
            self._add(pieces)
        return b""

    def wait(self, rounds: int) -> bytes:
        """Until so many sums are ready, or so many updates have come to a node that takes them, since the start."""
        with self._changed:
            self._changed.wait_for(lambda: self._rounds >= rounds, _CALL_SECONDS)
        return b""

    def added(self) -> int:
        """How many updates were added, since the start."""
        with self._changed:
            return self._rounds * self._setting.updates + self._added

    def sum(self) -> Iterator[bytes]:
        """The latest sum, or the latest update that was taken."""
        return cut(self._sum)

    def _whole(self, pieces: Iterator[bytes]) -> npt.NDArray[np.float64]:
        """An update, when all of it is here."""
        update = np.empty(self._setting.bytes, np.uint8)
        at = 0
        for piece in pieces:
            update[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        return update.view(np.float64)

    def _take(self, pieces: Iterator[bytes]) -> None:
        # what was taken before has been used
        self._sum = np.empty(0)
        values = self._whole(pieces)
        with self._changed:
            self._sum = values
            self._rounds += 1
            self._changed.notify_all()

    def _add(self, pieces: Iterator[bytes]) -> None:
        values = self._whole(pieces)
        with self._changed:
            if not self._added:
                np.copyto(self._sum, values)
            else:
                for first in range(0, len(values), _BLOCK_ITEMS):
                    into = self._sum[first : first + _BLOCK_ITEMS]
                    np.add(into, values[first : first + _BLOCK_ITEMS], out=into)
            self._added += 1
            if self._added < self._setting.updates:
                return
            if self._setting.route:
                self._neighbours.send(self._setting.route, cut(self._sum))
            self._added = 0
            self._rounds += 1
            self._changed.notify_all()


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    def __init__(self, node: Node) -> None:
        self._node = node

    def service(self, details: Any) -> Any:
        route = tuple(filter(None, dict(details.invocation_metadata).get(ROUTE, "").split(",")))
        match details.method.rpartition("/")[2]:
            case "Put":
                return grpc.stream_unary_rpc_method_handler(lambda pieces, _: self._node.put(pieces, route))
            case "Wait":
                return grpc.unary_unary_rpc_method_handler(lambda body, _: self._node.wait(int(body)))
            case "Added":
                return grpc.unary_unary_rpc_method_handler(lambda _body, _: b"%d" % self._node.added())
            case "Get":
                return grpc.unary_stream_rpc_method_handler(lambda _body, _: self._node.sum())
        return None


def main(arguments: list[str]) -> None:
    end_with_parent(int(arguments[1]))
    node = Node(msgspec.convert(json.loads(arguments[0]), NodeSetting))
    server = grpc.server(ThreadPoolExecutor(_THREADS), handlers=[_Handler(node)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    os.write(1, f"{port}\n".encode())
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1:])
