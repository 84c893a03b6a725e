"""Advice to the kernel about pages that older kernels and Python's mmap module do not name."""

from __future__ import annotations

import ctypes
import mmap
import threading

MADV_POPULATE_READ = 22
"""Map the pages of a range for reading, without a fault per page (Linux 5.14)."""
MADV_POPULATE_WRITE = 23
"""Allocate and map the pages of a range for writing (Linux 5.14)."""

_BACKGROUND_BYTES = 64 * 2**20
"""Shorter mappings are populated at once: a thread is for those that would keep the caller waiting."""


def advise(mapping: mmap.mmap, advice: int, start: int = 0, length: int | None = None) -> bool:
    """Give advice on [start, start + length) of a mapping; start is a multiple of the page size.

    Returns:
        Whether the kernel took it. Where advice only makes things faster, nobody need look.
    """
    try:
        mapping.madvise(advice, start, len(mapping) - start if length is None else length)
    except OSError:
        return False
    return True


def populate_for_reading(mapping: mmap.mmap) -> None:
    """Map all pages of a writable mapping for reading: 20 to 45 ms a GB, of a large one in the background.

    Whoever reads meanwhile finds the pages that are mapped already, and faults the others in. The mapping lives until
    it is done, even if nobody wants it any more.
    """
    if len(mapping) < _BACKGROUND_BYTES:
        advise(mapping, MADV_POPULATE_READ)
        return
    # Python's own madvise keeps the interpreter's lock
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def populate() -> None:
        first_byte = ctypes.c_char.from_buffer(mapping)
        madvise(ctypes.addressof(first_byte), len(mapping), MADV_POPULATE_READ)

    threading.Thread(target=populate, name="populate", daemon=True).start()
