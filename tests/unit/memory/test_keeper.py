"""A keeper hands what it holds to the next gateway of its directory, and ends by itself."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from fedrdma_fate import memory_files
from fedrdma_fate.memory.keeper import SOCKET_NAME, Keeper
from fedrdma_fate.unix_sockets import address_of
from tests.support.sites import eventually

CONTENT = b"what a gateway had"


@pytest.fixture
def memory() -> int:
    fileno = memory_files.make("kept")
    os.write(fileno, CONTENT)
    memory_files.seal(fileno)
    return fileno


def is_gone(directory: Path) -> bool:
    """Whether nobody keeps anything there."""
    with socket.socket(socket.AF_UNIX) as probe, address_of(directory / SOCKET_NAME) as address:
        try:
            probe.connect(address)
        except OSError:
            return True
        return False


def test_the_next_gateway_gets_the_very_same_memory(tmp_path: Path, memory: int) -> None:
    Keeper.start(tmp_path, 30.0, {"region": memory}).leave()
    inode = os.fstat(memory).st_ino
    os.close(memory)
    taken = Keeper.take_over(tmp_path)
    assert taken is not None
    keeper, held = taken
    assert list(held) == ["region"]
    assert os.fstat(held["region"]).st_ino == inode
    assert os.pread(held["region"], 100, 0) == CONTENT
    memory_files.check(held["region"], len(CONTENT))
    os.close(held["region"])
    # and the one after it, should that be killed as well
    keeper.leave()
    again = Keeper.take_over(tmp_path)
    assert again is not None
    assert os.pread(again[1]["region"], 100, 0) == CONTENT
    os.close(again[1]["region"])
    again[0].end()
    eventually(lambda: is_gone(tmp_path))


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """More than select() knows are open, so that the next one has a larger number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while (descriptor := os.open("/dev/null", os.O_RDONLY)) <= 1100:
            stack.callback(os.close, descriptor)
        stack.callback(os.close, descriptor)
        yield


@pytest.mark.usefixtures("many_descriptors")
def test_one_that_a_gateway_with_a_thousand_descriptors_starts_keeps_its_memory(tmp_path: Path, memory: int) -> None:
    Keeper.start(tmp_path, 30.0, {"region": memory}).leave()
    taken = Keeper.take_over(tmp_path)
    assert taken is not None
    keeper, held = taken
    os.close(held["region"])
    keeper.end()
    eventually(lambda: is_gone(tmp_path))


def test_one_that_cannot_be_started_does_not_hide_that_of_an_earlier_run(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keeper.start(tmp_path, 30.0, {"region": memory}).leave()
    with monkeypatch.context() as no_more:
        no_more.setattr(subprocess, "Popen", _no_process)
        with pytest.raises(BlockingIOError):
            Keeper.start(tmp_path, 30.0, {"region": memory})
    os.close(memory)
    taken = Keeper.take_over(tmp_path)
    assert taken is not None
    os.close(taken[1]["region"])
    taken[0].end()
    assert [path.name for path in tmp_path.iterdir()] == [SOCKET_NAME]


def _no_process(*_arguments: object, **_more: object) -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_keeper_without_a_gateway_ends_after_its_time(tmp_path: Path, memory: int) -> None:
    before = psutil.Process().children()
    keeper = Keeper.start(tmp_path, 0.2, {"region": memory})
    (process,) = set(psutil.Process().children()) - set(before)
    keeper.leave()
    os.close(memory)
    # not by asking it again and again: who connects is its next gateway, after which it waits anew
    process.wait(10.0)
    assert is_gone(tmp_path)
    assert Keeper.take_over(tmp_path) is None


def test_a_keeper_that_is_told_to_ends_at_once(tmp_path: Path, memory: int) -> None:
    Keeper.start(tmp_path, 30.0, {"region": memory}).end()
    os.close(memory)
    assert is_gone(tmp_path)


def test_where_there_is_none_nothing_is_taken_over(tmp_path: Path) -> None:
    assert Keeper.take_over(tmp_path) is None


@pytest.mark.parametrize(
    "greeting", [b"", b"nonsense", b'{"version": 2, "held": []}', b'{"version": 1, "held": ["a"]}', b'{"version": 1}']
)
def test_a_keeper_that_says_what_is_not_so_is_not_believed(
    tmp_path: Path, greeting: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as listener, address_of(tmp_path / SOCKET_NAME) as address:
        listener.bind(address)
        listener.listen(1)
        child = os.fork()
        if not child:
            connection, _ = listener.accept()
            if greeting:
                connection.send(greeting)
            os._exit(0)
        try:
            assert Keeper.take_over(tmp_path) is None
        finally:
            os.waitpid(child, 0)
    assert "is not kept any more" in caplog.text
