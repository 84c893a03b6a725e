"""Every test here boots a testbed; where there is none, it is skipped and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.testbed import PATIENCE, why_no_testbed

LIMIT_SECONDS = 250.0 * PATIENCE
"""For one test: what boots a guest has a limit of its own below this; it ends what hangs outside of guests."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The limit of other tests is too short for a guest on a machine that does something else as well."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS))


@pytest.fixture(scope="session")
def _reason_for_no_testbed() -> str | None:
    return why_no_testbed()


@pytest.fixture(autouse=True)
def _testbed(_reason_for_no_testbed: str | None) -> None:
    if _reason_for_no_testbed is not None:
        pytest.skip(_reason_for_no_testbed)
