"""What the doctor says of notices: by which way workers are told, and why not by the one that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from fedrdma_fate.doctor.gateway_status import GatewayStatus, read_status
from fedrdma_fate.doctor.notices import check_notices

NO = "Operation not permitted: it takes CAP_BPF and CAP_NET_ADMIN"


def of_gateway(way: str, reason: str) -> GatewayStatus:
    notices = {"way": way, "reason": reason, "passed": 3}
    document: dict[str, Any] = {"site": "a", "version": "1", "peers": [], "sum_workers": {"notices": notices}}
    return read_status(document)


def never() -> str:
    raise AssertionError("nobody has asked for SKMSG")


@pytest.mark.parametrize("wish", ["auto", "socket"])
def test_where_nobody_asks_for_skmsg_nothing_is_tried(wish: str) -> None:
    finding = check_notices(wish, never, None)

    assert finding.level == "ok"
    assert f"aggregate.notices: {wish}" in finding.found


def test_skmsg_that_works_is_fine() -> None:
    assert check_notices("skmsg", lambda: "", None).level == "ok"


def test_skmsg_that_is_not_to_be_had_is_a_warning_with_its_reason() -> None:
    finding = check_notices("skmsg", lambda: NO, None)

    assert finding.level == "warning"
    assert NO in finding.found
    assert "this user" in finding.found
    assert "AmbientCapabilities" in finding.remedy


def test_the_running_gateway_knows_better_than_who_asks() -> None:
    assert check_notices("skmsg", never, of_gateway("skmsg", "")).level == "ok"
    finding = check_notices("skmsg", never, of_gateway("socket", NO))
    assert finding.level == "warning"
    assert "the running gateway" in finding.found


@pytest.mark.parametrize("workers", [{}, {"notices": None}])
def test_of_a_gateway_that_does_not_say_the_kernel_is_asked(workers: dict[str, Any]) -> None:
    status = read_status({"site": "a", "version": "1", "peers": [], "sum_workers": workers})

    assert check_notices("skmsg", lambda: NO, status).level == "warning"
