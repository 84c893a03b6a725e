"""All targets by name, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.fuzz import connections, files, flow, paths, payloads, wire
from tests.fuzz.target import Target

TARGETS: Mapping[str, Callable[[], Target]] = {
    "frames": wire.frames,
    "datagrams": wire.datagrams,
    "sealed-datagrams": wire.sealed_datagrams,
    "headers": wire.headers,
    "summands": wire.summands,
    "site-sums": wire.site_sums,
    "task-socket": wire.task_socket,
    "flow-requests": flow.requests,
    "flow-packets": flow.packets,
    "queue-pushes": flow.queue_pushes,
    "broker-pushes": flow.broker_pushes,
    "objects": payloads.objects,
    "fate-bytes": payloads.fate_bytes,
    "tables": payloads.tables,
    "storages": payloads.storages,
    "greetings": connections.greetings,
    "tls": connections.tls,
    "newcomers": connections.newcomers,
    "tcp": paths.tcp,
    "grpc": paths.grpc,
    "shm": paths.shm,
    "udp": paths.udp,
    "hellos": paths.hellos,
    "configuration": files.configuration,
    "path-store": files.path_store,
}
"""What parses what a peer, a task or a file says."""
