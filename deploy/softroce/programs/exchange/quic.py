"""QUIC by aioquic: a connection of each silo to the server, a stream of one direction for each model."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from deploy.softroce.programs.exchange.interface import Exchanged, Host, Options, Received, Server, Silo, models_of
from deploy.softroce.programs.meeting import Chair, Seat
from fedrdma_fate.bench.protocols.brokers import prefer_aioquic

if TYPE_CHECKING:
    from fedrdma_fate.bench.quic import Loop, Message, Peer, Settings

_TOKEN_BYTES = 16
"""Nobody guesses so many."""


class QuicServer:
    """All silos at once: their models are handed over, and taken as they come."""

    def __init__(self, loop: Loop, peers: Sequence[Peer], options: Options) -> None:
        self._loop, self._peers, self._models = loop, peers, models_of(0, options)
        self._resent = 0

    def exchange(self, number: int) -> Exchanged:
        model = self._models.own(number)
        self._resent = sum(peer.resent_bytes for peer in self._peers)
        sent, received = self._loop.run(self._serve(model, number))
        for silo, got in enumerate(received, start=1):
            self._models.take(got.body, silo, number)
        return Exchanged(sent, tuple(Received(got.moment) for got in received))

    def resent(self, number: int) -> int:
        del number
        return sum(peer.resent_bytes for peer in self._peers) - self._resent

    async def _serve(self, model: bytes, number: int) -> tuple[float, list[Message]]:
        for peer in self._peers:
            peer.send(model)
        # the token was a silo's first message
        return time.monotonic(), [await peer.message(number + 1) for peer in self._peers]


class QuicSilo:
    """One connection to the server."""

    def __init__(self, loop: Loop, peer: Peer, host: Host, options: Options) -> None:
        self._loop, self._peer, self._models = loop, peer, models_of(host.number, options)
        self._resent = 0

    def prepare(self, number: int) -> None:
        """Nothing: streams are opened as they are needed."""

    def receive(self, number: int) -> Received:
        got = self._loop.run(self._peer.message(number))
        self._models.take(got.body, 0, number)
        return Received(got.moment)

    def send(self, number: int) -> None:
        self._resent = self._peer.resent_bytes
        self._loop.run(self._send(self._models.own(number)))

    def resent(self, number: int) -> int:
        del number
        self._loop.run(self._peer.delivered())
        return self._peer.resent_bytes - self._resent

    async def _send(self, model: bytes) -> None:
        self._peer.send(model)


@contextlib.contextmanager
def _quic(options: Options, host: Host, congestion: str) -> Iterator[tuple[Loop, Settings]]:
    # here and not above: other protocols of this process keep what they have imported
    prefer_aioquic()
    from fedrdma_fate.bench.quic import Loop, Settings

    settings = Settings(options.mtu, models_of(host.number, options).size, congestion)
    try:
        with Loop() as loop:
            yield loop, settings
    except ConnectionError as error:
        raise SystemExit(str(error)) from error


def quic_server(congestion: str) -> Callable[[Host, Chair, Options], contextlib.AbstractContextManager[Server]]:
    """Of a congestion control of aioquic's."""

    @contextlib.contextmanager
    def opened(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
        token = secrets.token_hex(_TOKEN_BYTES)
        with _quic(options, host, congestion) as (loop, settings):
            from fedrdma_fate.bench.quic import Listener

            with Listener(loop, host.address, host.silos, settings, token) as listener:
                chair.tell(dataclasses.asdict(listener.ticket))
                yield QuicServer(loop, listener.peers(), options)

    return opened


def quic_silo(congestion: str) -> Callable[[Host, Seat, Options], contextlib.AbstractContextManager[Silo]]:
    """Of a congestion control of aioquic's."""

    @contextlib.contextmanager
    def opened(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
        with _quic(options, host, congestion) as (loop, settings):
            from fedrdma_fate.bench.quic import Ticket, dialled

            ticket = Ticket(**seat.hear())
            with dialled(loop, host.address, host.number, settings, ticket) as peer:
                yield QuicSilo(loop, peer, host, options)

    return opened
