"""Compacting a journal leaves no memory with the threads that did it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COMPACT = """
import os, sys
from fedrdma_fate.memory.journal_file import JournalFile

def private():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

journal = JournalFile(os.open(sys.argv[1], os.O_RDONLY), [b"first"])
before = private()
for _ in range(3):
    while not journal.wants_compacting:
        journal.append(bytes(20_000))
    journal.compact(lambda bodies: [b"left"] if sum(map(len, bodies)) else [])
print(private() - before)
"""


def test_a_journal_that_was_compacted_leaves_no_memory_taken(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COMPACT, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    # a file has 16 MiB then
    assert int(done.stdout) < 4096
