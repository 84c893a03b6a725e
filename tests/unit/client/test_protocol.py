"""Requests and replies between a task and its gateway: what is said comes back, and nothing else is taken."""

from __future__ import annotations

import pytest

from fedrdma_fate.client.protocol import (
    LENGTH_PREFIX,
    MAX_FRAME_BYTES,
    Get,
    ReleaseLeases,
    decode_reply,
    decode_request,
    encode_message,
    frame_length,
)
from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import Party


@pytest.mark.parametrize("request_", [ReleaseLeases((1, 2)), Get("model", "0", Party("host", "2"), 1.5)])
def test_a_request_comes_back_as_it_was(request_: Get | ReleaseLeases) -> None:
    message = encode_message(request_)
    length = frame_length(message[: LENGTH_PREFIX.size])
    assert length == len(message) - LENGTH_PREFIX.size
    assert decode_request(message[LENGTH_PREFIX.size :]) == request_


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x80", b"\x81\xa4type\xa4none", b"\x91" * 100_000])
def test_bytes_that_are_no_message_are_an_error(body: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with pytest.raises(WireError) as refused:
            decode(body)
        assert refused.value.code is ErrorCode.MALFORMED_FRAME


def test_a_length_beyond_the_longest_message_is_refused_before_it_is_read() -> None:
    assert frame_length(LENGTH_PREFIX.pack(MAX_FRAME_BYTES)) == MAX_FRAME_BYTES
    with pytest.raises(WireError):
        frame_length(LENGTH_PREFIX.pack(MAX_FRAME_BYTES + 1))
