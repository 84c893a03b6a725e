"""Addresses of unix sockets: a path of any length and with any characters is bound to and connected to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fedrdma_fate import unix_sockets
from fedrdma_fate.unix_sockets import LONGEST_DIRECT_BYTES, LONGEST_NAME_BYTES, address_of


def directory_of(parent: Path, length: int) -> Path:
    """A directory below `parent` whose path has at least `length` bytes, spaces among them."""
    while len(os.fsencode(parent)) < length:
        parent /= "a long name " * 4
    parent.mkdir(parents=True)
    return parent


def greet(path: Path) -> bytes:
    """What comes through a socket at this path, from one end to the other."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as dialler:
        with address_of(path) as address:
            listener.bind(address)
        listener.listen()
        with address_of(path) as address:
            dialler.connect(address)
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"hello")
        return dialler.recv(5)


@pytest.mark.parametrize("length", [0, LONGEST_DIRECT_BYTES, 1000, 3000])
def test_two_ends_meet_at_a_path_of_any_length_and_the_socket_lies_there(tmp_path: Path, length: int) -> None:
    path = directory_of(tmp_path / "here", length) / "a socket"
    assert greet(path) == b"hello"
    assert path.is_socket()


def test_the_longest_names_fit_whatever_the_path_before_them(tmp_path: Path) -> None:
    directory = directory_of(tmp_path / "here", 200)
    assert greet(directory / ("x" * LONGEST_NAME_BYTES)) == b"hello"
    with pytest.raises(OSError, match="file name has more than 80 bytes"), address_of(directory / ("x" * 81)):
        pass


def test_a_path_is_taken_as_it_is_up_to_the_kernel_s_limit_in_bytes_not_characters() -> None:
    # nothing is made there
    directory = Path("/usr/share/doc/../doc/../doc/")
    fill = LONGEST_DIRECT_BYTES - len(os.fsencode(directory)) - 1
    exact = directory / ("x" * fill)
    with address_of(exact) as address:
        assert address == str(exact)
    beyond = directory / ("x" * (fill - 1) + "é")
    assert len(str(beyond)) == LONGEST_DIRECT_BYTES
    with address_of(beyond) as address:
        assert address != str(beyond)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    path = directory_of(tmp_path / "here", 200) / "s"
    before = len(os.listdir("/proc/self/fd"))
    greet(path)
    with pytest.raises(ConnectionRefusedError), address_of(path) as address:
        socket.socket(socket.AF_UNIX).connect(address)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_is_not_there_is_told_by_its_own_path(tmp_path: Path) -> None:
    absent = tmp_path / ("x" * 200) / "s"
    with pytest.raises(FileNotFoundError) as error, address_of(absent):
        pass
    assert Path(error.value.filename) == absent.parent


def test_a_path_with_a_zero_byte_is_refused_not_taken_for_another_kind_of_address() -> None:
    with pytest.raises(OSError, match="zero bytes"), address_of(Path("\0abstract")):
        pass


def test_without_proc_a_long_path_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets, "_DESCRIPTORS", "/no-proc")
    with pytest.raises(FileNotFoundError):
        greet(directory_of(tmp_path / "here", 200) / "s")
