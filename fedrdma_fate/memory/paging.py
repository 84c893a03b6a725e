"""Advice to the kernel about pages that older kernels and Python's mmap module do not name."""

from __future__ import annotations

import mmap

MADV_POPULATE_READ = 22
"""Map the pages of a range for reading, without a fault per page (Linux 5.14)."""
MADV_POPULATE_WRITE = 23
"""Allocate and map the pages of a range for writing (Linux 5.14)."""


def advise(mapping: mmap.mmap, advice: int, start: int = 0, length: int | None = None) -> bool:
    """Give advice on [start, start + length) of a mapping; start is a multiple of the page size.

    Returns:
        Whether the kernel took it. Advice only makes things faster, so nobody need look.
    """
    try:
        mapping.madvise(advice, start, len(mapping) - start if length is None else length)
    except OSError:
        return False
    return True
