"""All targets by name, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.fuzz import payloads, wire
from tests.fuzz.target import Target

TARGETS: Mapping[str, Callable[[], Target]] = {
    "frames": wire.frames,
    "datagrams": wire.datagrams,
    "sealed-datagrams": wire.sealed_datagrams,
    "headers": wire.headers,
    "task-socket": wire.task_socket,
    "objects": payloads.objects,
    "fate-bytes": payloads.fate_bytes,
    "tables": payloads.tables,
    "storages": payloads.storages,
}
"""What parses what a peer, a task or a file says."""
