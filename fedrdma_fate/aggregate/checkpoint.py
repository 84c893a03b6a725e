"""Finished sums on disk: how one lies in its file, and how to read it.

`<time>-<random>.sum` has the planes of a sum and a footer, as an update has (`wire/summand.py`): who is in it, the sum
of the weights, the shapes. `<same name>.json` says of which messages it is.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedrdma_fate.wire.summand import Summand, decode_footer, encode_footer, planes_of

_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.(sum|json)(\.part)?")
"""Of files that are ours to remove."""

_UNFINISHED = ".part"
"""Behind the name of a file that is being written; one that stays is of a gateway that was killed."""

_PIECE_BYTES = 8 * 1024 * 1024
"""Written at once: between two pieces a writer sees whether it is to stop."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A sum that was read.

    Attributes:
        arrays: of the parameters, float64: the sum of value times weight of each party.
        weight: the sum of the weights; None where the parties sent none.
        parties: whose updates are in it.
        of: session, name, tag, destination and order of what was summed.
    """

    arrays: list[Any]
    weight: float | None
    parties: list[str]
    of: dict[str, str]


class StoppedError(Exception):
    """It was to stop before all was written."""


def write(
    directory: Path, planes: memoryview, summand: Summand, of: Mapping[str, str], kept: int, stop: threading.Event
) -> Path:
    """Write a sum, so that it is there whole or not at all, and remove the oldest beyond so many.

    Args:
        directory: where; made where there is none, for this user alone.
        planes: of the sum.
        summand: what describes them.
        of: session, name, tag, destination and order of what was summed.
        kept: how many sums stay.
        stop: set when the planes may not be looked at any more.

    Raises:
        OSError: it cannot be written.
        StoppedError: `stop` was set.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"
    path = directory / f"{name}.sum"
    _write(directory / f"{name}.json", memoryview(json.dumps(dict(of), indent=1).encode()), b"", stop)
    try:
        _write(path, planes, encode_footer(summand), stop)
    except BaseException:
        (directory / f"{name}.json").unlink(missing_ok=True)
        raise
    _remove_oldest(directory, kept)
    return path


def read(path: Path) -> Checkpoint:
    """Read a sum.

    Raises:
        OSError: it cannot be read.
        NoSummandError: it is none.
    """
    # the gateway, which imports this file, has no NumPy
    import numpy as np

    body = path.read_bytes()
    summand, first = decode_footer(body, len(body))
    planes = [np.frombuffer(body, np.float64, plane.items, first + plane.offset) for plane in planes_of(summand.shapes)]
    arrays = [
        (fraction + whole).reshape(shape)
        for fraction, whole, shape in zip(planes[::2], planes[1::2], summand.shapes, strict=True)
    ]
    of = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=dict[str, str])
    return Checkpoint(arrays, summand.weight, [str(party) for party in summand.parties], of)


def _write(path: Path, body: memoryview, end: bytes, stop: threading.Event) -> None:
    unfinished = path.with_name(f"{path.name}{_UNFINISHED}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with io.FileIO(descriptor, "wb") as file:
            for at in range(0, len(body), _PIECE_BYTES):
                if stop.is_set():
                    raise StoppedError
                _write_all(file, body[at : at + _PIECE_BYTES])
            if stop.is_set():
                # while the last piece was written, somebody else may have had what it lay in
                raise StoppedError
            _write_all(file, memoryview(end))
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _write_all(file: io.FileIO, left: memoryview) -> None:
    while left:
        left = left[file.write(left) :]


def _remove_oldest(directory: Path, kept: int) -> None:
    names = sorted(entry.name for entry in directory.iterdir() if _NAME.fullmatch(entry.name))
    sums = sorted({name.partition(".")[0] for name in names})
    for old in sums[: max(0, len(sums) - kept)]:
        for ending in (".sum", ".json"):
            for name in (f"{old}{ending}", f"{old}{ending}{_UNFINISHED}"):
                with contextlib.suppress(OSError):
                    (directory / name).unlink(missing_ok=True)
