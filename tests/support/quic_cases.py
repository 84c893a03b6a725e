"""What the two ends of `fedrdma_fate.bench.quic` do with what is not right: each case prints what came of it.

A program of its own, since aioquic is imported before all else: `python -m tests.support.quic_cases CASE`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fedrdma_fate.bench.protocols.brokers import prefer_aioquic

if TYPE_CHECKING:
    from fedrdma_fate.bench.quic import Listener, Loop, Peer, Ticket

SIZE = 300_000
"""Bytes of a model: more than goes out in a first window."""
TOKEN = "5a" * 16
SERVER, SILO = "127.0.0.1", "127.0.0.2"


@contextlib.contextmanager
def listening(silos: int = 1) -> Iterator[tuple[Loop, Listener]]:
    from fedrdma_fate.bench.quic import Listener, Loop, Settings

    with Loop() as loop, Listener(loop, SERVER, silos, Settings(1500, SIZE), TOKEN) as listener:
        yield loop, listener


def dialling(loop: Loop, ticket: Ticket, silo: int = 1, size: int = SIZE) -> Any:
    from fedrdma_fate.bench.quic import Settings, dialled

    return dialled(loop, SILO, silo, Settings(1500, size), ticket)


def send(loop: Loop, peer: Peer, *bodies: bytes) -> None:
    async def do() -> None:
        for body in bodies:
            peer.send(body)

    loop.run(do())


def said(loop: Loop, work: Any) -> str:
    try:
        got = loop.run(work)
    except ConnectionError as error:
        return f"ConnectionError: {error}"
    return f"{len(got.body)} bytes"


def admitted_beside(wrong: Callable[[Ticket], Ticket], silo: int = 1) -> None:
    """Somebody who is no silo comes first; the silo is served all the same."""
    with listening() as (loop, listener):
        with dialling(loop, wrong(listener.ticket), silo) as stranger:
            print(said(loop, stranger.message(0)))
        with dialling(loop, listener.ticket) as peer:
            (server,) = listener.peers()
            send(loop, server, bytes(SIZE))
            print(said(loop, peer.message(0)))


def forged_token() -> None:
    admitted_beside(lambda ticket: dataclasses.replace(ticket, token="5b" * 16))


def short_token() -> None:
    admitted_beside(lambda ticket: dataclasses.replace(ticket, token="5a"))


def no_such_silo() -> None:
    admitted_beside(lambda ticket: ticket, silo=2)


def silo_twice() -> None:
    with listening(2) as (loop, listener), dialling(loop, listener.ticket), dialling(loop, listener.ticket) as second:
        print(said(loop, second.message(0)))


def another_server() -> None:
    with listening() as (loop, listener), listening() as (_, other):
        ticket = dataclasses.replace(listener.ticket, certificate=other.ticket.certificate)
        try:
            with dialling(loop, ticket):
                print("connected")
        except ConnectionError as error:
            print(f"ConnectionError: {error}".rpartition(":")[0])


def broken(breaks: Callable[[Loop, Peer], None], size: int = SIZE) -> None:
    """A silo that was admitted, and breaks a rule."""
    with listening() as (loop, listener), dialling(loop, listener.ticket, size=size) as peer:
        (server,) = listener.peers()
        breaks(loop, peer)
        print(said(loop, server.message(1)))
        # and what comes later is not waited for
        print(said(loop, server.message(2)))


def too_long() -> None:
    broken(lambda loop, peer: send(loop, peer, bytes(SIZE + 1)), size=2 * SIZE)


def two_at_once() -> None:
    broken(lambda loop, peer: send(loop, peer, bytes(SIZE), bytes(SIZE)))


def broken_off() -> None:
    def breaks(loop: Loop, peer: Peer) -> None:
        async def do() -> None:
            stream = peer._connection.get_next_available_stream_id(is_unidirectional=True)
            peer._connection.send_stream_data(stream, bytes(1000))
            peer.transmit()
            await asyncio.sleep(0.1)
            peer._connection.reset_stream(stream, 1)
            peer.transmit()

        loop.run(do())

    broken(breaks)


def hangs_up() -> None:
    def breaks(loop: Loop, peer: Peer) -> None:
        async def do() -> None:
            peer.close()

        loop.run(do())

    broken(breaks)


def losing() -> None:
    with listening() as (loop, listener), dialling(loop, listener.ticket) as peer:
        (server,) = listener.peers()
        server._transport = Lossy(server._transport)
        body = bytes(range(250)) * (SIZE // 250)
        send(loop, server, body)
        got = loop.run(peer.message(0)).body
        loop.run(server.delivered())
        print(got == body, SIZE // 10 < server.resent_bytes < SIZE, peer.resent_bytes)


class Lossy:
    """A transport that loses every fifth datagram."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._count = transport, 0

    def sendto(self, data: bytes, address: Any) -> None:
        self._count += 1
        if self._count % 5:
            self._transport.sendto(data, address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


if __name__ == "__main__":
    prefer_aioquic()
    globals()[sys.argv[1]]()
