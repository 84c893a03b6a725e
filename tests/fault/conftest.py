"""What tests of gateways that are killed and started again have in common; each file makes its own pair (`both`)."""

from __future__ import annotations

import pytest

from tests.support.sites import Sites, start_all


@pytest.fixture
def sites(both: Sites) -> Sites:
    """Both are there and connected."""
    start_all(both)
    return both


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    """A session of the test's own."""
    return str(request.node.name)
