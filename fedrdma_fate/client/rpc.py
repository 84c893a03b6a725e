"""Calls to a gateway over its unix socket: a request, and its reply."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fedrdma_fate.client.protocol import (
    LENGTH_PREFIX,
    MOST_DESCRIPTORS,
    Error,
    Notice,
    Reply,
    Request,
    decode_reply,
    encode_message,
    frame_length,
)
from fedrdma_fate.unix_sockets import address_of, close_all, peer_user, receive_with_descriptors
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError, WireError, error_from_code

AnyReply = TypeVar("AnyReply", bound=Reply)

_RETRY_SECONDS = 0.1
"""Between two attempts to reach a gateway that may be about to listen."""


class NotAskedError(GatewayError):
    """The connection was gone before all of the request was sent: it was not carried out."""


_OTHER_USER = "Run this as the gateway's user; tasks of other users need a place in `task_users` of its configuration."
_START_GATEWAY = "Start it with `fedrdma gateway --config FILE`, and check `listen.socket` there."


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to the socket of a gateway; one that is not there yet is waited for.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE after `timeout` seconds; USER_REFUSED where somebody else's process listens.
    """
    deadline = time.monotonic() + timeout
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(connection, path)
        except GatewayError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            if time.monotonic() >= deadline:
                raise unreachable(path, error) from error
            time.sleep(_RETRY_SECONDS)
        else:
            return connection


def is_gone_for_good(path: Path) -> bool:
    """Whether a gateway has ended in order, and removed its socket: nobody is to wait for it.

    One that is killed leaves it there, and the next one removes it and makes its own at once.
    """
    if path.exists():
        return False
    time.sleep(_RETRY_SECONDS)
    return not path.exists()


def call_once(path: Path, request: Request, timeout: float) -> Reply:
    """One request on a connection of its own, which attaches to no session; the reply may be an `Error`.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE when nobody is there, or nothing comes for `timeout` seconds;
            CLIENT_PROTOCOL when the reply is none; USER_REFUSED where somebody else's process listens.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            _connect(connection, path)
        except OSError as error:
            raise unreachable(path, error) from error
        return call(connection, request, path)


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect to a gateway of this user, of root, or of whoever owns the directory that its socket lies in.

    Where others can write to that directory, /tmp for one, they can also put a socket there before the gateway does.

    Raises:
        GatewayError: USER_REFUSED: it is somebody else's.
        OSError: nobody listens.
    """
    with address_of(path) as address:
        connection.connect(address)
    user, owner = peer_user(connection), path.parent.stat().st_uid
    if user not in (os.geteuid(), 0, owner):
        raise GatewayError(
            ErrorCode.USER_REFUSED,
            f"a process of user {user} listens at unix://{path}, in a directory of user {owner}.",
            "Have `listen.socket` lie in a directory that belongs to the gateway's user, and that no other can write "
            "to.",
        )


def call(connection: socket.socket, request: Request, path: Path) -> Reply:
    """Send a request and wait for its reply, which may be an `Error`.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE when the connection breaks, CLIENT_PROTOCOL when the reply is none.
    """
    reply, descriptors = call_for_descriptors(connection, request, path)
    close_all(descriptors)
    return reply


def call_for_descriptors(
    connection: socket.socket,
    request: Request,
    path: Path,
    on_notice: Callable[[Notice], object] = lambda _notice: None,
) -> tuple[Reply, list[int]]:
    """As `call`; the reply, and the descriptors that came with it, which whoever called closes.

    Args:
        connection: to the gateway.
        request: what to send.
        path: of the gateway's socket, for people.
        on_notice: called with what the gateway says meanwhile of why the reply takes so long.

    Raises:
        GatewayError: as `call`; then no descriptor is left open.
        NotAskedError: GATEWAY_UNREACHABLE, too.
    """
    descriptors: list[int] = []
    try:
        connection.sendall(encode_message(request))
    except OSError as error:
        failure = unreachable(path, error)
        raise NotAskedError(failure.code, failure.message, failure.remedy) from error
    try:
        while True:
            prefix, descriptors = receive_with_descriptors(connection, LENGTH_PREFIX.size, MOST_DESCRIPTORS)
            body, _ = receive_with_descriptors(connection, frame_length(prefix), 0)
            reply = decode_reply(body)
            if not isinstance(reply, Notice):
                return reply, descriptors
            close_all(descriptors)
            on_notice(reply)
    except (OSError, EOFError) as error:
        close_all(descriptors)
        raise unreachable(path, error) from error
    except WireError as error:
        close_all(descriptors)
        raise GatewayError(
            ErrorCode.CLIENT_PROTOCOL, error.message, "Run the same fedrdma-fate version in FATE and in the gateway."
        ) from error


def expect(reply: Reply, expected: type[AnyReply]) -> AnyReply:
    """The reply, if it is what was expected.

    Raises:
        FedRDMAError: what the gateway answered instead.
    """
    if isinstance(reply, expected):
        return reply
    if isinstance(reply, Error):
        raise error_from_code(reply.code, reply.message, reply.remedy)
    raise GatewayError(ErrorCode.CLIENT_PROTOCOL, f"the gateway answered {type(reply).__name__}.")


def expect_with_descriptor(reply: Reply, descriptors: Sequence[int], expected: type[AnyReply]) -> tuple[AnyReply, int]:
    """The reply that was expected, and the descriptor that belongs to it.

    Raises:
        FedRDMAError: what the gateway answered instead.
        MemoryPoolError: REGION_UNAVAILABLE when the descriptor did not get here; then none is left open.
    """
    try:
        answer = expect(reply, expected)
    except BaseException:
        close_all(descriptors)
        raise
    if len(descriptors) != 1:
        close_all(descriptors)
        raise MemoryPoolError(
            ErrorCode.REGION_UNAVAILABLE,
            "no descriptor of the gateway's memory came: this process has too many files open.",
            "Raise its limit (`ulimit -n`).",
        )
    return answer, descriptors[0]


def unreachable(path: Path, error: Exception) -> GatewayError:
    """The error for a gateway that does not answer."""
    remedy = _OTHER_USER if isinstance(error, PermissionError) else _START_GATEWAY
    return GatewayError(ErrorCode.GATEWAY_UNREACHABLE, f"no gateway answers at unix://{path}: {error}.", remedy)
