"""What threads of a process free goes back to the kernel, or to the next thread."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

PROGRAM = """
import sys, threading
from fedrdma_fate.memory.heap import keep_little
if sys.argv[1] == "keeps little":
    keep_little()

def resident_kib():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1])

THREADS = 8
left = []
all_there, turn = threading.Barrier(THREADS), threading.Lock()

def work():
    # all live at a time, so that each would get a heap of its own; and use memory one after the other
    all_there.wait()
    with turn:
        blocks = [bytes([number]) * 60_000 for number in range(100)]
        # the last one keeps the top of its heap from being given back
        left.append(blocks[-1])
        del blocks
    all_there.wait()

threads = [threading.Thread(target=work) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident_kib())
"""


def resident_kib(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, cwd=ROOT, timeout=100
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_heaps_of_threads_do_not_keep_what_was_freed() -> None:
    assert resident_kib("keeps little") < 0.6 * resident_kib("as it comes")
