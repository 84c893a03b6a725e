"""The kernel gives no thread, for want of memory or by a limit: gRPC's data path is not there, and comes up later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fedrdma_fate.transport.grpc import GrpcSettings, GrpcTransport
from fedrdma_fate.wire.errors import ErrorCode, TransportError

CONNECT_SECONDS = 20.0


class Threads:
    """Those of gRPC, which the kernel gives or does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given = True
        self._start = threading.Thread.start
        start = self._start

        def start_if_given(thread: threading.Thread, *arguments: Any) -> None:
            # those of the test's own pool are the kernel's gift in any case
            if not self.given and not thread.name.startswith("test"):
                raise RuntimeError("can't start new thread")
            start(thread, *arguments)

        monkeypatch.setattr(threading.Thread, "start", start_if_given)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


@pytest.fixture
def transports() -> Iterator[tuple[GrpcTransport, GrpcTransport]]:
    pair = GrpcTransport(GrpcSettings()), GrpcTransport(GrpcSettings())
    yield pair
    for each in pair:
        each.close()


def meet(passive: GrpcTransport, active: GrpcTransport) -> None:
    """Make a data path, and close it."""
    waiting, dialling = passive.open("passive"), active.open("active")
    with ThreadPoolExecutor(1, "test") as pool:
        accepted = pool.submit(waiting.connect, {}, CONNECT_SECONDS)
        dialled = dialling.connect(waiting.address, CONNECT_SECONDS)
        for endpoint in (dialled, accepted.result(CONNECT_SECONDS)):
            endpoint.close()


def test_a_gateway_that_gets_no_thread_to_serve_by_serves_when_it_gets_one(
    transports: tuple[GrpcTransport, GrpcTransport], threads: Threads
) -> None:
    threads.given = False
    with pytest.raises(TransportError) as caught:
        transports[0].open("passive")
    assert caught.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    assert "can't start new thread" in caught.value.message

    threads.given = True
    meet(*transports)


def test_a_gateway_that_gets_no_thread_to_dial_by_dials_when_it_gets_one(
    transports: tuple[GrpcTransport, GrpcTransport], threads: Threads
) -> None:
    waiting = transports[0].open("passive")
    threads.given = False
    with pytest.raises(TransportError) as caught:
        transports[1].open("active").connect(waiting.address, CONNECT_SECONDS)
    assert caught.value.code is ErrorCode.TRANSPORT_UNAVAILABLE

    threads.given = True
    waiting.close()
    meet(*transports)


def test_a_gateway_without_threads_can_be_closed(threads: Threads) -> None:
    transport = GrpcTransport(GrpcSettings())
    threads.given = False
    transport.close()
