"""A party that never comes for its messages: they are dropped as those of a party that has gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrdma_fate.gateway.tasks.presence import Attendance
from tests.support.sites import eventually, party, start_gateways


@pytest.mark.parametrize("came", [True, False], ids=["came and went", "never came"])
def test_what_waits_for_a_party_without_a_task_is_dropped_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, came: bool
) -> None:
    monkeypatch.setattr(Attendance.__init__, "__defaults__", (0.2,))
    with start_gateways({"a": ["guest:1"], "b": ["host:2"]}, tmp_path) as sites:
        if came:
            with sites["b"].client() as receiver:
                receiver.status()
        with sites["a"].client() as sender:
            sender.lease(300_000).commit("m", "t", [party("host:2")], "object")
            eventually(lambda: sites["b"].events("delivered"))
        eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 0, 3)
