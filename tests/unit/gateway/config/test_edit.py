"""A peer's settings are written into a configuration, and nothing else of it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from fedrdma_fate.gateway.config.edit import edit_peer, set_peer_settings, snippet
from fedrdma_fate.gateway.config.schema import load_config
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from tests.support.repository import ROOT

FOUND = {"chunk": "8MiB", "link_enable": "always", "rate": "1.2e+10"}
HEAD = 'site: a\nparties: ["1"]\nsecurity: "off"\n'


def write(tmp_path: Path, peers: str, head: str = HEAD) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_bytes((head + peers).encode())
    return path


def settings_of(path: Path, site: str) -> tuple[int | None, str | None, float | None]:
    peer = next(peer for peer in load_config(path).peers if peer.site == site)
    return (peer.chunk.size_bytes if peer.chunk else None, peer.link_enable, peer.rate)


@pytest.mark.parametrize(
    "peers",
    [
        "peers:\n  - site: b\n    parties: ['2']\n",
        "peers:\n  - parties: ['2']\n    site: b",
        "peers:\n- # the bank\n  site: 'b'   # its name\n  # who\n  parties: ['2']\n\n# the end\n",
        "peers: [{site: b, parties: ['2']}]\n",
        "peers:\n  - {parties: ['2'], site: b}  # short\ntrace: null\n",
        "peers:\n  - site: b\n    parties: ['2']\n    chunk: 1MiB   # small\n    rate:\n    link_enable: null\n",
        "peers:\n  - {site: b, parties: ['2'], chunk: auto, rate: 5}\n",
        "peers:\n  - site: c\n    parties: ['3']\n    chunk: 1MiB\n  - site: b\n    parties: ['2']\n",
        "peers:\r\n  - site: b\r\n    parties: ['2']\r\n",
    ],
)
def test_settings_are_written_and_every_comment_and_line_stays(tmp_path: Path, peers: str) -> None:
    path = write(tmp_path, peers)
    before = path.read_bytes().decode()
    set_peer_settings(path, "b", FOUND)
    assert settings_of(path, "b") == (8 << 20, "always", 1.2e10)
    after = path.read_bytes().decode()
    assert ("\r\n" in after) == ("\r\n" in before)
    for comment in (line[line.index("#") :] for line in before.splitlines() if "#" in line):
        assert comment in after
    others = [peer for peer in load_config(path).peers if peer.site != "b"]
    assert all(peer.chunk is not None and peer.chunk.size_bytes == 1 << 20 for peer in others)


def test_the_example_configuration_keeps_all_its_lines_but_the_three(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    text = (ROOT / "conf" / "gateway.yaml").read_text()
    path.write_text(text)
    set_peer_settings(path, "bank-b", FOUND)
    changed = [
        (old.strip(), new.strip())
        for old, new in zip(text.splitlines(), path.read_text().splitlines(), strict=True)
        if old != new
    ]
    assert changed == [
        ("chunk: null", "chunk: 8MiB"),
        ("link_enable: null", "link_enable: always"),
        ("rate: null", "rate: 1.2e+10"),
    ]


def test_writing_again_replaces_what_was_written(tmp_path: Path) -> None:
    path = write(tmp_path, "peers:\n  - site: b\n    parties: ['2']\n")
    set_peer_settings(path, "b", FOUND)
    once = path.read_text()
    set_peer_settings(path, "b", FOUND)
    assert path.read_text() == once
    set_peer_settings(path, "b", {"chunk": "256KiB"})
    assert settings_of(path, "b") == (256 << 10, "always", 1.2e10)


def test_the_file_keeps_its_permissions_and_a_link_to_it_stays_one(tmp_path: Path) -> None:
    path = write(tmp_path, "peers:\n  - site: b\n    parties: ['2']\n")
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    set_peer_settings(link, "b", FOUND)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert settings_of(path, "b")[0] == 8 << 20
    assert sorted(os.listdir(tmp_path)) == ["gateway.yaml", "link.yaml"]


@pytest.mark.parametrize(
    ("first", "second"),
    [("&size 1MiB", "*size"), ("1MiB", "&size 1MiB\n    rate: 5\n  - {site: d, parties: ['4'], chunk: *size}")],
)
def test_a_peer_that_shares_its_text_with_another_is_not_touched_and_the_snippet_is_given(
    tmp_path: Path, first: str, second: str
) -> None:
    peers = (
        f"peers:\n  - site: c\n    parties: ['3']\n    chunk: {first}\n"
        f"  - site: b\n    parties: ['2']\n    chunk: {second}\n"
    )
    path = write(tmp_path, peers)
    before = path.read_text()
    with pytest.raises(ConfigError) as caught:
        set_peer_settings(path, "b", FOUND)
    assert "cannot be edited safely" in caught.value.message
    assert snippet("b", FOUND) in caught.value.remedy
    assert path.read_text() == before


def test_a_peer_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "peers:\n  - site: b\n    parties: ['2']\n")
    with pytest.raises(ConfigError) as caught:
        set_peer_settings(path, "z", FOUND)
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert "'z'" in caught.value.message


def test_a_configuration_without_peers_is_an_error() -> None:
    with pytest.raises(ConfigError):
        edit_peer(HEAD, "b", FOUND)


def test_a_configuration_that_is_wrong_is_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path, "peers: 7\n")
    with pytest.raises(ConfigError):
        set_peer_settings(path, "b", FOUND)
    assert path.read_text() == f"{HEAD}peers: 7\n"


def test_a_directory_that_cannot_be_written_leaves_the_file_and_gives_the_snippet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, "peers:\n  - site: b\n    parties: ['2']\n")
    before = path.read_text()
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ConfigError) as caught:
        set_peer_settings(path, "b", FOUND)
    assert "Permission denied" in caught.value.message
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["gateway.yaml"]


def test_the_snippet_is_yaml_of_the_settings() -> None:
    assert yaml.safe_load(snippet("b", FOUND)) == {
        "peers": [{"site": "b", "chunk": "8MiB", "link_enable": "always", "rate": 1.2e10}]
    }
