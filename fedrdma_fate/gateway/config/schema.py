"""The gateway's configuration: declared once, typed, strict.

Over 500 lines: most of them say what a key means, and the reference in the docs is made of them.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from fedrdma_fate.client.address import socket_path
from fedrdma_fate.core.tuning import LinkEnable
from fedrdma_fate.gateway.config.errors import bad_value, explain
from fedrdma_fate.gateway.config.sizes import ByteCount, ChunkSetting, parse_byte_count, parse_chunk
from fedrdma_fate.gateway.config.strict_yaml import load_yaml
from fedrdma_fate.security.plain import is_loopback
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import MOST_FAN_IN, MOST_SHARE, Mode

TransportName = Literal["auto", "verbs", "udp", "tcp", "shm"]
Notify = Literal["event", "poll"]
ChunkServiceName = Literal["auto", "rc", "uc"]
VerbsPoll = Literal["event", "busy"]
Security = Literal["mtls", "off"]
Seal = Literal["on", "integrity", "off"]
PeerKind = Literal["gateway", "osx"]
PathMtu = Literal[256, 512, 1024, 2048, 4096]
Seconds = Annotated[float, msgspec.Meta(gt=0)]

MOST_LINK_RATE = 8 * MOST_SHARE
"""Bits a second: as much as a share may be."""

LONGEST_SECONDS = 1e6
"""Time-outs may be as long as eleven days; the system calls that wait take little more."""

_HEADERS_OF_HTTP = {
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
}
"""They are of one connection, and each end makes its own."""

_OF_DATA_PATHS = ("data_hosts", "mode", "transport", "chunk", "link_enable", "rate", "window")
"""What is said of a peer, and has no meaning where it has an OSX broker."""

_IF_MISSING = {
    "site": "Give the site a name, for example `site: bank-a`.",
    "parties": 'List the FATE parties served there, for example `parties: ["9999"]`.',
}


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every section: unknown keys are errors."""


class ListenConfig(_Section, frozen=True):
    """Where the gateway listens. Everything is on loopback unless said otherwise.

    Attributes:
        control: host:port of the control channel for other gateways.
        data: host:port of the TCP data path, and by UDP of that of `udp`; port 0 takes a free one. Null has it on the
            port of `control`, so that one TCP port is open to other sites.
        grpc: host:port of the data path of mode `grpc`; port 0 takes a free one.
        advertise: host that peers shall use for the data paths, when it differs from that of `data`. What is on the
            port of `control` is found without.
        socket: unix socket for the tasks of this site.
        metrics: host:port of the Prometheus endpoint, or null for none.
        flow: host:port, on loopback, of the proxy that FATE Flow sends its scheduling calls to, or null for none.
        osx: host:port, on loopback, of what FATE and FATE Flow take for OSX, by gRPC, or null for none. FATE
            Flow's calls need `flow.server`.
        brokers: host:port, of what OSX brokers of peers take for one of theirs, or null for none; needed where a peer
            has `kind: osx`.
        tasks: host:port, for tasks of this site on other hosts, as Spark's executors may be, by TLS and a secret, or
            null for none; needs `tasks_access`.
    """

    control: str = "127.0.0.1:9370"
    data: str | None = None
    grpc: str = "127.0.0.1:0"
    advertise: str | None = None
    socket: str = "unix:///run/fedrdma/gateway.sock"
    metrics: str | None = None
    flow: str | None = None
    osx: str | None = None
    brokers: str | None = None
    tasks: str | None = None


class TlsConfig(_Section, frozen=True):
    """What this site proves itself with, and whom it believes. Files that change are read again within seconds.

    Attributes:
        certificate: PEM file: this site's certificate, which names it by the URI `fedrdma://site/NAME`, then those of
            intermediate authorities, if any.
        key: PEM file of its private key, which nobody else may read.
        authorities: PEM files of the authorities whose certificates are believed.
        revocation_lists: PEM or DER files of what they have revoked; where there are any, every authority needs one.
    """

    certificate: Path | None = None
    key: Path | None = None
    authorities: tuple[Path, ...] = ()
    revocation_lists: tuple[Path, ...] = ()


class TcpConfig(_Section, frozen=True):
    """The TCP transport.

    Attributes:
        streams: parallel TCP connections of one data path.
    """

    streams: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2


class ShmConfig(_Section, frozen=True):
    """The shared-memory transport, between gateways of one host.

    Attributes:
        lend: in modes `fedrdma-e` and `fedrdma-x`, let the peer's tasks map a message where it lies in our send region,
            and do so with what peers lend to us, instead of copying it; the slot is free again when they let go of it.
    """

    lend: bool = True


class VerbsConfig(_Section, frozen=True):
    """The RDMA transport. Null leaves a choice to the rule.

    Attributes:
        device: RDMA device, as `rdma link` names it; null takes the first that will do.
        port: port of the device; null takes the first that is active.
        gid_index: place in the port's GID table; null takes the RoCE v2 GID of an IPv4 address of this host.
        queue_pairs: for the writes of one data path; both sides use the smaller number.
        chunk_queue_pairs: for the chunks of mode `fedrdma-x`, of one data path; both sides use the smaller number.
        chunk_service: what those are: `rc`, reliable; `uc`, unreliable, where only what was lost is sent again, if both
            devices have them; `auto` is `uc`.
        mtu: largest path MTU in bytes, where the network carries less than the port; both sides use the smaller one.
        poll: wait for completions (`event`), or keep a core looking for them (`busy`).
    """

    device: str | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=255)] | None = None
    gid_index: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    queue_pairs: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    chunk_queue_pairs: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    chunk_service: ChunkServiceName = "auto"
    mtu: PathMtu | None = None
    poll: VerbsPoll = "event"


class MemoryConfig(_Section, frozen=True):
    """Shared memory and spill.

    Attributes:
        directory: where gateways of this host meet: sockets lie there. All of them need the same one.
        send_bytes: size of the send region; the largest payload that can be pushed.
        receive_bytes: size of the receive region; the budget for messages on their way and not yet pulled. Peers
            share it, and one payload may take 7/8 of it.
        warm: take all memory when the gateway starts, and keep it; false takes it slot by slot, which costs page faults
            in every transfer and leaves more for others, as on a laptop that runs every silo.
        ring_slots: receive slots granted ahead of time to each peer.
        ring_slot_bytes: size of each of them.
        spill_directory: where messages that nobody has pulled go when the receive region is needed.
    """

    directory: Path = Path("/dev/shm")  # noqa: S108 - what lies there has an owner that is checked
    send_bytes: ByteCount = ByteCount(2**30)
    receive_bytes: ByteCount = ByteCount(2**30)
    warm: bool = True
    ring_slots: Annotated[int, msgspec.Meta(ge=0, le=256)] = 2
    ring_slot_bytes: ByteCount = ByteCount(4 * 2**20)
    spill_directory: Path = Path("/var/tmp/fedrdma")  # noqa: S108 - the same


class TimeoutConfig(_Section, frozen=True):
    """Time-outs, in seconds. A transfer that makes progress is never timed out.

    Attributes:
        idle: without any progress, a transfer fails after this.
        peer_silence: without a sign of life on the control channel, a peer counts as gone after this.
        connect: for one attempt to connect to a peer.
        put: how long a put waits for room in the send region.
        drain: how long a stopping gateway lets transfers finish.
        session: when for so long no site of a session has had a living task in it, all that is left of it is dropped.
        restart: how long the memory of a gateway that was killed, or stopped with SIGTERM, is kept for the next one of
            its site, which goes on with the messages that are in it; 0 keeps nothing, and no journal.
    """

    idle: Seconds = 60.0
    peer_silence: Seconds = 20.0
    connect: Seconds = 10.0
    put: Seconds = 600.0
    drain: Seconds = 10.0
    session: Seconds = 3600.0
    restart: Annotated[float, msgspec.Meta(ge=0)] = 300.0


class LimitsConfig(_Section, frozen=True):
    """What a peer may have here, or a user's tasks in messages to this site's parties. Beyond: made to wait, or FR610.

    Attributes:
        messages: messages of a peer that nobody has pulled yet, and notices of some that will not come. One whose names
            are longer than 256 characters counts as several: what counts as one takes some 1.4 kB of the heap.
        session_messages: the same of one session of a peer.
        bytes: of those messages, in memory and on disk; null: 64 times `memory.receive_bytes`.
        session_bytes: the same of one session; null: 32 times `memory.receive_bytes`.
        frames_per_second: control frames that a peer may send; who sends more is read more slowly, and after half a
            minute cut off.
        session_frames_per_second: the same of small messages that tasks of one session put for a peer; the next put
            waits.
        outgoing_bytes: small messages that are kept until a peer has them; a put of more waits.
    """

    messages: Annotated[int, msgspec.Meta(ge=1)] = 32768
    session_messages: Annotated[int, msgspec.Meta(ge=1)] = 16384
    bytes: ByteCount | None = None
    session_bytes: ByteCount | None = None
    frames_per_second: Annotated[float, msgspec.Meta(ge=100)] = 20000.0
    session_frames_per_second: Annotated[float, msgspec.Meta(ge=50)] = 10000.0
    outgoing_bytes: ByteCount = ByteCount(64 * 2**20)


class ReceiveConfig(_Section, frozen=True):
    """The link by which all peers send to this site, in mode `fedrdma-x` over `verbs` and `udp`.

    Attributes:
        share: `even`: each that sends is told its share of the link, so that together they do not overrun it; `turns`:
            few send at a time, in the order in which they have asked, and the others wait, so that all have come as
            soon, and half of them sooner; `off`: each finds its rate as if it were alone.
        rate: what the link carries at most, bits a second; null: it is found.
    """

    share: Literal["even", "turns", "off"] = "even"
    rate: Annotated[float, msgspec.Meta(gt=0, le=MOST_LINK_RATE)] | None = None


class SendConfig(_Section, frozen=True):
    """The link by which this site sends to all its peers, in mode `fedrdma-x` over `verbs` and `udp`.

    Attributes:
        share: `even`: messages to several peers that go at once have equal shares of it, so that together they do not
            overrun it; `off`: each finds its rate as if it were alone.
        rate: what the link carries at most, bits a second; null: it is found.
    """

    share: Literal["even", "off"] = "even"
    rate: Annotated[float, msgspec.Meta(gt=0, le=MOST_LINK_RATE)] | None = None


class AggregateConfig(_Section, frozen=True):
    """Sums of masked updates, which the gateway of the party that asks for them adds as they come.

    Attributes:
        sums: whether it adds; false: FATE adds, as it does by itself.
        order: `exact`: as updates come, in numbers whose sum is the same in every order; `rank`: in the order of the
            ranks, with the same bits as FATE's own sum; `arrival`: as updates come, in float64, with what is rounded
            away kept besides, which takes the room of two sums.
        workers: processes that add, at most: there is one while sums are asked for, and one more for each that runs
            besides. `auto`: half the cores, 4 at most, and more than one only while so much comes that one is busy for
            over 70 % of the time. A minute after its last sum each ends.
        site_sums: sites send the sum of their parties' updates as one, where both have this and the order is `exact`:
            the gateway of the party that asks for the sum has them do so, and this one does so when it is asked.
        site_wait: seconds that a site's sum waits, from its first update on, for the others; then it goes without. As
            long again for each level of sites below this one whose sums belong to it.
        parent: name of the peer that adds the sums of this site to its own, and passes them on as one; null: they go to
            the site that asks for the sum. It learns the sums, and the site trusts it with them: docs/sum-tree.md.
        fan_in: sums of other sites, which name this one as their parent, that are added to one; of more sites the sum
            goes as several. 0: none are.
        notices: how a worker is told of an update: `socket`, over the unix socket to it, with a descriptor; `skmsg`, by
            a program in the kernel, which takes CAP_BPF and CAP_NET_ADMIN, and is `socket` where it cannot be had;
            `auto`: `socket`, as neither is faster.
        checkpoints: directory to which each finished sum is written besides, in the background; null for none.
        checkpoints_kept: how many of them stay, the oldest go.
    """

    sums: bool = True
    order: Literal["exact", "rank", "arrival"] = "exact"
    workers: Literal["auto"] | Annotated[int, msgspec.Meta(ge=1, le=64)] = "auto"
    site_sums: bool = True
    site_wait: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 5.0
    parent: str | None = None
    fan_in: Annotated[int, msgspec.Meta(ge=0, le=MOST_FAN_IN)] = 16
    notices: Literal["auto", "socket", "skmsg"] = "auto"
    checkpoints: Path | None = None
    checkpoints_kept: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 8


class FlowConfig(_Section, frozen=True):
    """FATE Flow's scheduling calls.

    Attributes:
        server: host:port of the site's own FATE Flow, its HTTP port, to which calls for this site's parties go; null:
            none are taken.
        headers: names of headers that travel with calls besides FATE Flow's own, where a hook of its authentication
            needs some; the same at both sites.
    """

    server: str | None = None
    headers: tuple[str, ...] = ()


class PeerConfig(_Section, frozen=True):
    """Another site.

    Attributes:
        site: its name, as its own configuration spells it.
        parties: the parties it serves: `9999` for every role of that party, or `host:10000` for one.
        address: host:port of its control channel; null when only it can reach us. Of an OSX broker, its gRPC port.
        data_hosts: further hosts that its data paths may lead to, beside that of `address`: names or addresses. Where
            there are some, the GIDs of its RDMA device are held against both, too.
        mode: overrides the gateway's mode for this peer.
        transport: overrides the gateway's transport for this peer.
        chunk: overrides the gateway's chunk size for this peer.
        link_enable: overrides the gateway's Link-Enable for this peer.
        rate: bottleneck rate to this peer, bits a second, when known: decides chunk size and Link-Enable.
        window: overrides the gateway's window for this peer.
        kind: `gateway`, or `osx` where it still has FATE's own broker: messages of OSX's queues and scheduling calls go
            there as between brokers, and `mode`, `transport` and what else is said of data paths is not for it.
        tls: of an OSX broker: TLS both ways, with the certificates of `tls`; null: as `security` says. `false` with
            `security: mtls`: what goes to it and comes from it is not protected.
    """

    site: str
    parties: tuple[str, ...]
    address: str | None = None
    data_hosts: tuple[str, ...] = ()
    mode: Mode | None = None
    transport: TransportName | None = None
    chunk: ChunkSetting | None = None
    link_enable: LinkEnable | None = None
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    window: ByteCount | None = None
    kind: PeerKind = "gateway"
    tls: bool | None = None


class TaskUserConfig(_Section, frozen=True):
    """Another user of this host whose tasks the gateway serves, besides those of its own user.

    Attributes:
        user: its name, or its number.
        parties: the parties its tasks may run for: `9999` for every role of that party, or `host:10000` for one.
    """

    user: str
    parties: tuple[str, ...]


class GatewayConfig(_Section, frozen=True):
    """One gateway a site.

    Attributes:
        site: name of this site.
        parties: the parties served here: `9999` for every role of that party, or `host:10000` for one.
        security: `mtls`: mutual TLS 1.3, where every site shows its certificate; `off`: no encryption, and no check of
            who connects.
        security_off_beyond_loopback: with `security: off`, listen on addresses that other hosts can reach all the same;
            only in a network that nobody else reaches.
        tls: certificates, for `security: mtls`.
        seal: what is done to chunks on data paths that leave the host: encrypted and authenticated (`on`), only
            authenticated (`integrity`), or neither (`off`); null: `on`, and `off` where `security` is. Peers need the
            same.
        listen: addresses.
        mode: how payloads travel: `grpc`, `fedrdma`, `fedrdma-e` or `fedrdma-x`.
        transport: data path: `auto` takes shared memory on one host, RDMA where both sides have it, in mode `fedrdma-x`
            UDP where the round trip is 5 ms or longer, else TCP. Where UDP does not pass, TCP is taken.
        chunk: base chunk size, or `auto` for the paper's best for the link's rate, which then adapts to how transfers
            go; in mode `fedrdma-x`, what suits the rate and loss that were measured.
        window: most bytes of a `fedrdma-x` transfer under way; null: twice what the path holds by rate and round trip,
            or 32 MiB where the transport finds the rate.
        repair_chunks: on a path that loses packets, send sums of the last chunks of a `fedrdma-x` transfer besides, so
            that what is lost of them need not be sent again.
        link_enable: send one small chunk first: `always`, `never`, or `auto`, by what is known of the link.
        notify: how the receiver learns of a finished payload: `event` or `poll`.
        tcp: the TCP transport.
        shm: the shared-memory transport.
        verbs: the RDMA transport.
        memory: shared memory and spill.
        timeouts: time-outs.
        limits: what one peer may have here.
        receive: how the link is shared by which peers send to this site.
        send: how the link is shared by which this site sends to its peers.
        aggregate: sums of masked updates.
        flow: FATE Flow's scheduling calls.
        durable: tell a peer that its message is here only when it is on disk, so that it outlives a power failure;
            false: when it outlives the gateway.
        peers: the other sites.
        task_users: other users of this host whose tasks are served; they share the site's memory with its own tasks.
        tasks_access: file with the secret of tasks on other hosts, which `fedrdma access` makes, for `listen.tasks`;
            another secret there counts at once, for those who connect from then on.
        trace: file for the JSON-lines trace, or null for none.
        trace_bytes: when the trace would become longer, it is renamed to its name with `.1` behind, in the place of an
            earlier one, and begun anew; null: never.
        state_directory: where the journal lies, from which the next run of a gateway that was killed goes on, and rate,
            round trip and loss of the paths to the peers, so that a first transfer starts from them; null keeps all
            of it in `memory.spill_directory`.
    """

    site: str
    parties: tuple[str, ...]
    security: Security = "mtls"
    security_off_beyond_loopback: bool = False
    tls: TlsConfig = TlsConfig()
    seal: Seal | None = None
    listen: ListenConfig = ListenConfig()
    mode: Mode = "fedrdma-e"
    transport: TransportName = "auto"
    chunk: ChunkSetting = ChunkSetting()
    window: ByteCount | None = None
    repair_chunks: bool = True
    link_enable: LinkEnable = "auto"
    notify: Notify = "event"
    tcp: TcpConfig = TcpConfig()
    shm: ShmConfig = ShmConfig()
    verbs: VerbsConfig = VerbsConfig()
    memory: MemoryConfig = MemoryConfig()
    timeouts: TimeoutConfig = TimeoutConfig()
    limits: LimitsConfig = LimitsConfig()
    receive: ReceiveConfig = ReceiveConfig()
    send: SendConfig = SendConfig()
    aggregate: AggregateConfig = AggregateConfig()
    flow: FlowConfig = FlowConfig()
    durable: bool = False
    peers: tuple[PeerConfig, ...] = ()
    task_users: tuple[TaskUserConfig, ...] = ()
    tasks_access: Path | None = None
    trace: Path | None = None
    trace_bytes: ByteCount | None = ByteCount(2**30)
    state_directory: Path | None = None

    @property
    def sealing(self) -> Seal:
        """What is done to chunks."""
        return self.seal or ("off" if self.security == "off" else "on")

    @property
    def borrows(self) -> bool:
        """Whether messages of gateways on this host are used where they lie; what is to be on disk is copied."""
        return self.shm.lend and not self.durable

    @property
    def gateways(self) -> tuple[PeerConfig, ...]:
        """Peers that have a gateway."""
        return tuple(peer for peer in self.peers if peer.kind == "gateway")

    @property
    def brokers(self) -> tuple[PeerConfig, ...]:
        """Peers that have an OSX broker."""
        return tuple(peer for peer in self.peers if peer.kind == "osx")

    @property
    def brokers_use_tls(self) -> bool:
        """Whether TLS is spoken with brokers, which is the same for all."""
        wishes = {peer.tls for peer in self.brokers} - {None}
        return wishes.pop() is True if wishes else self.security == "mtls"

    def mode_for(self, site: str, asked: Mode | None = None) -> Mode:
        """How payloads to or from a peer travel, of a job that asks for `asked`."""
        return next((peer.mode for peer in self.peers if peer.site == site), None) or asked or self.mode


def load_config(path: Path) -> GatewayConfig:
    """Read and check a configuration file.

    Raises:
        ConfigError: it cannot be read, has an unknown key or a wrong value; the error names key, value and what fits.
            INSECURE_REFUSED when it leaves the gateway without protection and does not say so.
    """
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(ErrorCode.CONFIG_UNREADABLE, f"cannot read the configuration {path}: {error}.") from error
    if not isinstance(document, dict):
        raise ConfigError(
            ErrorCode.CONFIG_UNREADABLE,
            f"the configuration {path} is not a table of keys and values.",
            "conf/gateway.yaml is an example.",
        )
    return parse_config(document)


def parse_config(document: dict[str, Any]) -> GatewayConfig:
    """Check a configuration given as a dictionary.

    Raises:
        ConfigError: see `load_config`.
    """
    # YAML 1.1 reads a bare `off` as false
    if document.get("security") is False:
        document = {**document, "security": "off"}
    if isinstance(document.get("seal"), bool):
        document = {**document, "seal": "on" if document["seal"] else "off"}
    for name in ("receive", "send"):
        section = document.get(name)
        if isinstance(section, dict) and section.get("share") is False:
            document = {**document, name: {**section, "share": "off"}}
    try:
        config = msgspec.convert(document, GatewayConfig, dec_hook=_decode_custom)
    except msgspec.ValidationError as error:
        raise explain(error, document, GatewayConfig, _IF_MISSING) from error
    _check_meaning(config)
    return config


def _decode_custom(kind: type, value: object) -> object:
    if kind is ByteCount:
        return parse_byte_count(value)
    if kind is ChunkSetting:
        return parse_chunk(value)
    if kind is Path:
        if not isinstance(value, str) or not value:
            raise ValueError(f"{value!r} is no path")
        return Path(value)
    raise NotImplementedError(f"no way to read a {kind.__name__} from {value!r}")


def split_address(key: str, address: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise bad_value(key, address, "", "Write host:port.")
    return host.strip("[]"), int(port)


def _check_meaning(config: GatewayConfig) -> None:
    """What types cannot say."""
    _check_seal(config)
    _check_addresses(config)
    _check_security(config)
    _check_timeouts(config.timeouts)
    _check_durable(config)
    _check_flow(config)
    _check_brokers(config)
    _check_parent(config)
    _check_parties(config)
    _check_rings(config)
    _check_task_users(config)
    _check_tasks(config)


def _check_seal(config: GatewayConfig) -> None:
    """Keys for sealing are only as good as the proof of who is at the other end."""
    if config.security == "off" and config.sealing != "off":
        raise ConfigError(
            ErrorCode.SEAL_WITHOUT_TLS,
            f"key 'seal' has the value {config.seal!r}, and `security` is `off`: whoever answers would get the keys.",
            "Leave `seal` out, or set up TLS.",
        )


def _check_addresses(config: GatewayConfig) -> None:
    socket_path(config.listen.socket)
    for key in ("control", "data", "grpc", "metrics"):
        address = getattr(config.listen, key)
        if address is not None:
            split_address(f"listen.{key}", address)
    for peer in config.peers:
        if peer.address is not None:
            split_address("peers.address", peer.address)
        for host in peer.data_hosts:
            _check_data_host(host)


def _check_security(config: GatewayConfig) -> None:
    """Certificates, or the plain word that there are none."""
    if config.security == "mtls":
        for key, given in (
            ("certificate", config.tls.certificate),
            ("key", config.tls.key),
            ("authorities", config.tls.authorities),
        ):
            if not given:
                raise ConfigError(
                    ErrorCode.INSECURE_REFUSED,
                    f"key 'tls.{key}' is missing: with `security: mtls`, the default, a gateway needs certificates.",
                    "`fedrdma certs` makes a set for a trial; `security: off`, on one host, does without.",
                )
        return
    for key in ("control", "data", "grpc", "metrics", "brokers"):
        address = getattr(config.listen, key)
        if address is None or config.security_off_beyond_loopback:
            continue
        if not is_loopback(split_address(f"listen.{key}", address)[0]):
            raise ConfigError(
                ErrorCode.INSECURE_REFUSED,
                f"key 'listen.{key}' has the value {address!r}, which other hosts can reach, and `security` is `off`.",
                "Set up certificates (`security: mtls`); in a network that nobody else reaches, write"
                " `security_off_beyond_loopback: true` as well.",
            )


def _check_data_host(host: str) -> None:
    """One host, by name or address: no port, no network, and not every address that there is."""
    try:
        unfit = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        # what is no address, in digits or with a colon, is none that was misspelt either
        unfit = not re.fullmatch(r"(?=.*[A-Za-z])[\w-]+(\.[\w-]+)*\.?", host, re.ASCII)
    if unfit:
        raise bad_value("peers.data_hosts", host, "", "Write names or addresses of hosts, without a port.")


def _check_durable(config: GatewayConfig) -> None:
    if config.durable and not config.timeouts.restart:
        raise bad_value("durable", True, ", and `timeouts.restart` is 0", "Without a restart there is no journal.")


def _check_flow(config: GatewayConfig) -> None:
    """Who reaches the front speaks in the name of the site's parties, and nothing is encrypted there."""
    if config.flow.server is not None:
        split_address("flow.server", config.flow.server)
    for name in config.flow.headers:
        if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", name, re.ASCII) or name.lower() in _HEADERS_OF_HTTP:
            raise bad_value("flow.headers", name, "", "Write names of headers of a site's own, as in `X-Site-Token`.")
    for key, front in (("listen.flow", config.listen.flow), ("listen.osx", config.listen.osx)):
        if front is None:
            continue
        if not is_loopback(split_address(key, front)[0]):
            raise bad_value(key, front, "", "It has to be an address of loopback.")
        # queues need none
        if key == "listen.flow" and config.flow.server is None:
            raise bad_value(key, front, ", and `flow.server` is missing", "Name the own FATE Flow.")


def _check_brokers(config: GatewayConfig) -> None:
    """What makes no sense of a peer that has an OSX broker, or of one that has none."""
    for peer in config.peers:
        if peer.kind == "gateway":
            if peer.tls is not None:
                raise bad_value("peers.tls", peer.tls, f" for the gateway of {peer.site!r}", "`security` says it.")
            continue
        if peer.address is None:
            raise bad_value("peers.address", None, f" for the broker of {peer.site!r}", "Write host:port of its gRPC.")
        for key in _OF_DATA_PATHS:
            if getattr(peer, key) != getattr(PeerConfig(peer.site, peer.parties), key):
                raise bad_value(
                    f"peers.{key}", getattr(peer, key), f" for the broker of {peer.site!r}", "Only gateways have it."
                )
    listen = config.listen.brokers
    if listen is not None:
        split_address("listen.brokers", listen)
    if not config.brokers:
        return
    if listen is None:
        raise bad_value(
            "listen.brokers", None, ", and a peer has `kind: osx`", "Write host:port at which its broker reaches us."
        )
    if len({peer.tls for peer in config.brokers} - {None}) > 1:
        raise bad_value("peers.tls", False, " for some brokers only", "It is the same for all: they share one port.")
    if config.security == "off" and config.brokers_use_tls:
        raise bad_value("peers.tls", True, ", and `security` is `off`", "Set up certificates.")


def _check_parent(config: GatewayConfig) -> None:
    """Who adds the sums of this site is one of its peers, and has a gateway."""
    parent = config.aggregate.parent
    if parent is not None and parent not in {peer.site for peer in config.gateways}:
        known = ", ".join(peer.site for peer in config.gateways) or "none"
        raise bad_value("aggregate.parent", parent, "", f"Write the site of a peer with a gateway: {known}.")


def _check_timeouts(timeouts: TimeoutConfig) -> None:
    for key in timeouts.__struct_fields__:
        seconds = getattr(timeouts, key)
        if seconds > LONGEST_SECONDS:
            raise bad_value(f"timeouts.{key}", seconds, "", f"At most {LONGEST_SECONDS:.0f} seconds.")


def _check_parties(config: GatewayConfig) -> None:
    """Every site and every party once, and none without a name."""
    sites: set[str] = set()
    owners: dict[str, str] = {}
    for site, parties in [(config.site, config.parties), *((peer.site, peer.parties) for peer in config.peers)]:
        if not site:
            raise bad_value("site", site, "", _IF_MISSING["site"])
        if site in sites:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE, f"key 'peers' names the site {site!r} twice.", "Each site once."
            )
        sites.add(site)
        if not parties:
            raise bad_value("parties", [], f" for the site {site!r}", _IF_MISSING["parties"])
        for party in parties:
            if not re.fullmatch(r"([^:]+:)?[^:]+", party):
                raise bad_value(
                    "parties", party, f" for the site {site!r}", "Write `9999`, or `host:9999` for one role."
                )
            if owners.setdefault(party, site) != site:
                raise ConfigError(
                    ErrorCode.CONFIG_BAD_VALUE,
                    f"party {party!r} is served by {owners[party]!r} and by {site!r}.",
                    "A party lives at one site; tell roles apart as in `host:10000`.",
                )


def _check_task_users(config: GatewayConfig) -> None:
    """Every user once, and for parties only that are served here."""
    users = [each.user for each in config.task_users]
    # `9999` may stand for the roles of it that are served here, and `host:9999` is served where `9999` is
    served_ids = {party.rpartition(":")[2] for party in config.parties}
    for each in config.task_users:
        if not each.user or users.count(each.user) > 1:
            raise bad_value("task_users.user", each.user, "", "Each user once, by name or by number.")
        for party in each.parties:
            known = {*config.parties, *served_ids} if ":" not in party else {*config.parties}
            if party not in known and party.rpartition(":")[2] not in config.parties:
                served = ", ".join(config.parties)
                raise bad_value("task_users.parties", party, "", f"Parties served here: {served}.")


def _check_tasks(config: GatewayConfig) -> None:
    """Who reaches the port shows a secret, so the gateway has to show a certificate before."""
    address = config.listen.tasks
    if address is None:
        return
    split_address("listen.tasks", address)
    if config.security == "off":
        raise bad_value("listen.tasks", address, ", and `security` is `off`", "Set up certificates.")
    if config.tasks_access is None:
        raise bad_value("tasks_access", None, ", and `listen.tasks` has one", "`fedrdma access` makes the file.")


def _check_rings(config: GatewayConfig) -> None:
    ring = config.memory.ring_slots * config.memory.ring_slot_bytes * len(config.gateways)
    if ring > config.memory.receive_bytes // 2:
        raise bad_value(
            "memory.ring_slots",
            config.memory.ring_slots,
            f": with {len(config.gateways)} peers the rings take {ring} of memory.receive_bytes = "
            f"{config.memory.receive_bytes}",
            "Rings may take half of it: lower ring_slots or ring_slot_bytes, or raise receive_bytes.",
        )
