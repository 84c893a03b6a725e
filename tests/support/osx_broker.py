"""OSX brokers for tests: one written from what OSX 2.2 says on the wire, and FATE's own, where somebody built it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

PROTOCOL, TRANSPORT = "org.ppc.ptp.PrivateTransferProtocol", "org.ppc.ptp.PrivateTransferTransport"
DATA_TRANSFER = "com.webank.ai.eggroll.api.networking.proxy.DataTransferService"
PUSH_URI = "grpcs://fedai.org/org.ppc.ptp.PrivateTransferTransport/push"
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

_SECONDS = 240.0
"""For what a loaded machine may hold up."""


@dataclasses.dataclass
class StandIn:
    """A broker in this process, for the parties of one site.

    Attributes:
        parties: ids that are served here.
        routes: host:port of the broker of others, by id.
        queues: messages that wait, by session and topic.
        seen: metadata of what other brokers pushed.
        before: called with each push of another broker before it is kept.
        unary: answers a packet.
        connect: to another broker.
        port: where it listens.
    """

    parties: tuple[str, ...]
    routes: dict[str, str]
    port: int = 0
    queues: dict[tuple[str, str], queue.Queue[bytes]] = dataclasses.field(default_factory=dict)
    seen: list[dict[str, str]] = dataclasses.field(default_factory=list)
    before: Callable[[grpc.ServicerContext], object] = lambda _context: None
    unary: Callable[[bytes], bytes] = lambda packet: packet
    connect: Callable[[str], grpc.Channel] = lambda address: grpc.insecure_channel(address, LARGE)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def queue_of(self, session: str, topic: str) -> queue.Queue[bytes]:
        """The queue, made where there is none."""
        with self._lock:
            return self.queues.setdefault((session, topic), queue.Queue())

    # -- of its clients -----------------------------------------------------------------------------------------------

    def push(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Keep it, or hand it on to another broker, as `FateTechProvider.processGrpcPush`."""
        pb = _pb()
        said = _metadata(context)
        target = said["x-ptp-target-node-id"]
        if target in self.parties:
            self.queue_of(said["x-ptp-session-id"], request.topic).put(request.payload)
            return pb.TransportOutbound(code="E0000000000")
        # from-node-id is not among what a broker reads, so the other one hears of no source
        handed = ("x-ptp-session-id", "x-ptp-target-node-id", "x-ptp-tech-provider-code", "x-ptp-trace-id")
        metadata = [(name, said[name]) for name in handed if name in said]
        metadata += [("x-ptp-topic", request.topic), ("x-ptp-uri", PUSH_URI)]
        try:
            with self.connect(self.routes[target]) as channel:
                call = channel.unary_unary(f"/{PROTOCOL}/invoke")
                inbound = pb.Inbound(payload=request.SerializeToString())
                raw = call(inbound.SerializeToString(), timeout=_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            return pb.TransportOutbound(code="E0000000607", message=str(error))
        outbound = pb.Outbound.FromString(raw)
        return pb.TransportOutbound(code=outbound.code, message=outbound.message)

    def pop(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Wait for the next message."""
        pb = _pb()
        waiting = self.queue_of(_metadata(context)["x-ptp-session-id"], request.topic)
        try:
            return pb.TransportOutbound(code="E0000000000", payload=waiting.get(timeout=request.timeout / 1000))
        except queue.Empty:
            return pb.TransportOutbound(code="E0000000601")

    def release(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        """Nothing: what waits is looked at by tests."""
        return _pb().TransportOutbound(code="E0000000000")

    # -- of other brokers ---------------------------------------------------------------------------------------------

    def invoke(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """A push for a party here."""
        pb = _pb()
        said = _metadata(context)
        self.seen.append(said)
        self.before(context)
        if said["x-ptp-target-node-id"] not in self.parties:
            return bytes(pb.Outbound(code="E0000000400", message="can not found router info").SerializeToString())
        push = pb.PushInbound.FromString(pb.Inbound.FromString(raw).payload)
        self.queue_of(said["x-ptp-session-id"], push.topic).put(push.payload)
        return bytes(pb.Outbound(code="E0000000000").SerializeToString())


def _pb() -> Any:
    from fate.arch.federation.backends.osx import osx_pb2

    return osx_pb2


def _metadata(context: grpc.ServicerContext) -> dict[str, str]:
    return {str(name): str(value) for name, value in context.invocation_metadata()}


@contextlib.contextmanager
def stand_in(
    parties: tuple[str, ...],
    routes: Mapping[str, str],
    port: int,
    credentials: grpc.ServerCredentials | None = None,
    connect: Callable[[str], grpc.Channel] | None = None,
) -> Iterator[StandIn]:
    """One that listens on loopback."""
    pb = _pb()
    broker = StandIn(parties, dict(routes), port)
    if connect is not None:
        broker.connect = connect
    inner = {
        name: grpc.unary_unary_rpc_method_handler(getattr(broker, name), kind.FromString, pb_bytes)
        for name, kind in (("push", pb.PushInbound), ("pop", pb.PopInbound), ("release", pb.ReleaseInbound))
    }
    server = grpc.server(futures.ThreadPoolExecutor(64), options=LARGE)
    invoke = grpc.unary_unary_rpc_method_handler(lambda raw, context: broker.invoke(raw, context))
    unary = grpc.unary_unary_rpc_method_handler(lambda raw, _context: broker.unary(raw))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(TRANSPORT, inner),
            grpc.method_handlers_generic_handler(PROTOCOL, {"invoke": invoke}),
            grpc.method_handlers_generic_handler(DATA_TRANSFER, {"unaryCall": unary}),
        )
    )
    address = f"127.0.0.1:{port}"
    bound = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    assert bound == port
    server.start()
    try:
        yield broker
    finally:
        server.stop(None).wait()


@dataclasses.dataclass(frozen=True)
class BrokerTls:
    """What FATE's own broker needs for TLS, both ways.

    Attributes:
        port: of its gRPC by TLS, beside the one without.
        certificate: its own, PEM.
        key: PEM, PKCS #8.
        authorities: whose certificates it takes, PEM.
    """

    port: int
    certificate: str
    key: str
    authorities: str

    @property
    def properties(self) -> str:
        """Lines of broker.properties."""
        return (
            f"open.grpc.tls.server=true\ngrpc.tls.port={self.port}\ngrpc.ssl.open.client.validate=true\n"
            f"grpc.server.cert.chain.file={self.certificate}\ngrpc.server.private.key.file={self.key}\n"
            f"grpc.server.ca.file={self.authorities}"
        )

    @property
    def route(self) -> dict[str, Any]:
        """Of an entry of route_table.json, beside ip and port."""
        files = {"certChainFile": self.certificate, "privateKeyFile": self.key, "caFile": self.authorities}
        return {"protocol": "grpc", "useSSL": True, **files}


def pb_bytes(message: Any) -> bytes:
    """A message of protobuf, encoded."""
    return bytes(message.SerializeToString())


@contextlib.contextmanager
def built_broker(
    built: Path,
    home: Path,
    parties: tuple[str, ...],
    routes: Mapping[str, str],
    port: int,
    tls: BrokerTls | None = None,
) -> Iterator[int]:
    """FATE's own broker, in a process of its own; its pid.

    Args:
        built: `java/osx` of FATE's source, after `mvn package`.
        home: for its configuration, queues and logs.
        parties: ids that it serves.
        routes: host:port of others, by id.
        port: of its gRPC.
        tls: how other brokers reach it, and it them; without, by that port, and nothing is encrypted.
    """
    broker = home / "conf" / "broker"
    broker.mkdir(parents=True)
    components = home / "conf" / "components"
    sources = built / "osx-broker" / "src" / "main" / "resources"
    components.mkdir()
    for each in (sources / "components").iterdir():
        (components / each.name).write_text(each.read_text())
    (broker / "broker.properties").write_text(
        f"grpc.port={port}\nself.party={','.join(parties)}\neggroll.cluster.manager.ip=127.0.0.1\n"
        "eggroll.cluster.manager.port=4670\neggroll.version=3.1.0\nopen.http.server=false\n"
        f"bind.host=127.0.0.1\n{'open.grpc.tls.server=false' if tls is None else tls.properties}\n"
    )
    further = {} if tls is None else tls.route
    table = {
        party: {"default": [{"ip": address.rpartition(":")[0], "port": int(address.rpartition(":")[2]), **further}]}
        for party, address in routes.items()
    }
    (broker / "route_table.json").write_text(json.dumps({"route_table": table, "self_party": list(parties)}))
    target = built / "osx-broker" / "target"
    # of the two forms of messages, the one for the Eggroll named above
    jars = [f"{target}/*", *(str(jar) for jar in (target / "lib").iterdir() if "osx-pb-v" not in jar.name)]
    jars += [str(jar) for jar in (built / "osx-pb-v3" / "target").glob("osx-pb-v3-*.jar")]
    command = [
        "java",
        "-Xmx2g",
        "-XX:MaxDirectMemorySize=4g",
        f"-Duser.home={home}",
        "-cp",
        ":".join([str(broker), *jars]),
    ]
    command += ["org.fedai.osx.broker.Bootstrap", "-c", str(home / "conf")]
    with (home / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=home, stdout=out, stderr=out)
    try:
        for each in (port,) if tls is None else (port, tls.port):
            _wait_for_port(each, process)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, "the broker ended"
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on {port}")
