"""A gateway that is killed, and whose journal is not there when it is started again: both ends are told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import Party
from tests.support.sites import InProcesses, Sites, eventually, log_of, party, runner_of, start_gateways

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(1 << 20)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Two gateways as processes; each test makes use of them in sessions of its own."""
    home = tmp_path_factory.mktemp("without")
    with start_gateways(LAYOUT, home, runner=InProcesses(), connected=False) as running:
        yield running


def push(client: GatewayClient, name: str) -> None:
    lease = client.lease(len(BODY))
    lease.buffer[:] = BODY
    lease.commit(name, "t", [B], "object")


class Waiting:
    """A get without a time-out, and what comes of it."""

    def __init__(self, client: GatewayClient, name: str = "never", source: Party = B) -> None:
        self._client, self._name, self._source = client, name, source
        self.code: ErrorCode | None = None
        self._thread = threading.Thread(target=self._get, daemon=True)
        self._thread.start()

    def _get(self) -> None:
        try:
            self._client.get(self._name, "t", self._source)
        except FedRDMAError as error:
            self.code = error.code

    def end(self) -> ErrorCode | None:
        """Why it has ended; without that, after a while."""
        self._thread.join(20)
        return self.code


@pytest.mark.parametrize("a_too", [False, True], ids=["its peer runs", "its peer is restarted meanwhile"])
def test_both_ends_of_what_it_had_are_told_and_nobody_waits_for_it(sites: Sites, session: str, a_too: bool) -> None:
    # several seconds: up to four processes are started one after another
    with sites["a"].client(session) as a, sites["a"].client(f"{session} other") as other:
        push(a, "m")
        eventually(lambda: [each for each in sites["b"].events("delivered") if each["session"] == session])
        waiting = Waiting(a)
        eventually(lambda: sites["a"].status()["mailbox"]["waiting_pulls"] == 1)
        runner_of(sites).kill(sites["b"])
        if a_too:
            runner_of(sites).kill(sites["a"])
        (journals,) = (sites["b"].home / "spill").glob("journal-*")
        # the keeper lives, and is found there
        for journal in journals.glob("journal*"):
            journal.unlink()
        for name in ("b", "a") if a_too else ("b",):
            runner_of(sites).start(sites[name])
        assert waiting.end() is ErrorCode.SESSION_ENDED
        with pytest.raises(FedRDMAError, match="has lost its journal") as pusher:
            push(a, "n")
        assert pusher.value.code is ErrorCode.SESSION_ENDED
        with pytest.raises(FedRDMAError) as puller, sites["b"].client(session) as b:
            b.get("m", "t", A)
        assert puller.value.code is ErrorCode.SESSION_ENDED
        assert "[FR406] the memory of an earlier run is there, and its journal" in log_of(sites["b"])
        # one that it had no part in goes on
        push(other, "m")
        with sites["b"].client(f"{session} other") as b:
            assert b.get("m", "t", A, timeout=10).buffer == BODY


def test_where_both_journals_are_missing_a_task_that_lives_ends_the_wait_of_one_that_comes(
    sites: Sites, session: str
) -> None:
    with sites["a"].client(session) as a, sites["a"].client(f"{session} later") as later:
        push(a, "m")
        eventually(lambda: [each for each in sites["b"].events("delivered") if each["session"] == session])
        for name in ("a", "b"):
            runner_of(sites).kill(sites[name])
            (journals,) = (sites[name].home / "spill").glob("journal-*")
            for journal in journals.glob("journal*"):
                journal.unlink()
        for name in ("a", "b"):
            runner_of(sites).start(sites[name])
        sites.wait_until_connected()
        with sites["b"].client(session, "host:2") as b:
            # neither gateway knows of the message
            waiting = Waiting(b, "m", A)
            eventually(lambda: sites["b"].status()["mailbox"]["waiting_pulls"] == 1)
            with pytest.raises(FedRDMAError) as pusher:
                push(a, "n")
            assert pusher.value.code is ErrorCode.SESSION_CLOSED
            assert "it has found no journal of an earlier run" in str(pusher.value)
            assert waiting.end() is ErrorCode.SESSION_ENDED
        # who comes only then is told as well
        with pytest.raises(FedRDMAError):
            push(later, "m")
        with pytest.raises(FedRDMAError) as late, sites["b"].client(f"{session} later") as b:
            b.get("m", "t", A)
        assert late.value.code is ErrorCode.SESSION_ENDED


def test_a_gateway_that_was_ended_for_good_ends_no_session(sites: Sites, session: str) -> None:
    with sites["a"].client(session) as a:
        push(a, "m")
        with sites["b"].client(session) as b:
            assert b.get("m", "t", A, timeout=10).buffer == BODY
        runner_of(sites).stop(sites["b"], signal.SIGINT)
        assert not list((sites["b"].home / "spill").glob("journal-*"))
        runner_of(sites).start(sites["b"])
        sites.wait_until_connected()
        push(a, "n")
        with sites["b"].client(session) as b:
            assert b.get("n", "t", A, timeout=10).buffer == BODY
