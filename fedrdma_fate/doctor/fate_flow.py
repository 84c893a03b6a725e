"""Checks of a FATE Flow home: what its two files say of engine, proxy and ports, and whether the gateway fits that."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedrdma_fate.doctor.findings import Finding, fine
from fedrdma_fate.doctor.gateway_status import FrontsStatus, GatewayStatus, PeerStatus, PoolStatus
from fedrdma_fate.doctor.site import check_gateway, check_peers
from fedrdma_fate.gateway.config.strict_yaml import load_with
from fedrdma_fate.security.plain import is_loopback

SERVICE, LOCAL = "service_conf.yaml", "local.service_conf.yaml"
"""FATE Flow takes each top-level key from the second where it is there, whole; else from the first."""

MOST_FILE_BYTES = 1 << 20
"""FATE Flow's own file has 3 kB."""

CONNECT_SECONDS = 3.0
"""To a proxy of this host or network: what takes longer keeps FATE Flow waiting, too."""

MODES_OF_QUEUES = ("queue", "message_queue")
"""Of `federation.osx.mode`, as FATE Flow and as FATE call it."""

BROKER_BYTES = 64 << 20
"""Of a message, where a peer has an OSX broker: half of what that keeps (docs/osx-bridge.md)."""

PEERS_SHARE = 7 / 8
"""Of the receive region that one payload may take where there are several peers (docs/sizing.md)."""


@dataclasses.dataclass(frozen=True)
class FlowHome:
    """The settings of a FATE Flow.

    Attributes:
        directory: where the files are.
        service: what `service_conf.yaml` says.
        local: what `local.service_conf.yaml` says; empty without one.
    """

    directory: Path
    service: Mapping[str, Any]
    local: Mapping[str, Any]

    def value(self, *keys: str) -> Any:
        """What FATE Flow takes; None where nothing is said."""
        found: Any = self.local if keys[0] in self.local else self.service
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def file_of(self, key: str) -> str:
        """Which file FATE Flow takes a top-level key from."""
        return LOCAL if key in self.local else SERVICE

    def proxy(self) -> tuple[str, str, int] | None:
        """Name, host and port of the proxy that scheduling calls go to, where all three are said."""
        name = self.value("fateflow", "proxy_name")
        entry = self.value("federation", str(name))
        if not isinstance(entry, Mapping):
            return None
        host, port = entry.get("host"), entry.get("http_port" if name == "nginx" else "port")
        return (str(name), host, port) if isinstance(host, str) and isinstance(port, int) else None

    def sockets(self) -> list[str]:
        """Gateways' sockets that the entry `fedrdma` names."""
        entry = self.value("federation", "fedrdma")
        if not isinstance(entry, Mapping):
            return []
        several = entry.get("gateways")
        named = [entry.get("gateway"), *(several.values() if isinstance(several, Mapping) else ())]
        return sorted({each for each in named if isinstance(each, str)})


_EMPTY = (
    "Put back what it said, or remove it. What `fedrdma fate config` prints goes to another file first, which is then "
    "moved there: a shell empties the file that it writes to before anything reads it."
)


def read_home(home: Path) -> tuple[Finding, FlowHome | None]:
    """The files of a home, or of a `conf` directory."""
    check = "fate flow files"
    directory = home / "conf" if (home / "conf").is_dir() else home
    found: list[Mapping[str, Any]] = []
    for name in (SERVICE, LOCAL):
        path = directory / name
        try:
            content = _content(path)
            document = {} if len(content) > MOST_FILE_BYTES else load_with(_PlainLoader, content)
        except FileNotFoundError:
            if name == SERVICE:
                remedy = "Name what `fate_flow init --home` was given, or the folder fate_flow of the environment."
                return Finding(check, "error", f"there is no {path}", remedy), None
            document = {}
        except (OSError, yaml.YAMLError) as error:
            told = " ".join(str(error).split())
            return Finding(check, "error", f"{path} cannot be read: {told}", "Mend the file."), None
        if document is None:
            # also what a shell makes of the file that it sends the output of `fate config` to, before that reads it
            return Finding(check, "error", f"{path} is empty, which FATE Flow refuses", _EMPTY), None
        if len(content) > MOST_FILE_BYTES or not isinstance(document, dict):
            return Finding(check, "error", f"{path} is no file of settings", "Mend the file."), None
        found.append({str(key): value for key, value in document.items()})
    taken = sorted(found[1])
    told = f"{directory / SERVICE}" + (f"; {', '.join(taken)} from {LOCAL}" if taken else f", no {LOCAL}")
    return fine(check, told), FlowHome(directory, *found)


class _PlainLoader(yaml.SafeLoader):
    """Without aliases, which FATE Flow's files have none of: a few of them can stand for more than any memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases")
        return super().compose_node(parent, index)


def _content(path: Path) -> bytes:
    """Of a regular file, and no more than one byte too many of it.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    # of a pipe, the opening would wait for whoever writes
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        return file.read(MOST_FILE_BYTES + 1)


def check_flow(
    flow: FlowHome,
    address: str | None,
    ask: Callable[[str], Mapping[str, Any]],
    connect: Callable[[str, int], str],
    model_bytes: int | None,
) -> list[Finding]:
    """All checks of a home whose files could be read.

    Args:
        flow: its settings.
        address: of the gateway's socket; None for those that the files name, or the usual one.
        ask: see `client.client.ask_status`.
        connect: see `connects`.
        model_bytes: how long a model is that is to pass; None: that is not looked at.
    """
    sockets = [address] if address else flow.sockets() or ["unix:///run/fedrdma/gateway.sock"]
    asked = [check_gateway(each, ask) for each in sockets]
    fronts = [status.fronts for _, status in asked if status is not None and status.fronts is not None]
    findings = [
        _check_engine(flow, fronts),
        *_check_osx_mode(flow),
        _check_proxy(flow, connect, fronts),
        _check_ports(flow),
    ]
    for reached, status in asked:
        findings.append(reached)
        if status is not None:
            findings += [_check_party(flow, status), *check_peers(status), *_check_message_size(flow, status)]
            findings += [] if model_bytes is None else _check_room(status, model_bytes)
    return findings


def connects(host: str, port: int) -> str:
    """Why nothing listens at a TCP port, or an empty string."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeError:
        return "no name of a host"
    return ""


def _is_front(front: str | None, host: str, port: int) -> bool:
    """Whether a gateway of this host, whose fronts are on loopback alone, is reached there."""
    return front is not None and front.rpartition(":")[2] == str(port) and is_loopback(host)


def _check_engine(flow: FlowHome, fronts: Sequence[FrontsStatus]) -> Finding:
    check, engine = "fate flow engine", flow.value("default_engines", "federation")
    found = f"federation {engine}, from {flow.file_of('default_engines')}"
    if engine == "osx":
        host, port = flow.value("federation", "osx", "host"), flow.value("federation", "osx", "port")
        known = isinstance(host, str) and isinstance(port, int) and fronts
        if not known or any(_is_front(front.osx, host, port) for front in fronts):
            return fine(check, found)
        theirs = ", ".join(front.osx for front in fronts if front.osx) or "not set"
        remedy = "As soon as the site is to change, take what `fedrdma fate config --engine osx` prints."
        told = f"{found}, at {host}:{port}: that is no gateway's `listen.osx` ({theirs}), so its jobs do not pass one"
        return Finding(check, "warning", told, remedy)
    if engine == "fedrdma":
        return fine(check, found)
    remedy = f"Set `default_engines.federation` to fedrdma, or osx, in {LOCAL}: `fedrdma fate config` prints it."
    return Finding(check, "warning", f"{found}: its jobs do not pass gateways", remedy)


def _check_osx_mode(flow: FlowHome) -> list[Finding]:
    if flow.value("default_engines", "federation") != "osx":
        return []
    check, mode = "fate flow osx.mode", flow.value("federation", "osx", "mode")
    found = f"{mode}, from {flow.file_of('federation')}"
    if mode not in MODES_OF_QUEUES:
        return [Finding(check, "error", f"{found}: that needs Eggroll", "Write `mode: queue`: docs/osx-queues.md.")]
    if flow.value("federation", "osx", "max_message_size") is None:
        # how long depends on who is asked: a broker, or a gateway of which a peer has one, keeps no 2 GiB
        remedy = (
            "As soon as it uses a gateway's `listen.osx`, set `federation.osx.max_message_size` to what `fedrdma fate "
            "config --engine osx` prints: docs/osx-queues.md."
        )
        return [Finding(check, "warning", f"{found}; FATE cuts objects into slices of 1 MiB, twice as long", remedy)]
    return [fine(check, found)]


def _check_proxy(flow: FlowHome, connect: Callable[[str, int], str], fronts: Sequence[FrontsStatus]) -> Finding:
    check, name = "fate flow proxy", flow.value("fateflow", "proxy_name")
    files = f"named in {flow.file_of('fateflow')}, with its entry in {flow.file_of('federation')}"
    proxy = flow.proxy()
    if proxy is None:
        remedy = "Give it host and port, under `federation`: `fedrdma fate config` prints the lines."
        return Finding(check, "error", f"{name}, which has no host or no port; {files}", remedy)
    _, host, port = proxy
    found = f"{name} at {host}:{port}; {files}"
    front = "listen.flow" if name == "nginx" else "listen.osx"
    is_its_own = name == "nginx" and port == flow.value("fateflow", "http_port")
    what = "this FATE Flow, its own proxy" if is_its_own else f"the gateway's `{front}`"
    if problem := connect(host, port):
        remedy = f"Start what listens there: {what}. Every job needs it, those of one site, too."
        return Finding(check, "error", f"{found}: {problem}", remedy)
    if any(_is_front(each.flow if name == "nginx" else each.osx, host, port) for each in fronts) or is_its_own:
        return fine(check, f"{found}: {what}")
    if any(_is_front(each.osx if name == "nginx" else each.flow, host, port) for each in fronts):
        # it listens, and answers no call: the one speaks gRPC, the other HTTP
        other = "listen.osx" if name == "nginx" else "listen.flow"
        remedy = (
            f"Set `{front}` at the gateway, or take what `fedrdma fate config` prints for the engine: docs/fate.md."
        )
        return Finding(check, "error", f"{found}: the gateway's `{other}`, which is no {name}", remedy)
    others = f", and no gateway's `{front}`" if fronts else ""
    return fine(check, f"{found}: something listens there{others}")


def _check_ports(flow: FlowHome) -> Finding:
    check = "fate flow ports"
    here, there = flow.service.get("fateflow"), flow.local.get("fateflow")
    differ = [
        f"{key} {here.get(key)} and {there.get(key)}"
        for key in ("http_port", "grpc_port")
        if isinstance(here, Mapping) and isinstance(there, Mapping) and here.get(key) != there.get(key)
    ]
    if not differ:
        return fine(check, f"{flow.value('fateflow', 'http_port')} and {flow.value('fateflow', 'grpc_port')}")
    remedy = "Write the same in both: `fate_flow stop` ends whatever listens at the first, another site's server, too."
    return Finding(check, "error", f"{', '.join(differ)} in {SERVICE} and {LOCAL}", remedy)


def _check_party(flow: FlowHome, status: GatewayStatus) -> Finding:
    check, party = "fate flow party", str(flow.value("party_id") or "")
    served = {each.rpartition(":")[2] for each in status.parties}
    sites = [
        *((peer.site, peer.parties) for peer in status.peers),
        *((each.site, each.parties) for each in status.brokers),
    ]
    others = [f"{', '.join(parties)} at {site}" for site, parties in sites]
    found = f"{party or 'none'}; at {status.site}: {', '.join(status.parties)}; " + ("; ".join(others) or "no peers")
    if party in served:
        return fine(check, found)
    remedy = (
        "Set `party_id` in service_conf.yaml, or `parties` in the gateway's configuration: FATE Flow schedules as it."
    )
    return Finding(check, "error", found, remedy)


def _check_message_size(flow: FlowHome, status: GatewayStatus) -> list[Finding]:
    """Whether FATE cuts what goes to an OSX broker."""
    size, brokers = flow.value("federation", "osx", "max_message_size"), [broker.site for broker in status.brokers]
    if not brokers or not isinstance(size, int) or size <= BROKER_BYTES:
        return []
    found = f"federation.osx.max_message_size is {size}, and {', '.join(brokers)} has an OSX broker"
    remedy = f"Write {BROKER_BYTES} or less, as long as it has one: a broker keeps no message of 128 MiB."
    return [Finding("fate flow messages", "error", found, remedy)]


def _check_room(status: GatewayStatus, model_bytes: int) -> list[Finding]:
    """Of the own regions, and of those of the others to receive, as far as their gateways have said."""
    several = len(status.peers) > 1
    own = [_check_pool(pool, model_bytes, PEERS_SHARE if several else 1.0) for pool in status.pools]
    return [*own, *(_check_room_at(peer, model_bytes) for peer in status.peers)]


def _check_room_at(peer: PeerStatus, model_bytes: int) -> Finding:
    check, most = f"room at {peer.site}", peer.largest_payload_bytes
    if most is None:
        return Finding(
            check, "warning", "it was not connected yet, and has not said", "Start its gateway; check again."
        )
    found = f"{model_bytes} bytes, of which it takes {most} at once"
    if model_bytes <= most:
        return fine(check, found)
    return Finding(check, "error", found, "Have `memory.receive_bytes` raised there: docs/sizing.md.")


def _check_pool(pool: PoolStatus, model_bytes: int, share: float) -> Finding:
    most = int(pool.length * (share if pool.name == "receive" else 1.0))
    check, found = f"room to {pool.name}", f"{model_bytes} bytes in a region that takes {most} at once"
    if model_bytes <= most:
        return fine(check, found)
    remedy = f"Raise `memory.{pool.name}_bytes`: docs/sizing.md. Run this at every site."
    return Finding(check, "error", found, remedy)


def lines_to_add(
    flow: FlowHome, engine: str, socket_address: str, front: tuple[str, int], *, to_brokers: bool = False
) -> str:
    """The three top-level keys for `local.service_conf.yaml`, with all that FATE Flow takes of them today.

    Args:
        flow: its settings.
        engine: `fedrdma` or `osx`.
        socket_address: the gateway's `listen.socket`.
        front: host and port of `listen.flow` with `fedrdma`, of `listen.osx` with `osx`.
        to_brokers: some peer has an OSX broker.
    """
    host, port = front
    kept = {key: _section(flow, key) for key in ("default_engines", "fateflow", "federation")}
    kept["default_engines"]["federation"] = engine
    if engine == "osx":
        kept["fateflow"]["proxy_name"] = "osx"
        largest = BROKER_BYTES if to_brokers else 2**31 - 2
        queues = {"host": host, "port": port, "mode": "queue", "max_message_size": largest}
        kept["federation"]["osx"] = {**_section(flow, "federation", "osx"), **queues}
    else:
        kept["fateflow"]["proxy_name"] = "nginx"
        grpc_port = kept["fateflow"].get("grpc_port")
        nginx = {"host": host, "http_port": port, "grpc_port": grpc_port, "protocol": "http"}
        kept["federation"]["nginx"] = {**_section(flow, "federation", "nginx"), **nginx}
        kept["federation"]["fedrdma"] = {**_section(flow, "federation", "fedrdma"), "gateway": socket_address}
    text: str = yaml.safe_dump(kept, sort_keys=False)
    return f"# {LOCAL}, beside {flow.directory / SERVICE}\n{text}"


def _section(flow: FlowHome, *keys: str) -> dict[str, Any]:
    found = flow.value(*keys)
    return dict(found) if isinstance(found, Mapping) else {}
