"""Fixtures for tests that run over every transport."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.memory.region import SharedRegion
from tests.conformance.pairs import PARAMETERS, TRANSPORTS, MakeTransport, Pair, connected
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


@pytest.fixture(params=PARAMETERS)
def make(request: pytest.FixtureRequest) -> MakeTransport:
    """Makes one side's transport; the test runs once for every kind."""
    skip_without_device(request.param)
    return TRANSPORTS[request.param]


@pytest.fixture
def pair(make: MakeTransport, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion]) -> Iterator[Pair]:
    """Two connected endpoints."""
    with connected(make, shared_directory, regions) as made:
        yield made
