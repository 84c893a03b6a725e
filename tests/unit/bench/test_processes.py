"""What counts as memory and CPU of a side: proven on processes that do one thing each."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.bench import processes
from fedrdma_fate.bench.processes import MemoryWatch, anonymous_bytes, cpu_seconds, family

MIB = 2**20
SIZE = 64 * MIB
SLACK = 4 * MIB
GONE = 2**22 + 1
"""Above the largest process id that Linux gives."""

PRELUDE = f"""
import mmap, os, sys, time
SIZE = {SIZE}
def step():
    print(flush=True)
    sys.stdin.readline()
"""


class Child:
    """A Python process that stops at every `step()` of its program."""

    def __init__(self, program: str, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", PRELUDE + textwrap.dedent(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
        )
        self.pid = self._process.pid
        self._await()

    def step(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._await()

    def end(self) -> None:
        self._process.communicate(timeout=10)

    def _await(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "\n", "the child has died"


@contextlib.contextmanager
def child(program: str, directory: Path) -> Iterator[Child]:
    started = Child(program, directory)
    try:
        yield started
    finally:
        started.end()


def growth(program: str, directory: Path) -> int:
    """How much the watch sees between the first and the second step of a program."""
    with child(program, directory) as one:
        watch = MemoryWatch([[one.pid]], interval=0.001)
        with watch:
            one.step()
        return watch.growth[0]


def near_size(seen: int) -> bool:
    return abs(seen - SIZE) < SLACK


@pytest.fixture
def shared_file(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.write_bytes(b"x" * SIZE)
    return path


def test_a_copy_of_the_payload_is_seen(tmp_path: Path) -> None:
    seen = growth("payload = b'x' * SIZE; step(); copy = bytearray(payload); step()", tmp_path)
    assert near_size(seen)


def test_a_copy_that_is_gone_again_is_seen(tmp_path: Path) -> None:
    program = "payload = b'x' * SIZE; step(); copy = bytearray(payload); time.sleep(0.3); del copy; step()"
    assert near_size(growth(program, tmp_path))


def test_what_was_there_before_is_not_counted(tmp_path: Path) -> None:
    assert growth("payload = b'x' * SIZE; step(); sum(payload); step()", tmp_path) < SLACK


def test_reading_and_writing_shared_memory_is_not_counted(shared_file: Path) -> None:
    program = """
        shared = mmap.mmap(os.open("shared", os.O_RDWR), SIZE)
        step()
        for at in range(0, SIZE, 4096): shared[at] = 1
        step()
    """
    assert growth(program, shared_file.parent) < SLACK


def test_reading_a_private_mapping_of_a_slot_is_not_counted(shared_file: Path) -> None:
    program = """
        private = mmap.mmap(os.open("shared", os.O_RDONLY), SIZE, access=mmap.ACCESS_COPY)
        step()
        total = sum(private[at] for at in range(0, SIZE, 4096))
        step()
    """
    assert growth(program, shared_file.parent) < SLACK


def test_pages_copied_on_write_are_counted(shared_file: Path) -> None:
    program = """
        private = mmap.mmap(os.open("shared", os.O_RDONLY), SIZE, access=mmap.ACCESS_COPY)
        step()
        for at in range(0, SIZE, 4096): private[at] = 1
        step()
    """
    assert near_size(growth(program, shared_file.parent))


def test_memory_of_a_child_process_is_counted(tmp_path: Path) -> None:
    program = """
        step()
        if os.fork() == 0:
            copy = b"x" * SIZE
            time.sleep(0.3)
            os._exit(0)
        os.wait()
        step()
    """
    assert near_size(growth(program, tmp_path))


def test_groups_are_watched_apart(tmp_path: Path) -> None:
    idle = "step(); step()"
    busy = "step(); copy = b'x' * SIZE; step()"
    with child(idle, tmp_path) as one, child(busy, tmp_path) as other:
        watch = MemoryWatch([[one.pid], [other.pid]], interval=0.001)
        with watch:
            one.step()
            other.step()
        assert watch.growth[0] < SLACK
        assert near_size(watch.growth[1])


def test_a_process_that_is_gone_has_no_memory_and_no_cpu_time() -> None:
    assert anonymous_bytes(GONE) == 0
    assert cpu_seconds([GONE]) == 0.0
    assert family([GONE]) == []


def test_cpu_time_of_a_process_its_children_and_those_it_has_reaped_is_counted(tmp_path: Path) -> None:
    program = """
        def burn(seconds):
            end = time.process_time() + seconds
            while time.process_time() < end: pass
        step()
        burn(0.05)
        if os.fork() == 0:
            burn(0.05)
            os._exit(0)
        os.wait()
        going = os.fork()
        if going == 0:
            burn(0.05)
            os.write(1, b"\\n")
            time.sleep(60)
        sys.stdin.readline()
        os.kill(going, 9)
        os.wait()
    """
    with child(program, tmp_path) as one:
        before = cpu_seconds([one.pid])
        one.step()
        assert 0.14 <= cpu_seconds([one.pid]) - before < 1.0


def test_waiting_costs_no_cpu_time(tmp_path: Path) -> None:
    with child("step(); time.sleep(0.2); step()", tmp_path) as one:
        before = cpu_seconds([one.pid])
        one.step()
        assert cpu_seconds([one.pid]) - before < 0.1


def test_a_family_is_the_process_and_all_its_descendants(tmp_path: Path) -> None:
    program = """
        if os.fork() == 0:
            if os.fork() == 0:
                step()
                os._exit(0)
            os.wait()
            os._exit(0)
        os.wait()
    """
    with child(program, tmp_path) as one:
        members = family([one.pid])
        assert len(members) == 3
        assert one.pid in members


def test_a_process_one_of_whose_threads_ends_while_it_is_looked_at_is_there_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thread, children in (("7/task/7", "8 "), ("8/task/8", ""), ("7/task/9", None)):
        (tmp_path / thread).mkdir(parents=True)
        if children is not None:
            (tmp_path / thread / "children").write_text(children)
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert sorted(family([7])) == [7, 8]
