"""FATE's own backend, unmodified: `ctx.put` and `ctx.get` through its `RabbitmqFederation`, a broker at the server."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fate.arch.federation.backends.rabbitmq as backend
from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context

from deploy.softroce.programs.exchange.amqp import broker_of
from deploy.softroce.programs.exchange.interface import (
    Exchanged,
    Host,
    Options,
    Received,
    ResentByKernel,
    Server,
    Silo,
    model_of,
    require_whole,
)
from deploy.softroce.programs.exchange.rabbitmq import MANAGEMENT, USER
from deploy.softroce.programs.meeting import Chair, Seat

MODEL = "model"
"""The name under which all models are put: FATE makes queues for each name once."""
WARM_UP_BYTES = 2**20 + 2**10
"""Just more than a slice of FATE's: queues of sliced objects are others than those of small ones."""
NEVER_SECONDS = 6000.0
"""For a whole model: FATE does not tell of a part of it."""


def parties_of(silos: int) -> list[tuple[str, str]]:
    """The server is the arbiter, as in FATE's homogeneous jobs; each silo is a host."""
    return [("arbiter", "0"), *(("host", str(number)) for number in range(1, silos + 1))]


@contextlib.contextmanager
def joined(host: Host, broker: Sequence[Any]) -> Iterator[Any]:
    """FATE's context of a host.

    Args:
        broker: port, port of the management, password, and the session's id.

    Raises:
        SystemExit: the broker does not take it.
    """
    port, management_port, password, session = broker
    everyone = parties_of(host.silos)
    address = host.addresses[0]
    with tempfile.TemporaryDirectory(prefix="fedrdma-fate-rabbitmq-", ignore_cleanup_errors=True) as data:
        computing = CSession(f"{session}-{host.number}", data_dir=str(Path(data)), options={"task_cores": 1})
        try:
            federation = backend.RabbitmqFederation.from_conf(
                session,
                computing,
                everyone[host.number],
                everyone,
                {party_id: {"host": address, "port": port} for _, party_id in everyone},
                address,
                port,
                management_port,
                USER,
                password,
                "client",
                None,
            )
        except OSError as error:
            raise SystemExit(f"the broker makes no user: {type(error).__name__}") from error
        try:
            yield Context(computing=computing, federation=federation)
        finally:
            computing.destroy()


def get(party: Any, sender: int, number: int, size: int) -> tuple[bytes, float]:
    """A model of a round from a party, and when it was there.

    Raises:
        SystemExit: FATE failed, or something else came.
    """
    with _told_of(number, size):
        got, moment = party.get(MODEL), time.monotonic()
    if not isinstance(got, bytes):
        raise SystemExit(f"host {sender} sent no model in round {number + 1}")
    return got, moment


def take(party: Any, sender: int, number: int, size: int) -> Received:
    """As `get`, and it is what its sender had sent.

    Raises:
        SystemExit: it is not.
    """
    got, moment = get(party, sender, number, size)
    require_whole(got, sender, number, size)
    return Received(moment)


def give(party: Any, model: bytes, number: int) -> None:
    """A model of a round to a party, or to several.

    Raises:
        SystemExit: FATE failed.
    """
    with _told_of(number, len(model)):
        party.put(MODEL, model)


@contextlib.contextmanager
def _told_of(number: int, size: int) -> Iterator[None]:
    """A put or get of FATE, which may raise anything, as its workers do, and waits without a limit of its own."""
    lacking = f"{size:,} bytes of round {number + 1} were not delivered"
    late = threading.Timer(NEVER_SECONDS, _give_up, [f"FATE did nothing in {NEVER_SECONDS:g} s: {lacking}"])
    late.daemon = True
    late.start()
    try:
        yield
    except Exception as error:
        raise SystemExit(f"FATE's backend failed ({type(error).__name__}): {lacking}") from error
    finally:
        late.cancel()


def _give_up(why: str) -> None:
    # the thread that waits in FATE cannot be interrupted; the broker ends with this process
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def _warm_up(options: Options) -> bytes:
    return bytes(min(options.size, WARM_UP_BYTES))


class FateServer(ResentByKernel):
    """The arbiter: puts one model for all hosts, and gets theirs one after the other."""

    def __init__(self, context: Any, options: Options) -> None:
        self._context, self._size = context, options.size

    def exchange(self, number: int) -> Exchanged:
        inside = self._context.indexed_ctx(number)
        give(inside.hosts, model_of(0, number, self._size), number)
        sent = time.monotonic()
        silos = enumerate(inside.hosts, start=1)
        return Exchanged(sent, tuple(take(party, silo, number, self._size) for silo, party in silos))


class FateSilo(ResentByKernel):
    """A host."""

    def __init__(self, context: Any, host: Host, options: Options) -> None:
        self._context, self._host, self._size = context, host, options.size
        self._model = b""

    def prepare(self, number: int) -> None:
        self._model = model_of(self._host.number, number, self._size)

    def receive(self, number: int) -> Received:
        return take(self._context.indexed_ctx(number).arbiter, 0, number, self._size)

    def send(self, number: int) -> None:
        give(self._context.indexed_ctx(number).arbiter, self._model, number)


@contextlib.contextmanager
def fate_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """Of `fate-rabbitmq`."""
    with broker_of(host, options, (MANAGEMENT,)) as broker:
        session = f"bench-{secrets.token_hex(8)}"
        told = [broker.port, broker.management_port, broker.password, session]
        with joined(host, told) as context:
            chair.tell(told)
            chair.hear()
            # queues are made by who is first at them, and connections to them
            warm = context.sub_ctx("warm")
            give(warm.hosts, _warm_up(options), 0)
            for silo, party in enumerate(warm.hosts, start=1):
                get(party, silo, 0, len(_warm_up(options)))
            yield FateServer(context, options)
        # nobody is cut off by the broker's end
        chair.hear()


@contextlib.contextmanager
def fate_silo(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    """Of `fate-rabbitmq`."""
    with joined(host, seat.hear()) as context:
        seat.say("joined")
        warm = context.sub_ctx("warm")
        get(warm.arbiter, 0, 0, len(_warm_up(options)))
        give(warm.arbiter, _warm_up(options), 0)
        yield FateSilo(context, host, options)
    seat.say("away")
