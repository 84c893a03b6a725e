"""Arrays that tasks keep hold memory that others wait for: it is said within seconds who does, and they make room."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedrdma_fate.cli.main import main
from fedrdma_fate.client import connections
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.sites import Site, eventually, party, start_gateways

MIB = 1 << 20
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
SMALL = {"send_bytes": "16MiB", "receive_bytes": "5MiB", "ring_slots": 0}
SAID_SECONDS = 12.0
"""Two looks, which are made within 3 s, and what the machine does besides."""


def push(client: GatewayClient, name: str, to: str = "host:2") -> None:
    lease = client.lease(MIB)
    lease.buffer[:] = bytes([int(name)]) * MIB
    lease.commit(name, "t", [party(to)], "object")


def get(client: GatewayClient, name: str, source: str = "guest:1", timeout: float = 30) -> np.ndarray:
    return np.frombuffer(client.get(name, "t", party(source), timeout=timeout).buffer, dtype=np.uint8)


def fill(a: GatewayClient, b: GatewayClient) -> list[np.ndarray]:
    """Four messages that the task of b keeps, and a fifth that there is no room for."""
    for number in range(4):
        push(a, str(number))
    kept = [get(b, str(number)) for number in range(4)]
    push(a, "4")
    return kept


def told(site: Site) -> str:
    return CliRunner().invoke(main, ["status", "--socket", site.address], env={"COLUMNS": "250"}).output


def test_a_task_that_waits_for_room_which_it_holds_itself_moves_what_it_holds_and_gets_its_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_gateways(LAYOUT, tmp_path, memory=SMALL) as sites, sites["a"].client() as a, sites["b"].client() as b:
        kept = fill(a, b)
        places = [array.ctypes.data for array in kept]
        kept[2][7] = 99
        began = time.monotonic()
        assert (get(b, "4") == 4).all()
        assert time.monotonic() - began < SAID_SECONDS
        assert f"tasks here hold in what they got before: host:2 in s {4 * MIB:,}" in caplog.text
        assert f"{4 * MIB} bytes of what was got before are now memory of this process's own" in caplog.text
        for number in range(5, 9):
            push(a, str(number))
        for number in range(5, 9):
            # each of them would write over what was kept, had it not been moved
            assert (get(b, str(number)) == number).all()
        assert [array.ctypes.data for array in kept] == places
        assert kept[2][7] == 99
        kept[2][7] = 2
        for number, array in enumerate(kept):
            assert (array == number).all()
        kept.clear()
        gc.collect()
        eventually(lambda: sites["b"].pool("receive")["slots"] <= sites["b"].standing_grants(0))


def test_where_it_cannot_be_moved_status_get_and_log_say_who_holds_how_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as on a kernel that knows no MADV_POPULATE_WRITE
    monkeypatch.setattr(connections, "make_private", lambda _mapping: False)
    with start_gateways(LAYOUT, tmp_path, memory=SMALL) as sites, sites["a"].client() as a, sites["b"].client() as b:
        assert sites["b"].status()["held"] == []
        kept = fill(a, b)
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(get, b, "4")
            eventually(lambda: "host:2 waits: no room in receive memory for 1 that wait" in caplog.text, SAID_SECONDS)
            (held,) = sites["b"].status()["held"]
            assert (held["pool"], held["waiting"], held["bytes"]) == ("receive", 1, 4 * MIB)
            assert held["parties"] == [{"session": "s", "party": "host:2", "bytes": 4 * MIB}]
            assert "tasks hold 4.0 MiB in what they got before: host:2 in s 4.0 MiB" in told(sites["b"])
            kept.clear()
            gc.collect()
            assert (waits.result(30) == 4).all()
        eventually(lambda: sites["b"].status()["held"] == [])


def test_a_put_at_another_site_and_its_status_are_told_who_holds_what_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "make_private", lambda _mapping: False)
    memory = {**SMALL, "send_bytes": "2MiB"}
    with start_gateways(LAYOUT, tmp_path, memory=memory) as sites, sites["a"].client() as a, sites["b"].client() as b:
        kept = fill(a, b)
        push(a, "5")
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(push, a, "6")
            said = f"guest:1 waits: b takes no more: tasks there hold in what they got before: host:2 {4 * MIB:,}"
            eventually(lambda: said in caplog.text, SAID_SECONDS)
            assert "b takes no more; tasks there hold what they got before: host:2 4.0 MiB" in told(sites["a"])
            kept.clear()
            gc.collect()
            waits.result(30)
        for number in (4, 5, 6):
            assert (get(b, str(number)) == number).all()
        eventually(lambda: sites["a"].status()["peers"][0]["held_there"] == [])


def test_a_put_that_waits_for_send_memory_which_tasks_of_the_site_hold_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = {**SMALL, "send_bytes": "5MiB"}
    with (
        start_gateways({"a": ["guest:1", "host:2"]}, tmp_path, memory=memory) as sites,
        sites["a"].client("s", "guest:1") as a,
        sites["a"].client("s", "host:2") as b,
    ):
        for number in range(5):
            push(a, str(number))
        kept = [get(b, str(number)) for number in range(5)]
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(push, a, "5")
            eventually(lambda: "guest:1 waits: no room in send memory for 1 that wait" in caplog.text, SAID_SECONDS)
            # the task that holds it hears of it when it waits for something itself, too
            with pytest.raises(GatewayError) as nothing:
                get(b, "9", timeout=8.0)
            assert nothing.value.code is ErrorCode.PULL_TIMEOUT
            waits.result(30)
        assert (get(b, "5") == 5).all()
        assert [int(array[-1]) for array in kept] == list(range(5))
