"""Nothing that a protocol of `fedrdma bench protocols` is sent is unpickled, and what ZMTP drops is counted."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.softroce.programs import exchange
from deploy.softroce.programs.exchange.interface import MadeModels, model_of
from tests.support.repository import ROOT

SIZE = 40_000
ZMTP = pytest.mark.skipif(importlib.util.find_spec("zmq") is None, reason="pyzmq is not installed")
WAITED = "deploy.softroce.programs.exchange.zmtp.UNDELIVERED_SECONDS"
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def imported(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_no_protocol_of_the_benchmark_unpickles_what_the_network_brings() -> None:
    files = [*sorted(Path(exchange.__path__[0]).glob("*.py")), ROOT / "fedrdma_fate/bench/quic.py"]
    assert {"amqp.py", "mqtt.py", "zmtp.py", "tcp.py", "datagrams.py", "quic.py"} <= {path.name for path in files}
    for path in files:
        assert not imported(path) & PICKLERS, path.name
        # pyzmq's and torch's own ways to it
        called = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert "recv_pyobj" not in called, path.name


def test_a_protocol_that_would_is_found(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def take(data):\n    from pickle import loads\n    return loads(data)\n")
    assert imported(bad) & PICKLERS


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A publisher, its port and its context; what does not come is soon not waited for any more."""
    zmq = pytest.importorskip("zmq")
    monkeypatch.setattr(WAITED, 0.3)
    context = zmq.Context()
    try:
        sock = context.socket(zmq.PUB)
        yield sock, sock.bind_to_random_port("tcp://127.0.0.1"), context
    finally:
        context.destroy(linger=0)


def joined(publisher: Any, messages: int = 1000) -> Any:
    """A subscriber that has come to it, of which either end holds so many messages."""
    import zmq

    from deploy.softroce.programs.exchange.zmtp import Subscriber, _greeting

    sender, port, context = publisher
    sender.setsockopt(zmq.SNDHWM, messages)
    sock = context.socket(zmq.SUB)
    sock.setsockopt(zmq.RCVHWM, messages)
    sock.subscribe(b"")
    sock.connect(f"tcp://127.0.0.1:{port}")
    made = Subscriber(sock, MadeModels(0, SIZE))
    with _greeting(sender):
        made.greeted()
    return made


@ZMTP
def test_a_subscriber_that_joins_late_has_not_had_what_was_published_before(
    publisher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deploy.softroce.programs.exchange.zmtp import published

    publisher[0].send_multipart(published(0, 1, model_of(1, 0, SIZE)))
    late = joined(publisher)
    (received,) = late.receive(0, [1])
    assert received.missing_bytes == SIZE
    monkeypatch.setattr(WAITED, 60.0)
    publisher[0].send_multipart(published(1, 1, model_of(1, 1, SIZE)))
    (received,) = late.receive(1, [1])
    assert received.missing_bytes == 0


@ZMTP
def test_what_is_dropped_at_a_publisher_s_high_water_mark_is_counted_as_not_delivered(publisher: Any) -> None:
    from deploy.softroce.programs.exchange.zmtp import published

    slow = joined(publisher, 1)
    # more than the kernel's buffers take of what nobody reads
    rounds = 1000
    for number in range(rounds):
        publisher[0].send_multipart(published(number, 1, model_of(1, 0, SIZE)))
    (received,) = slow.receive(rounds - 1, [1])
    assert received.missing_bytes == SIZE
    assert 0 < received.dropped < rounds
