"""How full a queue gets: how often one looks, what is asked of the kernel and read from its answers."""

from __future__ import annotations

import struct

import pytest

from deploy.softroce.queues import QueueWatch, backlog_of, backlog_request, sampling_seconds, watched


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def answer(*attributes: bytes, kind: int = 36) -> bytes:
    body = bytes(20) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


@pytest.mark.parametrize(
    ("rate", "buffer", "seconds"), [(10**9, 500_000, 0.0004), (10**10, 500_000, 0.0001), (10**9, 10**9, 0.002)]
)
def test_a_queue_cannot_fall_by_more_than_a_tenth_of_its_buffer_unseen_within_bounds(
    rate: int, buffer: int, seconds: float
) -> None:
    assert sampling_seconds(rate, buffer) == pytest.approx(seconds)


def test_the_backlog_is_found_among_what_else_the_kernel_says() -> None:
    name, old = attribute(1, b"tbf\0"), attribute(3, bytes(36))
    statistics = attribute(1, bytes(12)) + attribute(3, struct.pack("=5I", 7, 30_100, 1, 2, 3))
    assert backlog_of(answer(name, old, attribute(7, statistics), name)) == 30_100


@pytest.mark.parametrize(
    "said", [answer(), answer(attribute(7, attribute(1, bytes(12)))), answer(attribute(7, b""), attribute(3, bytes(8)))]
)
def test_an_answer_without_a_backlog_is_refused(said: bytes) -> None:
    with pytest.raises(OSError, match="holds no backlog"):
        backlog_of(said)


def test_what_the_kernel_refuses_is_an_error_with_its_number() -> None:
    refusal = struct.pack("=IHHII", 36, 2, 0, 1, 0) + struct.pack("=i", -19) + bytes(16)
    with pytest.raises(OSError, match="does not tell") as caught:
        backlog_of(refusal)
    assert caught.value.errno == 19


def test_the_question_names_the_interface_and_its_root() -> None:
    request = backlog_request(5)
    assert struct.unpack_from("=IHH", request) == (len(request), 38, 0x9)
    assert struct.unpack_from("=xxxxiIII", request, 16) == (5, 0, 0xFFFFFFFF, 0)


def test_an_interface_that_does_not_exist_cannot_be_watched() -> None:
    with pytest.raises(OSError):
        QueueWatch(["no-such-netdev"], 0.001)


def test_nothing_is_watched_unless_somebody_asks() -> None:
    with watched(["no-such-netdev"], None) as watch:
        assert watch is None
