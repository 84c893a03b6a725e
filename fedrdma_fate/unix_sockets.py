"""Addresses of unix sockets whose path may be of any length.

The kernel takes few bytes of path. A socket whose path has more is reached through a descriptor of its directory, under
/proc/self/fd; it lies where it was asked for all the same, so both ends need not agree on how they name it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

LONGEST_DIRECT_BYTES = 107
"""Of a path that the kernel takes as it is: `sun_path` has 108 bytes (unix(7)), the last of them zero."""

LONGEST_NAME_BYTES = 80
"""Of a socket's file name: `/proc/self/fd/` and a descriptor of up to eleven digits leave that much, and one slash."""

_DESCRIPTORS = "/proc/self/fd"
"""Where Linux shows a process its own open files, directories among them."""


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """What to `bind` or `connect` to for the socket at `path`; it holds until the context is left.

    Raises:
        OSError: its directory is not there, or its file name is longer than LONGEST_NAME_BYTES.
    """
    if b"\0" in os.fsencode(path):
        raise OSError(errno.EINVAL, "a path has no zero bytes", str(path))
    if len(os.fsencode(path)) <= LONGEST_DIRECT_BYTES:
        yield str(path)
        return
    if not name_fits(path):
        raise OSError(errno.ENAMETOOLONG, f"its file name has more than {LONGEST_NAME_BYTES} bytes", str(path))
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_DESCRIPTORS}/{directory}/{path.name}"
    finally:
        os.close(directory)


def name_fits(path: Path) -> bool:
    """Whether a socket of this file name can be reached wherever it lies."""
    return len(os.fsencode(path.name)) <= LONGEST_NAME_BYTES
