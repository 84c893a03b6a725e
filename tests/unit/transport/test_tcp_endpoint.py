"""What a closed data path still holds."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator

import pytest

from fedrdma_fate.transport import tcp
from fedrdma_fate.transport.tcp import TcpEndpoint, TcpSettings
from fedrdma_fate.transport.tcp_streams import StreamReader
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.endpoints import HeapRegion


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nobody refers to any more goes."""
    gc.disable()
    yield
    gc.enable()


def streams() -> tuple[list[socket.socket], list[socket.socket]]:
    """Two connections over loopback, both ends of each, non-blocking."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        there = [listener.accept()[0] for _ in here]
    for each in (*here, *there):
        each.setblocking(False)
    return here, there


@pytest.mark.usefixtures("no_collector")
def test_a_data_path_that_was_closed_keeps_no_buffers_whoever_still_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[weakref.ref[StreamReader]] = []

    class Reader(StreamReader):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(weakref.ref(self))

    monkeypatch.setattr(tcp, "StreamReader", Reader)
    here, there = streams()
    endpoint = TcpEndpoint(here, TcpSettings())
    assert [reader() is None for reader in made] == [False, False]

    endpoint.close()
    endpoint.close()

    assert [reader() is None for reader in made] == [True, True]
    for use in (endpoint.progress, endpoint.poll_set, endpoint.check):
        with pytest.raises(TransportError) as caught:
            use()
        assert caught.value.code is ErrorCode.LINK_LOST
    for each in there:
        each.close()


def test_once_the_link_is_lost_readiness_shows_nothing_and_who_asks_is_told() -> None:
    here, there = streams()
    endpoint = TcpEndpoint(here, TcpSettings())
    assert endpoint.readiness_shows_all
    endpoint.lose("the test lost it")
    assert not endpoint.readiness_shows_all
    with pytest.raises(TransportError, match="the test lost it"):
        endpoint.progress()
    for each in there:
        each.close()


def test_what_the_peer_s_host_has_taken_of_a_write_is_seen_before_the_write_is_whole() -> None:
    here, there = streams()
    # so that the kernel does not take all of it
    sending = TcpEndpoint(here, TcpSettings(buffer_bytes=64 * 1024))
    receiving = TcpEndpoint(there, TcpSettings(buffer_bytes=64 * 1024))
    region = HeapRegion(8 << 20)
    target = receiving.expose(1, HeapRegion(8 << 20).slot())
    assert sending.moved_bytes == 0
    sending.post_write(1, region.slot(), target, 0)
    seen = []
    for _ in range(20):
        receiving.progress()
        assert not sending.progress()
        seen.append(sending.moved_bytes)
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] < region.length
    # nobody reads any more
    for _ in range(20):
        sending.progress()
    full = sending.moved_bytes
    sending.progress()
    assert sending.moved_bytes == full
    sending.close()
    receiving.close()
    assert sending.moved_bytes == 0
