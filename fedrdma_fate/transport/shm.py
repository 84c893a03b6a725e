"""Two gateways on one host: the sender copies straight into the peer's receive region.

What is protected: the two are of one host and one user, by the word of the kernel; each uses what the other passed it
by descriptor and nothing that it named; a write is checked against the slot the peer granted and against the mapped
region before a byte is copied, under the peer's live key (`shm_keys`), so a write that comes too late touches nothing;
the exposing side checks the key of every notice again. What is not: both processes run as one user and map the same
memory, so a peer that is hostile, not just wrong, can write anywhere in the receive region, here or with a debugger.
Use `tcp` towards a site that is not trusted so far.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedrdma_fate.ports import Draft, Endpoint, EndpointAddress, Region, Role
from fedrdma_fate.transport.endpoint_base import address_text, address_token, unavailable
from fedrdma_fate.transport.listener import ConnectError, Listener, dial
from fedrdma_fate.transport.shm_endpoint import (
    NAME,
    AcceptLent,
    Attach,
    AttachedRegion,
    ReceivedLentRegion,
    ShmEndpoint,
)
from fedrdma_fate.transport.shm_keys import KeyTable, PeerKeys
from fedrdma_fate.transport.shm_meeting import MeetingPlace, Presented, present, reach
from fedrdma_fate.unix_sockets import address_of
from fedrdma_fate.wire.errors import MemoryPoolError

_Taken = TypeVar("_Taken")

_LINKS_WAITING = 128
"""Connections that the kernel keeps until we take them: more than a gateway has peers on its host."""


class ShmTransport:
    """Links to gateways of the same host and user."""

    def __init__(
        self, directory: Path, region: Region, attach: Attach, accept_lent: AcceptLent, lends: Region | None = None
    ) -> None:
        """Start to listen.

        Args:
            directory: of this gateway alone, for its socket; those of its peers lie beside it.
            region: the receive region; every slot that is exposed lies in it.
            attach: maps a region of another process.
            accept_lent: keeps another gateway's send region, of which it may lend.
            lends: our send region, where peers may read what we lend them; None lends nothing.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the directory will not do.
        """
        self._regions = _Regions(region, lends, attach, accept_lent)
        self._place = MeetingPlace(directory)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # before it has a name, so that nobody else can ever connect
            os.fchmod(listening.fileno(), 0o600)
            with address_of(self._place.path) as address:
                listening.bind(address)
            listening.listen(_LINKS_WAITING)
        except OSError as error:
            listening.close()
            raise unavailable(
                NAME,
                f"cannot listen on {self._place.path}: {error.strerror or error}",
                "Set memory.directory to one that exists and is writable; where /proc is not mounted, to one with a "
                "short path, like /dev/shm.",
            ) from error
        self._listener = Listener(listening)

    @property
    def name(self) -> str:
        return NAME

    def open(self, role: Role) -> Draft:
        """Start one data path.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the transport is closed or there is no memory for its keys.
        """
        try:
            keys = KeyTable()
            token = self._listener.expect() if role == "passive" else b""
        except ConnectError as error:
            keys.close()
            raise unavailable(NAME, str(error)) from error
        except OSError as error:
            raise unavailable(NAME, f"cannot make a key table: {error.strerror}", "Free memory.") from error
        return _ShmDraft(self._regions, keys, self._listener, token, self._place)

    def close(self) -> None:
        """Stop listening; links that are connected live on."""
        self._listener.close()
        self._place.path.unlink(missing_ok=True)


class _Regions:
    """What every link of a gateway presents, and how it takes what the peer presents.

    A region of ours that a peer presents as its own is refused: it has its descriptor from us, and would have us write
    over messages of others, or take them for its own.
    """

    def __init__(self, receive: Region, lends: Region | None, attach: Attach, accept_lent: AcceptLent) -> None:
        self.receive = receive
        self.lends = lends
        self._attach = attach
        self._accept_lent = accept_lent

    def attach(self, fileno: int, length: int) -> AttachedRegion:
        """Map the peer's receive region; see `Attach`."""
        self._refuse_ours(fileno)
        return self._attach(fileno, length)

    def accept_lent(self, fileno: int, length: int) -> ReceivedLentRegion:
        """Keep the peer's send region; see `AcceptLent`."""
        self._refuse_ours(fileno)
        return self._accept_lent(fileno, length)

    def _refuse_ours(self, fileno: int) -> None:
        file = os.fstat(fileno)
        if any(os.path.samestat(file, os.fstat(each.fileno)) for each in (self.receive, self.lends) if each):
            os.close(fileno)
            raise ValueError("it is a region of our own")


class _ShmDraft:
    """One half of a link; the side with a token waits, the other dials."""

    def __init__(
        self, regions: _Regions, keys: KeyTable, listener: Listener, token: bytes, place: MeetingPlace
    ) -> None:
        self._regions = regions
        self._keys: KeyTable | None = keys
        self._listener = listener
        self._token = token
        self._place = place

    @property
    def address(self) -> EndpointAddress:
        return {"meeting": self._place.id, "token": self._token.hex()} if self._token else {}

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Meet the peer, and map what it presents.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when either fails.
        """
        keys = self._keys
        if keys is None:
            raise unavailable(NAME, "the draft was connected or closed before")
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            connection, presented = self._meet(peer, keys, timeout)
            undo.callback(connection.close)
            endpoint = self._take(connection, keys, presented)
            undo.pop_all()
        connection.setblocking(False)
        self._keys = None
        return endpoint

    def abandon(self) -> None:
        """See `ports.Draft`."""
        self._listener.forget(self._token)

    def close(self) -> None:
        """Drop the draft, and a connection that came for it."""
        self._listener.forget(self._token)
        if self._keys is not None:
            self._keys.close()
            self._keys = None

    def _meet(self, peer: EndpointAddress, keys: KeyTable, timeout: float) -> tuple[socket.socket, Presented]:
        connection: socket.socket | None = None
        try:
            connection = self._connection(peer, timeout)
            return connection, present(connection, keys, self._regions.receive, self._regions.lends, timeout)
        except (ConnectError, OSError) as error:
            if connection is not None:
                connection.close()
            raise unavailable(
                NAME,
                str(error),
                "Both gateways must run on one host, as the same user, with the same memory.directory.",
            ) from error

    def _connection(self, peer: EndpointAddress, timeout: float) -> socket.socket:
        if self._token:
            return self._listener.wait(self._token, 1, timeout)[0]
        path, token = self._place.find(address_text(NAME, peer, "meeting")), address_token(NAME, peer)
        return dial(lambda seconds: reach(path, seconds), token, 1, timeout)[0]

    def _take(self, connection: socket.socket, keys: KeyTable, presented: Presented) -> ShmEndpoint:
        """The endpoint, of what the peer presented; nothing of that is left open where it will not do."""
        with contextlib.ExitStack() as undo:
            undo.callback(presented.close)
            peer_keys = _understood("key table", lambda: PeerKeys(presented.take_keys()))
            undo.callback(peer_keys.close)
            peer_region = _understood(
                "receive region", lambda: self._regions.attach(presented.take_region(), presented.region_bytes)
            )
            undo.callback(peer_region.close)
            lent = presented.take_lent()
            accepted = None
            if lent is not None:
                accepted = _understood("send region", lambda: self._regions.accept_lent(lent, presented.lent_bytes))
            undo.pop_all()
        return ShmEndpoint(connection, self._regions.receive, keys, peer_region, peer_keys, accepted)


def _understood(what: str, take: Callable[[], _Taken]) -> _Taken:
    try:
        return take()
    except (OSError, ValueError) as error:
        raise unavailable(NAME, f"the {what} that the peer presented will not do: {error}") from error
    except MemoryPoolError as error:
        raise unavailable(NAME, error.message.rstrip("."), error.remedy) from error
