"""A task's own record of what it pushed and pulled: JSON lines, one per message."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import MessageKind, Party


class Journal:
    """Appends to a file that other processes may append to as well, or does nothing without a file."""

    def __init__(self, path: Path | None, session: str, party: Party) -> None:
        """
        Raises:
            ConfigError: CONFIG_BAD_VALUE when the file cannot be opened.
        """
        self._origin = {"session": session, "party": str(party), "pid": os.getpid()}
        self._fileno = -1 if path is None else _open(path)

    def record(
        self,
        op: Literal["put", "get"],
        kind: MessageKind,
        name: str,
        tag: str,
        bytes_: int,
        seconds: float,
        peers: Iterable[Party],
        *,
        serialised: bool = True,
        missing: int = 0,
    ) -> None:
        """Write one line.

        Args:
            op: pushed or pulled.
            kind: what the message holds.
            name: name of the message.
            tag: its tag.
            bytes_: payload bytes, once, however many peers.
            seconds: what the call took, waiting included.
            peers: destinations or source.
            serialised: False where a slot was sent again without serialising anew.
            missing: payload bytes that did not come, as both tasks have let be.
        """
        if self._fileno < 0:
            return
        line = {
            "time": time.time(),
            "op": op,
            "kind": kind,
            "name": name,
            "tag": tag,
            "bytes": bytes_,
            "seconds": seconds,
            "peers": [str(peer) for peer in peers],
            "serialised": serialised,
            **({"missing": missing} if missing else {}),
            **self._origin,
        }
        # one write to a file opened for appending: lines of several processes do not mix
        os.write(self._fileno, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file; later records are dropped."""
        if self._fileno >= 0:
            os.close(self._fileno)
            self._fileno = -1


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"key 'journal' has the value {str(path)!r}: {error.strerror}.",
            "Name a file in a directory that this task may write to.",
        ) from error
