"""The file by which tasks on other hosts get to their gateway: made, read, and refused where it will not do."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from fedrdma_fate.cli.main import main
from fedrdma_fate.client.access import TaskAccess, access_or_none, read_access
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.security.gateway_proof import secured
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, GatewayError
from tests.support.certificates import TestAuthority
from tests.support.task_port import SECRET, write_access

ACCESS = TaskAccess("10.0.0.5:9372", "a", SECRET, "PEM")
SITE = {"site": "a", "parties": ["1"]}


def code_of(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        read_access(path)
    return raised.value.code.value


def test_a_file_is_read_as_it_was_written_and_its_secret_stands_in_no_log(tmp_path: Path) -> None:
    write_access(ACCESS, tmp_path / "access.json")
    found = read_access(tmp_path / "access.json")
    assert found == ACCESS
    assert found.host_and_port == ("10.0.0.5", 9372)
    assert SECRET not in f"{found} {found!r}"


def test_a_secret_is_not_sent_where_a_computing_engine_sends_what_it_is_given() -> None:
    with pytest.raises(TypeError, match="stays in its file") as raised:
        pickle.dumps(ACCESS)
    assert SECRET not in str(raised.value)
    assert msgspec.structs.replace(ACCESS, site="b").secret == SECRET


def test_a_file_that_cannot_be_looked_at_is_no_missing_one(tmp_path: Path) -> None:
    # as a directory that its user may not enter
    unseen = tmp_path / ("x" * 300)
    with pytest.raises(ConfigError) as raised:
        access_or_none(unseen, unseen)
    assert raised.value.code is ErrorCode.TLS_FILE_UNUSABLE


@pytest.mark.parametrize("authorities", ["", "PEM", "\u00e9"], ids=["none", "no-pem", "no-ascii"])
def test_authorities_that_are_none_are_no_gateway_that_does_not_answer(authorities: str) -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(ConfigError) as raised:
        secured(one, authorities, "a")
    assert raised.value.code is ErrorCode.CONFIG_BAD_VALUE


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    write_access(ACCESS, path)
    path.chmod(0o644)
    assert code_of(path) == ErrorCode.KEY_EXPOSED.value


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        msgspec.json.encode(msgspec.structs.replace(ACCESS, secret="short")),
        msgspec.json.encode(msgspec.structs.replace(ACCESS, secret="x" * 257)),
        msgspec.json.encode(msgspec.structs.replace(ACCESS, address="10.0.0.5")),
        msgspec.json.encode(msgspec.structs.replace(ACCESS, address="10.0.0.5:99999")),
        msgspec.json.encode(msgspec.structs.replace(ACCESS, address="0.0.0.0:9372")),
        msgspec.json.encode(msgspec.structs.replace(ACCESS, address="[::]:9372")),
        msgspec.json.encode(msgspec.structs.replace(ACCESS, address="a" * 64 + ".example:9372")),
        msgspec.json.encode({**msgspec.to_builtins(ACCESS), "further": 1}),
        b" " * (1024 * 1024 + 1),
    ],
    ids=[
        *("empty", "no-text", "nested", "no-keys", "short", "long", "no-port", "no-such-port"),
        *("any-address", "any-address-6", "no-host", "further", "too-much"),
    ],
)
def test_what_is_no_such_file_is_refused_without_telling_what_it_holds(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "access.json"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_access(path)
    assert raised.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert SECRET not in str(raised.value)


def test_a_task_takes_the_socket_where_it_is_else_the_file_else_it_is_told(tmp_path: Path) -> None:
    here, nowhere = tmp_path / "access.json", tmp_path / "nowhere"
    write_access(ACCESS, here)
    assert access_or_none(tmp_path, here) is None
    assert access_or_none(nowhere, here) == ACCESS
    with pytest.raises(GatewayError) as raised:
        access_or_none(nowhere, nowhere)
    assert raised.value.code is ErrorCode.NO_TASK_ACCESS


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"security": "off", "listen": {"tasks": "127.0.0.1:1"}, "tasks_access": "x"}, "listen.tasks"),
        ({"listen": {"tasks": "127.0.0.1:1"}}, "tasks_access"),
        ({"listen": {"tasks": "no-port"}, "tasks_access": "x"}, "listen.tasks"),
    ],
    ids=["without-tls", "without-file", "no-address"],
)
def test_a_port_for_other_hosts_needs_certificates_and_the_file(settings: dict[str, object], key: str) -> None:
    tls = {"certificate": "a.pem", "key": "a.key", "authorities": ["ca.pem"]}
    with pytest.raises(ConfigError, match=key):
        parse_config({**SITE, "tls": tls, **settings})


def test_the_command_makes_a_private_file_with_a_secret_of_its_own_and_overwrites_none(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    authority.issue("a")
    config = tmp_path / "gateway.json"
    config.write_bytes(msgspec.json.encode({**SITE, "tls": authority.settings("a")}))
    made = [tmp_path / "one.json", tmp_path / "two.json"]
    arguments = ["--config", str(config), "--address", "10.0.0.5:9372"]
    for path in made:
        assert CliRunner().invoke(main, ["access", str(path), *arguments]).exit_code == 0
    one, two = map(read_access, made)
    assert (one.site, one.address, one.authorities) == ("a", "10.0.0.5:9372", authority.path.read_text())
    assert one.secret != two.secret

    again = CliRunner().invoke(main, ["access", str(made[0]), *arguments])

    assert again.exit_code != 0
    assert read_access(made[0]) == one


def made_by_command(directory: Path, *listed: TestAuthority) -> tuple[int, str, Path]:
    """What the command says at a site `a` of the first authority, where these are listed."""
    config, made = directory / "gateway.json", directory / "access.json"
    tls = listed[0].settings("a", authorities=[str(each.path) for each in listed[1:]])
    config.write_bytes(msgspec.json.encode({**SITE, "tls": tls}))
    ended = CliRunner().invoke(main, ["access", str(made), "--config", str(config), "--address", "10.0.0.5:9372"])
    return ended.exit_code, ended.output, made


def test_authorities_of_peers_do_not_vouch_for_the_gateway_to_its_tasks(tmp_path: Path) -> None:
    own, peers = TestAuthority(tmp_path, "own"), TestAuthority(tmp_path, "peers")
    own.issue("a")
    code, _, made = made_by_command(tmp_path, own, peers, own)
    assert code == 0
    assert read_access(made).authorities == own.path.read_text()


def test_no_file_is_made_by_which_tasks_would_not_believe_their_gateway(tmp_path: Path) -> None:
    own, peers = TestAuthority(tmp_path, "own"), TestAuthority(tmp_path, "peers")
    own.issue("a")
    code, said, made = made_by_command(tmp_path, own, peers)
    assert code != 0
    assert ErrorCode.CONFIG_BAD_VALUE.value in said
    assert not made.exists()
