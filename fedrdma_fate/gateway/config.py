"""The gateway's configuration: declared once, typed, strict."""

from __future__ import annotations

import difflib
import re
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from fedrdma_fate.core.tuning import LinkEnable
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import Mode

TransportName = Literal["auto", "tcp", "shm"]
Notify = Literal["event", "poll"]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class ByteCount(int):
    """A size in bytes; in YAML a number, or text with a unit such as `4MiB`."""


class ChunkSetting:
    """A chunk size in bytes, or `auto`: the paper's best for the link's rate.

    Attributes:
        size_bytes: the size, or None for `auto`.
    """

    def __init__(self, size_bytes: int | None = None) -> None:
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        return "auto" if self.size_bytes is None else str(self.size_bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkSetting) and self.size_bytes == other.size_bytes

    def __hash__(self) -> int:
        return hash(self.size_bytes)


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every section: unknown keys are errors."""


class ListenConfig(_Section, frozen=True):
    """Where the gateway listens. Everything is on loopback unless said otherwise.

    Attributes:
        control: host:port of the control channel (gRPC) for other gateways.
        data: host:port of the TCP data path; port 0 takes a free one.
        grpc: host:port of the data path of mode `grpc`; port 0 takes a free one.
        advertise: host that peers shall use for the data paths, when it differs from that of `data`.
        socket: unix socket for the tasks of this site.
        metrics: host:port of the Prometheus endpoint, or null for none.
    """

    control: str = "127.0.0.1:9370"
    data: str = "127.0.0.1:0"
    grpc: str = "127.0.0.1:0"
    advertise: str | None = None
    socket: str = "unix:///run/fedrdma/gateway.sock"
    metrics: str | None = None


class TcpConfig(_Section, frozen=True):
    """The TCP transport.

    Attributes:
        streams: parallel TCP connections of one data path.
    """

    streams: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2


class MemoryConfig(_Section, frozen=True):
    """Shared memory and spill.

    Attributes:
        directory: tmpfs directory for the regions.
        send_bytes: size of the send region; the largest payload that can be pushed.
        receive_bytes: size of the receive region; the budget for messages on their way and not yet pulled.
        ring_slots: receive slots granted ahead of time to each peer.
        ring_slot_bytes: size of each of them.
        spill_directory: where messages that nobody has pulled go when the receive region is needed.
    """

    directory: Path = Path("/dev/shm")
    send_bytes: ByteCount = ByteCount(2**30)
    receive_bytes: ByteCount = ByteCount(2**30)
    ring_slots: Annotated[int, msgspec.Meta(ge=0, le=256)] = 2
    ring_slot_bytes: ByteCount = ByteCount(4 * 2**20)
    spill_directory: Path = Path("/var/tmp/fedrdma")


class TimeoutConfig(_Section, frozen=True):
    """Time-outs, in seconds. A transfer that makes progress is never timed out.

    Attributes:
        idle: without any progress, a transfer fails after this.
        peer_silence: without a sign of life on the control channel, a peer counts as gone after this.
        connect: for one attempt to connect to a peer.
        put: how long a put waits for room in the send region.
        drain: how long a stopping gateway lets transfers finish.
    """

    idle: Seconds = 60.0
    peer_silence: Seconds = 20.0
    connect: Seconds = 10.0
    put: Seconds = 600.0
    drain: Seconds = 10.0


class PeerConfig(_Section, frozen=True):
    """Another site.

    Attributes:
        site: its name, as its own configuration spells it.
        parties: the parties it serves: `9999` for every role of that party, or `host:10000` for one.
        address: host:port of its control channel; null when only it can reach us.
        mode: overrides the gateway's mode for this peer.
        transport: overrides the gateway's transport for this peer.
        chunk: overrides the gateway's chunk size for this peer.
        link_enable: overrides the gateway's Link-Enable for this peer.
        rate: bottleneck rate to this peer, bits a second, when known: decides chunk size and Link-Enable.
    """

    site: str
    parties: tuple[str, ...]
    address: str | None = None
    mode: Mode | None = None
    transport: TransportName | None = None
    chunk: ChunkSetting | None = None
    link_enable: LinkEnable | None = None
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None


class GatewayConfig(_Section, frozen=True):
    """One gateway a site.

    Attributes:
        site: name of this site.
        parties: the parties served here: `9999` for every role of that party, or `host:10000` for one.
        security: `off` until mutual TLS is configured; it has to be written down to be accepted.
        listen: addresses.
        mode: how payloads travel: `grpc`, `fedrdma` or `fedrdma-e`.
        transport: data path: `auto` takes shared memory on one host, else TCP.
        chunk: base chunk size, or `auto` for the paper's best for the link's rate.
        link_enable: send one small chunk first: `auto`, `always` or `never`.
        notify: how the receiver learns of a finished payload: `event` or `poll`.
        tcp: the TCP transport.
        memory: shared memory and spill.
        timeouts: time-outs.
        peers: the other sites.
        trace: file for the JSON-lines trace, or null for none.
    """

    site: str
    parties: tuple[str, ...]
    security: Literal["off"]
    listen: ListenConfig = ListenConfig()
    mode: Mode = "fedrdma-e"
    transport: TransportName = "auto"
    chunk: ChunkSetting = ChunkSetting()
    link_enable: LinkEnable = "auto"
    notify: Notify = "event"
    tcp: TcpConfig = TcpConfig()
    memory: MemoryConfig = MemoryConfig()
    timeouts: TimeoutConfig = TimeoutConfig()
    peers: tuple[PeerConfig, ...] = ()
    trace: Path | None = None


def parse_size(value: object) -> ByteCount:
    """A size in bytes from a number or from text such as `4MiB` or `1 GB`.

    Raises:
        ValueError: it is neither, or not positive.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return ByteCount(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in _UNITS or float(match[1]) <= 0:
        raise ValueError(f"{value!r} is no size; write bytes or a number with KiB, MiB, GiB, KB, MB or GB")
    return ByteCount(float(match[1]) * _UNITS[match[2].upper()])


def load_config(path: Path) -> GatewayConfig:
    """Read and check a configuration file.

    Raises:
        ConfigError: it cannot be read, has an unknown key or a wrong value; the error names key, value and what fits.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(ErrorCode.CONFIG_UNREADABLE, f"cannot read the configuration {path}: {error}.") from error
    if not isinstance(document, dict):
        raise ConfigError(ErrorCode.CONFIG_UNREADABLE, f"the configuration {path} is not a table of keys and values.")
    return parse_config(document)


def parse_config(document: dict[str, Any]) -> GatewayConfig:
    """Check a configuration given as a dictionary.

    Raises:
        ConfigError: see `load_config`.
    """
    # YAML 1.1 reads a bare `off` as false
    if document.get("security") is False:
        document = {**document, "security": "off"}
    try:
        config = msgspec.convert(document, GatewayConfig, dec_hook=_decode_custom)
    except msgspec.ValidationError as error:
        raise _explain(error, document) from error
    _check_meaning(config)
    return config


def _decode_custom(kind: type, value: object) -> object:
    if kind is ByteCount:
        return parse_size(value)
    if kind is ChunkSetting:
        return ChunkSetting(None if value == "auto" else parse_size(value))
    if kind is Path:
        if not isinstance(value, str) or not value:
            raise ValueError(f"{value!r} is no path")
        return Path(value)
    raise NotImplementedError(f"no way to read a {kind.__name__} from {value!r}")


def _explain(error: msgspec.ValidationError, document: dict[str, Any]) -> ConfigError:
    """Name the key, the value found there, and what would be right."""
    text = str(error)
    match = re.search(r" - at `\$\.?([^`]*)`", text)
    where = match[1] if match else ""
    what = text[: match.start()] if match else text
    unknown = re.match(r"Object contains unknown field `(.*)`", what)
    if unknown:
        known = _known_keys(where)
        near = difflib.get_close_matches(unknown[1], known, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        key = f"{where}.{unknown[1]}" if where else unknown[1]
        value = _value_at(document, key)
        return ConfigError(
            ErrorCode.CONFIG_UNKNOWN_KEY, f"unknown key {key!r} (value {value!r}).", f"{hint}Known: {', '.join(known)}."
        )
    missing = re.match(r"Object missing required field `(.*)`", what)
    if missing:
        key = f"{where}.{missing[1]}" if where else missing[1]
        return ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"key {key!r} is missing.", _MISSING.get(key, "Add it."))
    remedy = f"One of {', '.join(choices)}." if (choices := _choices(where)) else ""
    value = _value_at(document, where)
    return ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"key {where!r} has the value {value!r}: {what}.", remedy)


_MISSING = {
    "security": "Until mutual TLS is configured, write `security: off`: the gateway then trusts its network.",
    "site": "Give this site a name, for example `site: bank-a`.",
    "parties": 'List the FATE parties served here, for example `parties: ["9999"]`.',
}

_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "listen": ListenConfig,
    "tcp": TcpConfig,
    "memory": MemoryConfig,
    "timeouts": TimeoutConfig,
    "peers": PeerConfig,
}


def _section_of(where: str) -> type[msgspec.Struct]:
    return _SECTIONS.get(where.split("[")[0].split(".")[0], GatewayConfig)


def _known_keys(where: str) -> list[str]:
    return sorted(_section_of(where).__struct_fields__)


def _choices(where: str) -> list[str]:
    """The literals that a key may have, where it is a choice."""
    hint = typing.get_type_hints(_section_of(where)).get(where.rpartition(".")[2])
    options = typing.get_args(hint)
    nested = [choice for option in options for choice in typing.get_args(option)]
    return [choice for choice in (*options, *nested) if isinstance(choice, str)]


def _value_at(document: object, path: str) -> object:
    """The value under a path such as `peers[...].mode`; an element of a list that is not told apart gives the list."""
    for step in path.split(".") if path else []:
        name = step.split("[")[0]
        if not isinstance(document, dict) or name not in document:
            return document
        document = document[name]
    return document


def split_address(key: str, address: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"key {key!r} has the value {address!r}.", "Write host:port.")
    return host.strip("[]"), int(port)


def socket_path(address: str) -> Path:
    """The file behind `unix:///path`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when it is not of that form, or longer than a unix socket may be.
    """
    path = address.removeprefix("unix://")
    if path == address or not path.startswith("/") or len(path) > 100:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"{address!r} is no address of a gateway's socket.",
            "Write unix:///absolute/path of at most 100 characters.",
        )
    return Path(path)


def _check_meaning(config: GatewayConfig) -> None:
    """What types cannot say."""
    socket_path(config.listen.socket)
    for key in ("control", "data", "grpc", "metrics"):
        address = getattr(config.listen, key)
        if address is not None:
            split_address(f"listen.{key}", address)
    seen = {config.site}
    for peer in config.peers:
        if peer.site in seen:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE, f"key 'peers' names the site {peer.site!r} twice.", "Each site once."
            )
        seen.add(peer.site)
        if peer.address is not None:
            split_address("peers.address", peer.address)
    owners: dict[str, str] = {}
    for site, parties in [(config.site, config.parties), *((peer.site, peer.parties) for peer in config.peers)]:
        for party in parties:
            if owners.setdefault(party, site) != site:
                raise ConfigError(
                    ErrorCode.CONFIG_BAD_VALUE,
                    f"party {party!r} is served by {owners[party]!r} and by {site!r}.",
                    "A party lives at one site; tell roles apart as in `host:10000`.",
                )
    ring = config.memory.ring_slots * config.memory.ring_slot_bytes * len(config.peers)
    if ring > config.memory.receive_bytes // 2:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"key 'memory.ring_slots' has the value {config.memory.ring_slots}: with {len(config.peers)} peers "
            f"the rings take {ring} of memory.receive_bytes = {config.memory.receive_bytes}.",
            "Rings may take half of it: lower ring_slots or ring_slot_bytes, or raise receive_bytes.",
        )
