"""FATE's own OSX and Pulsar backends, unmodified, by a broker that runs already and is somebody else's."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from deploy.softroce.programs.exchange.fate_parties import joined, new_session, serving, taking_part
from deploy.softroce.programs.exchange.interface import Host, Options, Server, Silo
from deploy.softroce.programs.meeting import Chair, Seat
from fedrdma_fate.bench.protocols.running import RunningBroker

OSX = "fate-osx"


@dataclasses.dataclass(frozen=True, slots=True)
class ByRunning:
    """A broker that serves all parties.

    Attributes:
        protocol: `fate-osx` or `fate-pulsar`.
        session: of FATE's federation.
        broker: where it listens.
        parties: as `Way` has it.
    """

    protocol: str
    session: str
    broker: RunningBroker
    parties: Sequence[tuple[str, str]] | None = None

    def federation(self, computing: Any, me: tuple[str, str], everyone: Sequence[tuple[str, str]]) -> Any:
        """As `Way` has it."""
        if self.protocol == OSX:
            from fate.arch.federation.backends.osx import OSXFederation

            # its worker is forked now: what is forked from a process that has used gRPC cannot use it
            computing.parallelize([0], partition=1, include_key=False).mapValues(abs).count()
            return OSXFederation.from_conf(
                self.session, computing, me, list(everyone), self.broker.host, self.broker.port
            )
        from fate.arch.federation.backends.pulsar import PulsarFederation

        # of one broker no other party's address is looked up; what is not said is FATE's default
        return PulsarFederation.from_conf(
            self.session,
            computing,
            me,
            list(everyone),
            route_table={},
            mode="client",
            host=self.broker.host,
            port=self.broker.port,
            mng_port=self.broker.http_port,
            topic_ttl=None,
            cluster=None,
            tenant=None,
            max_message_size=None,
        )


def _broker_of(options: Options) -> RunningBroker:
    if options.running is None:
        raise SystemExit(f"{options.protocol} needs a broker that runs")
    return options.running


@contextlib.contextmanager
def running_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """The arbiter; when all are away, what FATE has made at the broker is removed by FATE's own means."""
    session, broker = new_session(), _broker_of(options)
    chair.tell(session)
    way = ByRunning(options.protocol, session, broker)
    with serving(way, host, chair, options) as server:
        yield server
    with joined(host, way) as context:
        context.federation.destroy()


@contextlib.contextmanager
def running_silo(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
    """A host."""
    way = ByRunning(options.protocol, seat.hear(), _broker_of(options))
    with taking_part(way, host, seat, options) as silo:
        yield silo
