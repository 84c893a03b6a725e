"""Checks of a site: its configuration, its gateway, the gateway's peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedrdma_fate import __version__
from fedrdma_fate.client.access import TaskAccess, is_unspecified, read_access
from fedrdma_fate.doctor.findings import Finding, failure, fine
from fedrdma_fate.doctor.gateway_status import BrokerStatus, GatewayStatus, PeerStatus, read_status
from fedrdma_fate.doctor.host import VerbsNeed
from fedrdma_fate.gateway.config.schema import GatewayConfig, load_config, split_address
from fedrdma_fate.gateway.config.wishes import may_use_udp, wished_transports
from fedrdma_fate.quantities import counted
from fedrdma_fate.security.plain import is_loopback
from fedrdma_fate.wire.errors import ConfigError, FedRDMAError


def check_config(path: Path | None) -> tuple[Finding, GatewayConfig | None]:
    """Whether a configuration file is right; the configuration, if it is."""
    if path is None:
        return fine("configuration", "none was given (--config); the defaults are assumed"), None
    try:
        config = load_config(path)
    except ConfigError as error:
        return failure("configuration", error), None
    return fine("configuration", f"{path} is right: site {config.site}, {len(config.peers)} peers"), config


def verbs_need(config: GatewayConfig | None) -> VerbsNeed:
    """What the configuration asks of RDMA."""
    if config is None:
        return "wanted"
    wished = wished_transports(config)
    if "verbs" in wished:
        return "required"
    return "wanted" if "auto" in wished else "unused"


def uses_udp(config: GatewayConfig | None) -> bool:
    """Whether transport `udp` may be used, with some peer."""
    return config is not None and may_use_udp(config)


def check_open_ports(config: GatewayConfig) -> Finding:
    """Which ports of this host other sites have to reach."""
    check, listen = "ports", config.listen
    if config.gateways and all(peer.address is not None for peer in config.gateways):
        return fine(check, "none has to be open: this site dials its peers")
    if is_loopback(split_address("listen.control", listen.control)[0]):
        return fine(check, f"other gateways of this host alone reach {listen.control} (`listen.control`)")
    if listen.data is not None and is_loopback(split_address("listen.data", listen.data)[0]):
        found = f"`listen.data` is {listen.data}: who dials {listen.control} from another host finds no data path there"
        return Finding(check, "warning", found, "Leave `listen.data` out: data paths then come to the control port.")
    also = [f"UDP {listen.data or listen.control}"] if may_use_udp(config) else []
    if "grpc" in {config.mode, *(peer.mode for peer in config.gateways)}:
        also.append(f"TCP {listen.grpc} for mode grpc")
    tcp = f"one TCP port, {listen.control}" if listen.data is None else f"TCP {listen.control} and {listen.data}"
    return fine(check, f"sites that dial this one have to reach {', '.join((tcp, *also))}")


def check_gateway(address: str, ask: Callable[[str], Mapping[str, Any]]) -> tuple[Finding, GatewayStatus | None]:
    """Whether a gateway answers at `unix:///path`; its status, if one does."""
    try:
        status = read_status(ask(address))
    except FedRDMAError as error:
        return failure("gateway", error), None
    found = f"site {status.site} answers at {address}, version {status.version}"
    if status.version != __version__:
        remedy = f"Restart it: the installed version is {__version__}."
        return Finding("gateway", "warning", found, remedy), status
    return fine("gateway", found), status


def check_tasks_port(config: GatewayConfig, ask: Callable[[TaskAccess], bytes]) -> Finding | None:
    """Whether tasks on other hosts get to the gateway as its file for them says; None without `listen.tasks`."""
    if config.listen.tasks is None or config.tasks_access is None:
        return None
    check = "tasks on other hosts"
    try:
        access = read_access(config.tasks_access)
        ask(access)
    except FedRDMAError as error:
        return failure(check, error)
    found = f"get to site {access.site} at {access.address}, with {config.tasks_access}"
    if is_unspecified(split_address("listen.tasks", config.listen.tasks)[0]):
        found += f"; the gateway listens at every address of this host ({config.listen.tasks})"
    if is_loopback(access.host_and_port[0]):
        # from here it was reached, which says nothing of there
        remedy = "Make the file anew by `fedrdma access`, with an address of this host's by which others reach it."
        return Finding(check, "warning", f"{found}; but on each of them that address is its own", remedy)
    return fine(check, found)


def check_peers(status: GatewayStatus) -> list[Finding]:
    """One finding for each peer in a gateway's status."""
    peers = [_check_peer(peer, status.version) for peer in status.peers]
    return [*peers, *(_check_broker(broker) for broker in status.brokers)]


def check_parent(status: GatewayStatus) -> list[Finding]:
    """Whether the parent that a gateway's sums are to go to first adds them; nothing where it has none."""
    if not status.sum_parent:
        return []
    check, parents = "aggregate.parent", {peer.site: peer.sum_parent or "" for peer in status.peers}
    parent = next((peer for peer in status.peers if peer.site == status.sum_parent), None)
    alone = "the sums of this site go to who asks for them"
    if parent is None:
        remedy = "Restart the gateway with a configuration whose `peers` have it."
        return [Finding(check, "warning", f"{status.sum_parent} is no peer; {alone}", remedy)]
    if not parent.connected:
        return [Finding(check, "warning", f"{parent.site} is not connected; {alone}", "See the peer's own line.")]
    if not parent.sum_fan_in:
        remedy = "Have a version there that adds them, `aggregate.site_sums: true`, and `aggregate.fan_in` above 0."
        return [Finding(check, "warning", f"{parent.site} adds no sums of other sites; {alone}", remedy)]
    way = [status.site, parent.site]
    while above := parents.get(way[-1]):
        if above in way:
            ring = " to ".join([*way[way.index(above) :], above])
            remedy = "Take `aggregate.parent` away at one of them."
            return [Finding(check, "warning", f"parents lead round: {ring}; {alone}", remedy)]
        way.append(above)
    if (slow := status.sum_parent_slow) is not None:
        faster = ", ".join(f"{each.site} ({each.bits_per_second / 1e6:.1f} Mbit/s)" for each in slow.faster)
        found = (
            f"the path to {parent.site} ({slow.bits_per_second / 1e6:.1f} Mbit/s) is no faster than that to {faster}"
        )
        remedy = (
            "Take `aggregate.parent` away, or keep it for the bytes that it saves there: sums come no sooner for it."
        )
        return [Finding(check, "warning", found, remedy)]
    return [fine(check, f"sums of this site go to {' and on to '.join(way[1:])} first")]


def _check_broker(broker: BrokerStatus) -> Finding:
    """By the latest call: a gateway makes none of its own."""
    check, found = f"OSX broker of {broker.site}", f"{broker.address}, took {counted(broker.pushed, 'message')}"
    if broker.last_error:
        remedy = "See that it runs, its address, and its log: docs/osx-bridge.md."
        return Finding(check, "warning", f"{found}; the latest call: {broker.last_error}", remedy)
    return fine(check, found)


def _check_peer(peer: PeerStatus, own_version: str) -> Finding:
    check = f"peer {peer.site}"
    if not peer.connected:
        remedy = "Start its gateway; check its address, the firewall, and that both sites name each other."
        return Finding(check, "warning", f"not connected: {peer.last_error}", remedy)
    up = [path for path in peer.paths if path.up]
    if not up:
        errors = "; ".join(path.last_error for path in peer.paths if path.last_error)
        if not errors:
            remedy = (
                "Ask again in some seconds: they make one as soon as they have met. Where that stays, see their logs."
            )
            return Finding(check, "warning", "connected, but without a data path: none was made yet", remedy)
        remedy = (
            "Have it leave `listen.data` out, and one port do; else open that, and set listen.advertise there behind"
            " address translation: see docs/troubleshooting.md."
        )
        return Finding(check, "warning", f"connected, but without a data path: {errors}", remedy)
    found = "connected; " + "; ".join(f"{path.transport} ({path.reason})" for path in up)
    if peer.version != own_version:
        remedy = "Run the same version at all sites."
        return Finding(check, "warning", f"{found}; its version is {peer.version}", remedy)
    if peer.parties_by_itself is not None and {*peer.parties_by_itself} != {*peer.parties}:
        said, here = ", ".join(peer.parties_by_itself), ", ".join(peer.parties)
        remedy = "Have `parties` there and `peers[].parties` here say the same: messages go by what is said here."
        return Finding(check, "warning", f"{found}; it serves {said}, and is configured here as serving {here}", remedy)
    return fine(check, found)
