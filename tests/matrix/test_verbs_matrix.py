"""The matrix of faults over real verbs, with a gateway on each of two hosts of the testbed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fedrdma_fate.wire.frames import Mode
from tests.support.matrix import MODES
from tests.support.testbed import program, run_on_hosts, why_no_testbed
from tests.support.verbs_matrix import FAULTS_OVER_VERBS, IN_EVERY_RUN

BOOTS = 2
"""In which each fault of every run is played once, and as many for those of sweeps. What is in one boot takes as long
as that in the other, more or less."""

CELL_SECONDS = 12.0
"""For one run: a gateway that is started anew is slow in a guest, and one certificate has to expire."""

Cell = tuple[str, Mode]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A boot for each fault where all cells were asked for; else each fault once, modes by turns, in few boots."""
    if metafunc.config.getoption("--gateway-seeds"):
        boots = [
            pytest.param([(fault, mode) for mode in MODES], id=fault.replace(" ", "_")) for fault in FAULTS_OVER_VERBS
        ]
    else:
        cells = list(zip(FAULTS_OVER_VERBS, itertools.cycle(MODES), strict=False))
        boots = [
            *_few_boots([cell for cell in cells if cell[0] in IN_EVERY_RUN], "every_run"),
            *_few_boots([cell for cell in cells if cell[0] not in IN_EVERY_RUN], "sweeps", pytest.mark.sweep),
        ]
    metafunc.parametrize("cells", boots)


def _few_boots(cells: Sequence[Cell], name: str, *marks: pytest.MarkDecorator) -> list[Any]:
    return [
        pytest.param(cells[number::BOOTS], id=f"{name}_{number + 1}_of_{BOOTS}", marks=marks) for number in range(BOOTS)
    ]


@pytest.mark.nic
@pytest.mark.timeout(0)
def test_over_verbs_every_message_comes_whole_and_once_or_both_ends_are_told_and_all_memory_comes_back(
    cells: list[Cell], request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    if (reason := why_no_testbed()) is not None:
        pytest.skip(reason)
    first, count = request.config.getoption("--matrix-seed"), max(1, request.config.getoption("--gateway-seeds"))
    command = program("verbs_matrix.py", first, count, *(f"{fault}/{mode}" for fault, mode in cells))
    # slow enough for a fault to hit the middle of a large message
    driver, _ = run_on_hosts(["true"], on={0: command}, rate="200mbit", timeout=30 + CELL_SECONDS * count * len(cells))
    results = [json.loads(line) for line in driver.stdout.splitlines()]
    for result in results:
        record_property("cell", result["cell"])
    wrong = [sentence for result in results for sentence in result["wrong"]]
    assert not wrong, "\n".join([*wrong[:20], driver.stderr])
    assert driver.exit_status == 0, driver.stderr
    assert len(results) == len(cells)
