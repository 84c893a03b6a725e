"""Tasks of other users of the host: served where they are listed, each for its parties, and nobody else."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient, ask_status
from fedrdma_fate.client.probe import ask_probe
from fedrdma_fate.client.protocol import AskStatus
from fedrdma_fate.client.rpc import call_once
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.tasks import user_sessions
from fedrdma_fate.gateway.tasks.users import TaskUsers
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, GatewayError
from tests.support.sites import InThread, Site, Sites, eventually, linked_sites, party

NOBODY = 65534
"""A user that has nothing to do with the gateway's."""
A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1", "arbiter:1"], "b": ["host:2"]}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextlib.contextmanager
def gateways(directory: Path, users: list[dict[str, Any]]) -> Iterator[Sites]:
    with tempfile.TemporaryDirectory(prefix="fr") as sockets:
        # other users get as far as the socket
        Path(sockets).chmod(0o755)
        sites = linked_sites(LAYOUT, directory, Path(sockets))
        sites["a"].config["task_users"] = users
        with Sites.running(sites, InThread()) as running:
            running.wait_until_connected()
            yield running


def as_user(user: int, act: Callable[[], object]) -> str:
    """What it says in a process of another user: `done`, or the code of the error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgid(user)
            os.setuid(user)
            act()
            said = "done"
        except GatewayError as error:
            said = error.code.value
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def push(site: Site, source: Any, name: str) -> None:
    with GatewayClient(site.address, "s", source, connect_timeout=5.0) as client:
        lease = client.lease(1 << 20)
        lease.buffer[:] = b"x" * (1 << 20)
        lease.commit(name, "t", [B], "object")


@needs_root
def test_a_task_of_another_user_is_served_where_it_is_listed_and_for_its_parties_only(tmp_path: Path) -> None:
    with gateways(tmp_path, [{"user": str(NOBODY), "parties": ["guest:1"]}]) as sites, sites["b"].client() as b:
        assert as_user(NOBODY, lambda: push(sites["a"], A, "m")) == "done"
        assert bytes(b.get("m", "t", A, timeout=20).buffer) == b"x" * (1 << 20)
        assert as_user(NOBODY, lambda: push(sites["a"], party("arbiter:1"), "m")) == ErrorCode.WRONG_PARTY.value
        assert as_user(NOBODY, lambda: ask_status(sites["a"].address)) == "done"
        assert as_user(NOBODY - 1, lambda: push(sites["a"], A, "n")) == ErrorCode.USER_REFUSED.value
        # our own goes on as before
        push(sites["a"], party("arbiter:1"), "own")
        assert len(b.get("own", "t", party("arbiter:1"), timeout=20).buffer) == 1 << 20


@needs_root
def test_a_task_of_another_user_receives_what_it_cannot_open_by_any_path(tmp_path: Path) -> None:
    with gateways(tmp_path, [{"user": str(NOBODY), "parties": ["1"]}]) as sites:
        with sites["b"].client() as b:
            lease = b.lease(1 << 20)
            lease.buffer[:] = b"y" * (1 << 20)
            lease.commit("m", "t", [A], "object")

        def pull() -> None:
            with GatewayClient(sites["a"].address, "s", A, connect_timeout=5.0) as client:
                received = client.get("m", "t", B, timeout=20)
                assert bytes(received.buffer) == b"y" * (1 << 20)
                # its own descriptors lead to nothing that it could open for writing
                for link in Path("/proc/self/fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        if os.readlink(link).startswith("/memfd:fedrdma-receive"):
                            with contextlib.suppress(PermissionError):
                                os.close(os.open(link, os.O_RDWR))
                                raise AssertionError(f"{link} can be opened for writing")

        assert as_user(NOBODY, pull) == "done"


@needs_root
def test_a_task_that_comes_back_as_another_user_is_refused_and_its_message_waits_for_the_right_one(
    tmp_path: Path,
) -> None:
    with gateways(tmp_path, [{"user": str(NOBODY), "parties": ["guest:1"]}]) as sites:

        def pull() -> None:
            with GatewayClient(sites["a"].address, "s", A, connect_timeout=5.0) as client:
                assert bytes(client.get("m", "t", B, timeout=20).buffer) == b"y" * (1 << 20)

        with sites["b"].client() as b:
            lease = b.lease(1 << 20)
            lease.buffer[:] = b"y" * (1 << 20)
            lease.commit("m", "t", [A], "object")
        # it was there before, as the user that is listed
        assert as_user(NOBODY, lambda: push(sites["a"], A, "before")) == "done"
        assert as_user(NOBODY - 1, pull) == ErrorCode.USER_REFUSED.value
        assert as_user(NOBODY, pull) == "done"


@needs_root
def test_where_nobody_else_is_listed_another_user_cannot_even_connect(tmp_path: Path) -> None:
    with gateways(tmp_path, []) as sites:
        said = as_user(NOBODY, lambda: ask_status(sites["a"].address))
        assert said == ErrorCode.GATEWAY_UNREACHABLE.value
        path = Path(sites["a"].address.removeprefix("unix://"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@needs_root
def test_another_user_is_not_shown_transfers_of_parties_that_are_not_its_own(tmp_path: Path) -> None:
    with (
        gateways(tmp_path, [{"user": str(NOBODY), "parties": ["guest:1"]}]) as sites,
        sites["a"].client(of="arbiter:1") as own,
    ):
        lease = own.lease(1 << 20)
        assert lease.commit_unfinished("secret plans", "t", [B], "object") == "committed"
        eventually(lambda: sites["a"].status()["transfers"])

        def look() -> None:
            assert ask_status(sites["a"].address)["transfers"] == []

        assert as_user(NOBODY, look) == "done"
        lease.release()


@needs_root
def test_another_user_joins_sessions_up_to_a_limit_and_again_when_it_has_left_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_sessions, "MOST_SESSIONS_OF_A_USER", 3)
    with gateways(tmp_path, [{"user": str(NOBODY), "parties": ["guest:1"]}]) as sites:

        def join(*sessions: str, leave: bool = False) -> str:
            def act() -> None:
                for session in sessions:
                    with GatewayClient(sites["a"].address, session, A, connect_timeout=5.0) as client:
                        if leave:
                            client.leave()

            return as_user(NOBODY, act)

        assert join("1", "2", "3") == "done"
        assert join("2") == "done"
        assert join("4") == ErrorCode.LIMIT_REACHED.value
        assert join("2", leave=True) == "done"
        assert join("4") == "done"
        # our own are not counted
        for session in ("5", "6", "7", "8"):
            GatewayClient(sites["a"].address, session, A, connect_timeout=5.0).close()


@needs_root
def test_a_socket_that_another_user_has_put_there_is_not_talked_to() -> None:
    with tempfile.TemporaryDirectory(prefix="fr") as shared:
        Path(shared).chmod(0o1777)
        path = Path(shared) / "gateway.sock"
        with socket.socket(socket.AF_UNIX) as listening:
            os.seteuid(NOBODY)
            try:
                listening.bind(str(path))
                listening.listen()
            finally:
                os.seteuid(0)
            for ask in (
                lambda: ask_status(f"unix://{path}"),
                lambda: GatewayClient(f"unix://{path}", "s", A, connect_timeout=0.0),
            ):
                with pytest.raises(GatewayError, match=f"process of user {NOBODY}") as refused:
                    ask()
                assert refused.value.code is ErrorCode.USER_REFUSED
            # where the directory is that user's as well, it is that user's gateway
            os.chown(shared, NOBODY, -1)
            with pytest.raises(GatewayError) as silent:
                call_once(path, AskStatus(), 0.2)
            assert silent.value.code is ErrorCode.GATEWAY_UNREACHABLE


@needs_root
def test_another_user_cannot_have_the_path_to_a_peer_measured(tmp_path: Path) -> None:
    with gateways(tmp_path, [{"user": str(NOBODY), "parties": ["1"]}]) as sites:
        said = as_user(NOBODY, lambda: ask_probe(sites["a"].address, "b", 1 << 20, 1.0))
        assert said == ErrorCode.USER_REFUSED.value


def configured(user: str, parties: list[str]) -> TaskUsers:
    users = [{"user": user, "parties": parties}]
    return TaskUsers.of_config(parse_config({"site": "a", "parties": ["1"], "security": "off", "task_users": users}))


def test_a_user_is_named_by_name_or_number_and_has_to_be_one_of_the_host() -> None:
    assert configured(pwd.getpwuid(os.geteuid()).pw_name, ["guest:1"]).admits(os.geteuid())
    assert configured("4711", ["1"]).admits(4711)
    assert not configured("4711", ["1"]).admits(4712)
    with pytest.raises(ConfigError, match="no-such-user"):
        configured("no-such-user", ["1"])


@pytest.mark.parametrize(("user", "parties"), [("4711", ["2"]), ("", ["1"])])
def test_a_user_is_listed_for_parties_that_are_served_here(user: str, parties: list[str]) -> None:
    with pytest.raises(ConfigError, match="task_users"):
        configured(user, parties)
