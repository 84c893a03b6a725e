"""A server and silos that exchange models, round after round, by one protocol. Host 0 prints JSON.

    scripts/testbed run --virtual-time --hosts 5 --rate 20mbit --rtt 2ms --buffer 126kB --mtu 1500 -- \\
        .venv/bin/python -m deploy.softroce.programs.exchange PROTOCOL BYTES ROUNDS

Without the testbed: plain processes with TESTBED_HOST, TESTBED_HOSTS (loopback addresses) and TESTBED_MEETING.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from deploy.softroce.programs.exchange.interface import Host, Options, Server, Silo, host_of_environment
from deploy.softroce.programs.exchange.rounds import run_server, run_silo
from deploy.softroce.programs.meeting import Chair, Seat, chaired, seated


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
    if protocol in ("mqtt-0", "mqtt-1", "mqtt-2"):
        from deploy.softroce.programs.exchange.mqtt import mqtt_server, mqtt_silo

        quality = int(protocol.removeprefix("mqtt-"))
        return Ends(mqtt_server(quality), mqtt_silo(quality))
    from deploy.softroce.programs.exchange.tcp import concurrent_server, serial_server, tcp_silo

    if protocol == "tcp-serial":
        return Ends(serial_server, tcp_silo(None))
    if protocol.startswith("tcp-"):
        congestion = protocol.removeprefix("tcp-")
        return Ends(concurrent_server(congestion), tcp_silo(congestion))
    raise SystemExit(f"there is no protocol {protocol!r}")


def take_part(host: Host, options: Options) -> list[dict[str, Any]] | None:
    """A host's part; what the rounds took, at the server."""
    ends = ends_of(options.protocol)
    if host.number:
        with seated(host.number, host.meeting) as seat, ends.silo(host, seat, options) as silo:
            run_silo(silo, seat, options)
        return None
    with chaired(host.silos, host.meeting) as chair, ends.server(host, chair, options) as server:
        return run_server(server, chair, options)


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m deploy.softroce.programs.exchange")
    parser.add_argument("protocol", help="such as tcp-serial, udp-indexed, grpc-stream, or fedrdma-x/udp")
    parser.add_argument("size", type=int, metavar="BYTES", help="of a model")
    parser.add_argument("rounds", type=int, help="how many")
    parser.add_argument("--down-bps", type=float, default=1e9, help="for udp-indexed: to each silo, bit/s")
    parser.add_argument("--up-bps", type=float, default=1e9, help="for udp-indexed: from each silo, bit/s")
    parser.add_argument("--computing-seconds", type=float, default=1.0, help="of a silo in each round")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes of an IP packet")
    return Options(**vars(parser.parse_args(arguments)))


def main() -> None:
    """Run this host's part."""
    logging.basicConfig(level=logging.ERROR)
    rounds = take_part(host_of_environment(), parse_options())
    if rounds is not None:
        print(json.dumps(rounds))


if __name__ == "__main__":
    main()
