"""A server and silos that exchange models, round after round, by one protocol. Host 0 prints JSON.

Of several protocols, with commas between, each has its rounds and its line; one broker serves those of AMQP.

    scripts/testbed run --virtual-time --hosts 5 --rate 20mbit --rtt 2ms --buffer 126kB --mtu 1500 -- \\
        .venv/bin/python -m deploy.softroce.programs.exchange PROTOCOL BYTES ROUNDS

Without the testbed: plain processes with TESTBED_HOST, TESTBED_HOSTS (loopback addresses) and TESTBED_MEETING.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.softroce.programs.exchange.flows import SERVER, SILOS, flowing
from deploy.softroce.programs.exchange.interface import (
    Host,
    MadeModels,
    Options,
    Server,
    Silo,
    host_of_environment,
)
from deploy.softroce.programs.exchange.leaving import Watch, end_now, ended_by_who_leaves, nobody_watches
from deploy.softroce.programs.exchange.rounds import run_server, run_silo
from deploy.softroce.programs.meeting import Chair, Seat, chaired, seated
from fedrdma_fate.bench.protocols.running import RunningBroker, parse_running

if TYPE_CHECKING:
    from fedrdma_fate.bench.rabbitmq import Broker


SEVERAL = 2
"""Protocols that a broker is shared by."""


class Ends(NamedTuple):
    """How the two ends of a protocol are opened, and closed again."""

    server: Callable[[Host, Chair, Options], AbstractContextManager[Server]]
    silo: Callable[[Host, Seat, Options], AbstractContextManager[Silo]]


def ends_of(protocol: str) -> Ends:
    """Of a protocol by its name. What it needs is imported here, so that others do without.

    Raises:
        SystemExit: there is none of this name.
    """
    if "/" in protocol:
        from deploy.softroce.programs.exchange.gateways import gateway_server, gateway_silo

        return Ends(gateway_server, gateway_silo)
    if protocol == "grpc-stream":
        from deploy.softroce.programs.exchange.grpc_stream import grpc_server, grpc_silo

        return Ends(grpc_server, grpc_silo)
    if protocol.startswith("udp-"):
        from deploy.softroce.programs.exchange.datagrams import FEDCOMM, INDEXED, datagram_server, datagram_silo

        kind = FEDCOMM if protocol == "udp-fedcomm" else INDEXED
        return Ends(datagram_server(kind), datagram_silo(kind))
    if protocol in ("zmtp-pub", "zmtp-dealer"):
        from deploy.softroce.programs.exchange import zmtp

        if protocol == "zmtp-pub":
            return Ends(zmtp.publishing_server, zmtp.publishing_silo)
        return Ends(zmtp.dealing_server, zmtp.dealing_silo)
    if protocol in ("quic", "quic-cubic"):
        from deploy.softroce.programs.exchange.quic import quic_server, quic_silo

        congestion = "cubic" if protocol == "quic-cubic" else "reno"
        return Ends(quic_server(congestion), quic_silo(congestion))
    if protocol in ("mqtt-0", "mqtt-1", "mqtt-2"):
        from deploy.softroce.programs.exchange.mqtt import mqtt_server, mqtt_silo

        quality = int(protocol.removeprefix("mqtt-"))
        return Ends(mqtt_server(quality), mqtt_silo(quality))
    if protocol in ("amqp-fanout", "amqp-confirm"):
        from deploy.softroce.programs.exchange.amqp import amqp_server, amqp_silo

        confirming = protocol == "amqp-confirm"
        return Ends(amqp_server(confirming), amqp_silo(confirming))
    if protocol == "fate-rabbitmq":
        from deploy.softroce.programs.exchange.fate_rabbitmq import fate_server, fate_silo

        return Ends(fate_server, fate_silo)
    if protocol == "fate-rabbitmq-replication":
        from deploy.softroce.programs.exchange.fate_rabbitmq import replicating_server, replicating_silo

        return Ends(replicating_server, replicating_silo)
    if protocol in ("fate-osx", "fate-pulsar"):
        from deploy.softroce.programs.exchange.fate_running import running_server, running_silo

        return Ends(running_server, running_silo)
    from deploy.softroce.programs.exchange.tcp import concurrent_server, serial_server, tcp_silo

    if protocol == "tcp-serial":
        return Ends(serial_server, tcp_silo(None))
    if protocol.startswith("tcp-"):
        congestion = protocol.removeprefix("tcp-")
        return Ends(concurrent_server(congestion), tcp_silo(congestion))
    raise SystemExit(f"there is no protocol {protocol!r}")


def take_part(host: Host, options: Options, watch: Watch = nobody_watches) -> Iterator[list[dict[str, Any]]]:
    """A host's part in one protocol after the other; at the server, what the rounds of each took.

    Args:
        watch: ends the server's part in a round that a silo leaves.
    """
    each = [_with_models(dataclasses.replace(options, protocol=name), host) for name in options.protocol.split(",")]
    opened = [(ends_of(one.protocol), one) for one in each]
    if host.number:
        with seated(host.number, host.meeting) as seat, flowing(host, options, seat) as taken:
            for ends, one in opened:
                with ends.silo(host, seat, one) as silo:
                    run_silo(silo, seat, host, one, taken)
        return
    with (
        chaired(host.silos, host.meeting) as chair,
        _shared_broker(host, each) as broker,
        flowing(host, options, chair) as taken,
    ):
        for ends, one in opened:
            asked = dataclasses.replace(one, broker=broker)
            with ends.server(host, chair, asked) as server:
                made = run_server(server, chair, asked, taken, watch)
            yield made


def _with_models(options: Options, host: Host) -> Options:
    if options.train is None:
        return options if options.models else dataclasses.replace(options, models=MadeModels(host.number, options.size))
    # torch takes seconds to import
    from deploy.softroce.programs.exchange.trained import train_options

    return train_options(options, host.number, host.silos)


@contextlib.contextmanager
def _shared_broker(host: Host, each: Sequence[Options]) -> Iterator[Broker | None]:
    """Of several protocols by AMQP; None where they are fewer."""
    by_amqp = [one.protocol for one in each if one.protocol in ("amqp-fanout", "amqp-confirm", "fate-rabbitmq")]
    if len(by_amqp) < SEVERAL:
        yield None
        return
    from fedrdma_fate.bench.rabbitmq import MANAGEMENT, running_rabbitmq

    plugins = [MANAGEMENT] if "fate-rabbitmq" in by_amqp else []
    with running_rabbitmq(host.address, plugins) as broker:
        yield broker


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m deploy.softroce.programs.exchange")
    parser.add_argument("protocol", help="such as tcp-serial, udp-indexed, or fedrdma-x/udp; or several")
    parser.add_argument("size", type=int, metavar="BYTES", help="of a model")
    parser.add_argument("rounds", type=int, help="how many")
    parser.add_argument("--down-bps", type=float, default=1e9, help="for udp-indexed: to each silo, bit/s")
    parser.add_argument("--up-bps", type=float, default=1e9, help="for udp-indexed: from each silo, bit/s")
    parser.add_argument("--computing-seconds", type=float, default=1.0, help="of a silo in each round")
    parser.add_argument("--train", help="vgg5 or vgg8: what is exchanged is trained, and tried after each round")
    parser.add_argument("--data", type=Path, help="directory with CIFAR-10; a stand-in without")
    parser.add_argument("--seed", type=int, default=1, help="of training and of the stand-in")
    parser.add_argument("--flows", choices=(SILOS, SERVER), help="other TCP flows meanwhile: where they go")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes of an IP packet")
    parser.add_argument("--running", type=_running, metavar="HOST:PORT", help="broker of fate-osx or fate-pulsar")
    return Options(**vars(parser.parse_args(arguments)))


def _running(text: str) -> RunningBroker:
    return parse_running("--running", text)


def main() -> None:
    """Run this host's part."""
    logging.basicConfig(level=logging.ERROR)
    options = parse_options()
    host = host_of_environment()
    try:
        for rounds in take_part(host, options, ended_by_who_leaves):
            print(json.dumps(rounds), flush=True)
    except SystemExit as error:
        # all is closed; threads of a protocol may still wait for who has left
        end_now(str(error))


if __name__ == "__main__":
    main()
