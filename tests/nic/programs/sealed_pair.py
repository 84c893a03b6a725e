"""One of two hosts with certificates, over verbs; host 0 pushes a payload, host 1 pulls it and watches the wire.

Arguments: the mode, what is done to chunks, and `damaged` to have one chunk changed after it was sealed, with a digest
that says so, as somebody would who writes into the slot in the sender's name. Prints JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from deploy.softroce.programs.gateways import gateway_document, running_gateway, secured
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.security.sealing import AttemptSealer
from fedrdma_fate.wire.frames import Party

ME = int(os.environ["TESTBED_HOST"])
PARTIES = [Party("guest", "1"), Party("host", "2")]
SIZE = 5 * 2**20 + 77
MARK = hashlib.sha256(b"what nobody may read").digest()
ALL_PROTOCOLS = 3
LONGEST_PACKET = 65536
QUIET_SECONDS = 0.5
_SO_RCVBUFFORCE = 33
"""Of <asm-generic/socket.h>: beyond what the kernel lets others have."""


class Wire(threading.Thread):
    """Counts the packets of this host's interface, and those with the mark in them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 * 2**20)
        self._socket.bind((os.environ["TESTBED_NETDEV"], 0))
        self.bytes = 0
        self.marked = 0

    def run(self) -> None:
        while True:
            packet = self._socket.recv(LONGEST_PACKET)
            self.bytes += len(packet)
            self.marked += MARK in packet

    def settle(self) -> None:
        """Wait until it has looked at all that came: it has to share a processor with what it watches."""
        seen = -1
        while seen != self.bytes:
            seen = self.bytes
            time.sleep(QUIET_SECONDS)


class Log(logging.Handler):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def damage_once() -> None:
    """The first chunk that is sealed is changed behind its seal."""
    seal, left = AttemptSealer.seal_apart, [1]

    def change(self: Any, place: bytes, data: memoryview, room: memoryview) -> bytes:
        apart = seal(self, place, data, room)
        if left[0]:
            left[0] = 0
            room[0] ^= 1
        return apart

    AttemptSealer.seal_apart = change  # type: ignore[method-assign]


def main() -> None:
    """Run this host's part."""
    mode, seal = sys.argv[1:3]
    log = Log()
    logging.getLogger("fedrdma_fate").addHandler(log)
    if sys.argv[3:] == ["damaged"] and ME == 0:
        damage_once()
    wire = Wire()
    wire.start()
    body = (MARK * (SIZE // len(MARK) + 1))[:SIZE]
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        memory = {"send_bytes": "32MiB", "receive_bytes": "64MiB"}
        document = secured(gateway_document(home, PARTIES, transport="verbs", mode=mode, memory=memory), seal)
        with running_gateway(document) as address, GatewayClient(address, "s", PARTIES[ME]) as client:
            if ME == 0:
                lease = client.lease(SIZE)
                lease.buffer[:] = body
                lease.commit("m", "t", [PARTIES[1]], "object")
                client.get("done", "t", PARTIES[1], timeout=60)
                print(json.dumps({}))
                return
            right = client.get("m", "t", PARTIES[0], timeout=60).buffer == body
            client.put_inline("done", "t", [PARTIES[0]], "bytes", b"done")
            wire.settle()
            answer = {"right": bool(right), "bytes": wire.bytes, "marked": wire.marked}
        refused = [line for line in log.lines if "wrong tag" in line]
        events = [json.loads(line) for line in (home / "trace.jsonl").read_text().splitlines()]
        links = [event for event in events if event["event"] == "link"]
        print(json.dumps({**answer, "refused": refused, "links": len(links)}))


main()
