"""What a running gateway shows, trace events and status document, has the fields that it had before.

How to change tests/snapshots/running.json on purpose: see tests/unit/compatibility/test_outside.py.
"""

from __future__ import annotations

from tests.support.outside import as_committed, running, snapshot


def test_trace_events_and_the_status_document_have_the_fields_they_had() -> None:
    assert as_committed(running()) == snapshot("running")
