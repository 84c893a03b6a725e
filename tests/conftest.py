"""What every kind of test needs."""

from __future__ import annotations

import gc
import logging
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from fedrdma_fate.obs.log import ROOT_LOGGER

LONG = frozenset({"test_verbs_conformance.py", "test_verbs_fate_job.py", "test_x_sharing.py", "test_verbs_matrix.py"})
"""Files whose tests take long, but are part of what --fast runs."""


@pytest.fixture(autouse=True)
def _each_test_finds_the_log_as_it_was() -> Iterator[None]:
    """The commands set up the package's logger for their process, which the next test must not inherit."""
    logger = logging.getLogger(ROOT_LOGGER)
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers = propagate, handlers


def pytest_configure() -> None:
    """No example fails for what it took: on a busy machine that says nothing of it."""
    hypothesis.settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Beside others those that take long begin first: else one core waits in the end for the one that began last."""
    if hasattr(config, "workerinput"):
        items.sort(key=takes_long, reverse=True)


def takes_long(item: pytest.Item) -> bool:
    """Whether a test is among those that take much longer than others of its kind."""
    return item.get_closest_marker("slow") is not None or item.path.name in LONG


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are collected, and stay: to look through them for garbage is a third of what it takes."""
    gc.disable()
    try:
        result = yield
    finally:
        gc.collect()
        # each look that a test makes leaves them out
        gc.freeze()
        gc.enable()
    return result


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the longest tests are, where somebody has the time."""
    parser.addoption(
        "--adversary-frames", type=int, default=3000, help="frames of the adversary in tests/property (default: 3000)"
    )
    parser.addoption(
        "--kills", type=int, default=3, help="of gateways, in tests/fate's job of three silos (default: 3)"
    )
    parser.addoption("--kills-seed", type=int, default=1, help="of which and when (default: 1)")
    parser.addoption(
        "--late-seconds",
        type=float,
        default=2.0,
        help="after which a site comes, in tests/fault's session of four (default: 2)",
    )
    parser.addoption(
        "--stop-bytes",
        default="32MB",
        help="under way when a job of FATE Flow is stopped, in tests/fate (default: 32MB)",
    )
    parser.addoption("--matrix-seeds", type=int, default=1, help="runs of each cell in tests/matrix (default: 1)")
    parser.addoption("--matrix-seed", type=int, default=0, help="seed of the first of them (default: 0)")
    parser.addoption(
        "--matrix-results", help="a file in which cells that have passed are kept; they are not run again with it"
    )
    parser.addoption(
        "--gateway-seeds",
        type=int,
        default=0,
        help="runs of each cell of the matrix with real gateways; 0 (default): one run of each fault",
    )
