"""Parties of FATE that exchange models by `ctx.put` and `ctx.get`, whatever FATE's federation between them is."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context

from deploy.softroce.programs.exchange.interface import (
    Exchanged,
    Host,
    Models,
    Options,
    PlainSilo,
    Received,
    ResentByKernel,
    Server,
    Silo,
    models_of,
)
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


class Way(Protocol):
    """How the parties of a job reach each other."""

    @property
    def session(self) -> str:
        """Of FATE's federation."""
        ...

    @property
    def parties(self) -> Sequence[tuple[str, str]] | None:
        """Of the hosts, in their order; None: as of `parties_of`."""
        ...

    def federation(self, computing: Any, me: tuple[str, str], everyone: Sequence[tuple[str, str]]) -> Any:
        """FATE's own, of one party.

        Raises:
            OSError: the broker does not take it.
        """
        ...


@contextlib.contextmanager
def joined(host: Host, way: Way) -> Iterator[Any]:
    """FATE's context of a host.

    Raises:
        SystemExit: the broker does not take it.
    """
    everyone = list(way.parties or parties_of(host.silos))
    with tempfile.TemporaryDirectory(prefix="fedrdma-fate-parties-", ignore_cleanup_errors=True) as data:
        computing = CSession(f"{way.session}-{host.number}", data_dir=str(Path(data)), options={"task_cores": 1})
        try:
            federation = way.federation(computing, everyone[host.number], everyone)
        except OSError as error:
            raise SystemExit(f"the broker makes no user: {type(error).__name__}") from error
        try:
            yield Context(computing=computing, federation=federation)
        except BaseException:
            # FATE waits for its workers, and they for what may never come
            _end_workers()
            raise
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


def take(party: Any, sender: int, number: int, models: Models) -> Received:
    """As `get`, and it is what its sender had sent.

    Raises:
        SystemExit: it is not.
    """
    got, moment = get(party, sender, number, models.size)
    models.take(got, sender, number)
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
    _end_workers()
    os._exit(1)


def _end_workers() -> None:
    """Those of the computing engine. By themselves they end only once this process is waited for, and hold its output
    open until then: who reads that to its end before waiting waits for ever."""
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()


def _warm_up(options: Options) -> bytes:
    return bytes(min(options.size, WARM_UP_BYTES))


class FateServer(ResentByKernel):
    """The arbiter: puts one model for all hosts, and gets theirs one after the other."""

    def __init__(self, context: Any, options: Options) -> None:
        self._context, self._models = context, models_of(0, options)

    def exchange(self, number: int) -> Exchanged:
        inside = self._context.indexed_ctx(number)
        give(inside.hosts, self._models.own(number), number)
        sent = time.monotonic()
        silos = enumerate(inside.hosts, start=1)
        return Exchanged(sent, tuple(take(party, silo, number, self._models) for silo, party in silos))


class FateSilo(PlainSilo):
    """A host."""

    def __init__(self, context: Any, host: Host, options: Options) -> None:
        self._context, self._models = context, models_of(host.number, options)

    def receive(self, number: int) -> Received:
        return take(self._context.indexed_ctx(number).arbiter, 0, number, self._models)

    def send(self, number: int) -> None:
        give(self._context.indexed_ctx(number).arbiter, self._models.own(number), number)


@contextlib.contextmanager
def serving(way: Way, host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    with joined(host, way) as context:
        chair.hear()
        # Queues are made by who is first at them, in a virtual host that both sides ask for; to the second the
        # broker says that it is there while it still starts. FATE does not look at whether its queues were made,
        # and what goes to a queue that is not there is confirmed and thrown away: the other side waits for ever.
        # So all are made by one side, before the other asks.
        warm = context.sub_ctx("warm")
        give(warm.hosts, _warm_up(options), 0)
        chair.tell("made")
        for silo, party in enumerate(warm.hosts, start=1):
            get(party, silo, 0, len(_warm_up(options)))
        yield FateServer(context, options)
    # nobody is cut off by the broker's end
    chair.hear()


@contextlib.contextmanager
def taking_part(way: Way, host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    with joined(host, way) as context:
        seat.say("joined")
        seat.hear()
        warm = context.sub_ctx("warm")
        get(warm.arbiter, 0, 0, len(_warm_up(options)))
        give(warm.arbiter, _warm_up(options), 0)
        yield FateSilo(context, host, options)
    seat.say("away")


def new_session() -> str:
    """Of a job: no other has it."""
    return f"bench-{secrets.token_hex(8)}"
