"""A connection of a task that says whatever the test likes."""

from __future__ import annotations

import os
import socket

from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    LENGTH_PREFIX,
    Attach,
    Error,
    Reply,
    Request,
    decode_reply,
    encode_message,
    frame_length,
)
from fedrdma_fate.unix_sockets import close_all, receive_with_descriptors
from fedrdma_fate.wire.frames import Party
from tests.support.sites import Site, party

GUEST = party("guest:1")


class Connection:
    """One of a task, which says whatever it likes."""

    def __init__(self, site: Site, session: str, of: Party = GUEST, parties: tuple[Party, ...] | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(site.address.removeprefix("unix://"))
        self.attached = self.call(Attach(CLIENT_PROTOCOL_VERSION, os.urandom(8).hex(), session, of, None, parties))

    def send(self, *requests: Request) -> None:
        self.socket.sendall(b"".join(map(encode_message, requests)))

    def call(self, request: Request) -> Reply:
        self.send(request)
        return self.receive()

    def receive(self) -> Reply:
        prefix, descriptors = receive_with_descriptors(self.socket, LENGTH_PREFIX.size, 1)
        close_all(descriptors)
        return decode_reply(receive_with_descriptors(self.socket, frame_length(prefix), 0)[0])

    def close(self) -> None:
        self.socket.close()


def code_of(reply: Reply) -> str:
    return reply.code if isinstance(reply, Error) else type(reply).__name__
