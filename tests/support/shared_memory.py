"""Where tests put shared memory: /dev/shm where there is enough of it, else on disk, as the example does.

Tests that are about shared memory itself, or take little, use /dev/shm all the same.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

ROOM_BYTES = 2**30
"""What tests that run side by side take at most, with some slack; containers have 64 MB unless told otherwise."""


@functools.cache
def room_for_regions() -> Path:
    """A directory for regions."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).total >= ROOM_BYTES
    return shared if roomy else Path(tempfile.gettempdir())
