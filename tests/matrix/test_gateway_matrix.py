"""The matrix of faults with gateways that are processes: whole and once, or both ends are told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedrdma_fate.wire.frames import Mode
from tests.support.connections import why_not_half_open
from tests.support.gateway_faults import BY_FILTER, GATEWAY_FAULTS, Place
from tests.support.gateway_matrix import gateway_cells, run_cell, running_place, some_gateway_cells


class Places:
    """Pairs of gateways, by the kind of their data path: started when the first run wants them."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._running: dict[str, Place] = {}

    def __getitem__(self, path: str) -> Place:
        if path not in self._running:
            self._running[path] = self._stack.enter_context(running_place(self._directory / path, path))
        return self._running[path]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with contextlib.ExitStack() as stack:
        yield Places(tmp_path_factory.mktemp("places"), stack)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cells that were asked for."""
    if "fault" in metafunc.fixturenames:
        every = metafunc.config.getoption("--gateway-seeds")
        cells = gateway_cells() if every else some_gateway_cells()
        metafunc.parametrize(("fault", "mode", "path"), cells, ids=lambda value: value.replace(" ", "_"))


@pytest.mark.timeout(7200)
def test_with_real_gateways_every_message_comes_whole_and_once_or_both_ends_are_told_and_all_memory_comes_back(
    fault: str,
    mode: Mode,
    path: str,
    places: Places,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    if fault in BY_FILTER and (reason := why_not_half_open()):
        pytest.skip(reason)
    first, count = request.config.getoption("--matrix-seed"), max(1, request.config.getoption("--gateway-seeds"))
    result = run_cell(places[path], GATEWAY_FAULTS, fault, mode, path, range(first, first + count))
    record_property("cell", result.line(count))
    assert not result.wrong, "\n".join(result.wrong[:20])
