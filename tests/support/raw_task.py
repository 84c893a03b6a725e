"""A connection of a task that says whatever the test likes."""

from __future__ import annotations

import os
import select
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

    def __init__(
        self,
        site: Site,
        session: str,
        of: Party = GUEST,
        parties: tuple[Party, ...] | None = None,
        *,
        client: str = "",
        secret: bytes = b"",
    ) -> None:
        """Attach; with a client and its secret, as a task that may come back as long as it `lives`."""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(site.address.removeprefix("unix://"))
        client = client or os.urandom(8).hex()
        self.send(Attach(CLIENT_PROTOCOL_VERSION, client, session, of, None, parties, secret))
        self.attached, self.lives = self.receive_with_descriptors()

    def send(self, *requests: Request) -> None:
        self.socket.sendall(b"".join(map(encode_message, requests)))

    def call(self, request: Request) -> Reply:
        self.send(request)
        return self.receive()

    def receive(self) -> Reply:
        reply, descriptors = self.receive_with_descriptors()
        close_all(descriptors)
        return reply

    def receive_with_descriptors(self) -> tuple[Reply, list[int]]:
        """The reply, and what came with it, which whoever asked closes."""
        prefix, descriptors = receive_with_descriptors(self.socket, LENGTH_PREFIX.size, 1)
        return decode_reply(receive_with_descriptors(self.socket, frame_length(prefix), 0)[0]), descriptors

    def wait_for_reply(self) -> None:
        """Until one is there to be received; it is left unread."""
        select.select([self.socket], [], [], 20)

    def hang_up(self) -> None:
        """End the connection; the task lives."""
        self.socket.close()

    def close(self) -> None:
        self.socket.close()
        close_all(self.lives)
        self.lives = []


def code_of(reply: Reply) -> str:
    return reply.code if isinstance(reply, Error) else type(reply).__name__
