"""Whatever goes wrong, in every mode and on every kind of data path: whole and once, or both ends are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from fedrdma_fate.engine import incoming, landing
from fedrdma_fate.gateway.peers import saving
from fedrdma_fate.memory.payload_copies import CopyAhead
from fedrdma_fate.memory.spill import Spilled
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MessageKey, Mode
from tests.support.kept_twin import KeptTwin
from tests.support.matrix import FAULTS, HARMLESS, MatrixTwin, Outcome, cells, run_once
from tests.support.matrix_table import CellResult, cell_line, table
from tests.support.twin import run_virtually

BODY = bytes(range(256)) * 1200


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """What the gateways say of all that goes wrong would fill the disk."""
    logging.getLogger("fedrdma_fate").setLevel(logging.CRITICAL + 1)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("fault", "mode", "path"), cells(), ids=lambda value: str(value).replace(" ", "_"))
def test_every_message_comes_whole_and_once_or_both_ends_are_told_and_all_memory_comes_back(
    fault: str, mode: Mode, path: str, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    first, count = request.config.getoption("--matrix-seed"), request.config.getoption("--matrix-seeds")
    result = CellResult(fault, mode, path)
    for seed in range(first, first + count):
        outcome = run_once(fault, mode, path, seed)
        result.add(outcome, seed, outcome.why if fault in HARMLESS else [])
    record_property("cell", result.line(count))
    assert not result.wrong, "\n".join(result.wrong[:20])


@pytest.mark.parametrize("fault", FAULTS)
def test_copies_on_disk_that_are_begun_while_a_message_comes_have_its_bytes(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if all messages were long
    monkeypatch.setattr(incoming, "LEAST_BYTES", 1)
    monkeypatch.setattr(landing, "STEP_BYTES", 1)
    monkeypatch.setattr(saving, "LEAST_AHEAD_BYTES", 1)
    monkeypatch.setattr(saving, "AHEAD_STEP_BYTES", 1)
    begun, finished, other_bytes = 0, 0, list[str]()
    real_write, real_finish = CopyAhead.write, CopyAhead.finish

    def write(copy: CopyAhead, start: int, end: int) -> None:
        nonlocal begun
        begun += 1
        real_write(copy, start, end)

    def finish(copy: CopyAhead) -> Spilled:
        nonlocal finished
        finished += 1
        spilled = real_finish(copy)
        if spilled.path.read_bytes() != bytes(copy.payload.view):
            other_bytes.append(spilled.path.name)
        return spilled

    monkeypatch.setattr(CopyAhead, "write", write)
    monkeypatch.setattr(CopyAhead, "finish", finish)
    wrong = []
    for cell, mode, path in cells():
        # the others differ in nothing that copies see
        if cell == fault and path in ("tcp", "verbs"):
            wrong += run_once(fault, mode, path, 0, durable=True).wrong
    assert (wrong, other_bytes) == ([], [])
    assert begun
    assert finished


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "none"])
def test_each_fault_happens_in_the_mode_that_can_have_it(fault: str) -> None:
    # chunks are lost, and overtake each other, where fedrdma-x posts them; headers are those of fedrdma
    mode: Mode = "fedrdma" if fault == "header damaged" else "fedrdma-x"
    assert any(run_once(fault, mode, "verbs", seed).struck for seed in range(8))


@pytest.mark.parametrize(("fault", "path", "seed"), [("late", "shm", 0), ("reordered", "shm", 1)])
def test_what_a_path_acknowledged_and_its_end_did_not_live_to_tell_costs_no_message(
    fault: str, path: str, seed: int
) -> None:
    # seeds in which the path ended then
    outcome = run_once(fault, "fedrdma-x", path, seed)
    assert (outcome.why, outcome.wrong) == ([], [])


def test_a_replayed_frame_that_offers_no_address_ends_no_link() -> None:
    # a seed in which one comes
    outcome = run_once("control replayed", "fedrdma", "udp", 27)
    assert outcome.wrong == []


@pytest.mark.parametrize(
    ("fault", "mode", "path", "seed"),
    [
        ("truncated", "fedrdma-x", "verbs", 7),
        ("control replayed", "fedrdma-x", "verbs", 7),
        ("either killed", "fedrdma-x", "verbs", 7),
        ("chunks lost", "fedrdma-x", "verbs", 7),
        # messages are spilled in it
        ("receiver killed", "fedrdma-e", "shm", 0),
    ],
)
def test_a_seed_repeats_its_run(fault: str, mode: Mode, path: str, seed: int) -> None:
    outcomes: list[Outcome] = [run_once(fault, mode, path, seed) for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] != run_once(fault, mode, path, seed + 1)


async def _spilled_and_killed(directory: Path) -> tuple[int, list[bytes]]:
    twin = KeptTwin(directory)
    try:
        await twin.connect()
        # more than the receive region of b holds
        keys = [twin.push("a", f"m{number}", BODY) for number in range(4)]
        await twin.quiesce()
        files = sum(each.name != "pid" for each in twin.halves["b"].context.spill.path.iterdir())
        twin.kill("b")
        await twin.restart("b")
        await twin.quiesce()
        return files, [await twin.get(key) for key in keys]
    finally:
        twin.close()


def test_what_a_killed_gateway_of_the_twin_had_spilled_is_there_for_the_next_one(tmp_path: Path) -> None:
    files, bodies = run_virtually(_spilled_and_killed(tmp_path))
    assert files > 0
    assert bodies == [BODY] * 4


async def _flipped(twin: KeptTwin, key: MessageKey) -> bytes:
    body = await KeptTwin.get(twin, key)
    return body[:-1] + bytes([body[-1] ^ 1])


async def _never(twin: KeptTwin, key: MessageKey) -> bytes:
    await asyncio.Event().wait()
    return await KeptTwin.get(twin, key)


async def _kept_for_ever(twin: KeptTwin, key: MessageKey) -> bytes:
    (half,) = (half for half in twin.halves.values() if half.party == key.destination)
    half.context.receive_pool.lease(4096, "leak")
    return await KeptTwin.get(twin, key)


async def _refused(twin: KeptTwin, key: MessageKey) -> bytes:
    raise GatewayError(ErrorCode.MESSAGE_LOST, f"the test says that {key} of {twin} is lost")


async def _again(twin: KeptTwin, key: MessageKey) -> bytes:
    del twin
    return BODIES[key]


BODIES: dict[MessageKey, bytes] = {}


@pytest.mark.parametrize(
    ("get", "verdict"),
    [(_flipped, "corrupt"), (_never, "hung"), (_kept_for_ever, "slots"), (_refused, "lost"), (_again, "doubled")],
)
def test_the_verdict_sees_each_thing_that_may_be_wrong(
    get: Callable[..., object], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = MatrixTwin.push

    def remembered(twin: MatrixTwin, site: str, name: str, body: bytes, mode: Mode) -> MessageKey:
        key = push(twin, site, name, body, mode=mode)
        BODIES[key] = body
        return key

    monkeypatch.setattr(MatrixTwin, "push", remembered)
    monkeypatch.setattr(MatrixTwin, "get", get)
    assert verdict in {sentence.split(":")[0] for sentence in run_once("none", "fedrdma", "tcp", 1).wrong}


def test_the_table_counts_what_is_wrong_by_its_first_word() -> None:
    cell = cell_line("silent", "fedrdma", "tcp", 2, 1, 15, 0, ["lost: m1 (seed 0)", "hung: m2 (seed 1)"])
    silent = table([cell, cell]).splitlines()[1].split()
    assert silent == ["silent", "4", "2", "30", "0", "0", "2", "0", "2", "0", "0"]
