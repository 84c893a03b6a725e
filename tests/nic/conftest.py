"""Every test here boots a testbed; where there is none, it is skipped and says why."""

from __future__ import annotations

import pytest

from tests.support.testbed import why_no_testbed


@pytest.fixture(scope="session")
def _reason_for_no_testbed() -> str | None:
    return why_no_testbed()


@pytest.fixture(autouse=True)
def _testbed(_reason_for_no_testbed: str | None) -> None:
    if _reason_for_no_testbed is not None:
        pytest.skip(_reason_for_no_testbed)
