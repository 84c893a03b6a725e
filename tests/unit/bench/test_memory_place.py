"""Where the gateways of a benchmark have their memory: shared, if all of it fits there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedrdma_fate.bench.baselines import gateways

CONFIGS = [{"memory": {"send_bytes": 60, "receive_bytes": 20}}, {"memory": {"send_bytes": 20, "receive_bytes": 60}}]


@pytest.mark.parametrize(("free", "shared", "warned"), [(161, True, 0), (160, False, 1)])
def test_memory_that_does_not_fit_lies_on_disk_and_the_log_says_that_this_is_slower(
    free: int,
    shared: bool,
    warned: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(gateways, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    assert gateways._memory_parent(CONFIGS, tmp_path / "run") == (tmp_path if shared else tmp_path / "run")
    assert [record.message.endswith("lies on disk, which is slower") for record in caplog.records] == [True] * warned
