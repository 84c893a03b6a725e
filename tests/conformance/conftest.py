"""Fixtures for tests that run over every transport."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.memory.region import SharedRegion
from tests.conformance.pairs import ONE_OF_EACH, PARAMETERS, TRANSPORTS, MakeTransport, Pair, connected
from tests.support.rdma import skip_without_device
from tests.support.shared_memory import room_for_regions

REGION_BYTES = 80 * 1024 * 1024


@pytest.fixture(scope="session")
def shared_directory() -> Iterator[Path]:
    """The directory of both gateways."""
    with tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="test-of-fedrdma-") as name:
        # as a gateway's own directory is called, beside which its peers have theirs
        directory = Path(name) / "fedrdma-test"
        directory.mkdir()
        yield directory


@pytest.fixture(scope="session")
def regions() -> Iterator[tuple[SharedRegion, SharedRegion]]:
    """A region of each gateway, faulted in once for all tests."""
    pair = tuple(SharedRegion.create(name, REGION_BYTES) for name in ("active", "passive"))
    yield pair[0], pair[1]
    for region in pair:
        region.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test runs once for every kind of transport, or for one of each that are alike."""
    if "name_of_kind" in metafunc.fixturenames:
        alike_once = getattr(metafunc.module, "ALIKE_ONCE", False)
        metafunc.parametrize("name_of_kind", ONE_OF_EACH if alike_once else PARAMETERS, scope="function")


@pytest.fixture
def make(name_of_kind: str) -> MakeTransport:
    """Makes one side's transport."""
    skip_without_device(name_of_kind)
    return TRANSPORTS[name_of_kind]


@pytest.fixture
def pair(make: MakeTransport, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion]) -> Iterator[Pair]:
    """Two connected endpoints."""
    with connected(make, shared_directory, regions) as made:
        yield made
