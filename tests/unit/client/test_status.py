"""What comes back from whoever listens at a gateway's socket, and may be no gateway."""

from __future__ import annotations

import pytest

from fedrdma_fate.client import client
from fedrdma_fate.client.protocol import StatusReport
from fedrdma_fate.wire.errors import ErrorCode, GatewayError


@pytest.mark.parametrize("answer", [b"", b"{", b"[1]", b"\xff", b"null", b"[" * 100_000], ids=range(6))
def test_an_answer_that_is_no_document_is_an_error_with_a_code(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "call_once", lambda *_: StatusReport(answer))
    with pytest.raises(GatewayError) as refused:
        client.ask_status("unix:///run/a.sock")
    assert refused.value.code is ErrorCode.CLIENT_PROTOCOL


def test_a_document_comes_back_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "call_once", lambda *_: StatusReport(b'{"site": "a"}'))
    assert client.ask_status("unix:///run/a.sock") == {"site": "a"}
