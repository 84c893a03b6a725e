"""A long payload that went sealed, and was delivered, is known when it is pushed again: the same, or another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.core.digest import block_digest, blocks_of
from fedrdma_fate.gateway.tasks import pushing
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Mode
from tests.support.certificates import TestAuthority
from tests.support.sites import eventually, party, start_gateways

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom((2 << 20) + 100)
OTHER = BODY[:-1] + bytes([BODY[-1] ^ 1])


def push(client: GatewayClient, body: bytes) -> None:
    """As FATE's objects are pushed, from the end on; one that was pushed before when it is whole."""
    lease = client.lease(len(body))
    answer = lease.commit_unfinished("m", "t", [B], "object")
    assert lease.digests_wanted
    lease.buffer[:] = body
    lease.written(0, [block_digest(body[start:end]) for start, end in blocks_of(len(body))])
    if answer == "committed":
        lease.release()
    else:
        lease.commit("m", "t", [B], "object")


@pytest.mark.parametrize("mode", ["fedrdma-e", "fedrdma-x", "grpc"])
def test_what_went_sealed_and_was_delivered_is_known_when_it_is_pushed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    # as if it were longer than what is digested in any case
    monkeypatch.setattr(pushing, "DIGESTED_AT_COMMIT_BYTES", 0)
    monkeypatch.setattr(pushing, "DIGESTED_BY_TASKS_BYTES", 0)
    authority = TestAuthority(tmp_path / "certificates")
    with (
        start_gateways(LAYOUT, tmp_path, authority=authority, seal="on", mode=mode) as sites,
        sites["a"].client() as a,
        sites["a"].client() as restarted,
        sites["b"].client() as b,
    ):
        push(a, BODY)
        assert b.get("m", "t", A, timeout=20).buffer == BODY
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)
        for task in (restarted, a):
            push(task, BODY)
            with pytest.raises(GatewayError, match="with other bytes") as caught:
                push(task, OTHER)
            assert caught.value.code is ErrorCode.DUPLICATE_PUSH
        assert len(sites["a"].events("sent")) == 1
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)
