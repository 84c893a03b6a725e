"""How tasks on other hosts than their gateway's get to it: one file, the same on all of them, and private."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec

from fedrdma_fate.client.protocol import LONGEST_SECRET
from fedrdma_fate.security.credentials import read_private
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, GatewayError

_SHORTEST_SECRET = 32
"""Characters: of hexadecimal digits 128 bits, which nobody guesses."""

_MOST_FILE_BYTES = 1024 * 1024
"""More than a secret and the certificates of some authorities take."""


class TaskAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says.

    Attributes:
        address: host:port of `listen.tasks`, as other hosts reach it.
        site: whose gateway it is.
        secret: by which the gateway knows the site's own tasks.
        authorities: PEM: who vouches for the gateway's certificate.
    """

    address: str
    site: str
    secret: Annotated[str, msgspec.Meta(min_length=_SHORTEST_SECRET, max_length=LONGEST_SECRET)]
    authorities: str

    def __repr__(self) -> str:
        # it would stand in logs
        return f"TaskAccess({self.address!r}, {self.site!r})"

    def __reduce__(self) -> NoReturn:
        # a computing engine would send it in clear
        raise TypeError("the secret of tasks stays in its file: each host reads its own")

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Of the address.

        Raises:
            ValueError: it is not of that form.
        """
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"{self.address!r} is not host:port")
        host = host.strip("[]")
        try:
            host.encode("idna")
        except UnicodeError as error:
            raise ValueError(f"{self.address!r} names no host") from error
        if is_unspecified(host):
            raise ValueError(f"{self.address!r} is each host's own: name the one by which others reach the gateway")
        return host, int(port)


def parse_access(content: bytes, path: Path) -> TaskAccess:
    """What a file says.

    Raises:
        ConfigError: CONFIG_BAD_VALUE.
    """
    try:
        if len(content) > _MOST_FILE_BYTES:
            raise ValueError(f"it has more than {_MOST_FILE_BYTES} bytes")
        access = msgspec.json.decode(content, type=TaskAccess)
        _ = access.host_and_port
    except (ValueError, RecursionError) as error:
        # msgspec's own and those of UTF-8 are ValueErrors, and tell no values
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"{path} is no file of `tasks_access`: {error}.",
            "`fedrdma access` makes one.",
        ) from error
    return access


def read_access(path: Path) -> TaskAccess:
    """What the file says.

    Raises:
        ConfigError: CONFIG_BAD_VALUE, TLS_FILE_UNUSABLE, or KEY_EXPOSED where others may read it.
    """
    return parse_access(read_private(path, "tasks_access", "the file"), path)


def access_or_none(socket: Path, path: Path) -> TaskAccess | None:
    """How to reach the gateway from here: None by its socket, which is on this host.

    Raises:
        GatewayError: NO_TASK_ACCESS where neither is here.
        ConfigError: see `read_access`.
    """
    if os.path.exists(socket):
        return None
    if _is_missing(path):
        raise GatewayError(
            ErrorCode.NO_TASK_ACCESS,
            f"this host has neither the gateway's socket {socket} nor the file {path}, so tasks here cannot reach it.",
            "Copy the file of `tasks_access` here, readable to the task's user alone, or run executors on the "
            "gateway's host.",
        )
    return read_access(path)


def is_unspecified(host: str) -> bool:
    """Whether it stands for every address of a host, so that nobody else gets there by it."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        # a name
        return False


def _is_missing(path: Path) -> bool:
    """False also where that cannot be seen, as without a right to the directory: who reads it is told why."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
