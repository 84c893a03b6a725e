"""Payloads that are sent while their task still writes them: whole at the end, or both sides are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient, SendLease
from fedrdma_fate.core.digest import BLOCK_BYTES, block_digest
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import Mode
from tests.support.sites import Site, Sites, eventually, party, start_gateways

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MEBIBYTE = 1 << 20
BODY = os.urandom(3 * MEBIBYTE + 100)
SETTINGS = {"chunk": "256KiB", "link_enable": "never"}


@pytest.fixture(params=["fedrdma-e", "fedrdma-x"])
def mode(request: pytest.FixtureRequest) -> Mode:
    """A mode that begins at the end of a payload."""
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def sites(tmp_path: Path, mode: Mode) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path, mode=mode, **SETTINGS) as running:
        eventually(lambda: running["a"].connected() and running["b"].connected())
        yield running


def begin(client: GatewayClient, name: str = "m") -> SendLease:
    lease = client.lease(len(BODY))
    assert lease.commit_unfinished(name, "t", [B], "object") == "committed"
    return lease


def write(lease: SendLease, start: int, end: int, *, digests: bool = True) -> None:
    """The bytes [start, end) of BODY, and the news of it."""
    lease.buffer[start:end] = BODY[start:end]
    blocks = [block_digest(BODY[at : at + BLOCK_BYTES]) for at in range(start, end, BLOCK_BYTES)]
    lease.written(start, blocks if digests else [])


def half_sent(site: Site) -> bool:
    """Whether a transfer has sent something, and waits for more."""
    return any(0 < transfer["done_bytes"] < len(BODY) for transfer in site.status()["transfers"])


@pytest.mark.parametrize("digests", [True, False])
def test_what_is_written_is_sent_while_the_rest_is_still_missing(sites: Sites, mode: Mode, digests: bool) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        lease = begin(a)
        write(lease, 2 * MEBIBYTE, len(BODY), digests=digests)
        eventually(lambda: half_sent(sites["a"]))
        assert not sites["b"].events("delivered")
        write(lease, 0, 2 * MEBIBYTE, digests=digests)
        lease.release()
        assert b.get("m", "t", A, timeout=20).buffer == BODY
        (sent,) = eventually(lambda: sites["a"].events("sent"))
        assert (sent["bytes"], sent["resent_bytes"], sent["mode"]) == (len(BODY), 0, mode)
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)


def test_a_wrong_digest_of_a_task_delivers_nothing_and_both_sides_are_told(sites: Sites) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        lease = begin(a)
        lease.buffer[:] = BODY
        lease.written(0, [1] * -(-len(BODY) // BLOCK_BYTES))
        lease.release()
        with pytest.raises(FedRDMAError) as at_the_receiver:
            b.get("m", "t", A, timeout=20)
        assert at_the_receiver.value.code is ErrorCode.DIGEST_MISMATCH
        with pytest.raises(FedRDMAError) as at_the_sender:
            eventually(lambda: a.put_inline("x", "t", [B], "object", b""))
        assert at_the_sender.value.code is ErrorCode.DIGEST_MISMATCH


def test_a_payload_that_is_committed_again_as_whole_is_whole_for_who_was_sent_half_of_it(sites: Sites) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        lease = begin(a)
        write(lease, 2 * MEBIBYTE, len(BODY))
        eventually(lambda: half_sent(sites["a"]))
        lease.buffer[: 2 * MEBIBYTE] = BODY[: 2 * MEBIBYTE]
        lease.commit("n", "t", [B], "object")
        assert b.get("n", "t", A, timeout=20).buffer == BODY
        assert b.get("m", "t", A, timeout=5).buffer == BODY
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)


def test_a_payload_given_up_half_way_fails_at_its_destination_and_may_be_pushed_again(sites: Sites) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        lease = begin(a)
        write(lease, 2 * MEBIBYTE, len(BODY))
        eventually(lambda: half_sent(sites["a"]))
        lease.release()
        with pytest.raises(FedRDMAError, match="did not write it to its end") as told:
            b.get("m", "t", A, timeout=20)
        assert told.value.code is ErrorCode.TRANSFER_ABORTED
        eventually(lambda: sites["a"].pool("send")["slots"] == 0 and not sites["a"].status()["transfers"])
        again = a.lease(len(BODY))
        again.buffer[:] = BODY
        again.commit("m", "t", [B], "object")
        eventually(lambda: sites["b"].events("delivered"))
        assert b.get("m", "t", A, timeout=20).buffer == BODY


def test_one_given_up_before_anything_was_sent_fails_too(sites: Sites) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        begin(a).release()
        with pytest.raises(FedRDMAError, match="did not write it to its end"):
            b.get("m", "t", A, timeout=20)


_DIES = """
import os, sys, time
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party
client = GatewayClient(sys.argv[1], "s", Party("guest", "1"))
lease = client.lease(int(sys.argv[2]))
assert lease.commit_unfinished("m", "t", [Party("host", "2")], "object") == "committed"
lease.written(lease.buffer.nbytes - 600_000, [])
print("begun", flush=True)
time.sleep(60)
"""


def test_a_task_killed_while_it_writes_leaves_nothing_behind_and_its_receiver_is_told(sites: Sites) -> None:
    command = [sys.executable, "-c", _DIES, sites["a"].address, str(len(BODY))]
    with sites["b"].client() as b, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as task:
        try:
            assert task.stdout is not None
            assert task.stdout.readline() == "begun\n"
            eventually(lambda: half_sent(sites["a"]))
        finally:
            task.send_signal(signal.SIGKILL)
        with pytest.raises(FedRDMAError, match="did not write it to its end"):
            b.get("m", "t", A, timeout=20)
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)
        eventually(lambda: sites["b"].pool("receive")["slots"] <= sites["b"].standing_grants(ring_slots=2))


def test_what_is_lent_or_stays_here_is_committed_when_it_is_whole(tmp_path: Path) -> None:
    layout = {"a": ["guest:1", "guest:3"], "b": ["host:2"]}
    with start_gateways(layout, tmp_path, transport="shm", shm={"lend": True}) as running:
        eventually(lambda: running["a"].connected() and running["b"].connected())
        with running["a"].client() as a:
            lease = a.lease(len(BODY))
            # so short that they are told for the case that it is pushed again
            assert lease.commit_unfinished("m", "t", [B], "object") == "digests-wanted"
            assert lease.commit_unfinished("m", "t", [party("guest:3")], "object") == "digests-wanted"
            write(lease, 0, len(BODY))
            lease.commit("m", "t", [B], "object")
        with running["b"].client() as b:
            assert b.get("m", "t", A, timeout=20).buffer == BODY


@pytest.mark.parametrize("other", ["grpc", "fedrdma"])
@pytest.mark.parametrize("mode", ["fedrdma-e"], indirect=True)
def test_other_modes_begin_at_the_start_and_so_wait_but_want_the_digests(sites: Sites, other: Mode) -> None:
    with sites["a"].client(mode=other) as a, sites["b"].client() as b:
        lease = a.lease(len(BODY))
        assert lease.commit_unfinished("m", "t", [B], "object") == "digests-wanted"
        write(lease, 0, len(BODY))
        lease.commit("m", "t", [B], "object")
        assert b.get("m", "t", A, timeout=20).buffer == BODY


def test_news_that_contradict_the_earlier_ones_are_refused(sites: Sites) -> None:
    with sites["a"].client() as a:
        lease = begin(a)
        lease.written(MEBIBYTE, [])
        for written_from in (MEBIBYTE, 2 * MEBIBYTE):
            with pytest.raises(GatewayError) as refused:
                lease.written(written_from, [])
            assert refused.value.code is ErrorCode.CLIENT_PROTOCOL
        lease.release()
        with pytest.raises(MemoryPoolError):
            lease.written(0, [])


def test_an_unfinished_push_of_a_name_that_was_pushed_before_is_refused(sites: Sites) -> None:
    with sites["a"].client() as a:
        begin(a)
        lease = a.lease(1000)
        # whether it is the same shows when it is written
        assert lease.commit_unfinished("m", "t", [B], "object") == "digests-wanted"
        with pytest.raises(GatewayError) as refused:
            lease.commit("m", "t", [B], "object")
        assert refused.value.code is ErrorCode.DUPLICATE_PUSH


def test_a_receiver_that_is_restarted_while_the_task_writes_gets_it_whole(sites: Sites) -> None:
    with sites["a"].client() as a:
        lease = begin(a)
        write(lease, 2 * MEBIBYTE, len(BODY))
        eventually(lambda: half_sent(sites["a"]))
        sites.runner.stop(sites["b"])
        sites.runner.start(sites["b"])
        write(lease, 0, 2 * MEBIBYTE)
        lease.release()
        with sites["b"].client() as b:
            assert b.get("m", "t", A, timeout=20).buffer == BODY
