"""FATE's own RabbitMQ backend, unmodified: `ctx.put` and `ctx.get`, with one broker or with one at each host."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import fate.arch.federation.backends.rabbitmq as backend

from deploy.softroce.programs.exchange.amqp import broker_of
from deploy.softroce.programs.exchange.fate_parties import new_session, serving, taking_part
from deploy.softroce.programs.exchange.interface import Host, Options, Server, Silo
from deploy.softroce.programs.meeting import Chair, Seat
from fedrdma_fate.bench.rabbitmq import FEDERATION, MANAGEMENT, USER, Broker, running_rabbitmq


@dataclasses.dataclass(frozen=True, slots=True)
class ByRabbitMq:
    """Brokers by which the parties of a job reach each other.

    Attributes:
        session: of FATE's federation.
        broker: that this host uses.
        mode: `client`, one broker for all, or `replication`, one at each host, joined by a plugin of RabbitMQ's.
        routes: address and port of each party's broker, in the order of the hosts.
        parties: of the hosts, in their order; None: as of `parties_of`.
    """

    session: str
    broker: Broker
    mode: str
    routes: Sequence[tuple[str, int]]
    parties: Sequence[tuple[str, str]] | None = None

    def federation(self, computing: Any, me: tuple[str, str], everyone: Sequence[tuple[str, str]]) -> Any:
        """As `Way` has it."""
        routes = {
            party_id: {"host": address, "port": port}
            for (_, party_id), (address, port) in zip(everyone, self.routes, strict=True)
        }
        return backend.RabbitmqFederation.from_conf(
            self.session,
            computing,
            me,
            list(everyone),
            routes,
            self.broker.address,
            self.broker.port,
            self.broker.management_port,
            USER,
            self.broker.password,
            self.mode,
            None,
        )


@contextlib.contextmanager
def fate_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """Of `fate-rabbitmq`: all use the server's broker."""
    with broker_of(host, options, (MANAGEMENT,)) as broker:
        session = new_session()
        chair.tell([session, dataclasses.asdict(broker)])
        with serving(way_of_all(session, broker, host), host, chair, options) as server:
            yield server


@contextlib.contextmanager
def fate_silo(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    """Of `fate-rabbitmq`."""
    session, broker = seat.hear()
    with taking_part(way_of_all(session, Broker(**broker), host), host, seat, options) as silo:
        yield silo


@contextlib.contextmanager
def replicating_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """Of `fate-rabbitmq-replication`: each host uses its own broker, which fetches what the others' hold for it."""
    with running_rabbitmq(host.address, (MANAGEMENT, FEDERATION)) as broker:
        routes = [(broker.address, broker.port), *map(tuple, chair.hear())]
        session = new_session()
        chair.tell([session, routes])
        with serving(ByRabbitMq(session, broker, "replication", routes), host, chair, options) as server:
            yield server
        # nor by that of another host
        chair.tell("over")


@contextlib.contextmanager
def replicating_silo(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    """Of `fate-rabbitmq-replication`."""
    with running_rabbitmq(host.address, (MANAGEMENT, FEDERATION)) as broker:
        seat.say([broker.address, broker.port])
        session, routes = seat.hear()
        with taking_part(ByRabbitMq(session, broker, "replication", routes), host, seat, options) as silo:
            yield silo
        seat.hear()


def way_of_all(
    session: str, broker: Broker, host: Host, parties: Sequence[tuple[str, str]] | None = None
) -> ByRabbitMq:
    """All use one broker."""
    return ByRabbitMq(session, broker, "client", [(broker.address, broker.port)] * len(host.addresses), parties)
