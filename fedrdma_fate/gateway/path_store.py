"""What was learnt of the paths to the peers, kept in a small file across restarts of the gateway."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from fedrdma_fate.core.path import PathState
from fedrdma_fate.engine.path_memory import KnownPath

logger = logging.getLogger(__name__)

SAVE_SECONDS = 60.0
"""The file is written so often at most, and when the gateway stops."""

LONGEST_AGE_SECONDS = 7 * 86400.0
"""Older knowledge is worth less than a new look."""

_MOST_BYTES = 1 << 20
"""Of a file that is read: a record has some hundred, so there is room for thousands of paths. What is cut off here
cannot be parsed, and is ignored as any other damaged file."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A path, as it is written: seconds, and payload bytes a second; `measured_at` in unix time."""

    peer: str
    transport: str
    bytes_per_second: Annotated[float, msgspec.Meta(gt=0, le=1e13)]
    rtt_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    packet_loss: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None
    measured_at: Annotated[float, msgspec.Meta(gt=0)]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    version: Literal[1]
    site: str
    paths: tuple[_Record, ...]


class PathStore:
    """Belongs to the event loop's thread, but for `write`."""

    def __init__(self, directory: Path | None = None, site: str = "", clock: Callable[[], float] = time.time) -> None:
        """Read the file; one that cannot be used is ignored, and the log says why.

        Args:
            directory: where it lies, None to keep nothing.
            site: whose it is.
            clock: unix time.
        """
        self._site = site
        self._clock = clock
        self._records: dict[tuple[str, str], _Record] = {}
        self._changed = False
        self.file = None if directory is None else directory / f"fedrdma-paths-{_short(site)}.json"
        if self.file is not None:
            self._records = {(record.peer, record.transport): record for record in _read(self.file, site)}

    def recall(self, peer: str, transport: str) -> KnownPath | None:
        """Where a path to this peer may start; None when nothing is known, or it was long ago."""
        record = self._records.get((peer, transport))
        # the clock may have been set back
        if record is None or abs(self._clock() - record.measured_at) > LONGEST_AGE_SECONDS:
            return None
        return KnownPath(PathState(record.bytes_per_second, record.rtt_seconds, record.packet_loss), "remembered")

    def note(self, peer: str, transport: str, known: KnownPath | None) -> None:
        """This is known of a path now; only what transfers have found is kept, where it can be read again."""
        if known is None or known.source != "measured":
            return
        state, before = known.state, self._records.get((peer, transport))
        if before is None or (before.bytes_per_second, before.rtt_seconds, before.packet_loss) != (
            state.rate,
            state.min_rtt,
            state.loss,
        ):
            record = _Record(peer, transport, state.rate, state.min_rtt, state.loss, self._clock())
            try:
                msgspec.json.decode(msgspec.json.encode(record), type=_Record)
            except msgspec.ValidationError as error:
                # a single such record, to which a peer may have brought us, would make the whole file unreadable
                logger.warning("what was found of the path to %s over %s is not kept: %s", peer, transport, error)
                return
            self._records[peer, transport] = record
            self._changed = True

    def pending(self) -> bytes | None:
        """What to `write` now; None when the file is as it should be."""
        if self.file is None or not self._changed:
            return None
        self._changed = False
        return msgspec.json.encode(_Document(1, self._site, tuple(self._records.values())))

    def not_written(self) -> None:
        """A `write` failed: what there is, is pending again."""
        self._changed = True

    def write(self, document: bytes) -> bool:
        """Replace the file, whole or not at all; whether that was possible.

        A failure is logged. May be called on any thread, one at a time.
        """
        assert self.file is not None
        fresh = self.file.with_suffix(".new")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)
            with open(fresh, "xb", opener=_private) as opened:
                opened.write(document)
            os.replace(fresh, self.file)
        except OSError as error:
            logger.warning("what is known of the paths is not kept: cannot write %s: %s", self.file, error.strerror)
            with contextlib.suppress(OSError):
                fresh.unlink()
            return False
        return True


def _short(site: str) -> str:
    """A site may have any name, a file may not."""
    return hashlib.sha256(site.encode()).hexdigest()[:16]


def _private(path: str, flags: int) -> int:
    """For our user alone, and never by a link or a pipe that somebody has put there."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def _read(file: Path, site: str) -> tuple[_Record, ...]:
    try:
        with open(file, "rb", opener=_private) as opened:
            owner = os.fstat(opened.fileno()).st_uid
            if owner not in (os.geteuid(), 0):
                raise PermissionError(f"user {owner} owns it")
            document = msgspec.json.decode(opened.read(_MOST_BYTES), type=_Document)
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        logger.warning("ignored %s, which says what was known of the paths: %s", file, error)
        return ()
    if document.site != site:
        logger.warning("ignored %s, which is of the site %r", file, document.site)
        return ()
    return document.paths
