"""Two or three gateways: unreachable and back, too large, wrong party, silent, strangers on the control channel."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.gateway import spilling
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import (
    Goodbye,
    MessageKey,
    Ping,
    Undeliverable,
    encode_frame,
)
from fedrdma_fate.wire.header import PROTOCOL_VERSION
from tests.support.control import conversation, greeting
from tests.support.files import spilled_below
from tests.support.sites import InThread, Sites, eventually, party, start_gateways

B = party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(700_000)


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path) as running:
        yield running


def push(client: GatewayClient, name: str, body: bytes = BODY, to: str = "host:2") -> None:
    lease = client.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", [party(to)], "object")


def pull(client: GatewayClient, name: str, source: str = "guest:1", timeout: float = 20) -> bytes:
    return bytes(client.get(name, "t", party(source), timeout=timeout).buffer)


def all_memory_is_back(sites: Sites) -> bool:
    """Nothing is leased but the rings."""
    rings = 2 * (len(sites) - 1)
    return all(site.pool("send")["slots"] == 0 and site.pool("receive")["slots"] <= rings for site in sites.values())


# --- unreachable ---


def test_messages_wait_for_a_peer_that_is_not_there_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with start_gateways(LAYOUT, tmp_path, connected=False) as sites:
        sites.runner.stop(sites["b"])
        with sites["a"].client() as a:
            push(a, "large")
            a.put_inline("small", "t", [B], "bytes", b"hi")
            a = sites["a"]
            (peer,) = eventually(lambda: [peer for peer in a.status()["peers"] if "FR502" in peer["last_error"]])
            assert not peer["connected"]
            assert peer["pending_messages"] == 2
            (transfer,) = sites["a"].status()["transfers"]
            assert transfer["state"] in ("waiting-for-peer", "waiting-for-grant")
            sites.runner.start(sites["b"])
            with sites["b"].client() as b:
                assert pull(b, "large") == BODY
                assert pull(b, "small") == b"hi"
            eventually(lambda: sites["a"].status()["peers"][0]["pending_messages"] == 0)
    warnings = [record.getMessage() for record in caplog.records if "FR502" in record.getMessage()]
    assert warnings
    assert all("messages for it wait" in text for text in warnings)


def test_trouble_with_a_peer_is_told_once_and_not_at_every_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # connected, so that the trouble is not that of the start, which would be told anew after that
    with start_gateways(LAYOUT, tmp_path) as sites:
        sites.runner.stop(sites["b"])
        eventually(lambda: "FR502" in sites["a"].status()["peers"][0]["last_error"])
        caplog.clear()
        time.sleep(1.0)
    assert [record for record in caplog.records if "FR502" in record.getMessage()] == []


def test_a_peer_that_was_stopped_and_comes_back_gets_what_was_pushed_meanwhile(sites: Sites) -> None:
    with sites["a"].client() as a:
        sites.runner.stop(sites["b"])
        eventually(lambda: not sites["a"].status()["peers"][0]["connected"])
        push(a, "m")
        sites.runner.start(sites["b"])
        with sites["b"].client() as b:
            assert pull(b, "m") == BODY
    eventually(lambda: all_memory_is_back(sites))


def test_only_one_side_needs_to_dial(tmp_path: Path) -> None:
    with start_gateways(LAYOUT, tmp_path, connected=False) as sites:
        for site in sites.values():
            sites.runner.stop(site)
        sites["b"].config["peers"][0]["address"] = None
        for site in ("b", "a"):
            sites.runner.start(sites[site])
        sites.wait_until_connected()
        with sites["a"].client() as a, sites["b"].client() as b:
            push(a, "m")
            assert pull(b, "m") == BODY
            push(b, "n", BODY, "guest:1")
            assert pull(a, "n", "host:2") == BODY


# --- too large ---


def test_a_payload_that_a_connected_peer_cannot_hold_is_refused_at_the_push(tmp_path: Path) -> None:
    with start_gateways(LAYOUT, tmp_path, connected=False) as sites:
        sites.runner.stop(sites["b"])
        sites["b"].config["memory"]["receive_bytes"] = "2MiB"
        sites.runner.start(sites["b"])
        sites.wait_until_connected()
        with sites["a"].client() as a, sites["b"].client() as b:
            lease = a.lease(3 << 20)
            with pytest.raises(MemoryPoolError) as caught:
                lease.commit("m", "t", [B], "object")
            assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert "Raise memory.receive_bytes there." in caught.value.remedy
            # nothing was sent, the name is free
            push(a, "m", BODY)
            assert pull(b, "m") == BODY
        eventually(lambda: all_memory_is_back(sites))


def test_a_payload_for_an_unknown_peer_that_cannot_hold_it_fails_at_both_sides_when_it_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_gateways(LAYOUT, tmp_path, connected=False) as sites:
        for site in sites.values():
            sites.runner.stop(site)
        sites["b"].config["memory"]["receive_bytes"] = "2MiB"
        sites.runner.start(sites["a"])
        with sites["a"].client() as a:
            push(a, "m", bytes(3 << 20))
            sites.runner.start(sites["b"])
            with sites["b"].client() as b:
                with pytest.raises(FedRDMAError) as pulled:
                    pull(b, "m")
                assert pulled.value.code is ErrorCode.PAYLOAD_TOO_LARGE
            with pytest.raises(FedRDMAError) as pushed:
                a.put_inline("next", "t", [B], "bytes", b"")
            assert pushed.value.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert "an earlier push, s/m/t guest:1->host:2" in pushed.value.message
            # told once; the job may go on
            a.put_inline("next", "t", [B], "bytes", b"")
        eventually(lambda: all_memory_is_back(sites))
    told = [record.getMessage() for record in caplog.records if "FR402" in record.getMessage()]
    assert any(text.startswith("refused transfer") for text in told)
    assert any("was not delivered to b" in text for text in told)


# --- wrong party ---


def test_a_push_to_a_party_that_the_peer_says_it_does_not_serve_is_refused(tmp_path: Path) -> None:
    layout = {"a": ["guest:1"], "b": ["host:2", "host:3"]}
    with start_gateways(layout, tmp_path, connected=False) as sites:
        sites.runner.stop(sites["b"])
        eventually(lambda: not any(peer["connected"] for peer in sites["a"].status()["peers"]))
        sites["b"].config["parties"].remove("host:3")
        sites.runner.start(sites["b"])
        sites.wait_until_connected()
        with sites["a"].client() as a, pytest.raises(GatewayError) as caught:
            push(a, "m", BODY, "host:3")
        assert caught.value.code is ErrorCode.WRONG_PARTY
        assert "does not serve host:3, but host:2" in caught.value.message


def test_a_peer_cannot_make_the_task_fail_that_waits_for_anothers_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layout = {"a": ["guest:1"], "b": ["host:2"], "c": ["host:3"]}
    runner = InThread()
    with (
        start_gateways(layout, tmp_path, runner=runner) as sites,
        sites["a"].client() as a,
        sites["b"].client() as b,
        ThreadPoolExecutor(1) as executor,
    ):
        pulled = executor.submit(pull, a, "m", "host:2")
        eventually(lambda: sites["a"].status()["mailbox"]["waiting_pulls"])
        key = MessageKey("s", "m", "t", party("host:2"), party("guest:1"))
        runner.tell("c", "a", Undeliverable(key, ErrorCode.TRANSFER_ABORTED.value, "forged"))
        eventually(lambda: "ignored Undeliverable from c" in caplog.text)
        assert not pulled.done()
        push(b, "m", BODY, "guest:1")
        assert pulled.result(20) == BODY
    assert f"[{ErrorCode.WRONG_PARTY.value}] a does not know host:2 as a party of c" in caplog.text


# --- strangers on the control channel ---


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"\x00garbage", ErrorCode.MALFORMED_FRAME),
        (encode_frame(Ping(0.0)), ErrorCode.MALFORMED_FRAME),
        (greeting("stranger"), ErrorCode.PEER_UNKNOWN),
        (greeting("b", PROTOCOL_VERSION + 1), ErrorCode.PROTOCOL_VERSION),
    ],
    ids=["garbage", "no-greeting", "unknown-site", "other-version"],
)
def test_who_does_not_greet_as_a_peer_is_told_why_and_changes_nothing(
    sites: Sites, first: bytes, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    (farewell,) = conversation(sites["a"].config["listen"]["control"], first)
    assert isinstance(farewell, Goodbye)
    assert code.value in farewell.reason
    eventually(lambda: f"[{code.value}]" in caplog.text)
    assert sites["a"].connected()
    with sites["a"].client() as a, sites["b"].client() as b:
        push(a, "m")
        assert pull(b, "m") == BODY


def test_a_malformed_frame_in_the_middle_costs_nothing_but_a_new_channel(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    runner = sites.runner
    assert isinstance(runner, InThread)
    assembly = runner.gateways["a"]._assembly
    assert assembly is not None
    with sites["a"].client() as a, sites["b"].client() as b, caplog.at_level(logging.INFO):
        for turn in range(3):
            push(a, f"m{turn}")

            async def spoil() -> None:
                stream = assembly.peers["b"]._stream
                if stream is not None:
                    stream.write(b"\xc1 no frame")

            runner.run(spoil())
            push(a, f"n{turn}")
            assert pull(b, f"m{turn}") == BODY
            assert pull(b, f"n{turn}") == BODY
    assert "control channel of a: [FR201]" in caplog.text
    assert "lost b: it said goodbye: [FR201]" in caplog.text
    eventually(lambda: all_memory_is_back(sites))


def test_the_gateway_of_another_site_at_a_peers_address_is_not_taken_for_it(tmp_path: Path) -> None:
    layout = {"a": ["guest:1"], "b": ["host:2"], "c": ["host:3"]}
    with start_gateways(layout, tmp_path, connected=False) as sites:
        for site in sites.values():
            sites.runner.stop(site)
        peers = {peer["site"]: peer for peer in sites["a"].config["peers"]}
        peers["b"]["address"], peers["c"]["address"] = peers["c"]["address"], peers["b"]["address"]
        sites["b"].config["peers"] = [{"site": "a", "parties": ["guest:1"]}]
        sites["c"].config["peers"] = [{"site": "a", "parties": ["guest:1"]}]
        for site in sites.values():
            sites.runner.start(site)

        def troubles() -> list[str]:
            return [peer["last_error"] for peer in sites["a"].status()["peers"]]

        refused = eventually(lambda: all("FR503" in trouble for trouble in troubles()) and troubles())
        assert all("FR503" in trouble for trouble in refused)


# --- memory under pressure ---


def test_a_pull_of_the_message_that_comes_last_of_fifty_while_there_is_room_for_four_completes(tmp_path: Path) -> None:
    count, size = 50, 1 << 20
    memory = {"send_bytes": "4MiB", "receive_bytes": "5MiB", "ring_slots": 1, "ring_slot_bytes": "512KiB"}
    with start_gateways(LAYOUT, tmp_path, memory=memory) as sites, sites["a"].client() as a, sites["b"].client() as b:
        pusher = threading.Thread(target=lambda: [push(a, f"m{n}", bytes([n]) * size) for n in range(count)])
        pusher.start()
        assert pull(b, f"m{count - 1}", timeout=60) == bytes([count - 1]) * size
        assert sites["b"].status()["mailbox"]["spilled_messages"] >= count - 6
        for number in reversed(range(count - 1)):
            assert pull(b, f"m{number}") == bytes([number]) * size
        pusher.join(10)
        eventually(lambda: all_memory_is_back(sites))
        assert eventually(lambda: not spilled_below(tmp_path / "b" / "spill"))


def test_a_full_spill_disk_delays_messages_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = threading.Event()
    full.set()
    original = SpillStore.spill

    def spill(self: SpillStore, *arguments: object) -> object:
        if full.is_set():
            raise MemoryPoolError(ErrorCode.SPILL_FAILED, "cannot spill: No space left on device.", "Make room.")
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(spilling, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(SpillStore, "spill", spill)
    memory = {"send_bytes": "8MiB", "receive_bytes": "3MiB", "ring_slots": 0}
    with start_gateways(LAYOUT, tmp_path, memory=memory) as sites, sites["a"].client() as a, sites["b"].client() as b:
        for number in range(6):
            push(a, f"m{number}", bytes([number]) * (1 << 20))
        eventually(lambda: "FR403" in caplog.text)
        assert pull(b, "m0") == bytes([0]) * (1 << 20)
        with pytest.raises(GatewayError):
            pull(b, "m5", timeout=0.2)
        full.clear()
        for number in (5, 4, 3, 2, 1):
            assert pull(b, f"m{number}") == bytes([number]) * (1 << 20)
        eventually(lambda: all_memory_is_back(sites))


def test_peers_that_hold_rings_give_them_up_for_a_payload_that_needs_all_memory(tmp_path: Path) -> None:
    layout = {"a": ["guest:1"], "b": ["host:2"], "c": ["arbiter:3"]}
    memory = {"send_bytes": "8MiB", "receive_bytes": "4MiB", "ring_slots": 2, "ring_slot_bytes": "512KiB"}
    with start_gateways(layout, tmp_path, memory=memory) as sites, sites["a"].client() as a, sites["b"].client() as b:
        # all but what is reserved for c, and the header
        body = os.urandom((4 << 20) - (4 << 20) // 16 - 4096)
        push(a, "m", body)
        assert pull(b, "m") == body


def test_sixty_sessions_between_sites_leave_nothing_behind(sites: Sites) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def one(number: int) -> None:
        with sites["a"].client(f"s{number}") as a, sites["b"].client(f"s{number}") as b:
            push(a, "m")
            push(b, "n", BODY, "guest:1")
            assert pull(b, "m") == BODY
            assert pull(a, "n", "host:2") == BODY
            a.leave()
            b.leave()

    one(0)
    eventually(lambda: all(site.status()["tasks"] == 0 for site in sites.values()))
    before, threads = descriptors(), threading.active_count()
    for number in range(1, 61):
        one(number)
    eventually(lambda: all(site.status()["tasks"] == 0 for site in sites.values()))
    eventually(lambda: descriptors() <= before and threading.active_count() <= threads)
    eventually(lambda: all_memory_is_back(sites))
    for site in sites.values():
        eventually(lambda site=site: not any(site.status()["mailbox"].values()))  # type: ignore[misc]
