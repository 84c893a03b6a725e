"""Reading traces that are being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.traces import trace_events


@pytest.mark.parametrize("half", ["", "{", '{"event":"c'])
def test_a_line_that_is_being_written_is_no_event_yet(tmp_path: Path, half: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"event":"a"}\n{"event":"b"}\n' + half)
    assert [event["event"] for event in trace_events(path)] == ["a", "b"]
