"""Certificates of peers are held against what is believed now, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from fedrdma_fate.gateway.peers import channel_security
from fedrdma_fate.gateway.peers.channel_security import IdentityWatch
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.security.credentials import CredentialFiles
from fedrdma_fate.security.reloading import SiteCredentials
from tests.support.certificates import TestAuthority


@dataclasses.dataclass
class Site:
    site: str


@dataclasses.dataclass
class Shown:
    chain: Sequence[bytes]


class Channel:
    """As much of a peer as the watch sees."""

    def __init__(self, site: str, chain: Sequence[bytes]) -> None:
        self.config = Site(site)
        self.identity = Shown(chain)
        self.ended = ""

    def end(self, reason: str) -> None:
        self.ended = reason


@pytest.fixture
def credentials(tmp_path: Path) -> SiteCredentials:
    authority = TestAuthority(tmp_path)
    authority.issue("a")
    return SiteCredentials(CredentialFiles(tmp_path / "a.pem", tmp_path / "a.key", (authority.path,)), "a")


def watch(credentials: SiteCredentials, *channels: Channel) -> IdentityWatch:
    peers = {channel.config.site: channel for channel in channels}
    return IdentityWatch(credentials, cast(dict[str, Peer], peers), Complaints())


def test_a_certificate_that_cannot_be_checked_ends_its_channel_and_keeps_no_other_from_being_checked(
    credentials: SiteCredentials,
) -> None:
    odd, unknown = Channel("odd", [b"no certificate"]), Channel("unknown", [])
    watch(credentials, odd, unknown).check(cast(Any, [odd, unknown]))
    assert "cannot be checked" in odd.ended
    assert "no authority" in unknown.ended


def test_the_watch_goes_on_where_a_look_at_the_files_fails(
    credentials: SiteCredentials, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channel_security, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(credentials, "look", lambda: 1 / 0)
    late = Channel("late", [])

    async def scenario() -> None:
        looking = asyncio.create_task(watch(credentials, late).keep_watch())
        while not late.ended:
            await asyncio.sleep(0.001)
        looking.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert caplog.text.count("ZeroDivisionError") == 1
