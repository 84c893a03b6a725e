"""Whatever goes wrong, in every mode and on every kind of data path: whole and once, or both ends are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MessageKey, Mode
from tests.support.kept_twin import KeptTwin
from tests.support.matrix import FAULTS, MatrixTwin, Outcome, cells, run_once
from tests.support.matrix_table import cell_line, table


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
    wrong: list[str] = []
    struck = delivered = told = 0
    for seed in range(first, first + count):
        outcome = run_once(fault, mode, path, seed)
        struck, delivered, told = struck + outcome.struck, delivered + outcome.delivered, told + outcome.told
        wrong += [f"{sentence} (seed {seed})" for sentence in outcome.wrong]
    record_property("cell", cell_line(fault, mode, path, count, struck, delivered, told, wrong))
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "none"])
def test_each_fault_happens_in_the_mode_that_can_have_it(fault: str) -> None:
    # chunks are lost, and overtake each other, where fedrdma-x posts them; headers are those of fedrdma
    mode: Mode = "fedrdma" if fault == "header damaged" else "fedrdma-x"
    assert any(run_once(fault, mode, "verbs", seed).struck for seed in range(8))


@pytest.mark.parametrize("fault", ["truncated", "control replayed", "either killed", "chunks lost"])
def test_a_seed_repeats_its_run(fault: str) -> None:
    outcomes: list[Outcome] = [run_once(fault, "fedrdma-x", "verbs", 7) for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] != run_once(fault, "fedrdma-x", "verbs", 8)


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
