"""What others see of this package, as plain documents: wire, configuration, command line, metrics, traces, status.

`python -m tests.support.outside [NAME ...]` writes tests/snapshots anew, which tests compare with what the code says.
"""

from __future__ import annotations

import json
import sys
import tempfile
import typing
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union

import click
import msgspec
from prometheus_client.metrics import MetricWrapperBase

from fedrdma_fate.cli.main import main
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.client.probe import ask_probe
from fedrdma_fate.client.protocol import CLIENT_PROTOCOL_VERSION, Enter, RemoteRequest, Reply, encode_message
from fedrdma_fate.fate.journal import Journal
from fedrdma_fate.fate.settings import BackendSettings
from fedrdma_fate.gateway.config.schema import GatewayConfig, PeerConfig
from fedrdma_fate.obs.metrics import GatewayMetrics, Occupancy
from fedrdma_fate.security.datagram_tags import DATAGRAM_KEY_BYTES, DatagramSealer
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES, PADDED_DATAGRAM_BYTES, SEAL_BYTES, Datagram, encode_datagram
from fedrdma_fate.wire.errors import ErrorCode, error_from_code
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, PROBE_TRANSFERS_FROM, ControlFrame, Mode, encode_frame
from fedrdma_fate.wire.header import HEADER_BYTES, MAGIC, PROTOCOL_VERSION, ChunkHeader, HeaderKind
from scripts.lib.config_reference import describe_type
from tests.support.certificates import TestAuthority
from tests.support.repository import ROOT
from tests.support.sites import Site, eventually, party, start_gateways

SNAPSHOTS = ROOT / "tests" / "snapshots"

MIB = 1 << 20

Document = dict[str, Any]


# --- the wire ---


def wire() -> Document:
    """Every message that crosses a process's border, encoded: with all fields, and with those that must be there."""
    return {
        "versions": {"protocol": PROTOCOL_VERSION, "client_protocol": CLIENT_PROTOCOL_VERSION},
        "limits": {
            "inline_bytes": INLINE_LIMIT_BYTES,
            "datagram_bytes": DATAGRAM_BYTES,
            "padded_datagram_bytes": PADDED_DATAGRAM_BYTES,
            "seal_bytes": SEAL_BYTES,
            "probe_transfers_from": PROBE_TRANSFERS_FROM,
        },
        "control_frames": _encodings(ControlFrame, encode_frame),
        "datagrams": _encodings(Datagram, encode_datagram),
        "sealed_datagrams": _sealed_datagrams(),
        "requests": _encodings(Enter | RemoteRequest, encode_message),
        "replies": _encodings(Reply, encode_message),
        "headers": {
            kind.name: ChunkHeader(kind, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77).encode().hex() for kind in HeaderKind
        },
        "header": {"bytes": HEADER_BYTES, "magic": MAGIC},
    }


def _sealed_datagrams() -> list[str]:
    """Two in a row under one key."""
    sealer = DatagramSealer(bytes(range(DATAGRAM_KEY_BYTES)))
    return [sealer.seal(b"datagram").hex() for _ in range(2)]


def examples(union: Any) -> Iterator[tuple[str, list[msgspec.Struct]]]:
    """Of each type of a union: its name, and one with all its fields and one with those that must be given."""
    for kind in typing.get_args(union):
        fields = msgspec.structs.fields(kind)
        every = {field.name: _example(field.type, field.name) for field in fields}
        needed = {field.name: every[field.name] for field in fields if field.required}
        yield str(kind.__struct_config__.tag), [kind(**every), kind(**needed)]


def _encodings(union: Any, encode: Callable[[Any], bytes]) -> Document:
    return {name: [encode(example).hex() for example in given] for name, given in sorted(examples(union))}


def _example(kind: Any, name: str) -> Any:
    """A value of a type that depends on nothing but its name."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    number = zlib.crc32(name.encode())
    if origin is typing.Annotated:
        most = next((meta.le for meta in arguments[1:] if isinstance(meta, msgspec.Meta) and meta.le is not None), None)
        example = _example(arguments[0], name)
        if isinstance(example, bytes):
            metas = (meta for meta in arguments[1:] if isinstance(meta, msgspec.Meta))
            return example.ljust(max((meta.min_length or 0 for meta in metas), default=0), b".")
        return example if most is None else min(example, arguments[0](most))
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType):
        return _example(next(each for each in arguments if each is not NoneType), name)
    if origin is tuple:
        given = (arguments[0], arguments[0]) if arguments[1:] == (...,) else arguments
        return tuple(_example(each, f"{name}{at}") for at, each in enumerate(given))
    if origin is dict:
        return {f"{name} key": _example(arguments[1], name)}
    if issubclass(kind, msgspec.Struct):
        return kind(**{each.name: _example(each.type, each.name) for each in msgspec.structs.fields(kind)})
    return {str: f"some {name}", int: number, float: number / 1024, bool: True, bytes: name.encode()}[kind]


# --- errors ---


def errors() -> Document:
    """Every code, by its name, and the class of the errors that carry it."""
    return {code.name: [code.value, type(error_from_code(code.value, "why")).__name__] for code in ErrorCode}


# --- configuration ---


def configuration() -> Document:
    """The keys of a gateway's configuration and of a job's options: what may stand there, and the defaults."""
    peer = PeerConfig(site="b", parties=("2",))
    return {
        "gateway": dict(_keys(GatewayConfig)),
        "gateway_defaults": _plain(GatewayConfig(site="a", parties=("1",), security="off", peers=(peer,))),
        "job": dict(_keys(BackendSettings)),
        "job_defaults": _plain(BackendSettings(gateway="unix:///a")),
    }


def _keys(section: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    hints = typing.get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        hint = hints[field.name]
        yield f"{prefix}{field.name}", describe_type(hint) + (", required" if field.required else "")
        for part in (hint, *typing.get_args(hint)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from _keys(part, f"{prefix}{field.name}.")


def _plain(value: msgspec.Struct) -> Any:
    return msgspec.to_builtins(value, enc_hook=lambda other: getattr(other, "size_bytes", str(other)))


# --- the command line ---


def command_line() -> Document:
    """Every command with what `--help` says of it, its arguments and its options."""
    return dict(_commands(main, ("fedrdma",), None))


def _commands(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None
) -> Iterator[tuple[str, Document]]:
    context = command.make_context(path[-1], [], parent, resilient_parsing=True)
    yield (
        " ".join(path),
        {
            "help": command.help,
            "usage": " ".join(command.collect_usage_pieces(context)),
            "parameters": [_parameter(parameter) for parameter in command.get_params(context)],
        },
    )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*path, name), context)


def _parameter(parameter: click.Parameter) -> Document:
    kind = repr(parameter.type)
    said: Document = {"names": [*parameter.opts, *parameter.secondary_opts]}
    said["type"] = parameter.type.name if " object at " in kind else kind
    said |= {"required": parameter.required, "many": parameter.nargs != 1 or parameter.multiple}
    # a default that is computed depends on the machine; newer versions of click know one that means none
    default = None if callable(parameter.default) or "UNSET" in repr(parameter.default) else parameter.default
    said["default"] = default if isinstance(default, int | float | str | list | tuple | NoneType) else str(default)
    if isinstance(parameter, click.Option):
        said |= {"help": parameter.help, "flag": bool(parameter.is_flag), "shown": not parameter.hidden}
    return said


# --- metrics ---


def metrics() -> Document:
    """Every metric: type, help and labels; those that are read at each scrape with the labels of what they show."""
    made = GatewayMetrics()
    families = {each.name: {"type": each.type, "help": each.documentation} for each in made.registry.collect()}
    for collector in list(made.registry._collector_to_names):
        assert isinstance(collector, MetricWrapperBase)
        families[collector._name]["labels"] = list(collector._labelnames)
        if isinstance(buckets := getattr(collector, "_kwargs", {}).get("buckets"), tuple | list):
            families[collector._name]["buckets"] = list(buckets)
    made.watch(lambda: Occupancy({}, {}))
    for family in made.registry.collect():
        families.setdefault(
            family.name,
            {"type": family.type, "help": family.documentation, "labels": list(getattr(family, "_labelnames", ()))},
        )
    return families


# --- what a running gateway shows ---

_MODES: tuple[Mode, ...] = ("grpc", "fedrdma", "fedrdma-e", "fedrdma-x")
_LAYOUT = {"a": ["guest:1", "guest:3"], "b": ["host:2"]}
_A, _B, _OTHER_A = party("guest:1"), party("host:2"), party("guest:3")


def running() -> Document:
    """The fields of every trace event and of the status document, as gateways show them in a scripted run."""
    events: dict[str, set[str]] = {}
    status: set[str] = set()
    with tempfile.TemporaryDirectory() as directory:
        for name, scene in (("tcp", _by_tcp), ("lent", _lent), ("unreachable", _without_a_path)):
            home = Path(directory, name)
            scene(home, status)
            for trace in sorted(home.glob("*/trace.jsonl")):
                for line in map(json.loads, trace.read_text().splitlines()):
                    events.setdefault(line["event"], set()).add(" ".join(line))
    return {
        "trace": {event: sorted(variants) for event, variants in sorted(events.items())},
        "status": sorted(status),
        "journal": journal(),
    }


def _by_tcp(home: Path, status: set[str]) -> None:
    """Each way of a message from a to b and within a; one that is spilled, and one that its task does not finish."""
    chunks = {"chunk": "256KiB", "link_enable": "never"}
    with start_gateways(_LAYOUT, home, **chunks) as sites, sites["a"].client() as a, sites["b"].client() as b:
        a.put_inline("small", "t", [_B], "bytes", b"small")
        a.put_inline("small", "t", [_OTHER_A], "bytes", b"small")
        _push(a, "own", MIB, "guest:3")
        b.get("small", "t", _A)
        with sites["a"].client(of="guest:3") as other:
            other.get("own", "t", _A)
        for mode in _MODES:
            with sites["a"].client(mode=mode) as asking:
                _push(asking, mode, MIB)
                b.get(mode, "t", _A)
        eventually(lambda: len(sites["a"].events("sent")) == 1 + len(_MODES))
        for name in ("first", "second"):
            _push(a, name, 3 * MIB)
        eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 2)
        status.update(_paths(sites["a"].status()))
        _push(a, "third", 7 * MIB)
        b.get("third", "t", _A)
        _leave_unfinished(sites["a"], a)
        eventually(lambda: sites["b"].events("receive_failed"))
        ask_probe(sites["a"].address, "b", 2 * MIB, 5.0)
        sites.runner.stop(sites["b"])
        eventually(lambda: sites["a"].events("peer_lost"))


def _lent(home: Path, status: set[str]) -> None:
    authority = TestAuthority(home / "tls")
    with start_gateways(_LAYOUT, home, authority=authority, transport="auto", shm={"lend": True}) as sites:
        with sites["a"].client() as a, sites["b"].client() as b:
            _push(a, "lent", MIB)
            b.get("lent", "t", _A)
            eventually(lambda: sites["a"].events("sent"))
        status.update(_paths(sites["a"].status()))


def _without_a_path(home: Path, status: set[str]) -> None:
    """The data path is advertised at an address where nobody listens; what was to go there is given up in the end."""
    listening = {"advertise": "127.0.0.77"}
    with start_gateways(_LAYOUT, home, connected=False, listen=listening, timeouts={"drain": 0.1}) as sites:
        eventually(lambda: any(site.events("link_lost") for site in sites.values()))
        with sites["a"].client() as a:
            _push(a, "never", MIB)
            eventually(lambda: sites["a"].status()["transfers"])
            status.update(_paths(sites["a"].status()))
        sites.runner.stop(sites["a"])


def _push(client: GatewayClient, name: str, length: int, to: str = "host:2") -> None:
    lease = client.lease(length)
    lease.buffer[:1] = b"x"
    lease.commit(name, "t", [party(to)], "object")


def _leave_unfinished(site: Site, client: GatewayClient) -> None:
    """A large object of which only the end is written: the receiver is told of it, and then that it will not come."""
    lease = client.lease(2 * MIB)
    assert lease.commit_unfinished("half", "t", [_B], "object") == "committed"
    lease.written(MIB, [])
    eventually(
        lambda: any(each["done_bytes"] for each in site.status()["transfers"] if each["message"].startswith("s/half/"))
    )
    lease.release()
    eventually(lambda: site.events("undeliverable"))


def journal() -> list[str]:
    """The fields of a job's own record of what it pushed and pulled."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        kept = Journal(path, "s", _A)
        kept.record("put", "object", "m", "t", 1, 0.0, [_B])
        kept.close()
        return list(json.loads(path.read_text()))


def _paths(document: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a document with where it stands; what is tuned depends on how transfers went."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield f"{prefix}{key}"
            if key != "chunk_bytes":
                yield from _paths(value, f"{prefix}{key}.")
    if isinstance(document, list):
        for value in document:
            yield from _paths(value, prefix)


WRITERS: dict[str, Callable[[], Document]] = {
    "wire": wire,
    "errors": errors,
    "configuration": configuration,
    "command_line": command_line,
    "metrics": metrics,
    "running": running,
}


def snapshot(name: str) -> Document:
    """What is committed."""
    document: Document = json.loads((SNAPSHOTS / f"{name}.json").read_text())
    return document


def as_committed(document: Document) -> Document:
    """A document after a way through JSON, where a tuple becomes a list."""
    given: Document = json.loads(json.dumps(document))
    return given


if __name__ == "__main__":
    SNAPSHOTS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or WRITERS:
        (SNAPSHOTS / f"{name}.json").write_text(json.dumps(WRITERS[name](), indent=1, ensure_ascii=False) + "\n")
        print(f"{SNAPSHOTS.relative_to(ROOT)}/{name}.json is written")
