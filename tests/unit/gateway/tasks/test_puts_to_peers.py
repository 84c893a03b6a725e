"""What tasks put for other sites: none gets round what a session may have, and no more is kept than has a bound."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from fedrdma_fate.client.protocol import Commit, Done, Leased, LeaseSlot, PutInline
from fedrdma_fate.gateway.peers import sending
from fedrdma_fate.gateway.peers.session_rates import SHARE_OF_ALL
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MOST_PARTIES, Party
from tests.support.raw_task import Connection, code_of
from tests.support.sites import InThread, Site, Sites, eventually, linked_sites, party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["2"]}
HOST = party("host:2")
ABSENT = {"site": "b", "parties": ["2"], "address": "127.0.0.1:1"}


def waiting(site: Site) -> int:
    return int(site.status()["mailbox"]["messages"])


def test_a_task_that_goes_away_before_its_answer_does_not_get_round_the_rate_of_its_session(tmp_path: Path) -> None:
    rate, floods = 50, 250
    with start_gateways(LAYOUT, tmp_path, limits={"session_frames_per_second": rate}) as sites:
        began = time.monotonic()
        for number in range(floods):
            connection = Connection(sites["a"], "s")
            connection.send(PutInline("n", str(number), (HOST,), "bytes", b"x"))
            connection.close()
        eventually(lambda: waiting(sites["b"]) > 0)
        time.sleep(0.5)
        arrived = waiting(sites["b"])
        # a burst of one second, and what a pause is saved up for
        assert 0 < arrived <= rate * (1 + time.monotonic() - began) + 2


def test_tasks_put_no_faster_than_the_peer_says_it_reads_whatever_the_limit_of_their_own_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rate, floods = 100, 250
    with tempfile.TemporaryDirectory(prefix="fr") as sockets:
        sites = linked_sites(LAYOUT, tmp_path, Path(sockets))
        sites["b"].config["limits"] = {"frames_per_second": rate}
        with Sites.running(sites, InThread()) as running:
            running.wait_until_connected()
            task, began = Connection(sites["a"], "s"), time.monotonic()
            for number in range(floods):
                assert task.call(PutInline("n", str(number), (HOST,), "bytes", b"")) == Done()
            assert time.monotonic() - began >= floods / (SHARE_OF_ALL * rate) - 1.1
            eventually(lambda: waiting(sites["b"]) == floods)
            task.close()
    assert not [record for record in caplog.records if "is read more slowly" in record.getMessage()]


def test_one_small_message_for_very_many_parties_of_a_peer_does_not_have_it_cut_off(tmp_path: Path) -> None:
    many = tuple(Party(f"role{number}", "2") for number in range(MOST_PARTIES))
    with start_gateways(LAYOUT, tmp_path, limits={"outgoing_bytes": "1MiB"}) as sites:
        task = Connection(sites["a"], "s")
        refused = task.call(PutInline("m", "t", many, "bytes", b"x" * INLINE_LIMIT_BYTES))
        assert code_of(refused) == ErrorCode.LIMIT_REACHED.value
        # to so many at a time it may
        assert task.call(PutInline("m", "t", many[:100], "bytes", b"x" * INLINE_LIMIT_BYTES)) == Done()
        eventually(lambda: waiting(sites["b"]) == 100)
        assert not sites["a"].events("peer_down")
        task.close()


def test_messages_in_one_slot_for_a_peer_that_is_away_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MOST_LARGE", 10)
    with tempfile.TemporaryDirectory(prefix="fr") as sockets:
        sites = linked_sites({"a": ["guest:1"]}, tmp_path, Path(sockets), strangers=[ABSENT], timeouts={"put": 1.0})
        with Sites.running(sites, InThread()):
            task = Connection(sites["a"], "s")
            leased = task.call(LeaseSlot(1))
            assert isinstance(leased, Leased)
            for number in range(10):
                assert task.call(Commit(leased.lease, "m", str(number), (HOST,), "object", keep=True)) == Done()
            assert code_of(task.call(Commit(leased.lease, "m", "10", (HOST,), "object", unfinished=True))) == "NotYet"
            one_more = task.call(Commit(leased.lease, "m", "10", (HOST,), "object"))
            assert code_of(one_more) == ErrorCode.LIMIT_REACHED.value
            # what was refused gave its lease back
            assert code_of(task.call(Commit(leased.lease, "m", "11", (HOST,), "object"))) == "FR610"
            task.close()


def test_messages_beyond_the_bound_wait_and_arrive_as_the_peer_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MOST_LARGE", 2)
    with start_gateways(LAYOUT, tmp_path) as sites:
        task = Connection(sites["a"], "s")
        leased = task.call(LeaseSlot(70_000))
        assert isinstance(leased, Leased)
        for number in range(20):
            assert task.call(Commit(leased.lease, "m", str(number), (HOST,), "object", keep=True)) == Done()
        eventually(lambda: waiting(sites["b"]) == 20)
        task.close()
