"""Two gateways on one host: the sender copies straight into the peer's receive region.

What is protected: a write is checked against the slot the peer granted and against the mapped region before a byte is
copied, under the peer's live key (`shm_keys`), so a write that comes too late touches nothing; the exposing side checks
the key of every notice again. What is not: both processes run as one user and map the same file, so a peer that is
hostile, not just wrong, can write anywhere in the receive region, here or with a debugger. Use `tcp` towards a site
that is not trusted so far.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

from fedrdma_fate.ports import Draft, Endpoint, EndpointAddress, Region, Role
from fedrdma_fate.transport.endpoint_base import address_text, address_token, unavailable
from fedrdma_fate.transport.listener import ConnectError, Listener, dial
from fedrdma_fate.transport.shm_endpoint import NAME, Attach, AttachedRegion, ShmEndpoint
from fedrdma_fate.transport.shm_keys import KeyTable, PeerKeys
from fedrdma_fate.unix_sockets import address_of
from fedrdma_fate.wire.errors import MemoryPoolError


class ShmTransport:
    """Links to gateways of the same host and user."""

    def __init__(self, directory: Path, region: Region, attach: Attach) -> None:
        """Start to listen.

        Args:
            directory: where the unix socket and the key tables of links being connected lie; peers must see it.
            region: the receive region; every slot that is exposed lies in it.
            attach: maps a region of another process.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the directory will not do.
        """
        self._region = region
        self._attach = attach
        self._directory = directory.resolve()
        self._socket_path = self._directory / f"shm-{secrets.token_hex(8)}.sock"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address_of(self._socket_path) as address:
                listening.bind(address)
            self._socket_path.chmod(0o600)
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise unavailable(
                NAME,
                f"cannot listen on {self._socket_path}: {error.strerror or error}",
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
            TransportError: TRANSPORT_UNAVAILABLE when the transport is closed or its directory is gone.
        """
        try:
            token = self._listener.expect() if role == "passive" else b""
            keys = KeyTable(self._directory / f"shm-{secrets.token_hex(8)}.keys")
        except ConnectError as error:
            raise unavailable(NAME, str(error)) from error
        except OSError as error:
            raise unavailable(
                NAME,
                f"cannot make a key table in {self._directory}: {error.strerror}",
                "Make room there, or point memory.directory at a larger tmpfs.",
            ) from error
        return _ShmDraft(self._region, self._attach, keys, self._listener, token, self._socket_path)

    def close(self) -> None:
        """Stop listening; links that are connected live on."""
        self._listener.close()
        self._socket_path.unlink(missing_ok=True)


class _ShmDraft:
    """One half of a link; the side with a token waits, the other dials."""

    def __init__(
        self,
        region: Region,
        attach: Attach,
        keys: KeyTable,
        listener: Listener,
        token: bytes,
        socket_path: Path,
    ) -> None:
        self._region = region
        self._attach = attach
        self._keys: KeyTable | None = keys
        self._listener = listener
        self._token = token
        self._address: dict[str, str | int] = {"region": str(region.path.resolve()), "keys": str(keys.path)}
        if token:
            self._address |= {"socket": str(socket_path), "token": token.hex()}

    @property
    def address(self) -> EndpointAddress:
        return self._address

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Map the peer's region and meet the peer.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when either fails.
        """
        keys = self._keys
        if keys is None:
            raise unavailable(NAME, "the draft was connected or closed before")
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            peer_keys = _open_keys(peer)
            undo.callback(peer_keys.close)
            peer_region = self._attach_region(peer)
            undo.callback(peer_region.close)
            try:
                connection = self._meet(peer, timeout)
            except ConnectError as error:
                raise unavailable(NAME, str(error)) from error
            undo.pop_all()
        # each side opened the other's table before it dialled or waited, so the name has served
        keys.unlink()
        self._keys = None
        return ShmEndpoint(connection, self._region, keys, peer_region, peer_keys)

    def close(self) -> None:
        """Drop the draft, and a connection that came for it."""
        self._listener.forget(self._token)
        if self._keys is not None:
            self._keys.close()
            self._keys = None

    def _attach_region(self, peer: EndpointAddress) -> AttachedRegion:
        try:
            return self._attach(presented_region(peer))
        except MemoryPoolError as error:
            raise unavailable(NAME, error.message, error.remedy) from error

    def _meet(self, peer: EndpointAddress, timeout: float) -> socket.socket:
        if self._token:
            return self._listener.wait(self._token, 1, timeout)[0]
        path, token = Path(address_text(NAME, peer, "socket")), address_token(NAME, peer)

        def connect(seconds: float) -> socket.socket:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(seconds)
                with address_of(path) as address:
                    connection.connect(address)
            except OSError:
                connection.close()
                raise
            return connection

        return dial(connect, token, 1, timeout)[0]


def presented_region(peer: EndpointAddress) -> Path:
    """The receive region that the peer's half of a link names.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE when it names none.
    """
    return Path(address_text(NAME, peer, "region"))


def _open_keys(peer: EndpointAddress) -> PeerKeys:
    path = Path(address_text(NAME, peer, "keys"))
    try:
        return PeerKeys(path)
    except (OSError, ValueError) as error:
        raise unavailable(
            NAME,
            f"cannot open the peer's key table {path}: {error}",
            "Both gateways must run on one host, as the same user, and see the same memory.directory.",
        ) from error
