"""A process that holds a gateway's memory while the gateway is being started anew.

A memory file without a name ends with the last process that has it. The keeper is that process where the gateway is
killed: it has copies of its descriptors, and hands them to the next gateway of the same directory. It reads and writes
nothing of what they lead to. It ends when its gateway says so, or when there has been none for long.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fedrdma_fate.memory import keeper_process
from fedrdma_fate.unix_sockets import address_of, close_all, peer_user

logger = logging.getLogger(__name__)

SOCKET_NAME = "keeper"
"""In the directory where the next gateway looks for it."""

NEW_SOCKET_NAME = f"{SOCKET_NAME}.new"
"""As long as it is not there: until then, that of an earlier run is found."""

_ANSWER_SECONDS = 5.0
"""For a keeper that is there, which answers at once."""

_MOST_GREETING_BYTES = 4096
"""Of what a keeper says first: a version, and some names."""

_MOST_DESCRIPTORS = 8
"""That a keeper hands over: it holds three."""


class Keeper:
    """A keeper, as its gateway has it. It notices when this process is gone."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        """Use `start` or `take_over`."""
        self._connection = connection
        self._process = process

    @classmethod
    def start(cls, directory: Path, seconds: float, held: Mapping[str, int]) -> Keeper:
        """Start one that holds copies of these descriptors.

        Args:
            directory: where the next gateway will look for it; nobody else can write there.
            seconds: how long it waits for one.
            held: descriptors, by what they are called.

        Raises:
            OSError: it cannot be started.
        """
        path = directory / NEW_SOCKET_NAME
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        ours, its = socket.socketpair()
        with contextlib.ExitStack() as undo, its, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            undo.callback(ours.close)
            undo.callback(path.unlink, missing_ok=True)
            with address_of(path) as address:
                listener.bind(address)
            listener.listen(1)
            labelled = [f"{label}={descriptor}" for label, descriptor in held.items()]
            program = [sys.executable, "-I", "-S", keeper_process.__file__]
            arguments = [str(its.fileno()), str(listener.fileno()), str(seconds), *labelled]
            process = subprocess.Popen(
                [*program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno(), listener.fileno(), *held.values()],
                # what a terminal sends to its gateway is not meant for it
                start_new_session=True,
            )
            path.rename(directory / SOCKET_NAME)
            undo.pop_all()
        return cls(ours, process)

    @classmethod
    def take_over(cls, directory: Path) -> tuple[Keeper, dict[str, int]] | None:
        """The keeper of an earlier run, and descriptors that it held, which are now the caller's to check and close.

        None where there is none, or it is no keeper of ours.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptors: list[int] = []
        try:
            connection.settimeout(_ANSWER_SECONDS)
            with address_of(directory / SOCKET_NAME) as address:
                connection.connect(address)
            if (user := peer_user(connection)) != os.geteuid():
                raise ValueError(f"it is of user {user}")
            flags = socket.MSG_CMSG_CLOEXEC
            raw, descriptors, _, _ = socket.recv_fds(connection, _MOST_GREETING_BYTES, _MOST_DESCRIPTORS, flags)
            labels = _labels_of(raw)
            if len(labels) != len(descriptors):
                raise ValueError(f"{len(descriptors)} descriptors came for {len(labels)}")
            connection.settimeout(None)
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
                logger.warning("what an earlier run had is not kept any more: %s", error)
            close_all(descriptors)
            connection.close()
            return None
        return cls(connection), dict(zip(labels, descriptors, strict=True))

    @property
    def is_there(self) -> bool:
        """Whether it lives: it says nothing as long as it does, and the kernel ends its connection with it."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def leave(self) -> None:
        """Leave it to the next gateway, as if this one was killed."""
        self._connection.close()
        if self._process is not None:
            # it is nobody's child any more when this process ends, and until then nothing is to be said of it
            self._process.returncode = 0

    def end(self) -> None:
        """Have it end: what it holds is held by this process alone from now on. May be repeated."""
        with contextlib.suppress(OSError):
            self._connection.sendall(b"end")
        self._connection.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ANSWER_SECONDS)


def _labels_of(raw: bytes) -> list[str]:
    """Raises ValueError where it is no greeting of a keeper."""
    greeting = json.loads(raw)
    if not isinstance(greeting, dict) or greeting.get("version") != keeper_process.VERSION:
        raise ValueError("its keeper is of another version")
    labels = greeting.get("held")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError("its keeper does not say what it holds")
    return labels
