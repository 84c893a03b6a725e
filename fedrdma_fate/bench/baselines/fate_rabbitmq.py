"""FATE's own RabbitMQ backend, unmodified: slices of 1 MiB in hexadecimal digits, by one broker or by two."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.bench.baselines.fate_party import (
    PARTIES,
    FateReceiver,
    FateSender,
    Side,
    computing_session,
    make_context,
    require_fate,
)
from fedrdma_fate.bench.baselines.interface import RowError, Schedule, Service
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec
from fedrdma_fate.bench.protocols.brokers import fate_rabbitmq_problem
from fedrdma_fate.bench.rabbitmq import FEDERATION, MANAGEMENT, USER, Broker, running_rabbitmq

_LOOPBACK = "127.0.0.1"
_LOOK_AGAIN_SECONDS = 0.01
"""Between two looks at whether the queues are made."""
_COMPLAINTS = ("[error]", "[warning]", "alarm")
"""In a line of the broker's that may say why it takes no more."""
_LAST_LINES = 5
"""Of those."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How the two parties reach each other; goes to their processes.

    Attributes:
        session: of FATE's federation.
        mode: `client` or `replication`.
        brokers: each party's.
        made: a file that is there once the queues are.
    """

    session: str
    mode: str
    brokers: dict[Side, Broker]
    made: Path


class QueueMaker(FateSender):
    """The guest, whose first put makes the queues."""

    def __init__(self, context: Any, made: Path) -> None:
        super().__init__(context)
        self._made = made

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """As any FATE party."""
        super().put(iteration, payload)
        self._made.touch()


class PatientReceiver(FateReceiver):
    """The host. Were it to ask at the same moment, both would make the virtual host, one be told that it is there while
    it still starts, and queues be refused, which FATE does not look at: what is put is thrown away."""

    def __init__(self, context: Any, made: Path) -> None:
        super().__init__(context)
        self._made = made

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        """As any FATE party, once the queues are made."""
        while not self._made.exists():
            time.sleep(_LOOK_AGAIN_SECONDS)
        return super().get(iteration, spec)


def _context(side: Side, data_directory: Path, way: Way) -> Any:
    from fate.arch.federation.backends.rabbitmq import RabbitmqFederation

    routes = {
        party_id: {"host": way.brokers[each].address, "port": way.brokers[each].port}
        for each, (_, party_id) in PARTIES.items()
    }
    own, computing = way.brokers[side], computing_session(side, data_directory)
    federation = RabbitmqFederation.from_conf(
        way.session,
        computing,
        PARTIES[side],
        list(PARTIES.values()),
        routes,
        own.address,
        own.port,
        own.management_port,
        USER,
        own.password,
        way.mode,
        None,
    )
    return make_context(computing, federation)


def _open_sender(data_directory: Path, way: Way) -> QueueMaker:
    return QueueMaker(_context("sender", data_directory, way), way.made)


def _open_receiver(data_directory: Path, way: Way) -> PatientReceiver:
    return PatientReceiver(_context("receiver", data_directory, way), way.made)


class BrokerService(Service):
    """A broker for both, which counts as the sender's, or one for each."""

    def __init__(self, workspace: Path, way: Way) -> None:
        data = workspace / "data"
        super().__init__(functools.partial(_open_sender, data, way), functools.partial(_open_receiver, data, way))
        self._brokers = way.brokers

    @property
    def sender_helpers(self) -> Sequence[int]:
        return (self._brokers["sender"].pid,)

    @property
    def receiver_helpers(self) -> Sequence[int]:
        pid = self._brokers["receiver"].pid
        return () if pid == self._brokers["sender"].pid else (pid,)

    def complaints(self) -> str:
        """What the brokers said of errors and alarms, last."""
        said = {broker.said: Path(broker.said) for broker in self._brokers.values()}
        lines = [line for path in said.values() if path.exists() for line in _complaints_in(path)]
        return "\n".join(f"The broker: {line}" for line in lines)


def _complaints_in(path: Path) -> list[str]:
    lines = path.read_text(errors="replace").splitlines()
    return [line.strip() for line in lines if any(word in line for word in _COMPLAINTS)][-_LAST_LINES:]


class FateRabbitMq:
    """See the module. It is run once: FATE's own work on its slices takes minutes of CPU time a GB."""

    schedule = Schedule(warm_ups=0, most_repeats=1)

    def __init__(self, *, replicating: bool = False) -> None:
        """
        Args:
            replicating: each party has a broker of its own, joined by RabbitMQ's federation plugin.
        """
        self._replicating = replicating

    @property
    def name(self) -> str:
        return "fate-rabbitmq-replication" if self._replicating else "fate-rabbitmq"

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Baseline.start`."""
        require_fate()
        if (problem := fate_rabbitmq_problem(largest_bytes)) is not None:
            raise RowError(problem)
        plugins = (MANAGEMENT, FEDERATION) if self._replicating else (MANAGEMENT,)
        with contextlib.ExitStack() as stack:
            try:
                first = stack.enter_context(running_rabbitmq(_LOOPBACK, plugins))
                second = stack.enter_context(running_rabbitmq(_LOOPBACK, plugins)) if self._replicating else first
            except SystemExit as error:
                raise RowError(str(error)) from error
            mode = "replication" if self._replicating else "client"
            session = f"bench-{secrets.token_hex(8)}"
            yield BrokerService(
                workspace, Way(session, mode, {"sender": first, "receiver": second}, workspace / "made")
            )
