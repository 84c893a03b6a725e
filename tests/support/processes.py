"""Processes that tests look at while these come and go."""

from __future__ import annotations

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Of its command; none where it has ended."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
