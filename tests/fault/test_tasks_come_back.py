"""Tasks whose gateway is killed and started again: they go on with what they had, and nothing comes twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from tests.support.sites import (
    InProcesses,
    Sites,
    eventually,
    party,
    runner_of,
    start_gateways,
)

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "16MiB", "ring_slots": 2, "ring_slot_bytes": "1MiB"}
BODY = os.urandom(3 << 20)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Two gateways as processes; each test makes use of them in a session of its own."""
    with start_gateways(
        LAYOUT,
        tmp_path_factory.mktemp("back"),
        runner=InProcesses(),
        connected=False,
        memory=MEMORY,
        timeouts={"drain": 1.0, "connect": 3.0},
    ) as running:
        yield running


def push(client: GatewayClient, name: str, body: bytes = BODY) -> None:
    lease = client.lease(len(body))
    lease.buffer[:] = body
    lease.commit(name, "t", [B], "object")


def restart(sites: Sites, name: str) -> None:
    runner_of(sites).kill(sites[name])
    runner_of(sites).start(sites[name])


class Doing:
    """A call in a thread, and what came of it."""

    def __init__(self, call: Callable[..., Any], *args: Any, **named: Any) -> None:
        self._result: Any = None
        self._error: FedRDMAError | None = None
        self._thread = threading.Thread(target=self._do, args=(call, args, named))
        self._thread.start()

    def _do(self, call: Callable[..., Any], args: Any, named: Any) -> None:
        try:
            self._result = call(*args, **named)
        except FedRDMAError as error:
            self._error = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def result(self, seconds: float = 110.0) -> Any:
        """On a busy machine a gateway takes its time to start, and some tests start several, one after the other."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "it waits still"
        if self._error is not None:
            raise self._error
        return self._result


def test_a_get_that_waits_while_its_gateway_is_restarted_gets_its_message(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        large, small = Doing(b.get, "large", "t", A), Doing(b.get, "small", "t", A)
        eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] == 2)
        restart(sites, "b")
        push(a, "large")
        a.put_inline("small", "t", [B], "bytes", b"hello")
        assert bytes(large.result().buffer) == BODY
        assert bytes(small.result().buffer) == b"hello"
        # and with the gateway after that
        restart(sites, "b")
        a.put_inline("next", "t", [B], "bytes", b"again")
        assert bytes(b.get("next", "t", A, timeout=20).buffer) == b"again"


def test_a_put_waits_for_a_gateway_that_is_restarted_and_goes_on(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        lease = a.lease(len(BODY))
        lease.buffer[:] = BODY
        runner_of(sites).kill(sites["a"])
        committed = Doing(lease.commit, "large", "t", [B], "object")
        put = Doing(a.put_inline, "small", "t", [B], "bytes", b"hello")
        time.sleep(0.3)
        assert committed.waits
        assert put.waits
        runner_of(sites).start(sites["a"])
        committed.result()
        put.result()
        push(a, "more")
        for name in ("large", "more"):
            assert bytes(b.get(name, "t", A, timeout=20).buffer) == BODY
        assert bytes(b.get("small", "t", A, timeout=20).buffer) == b"hello"
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)


def test_what_a_task_has_got_stays_as_it_is_and_its_slot_comes_back_when_it_lets_go(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        free = sites["b"].pool("receive")["slots"]
        for name in ("one", "two"):
            push(a, name)
        one, two = (b.get(name, "t", A, timeout=20) for name in ("one", "two"))
        restart(sites, "b")
        # it comes back, and keeps both
        b.put_inline("back", "t", [A], "bytes", b"")
        sites.wait_until_connected()
        eventually(lambda: sites["b"].pool("receive")["slots"] == free + 2)
        for number in range(4):
            push(a, f"over {number}", bytes([number]) * len(BODY))
            assert b.get(f"over {number}", "t", A, timeout=20).buffer[7] == number
        assert bytes(one.buffer) == bytes(two.buffer) == BODY
        del one
        b.put_inline("more", "t", [A], "bytes", b"")
        eventually(lambda: sites["b"].pool("receive")["slots"] == free + 1)
        restart(sites, "b")
        assert bytes(two.buffer) == BODY
        del two
        b.put_inline("last", "t", [A], "bytes", b"")
        sites.wait_until_connected()
        eventually(lambda: sites["b"].pool("receive")["slots"] == free)


def test_names_that_were_pushed_and_pulled_are_known_to_the_next_run(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        a.put_inline("m", "t", [B], "bytes", b"x")
        push(a, "n")
        b.get("m", "t", A, timeout=20)
        b.get("n", "t", A, timeout=20)
        for name in ("a", "b"):
            restart(sites, name)
        for name in ("m", "n"):
            with pytest.raises(GatewayError) as pulled:
                b.get(name, "t", A, timeout=1)
            assert pulled.value.code is ErrorCode.DUPLICATE_PULL
        with pytest.raises(GatewayError) as pushed:
            a.put_inline("m", "t", [B], "bytes", b"other")
        assert pushed.value.code is ErrorCode.DUPLICATE_PUSH


def test_what_a_task_was_writing_when_its_gateway_was_killed_is_sent_when_it_is_written(
    sites: Sites, session: str
) -> None:
    with sites["a"].client(session, mode="fedrdma-e") as a, sites["b"].client(session) as b:
        lease = a.lease(len(BODY))
        assert lease.commit_unfinished("m", "t", [B], "object") == "committed"
        half = len(BODY) // 2
        lease.buffer[half:] = BODY[half:]
        lease.written(half, ())
        restart(sites, "a")
        lease.buffer[:half] = BODY[:half]
        lease.written(half // 2, ())
        lease.written(0, ())
        lease.release()
        assert bytes(b.get("m", "t", A, timeout=20).buffer) == BODY
        eventually(lambda: sites["a"].pool("send")["slots"] == 0)


def test_what_a_task_let_go_of_after_a_restart_is_free_whoever_keeps_its_log(
    sites: Sites, session: str, caplog: pytest.LogCaptureFixture
) -> None:
    def got_whole() -> bool:
        received = b.get("m", "t", A, timeout=20)
        return bytes(received.buffer) == BODY

    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        got = Doing(got_whole)
        eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] == 1)
        restart(sites, "b")
        push(a, "m")
        assert got.result()
        assert any("waits up to" in record.getMessage() for record in caplog.records)
        restart(sites, "b")
        # that it was let go of may not have got to the earlier run: the task says what it has, and the kernel, too
        b.lease(4096).release()
        eventually(lambda: sites["b"].pool("receive")["leased_bytes"] < len(BODY))


def test_a_get_whose_gateway_does_not_come_back_says_so_in_its_time(sites: Sites, session: str) -> None:
    with sites["b"].client(session) as b:
        got = Doing(b.get, "never", "t", A, timeout=5.0)
        eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] == 1)
        runner_of(sites).kill(sites["b"])
        with pytest.raises(GatewayError) as caught:
            got.result()
        assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE
        runner_of(sites).start(sites["b"])
        # and may be repeated
        with pytest.raises(GatewayError) as late:
            b.get("never", "t", A, timeout=0.1)
        assert late.value.code is ErrorCode.PULL_TIMEOUT
        with sites["a"].client(session) as a:
            a.put_inline("never", "t", [B], "bytes", b"after all")
            assert bytes(b.get("never", "t", A, timeout=20).buffer) == b"after all"


def test_tasks_go_on_when_their_gateway_is_stopped_in_order_and_started_again(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        push(a, "held")
        held = b.get("held", "t", A, timeout=20)
        got = Doing(b.get, "m", "t", A)
        eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] == 1)
        runner_of(sites).stop(sites["b"], signal.SIGTERM)
        runner_of(sites).start(sites["b"])
        push(a, "m")
        assert bytes(got.result().buffer) == bytes(held.buffer) == BODY


def test_a_gateway_that_was_ended_for_good_is_not_waited_for(sites: Sites, session: str) -> None:
    with sites["b"].client(session) as b:
        runner_of(sites).stop(sites["b"], signal.SIGINT)
        began = time.monotonic()
        with pytest.raises(GatewayError) as caught:
            b.get("never", "t", A)
        assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE
        assert time.monotonic() - began < 10
