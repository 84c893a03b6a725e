"""What TLS adds to a small message is measured over the gateways' own control channels."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest

from fedrdma_fate.bench.cpu.control import (
    ControlRow,
    control_document,
    control_table,
    measure_control,
    open_channel,
    round_trip,
)
from fedrdma_fate.gateway.peers.channel_security import TlsChannel
from fedrdma_fate.security.credentials import CredentialFiles
from fedrdma_fate.security.reloading import SiteCredentials
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.certificates import TestAuthority

PEOPLE = ("message", "security off", "mtls", "more")


def test_messages_of_each_length_go_over_both_channels() -> None:
    told: list[str] = []
    rows = measure_control(2, told.append, bodies=(0, 64 * 1024), round_trips=3)
    assert [row.body_bytes for row in rows] == [0, 64 * 1024]
    assert all(row.off_seconds > 0 and row.mtls_seconds > 0 for row in rows)
    assert len(told) == 2


def test_what_is_added_is_the_difference_for_people_and_programs() -> None:
    row = ControlRow(1024, 0.00025, 0.000375)
    (shown,) = control_document([row])["control"]
    assert shown["added_seconds"] == pytest.approx(0.000125)
    table = control_table([row])
    assert tuple(table.columns) == PEOPLE
    assert list(table.rows) == [("1.02 kB", "0.250 ms", "0.375 ms", "0.125 ms")]


def test_the_channel_with_mtls_is_one_of_tls_and_the_other_is_not(tmp_path: Path) -> None:
    async def identities() -> list[str | None]:
        seen = []
        for ways in ((lambda: None, lambda: None), (security(authority, "a"), security(authority, "b"))):
            async with open_channel(*ways) as stream:
                await round_trip(stream, b"x")
                seen.append(None if stream.identity is None else stream.identity.site)
        return seen

    authority = TestAuthority(tmp_path)
    assert asyncio.run(identities()) == [None, "a"]


def test_a_channel_that_has_ended_is_an_error_and_no_time() -> None:
    async def ask() -> None:
        async with open_channel(lambda: None, lambda: None) as stream:
            stream.stop_reading("")
            await round_trip(stream, b"x")

    with pytest.raises(FedRDMAError) as caught:
        asyncio.run(ask())
    assert caught.value.code is ErrorCode.PEER_UNREACHABLE


def test_ends_that_do_not_believe_each_other_are_an_error(tmp_path: Path) -> None:
    async def ask() -> None:
        ours, theirs = (security(TestAuthority(tmp_path / name), name) for name in ("a", "b"))
        async with open_channel(ours, theirs) as stream:
            await round_trip(stream, b"x")

    with pytest.raises(FedRDMAError) as caught:
        asyncio.run(ask())
    assert caught.value.code is ErrorCode.TLS_REFUSED


def security(authority: TestAuthority, site: str) -> functools.partial[TlsChannel]:
    """TLS of a site."""
    authority.issue(site)
    files = CredentialFiles(authority.directory / f"{site}.pem", authority.directory / f"{site}.key", (authority.path,))
    return functools.partial(TlsChannel, SiteCredentials(files, site))
