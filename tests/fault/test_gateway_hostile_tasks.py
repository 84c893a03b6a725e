"""Tasks that ask for anything in any order, and end anywhere: another session goes on, and nothing is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import socket
import threading
import time
from collections import Counter, deque
from pathlib import Path

import pytest

from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    LENGTH_PREFIX,
    MAX_FRAME_BYTES,
    AskStatus,
    Attach,
    Commit,
    Forget,
    Get,
    LeaseSlot,
    Leave,
    PutInline,
    ReleaseLeases,
    Request,
    ReturnLease,
    Written,
    encode_message,
)
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MOST_NAME_CHARACTERS, MessageKind, Mode
from tests.support.descriptors import open_descriptors
from tests.support.sites import InThread, Sites, eventually, party, start_gateways

GUEST, ARBITER, HOST = party("guest:1"), party("arbiter:1"), party("host:2")
LAYOUT = {"a": ["guest:1", "arbiter:1"], "b": ["host:2"]}
SESSIONS = ("hostile-1", "hostile-2")
SECONDS = 4.0
FEWEST_ROUNDS = 4
"""Of honest messages meanwhile, on a busy machine as well."""
MOST_CONNECTIONS = 30
LOOKS = 30
"""In a row, some tens of milliseconds apart: what gateways have and do at one of them, they have and do now and then.
Nobody has to find them twice in the same moment of it, which a busy machine never does."""
LONGEST_ROUND_SECONDS = 15.0
"""For an honest message of each kind, on a busy machine."""


class Hostile:
    """Task processes that share their ids, and keep to no order."""

    def __init__(self, path: str, chance: random.Random) -> None:
        self._path = path
        self._chance = chance
        self._clients = [os.urandom(4).hex() for _ in range(5)]
        self._connections: list[socket.socket] = []

    def step(self) -> None:
        """Say or read something on one connection, break it, or open another."""
        if len(self._connections) < MOST_CONNECTIONS and self._chance.random() < 0.3:
            self._connect()
        if not self._connections:
            return
        connection = self._chance.choice(self._connections)
        try:
            self._act(connection)
        except BlockingIOError:
            return
        except OSError:
            self._end(connection)

    def close(self) -> None:
        """All processes end."""
        for connection in list(self._connections):
            self._end(connection)

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(self._path)
        connection.setblocking(False)
        self._connections.append(connection)
        connection.send(encode_message(self._attach(SESSIONS[0])))

    def _end(self, connection: socket.socket) -> None:
        self._connections.remove(connection)
        connection.close()

    def _act(self, connection: socket.socket) -> None:
        chance = self._chance.random()
        if chance < 0.75:
            count = self._chance.choice([1, 1, 1, 5, 40, 300])
            connection.send(b"".join(encode_message(self._request()) for _ in range(count)))
        elif chance < 0.90:
            connection.recv(self._chance.choice([1, 100, 1 << 20]))
        elif chance < 0.92:
            whole = encode_message(self._request())
            connection.send(whole[: self._chance.randrange(1, len(whole))])
        elif chance < 0.93:
            connection.send(self._chance.randbytes(50))
        elif chance < 0.94:
            connection.send(LENGTH_PREFIX.pack(MAX_FRAME_BYTES))
        elif chance < 0.95:
            socket.send_fds(connection, [encode_message(AskStatus())], [0, 1, 2])
        elif chance < 0.97:
            connection.shutdown(self._chance.choice([socket.SHUT_RD, socket.SHUT_WR]))
        else:
            self._end(connection)

    def _attach(self, session: str) -> Attach:
        modes: list[Mode | None] = [None, "fedrdma-x", "fedrdma-e", "fedrdma", "grpc"]
        pick = self._chance.choice
        parties = pick([None, (GUEST, ARBITER, HOST), (GUEST, HOST)])
        return Attach(
            CLIENT_PROTOCOL_VERSION, pick(self._clients), session, pick([GUEST, ARBITER]), pick(modes), parties
        )

    def _request(self) -> Request:
        pick, chance = self._chance.choice, self._chance
        name, tag, lease = pick("mn"), str(chance.randrange(300)), chance.randrange(1, 12)
        destinations = tuple(chance.sample([GUEST, ARBITER, HOST], pick([0, 1, 1, 2, 3])))
        kinds: list[MessageKind] = ["bytes", "object"]
        requests: list[Request] = [
            self._attach(pick(SESSIONS)),
            LeaseSlot(pick([0, 1, 70_000, 1 << 20, 1 << 40]), pick([0.0, 0.05, None, math.inf])),
            LeaseSlot(pick([1, 70_000]), 0.05),
            Commit(lease, name, tag, destinations, pick(kinds), chance.random() < 0.5, chance.random() < 0.5),
            Commit(lease, name, tag, destinations, pick(kinds), chance.random() < 0.5),
            Written(lease, pick([0, 4096, 65_536]), pick([(), (1,)])),
            PutInline(
                name * pick([1, 1, MOST_NAME_CHARACTERS, MOST_NAME_CHARACTERS + 1]),
                tag,
                destinations,
                pick(kinds),
                b"x" * pick([0, 1, INLINE_LIMIT_BYTES]),
            ),
            Get(name, tag, pick([GUEST, ARBITER, HOST]), pick([None, 0.0, 0.1, 3.0]), keeps=chance.random() < 0.2),
            Forget(pick(["", "m", "x"]), tag, pick([GUEST, ARBITER, HOST])),
            ReleaseLeases((lease, lease + 1, 99)),
            ReturnLease(lease),
            Leave() if chance.random() < 0.2 else AskStatus(),
        ]
        return pick(requests)


class Honest(threading.Thread):
    """A session of its own, whose messages arrive as they were pushed."""

    def __init__(self, sites: Sites) -> None:
        super().__init__()
        self.rounds = 0
        self.longest = 0.0
        self.stop = threading.Event()
        self.failed: BaseException | None = None
        self._sites = sites

    def run(self) -> None:
        try:
            self._exchange()
        except BaseException as error:
            self.failed = error

    def _exchange(self) -> None:
        with self._sites["a"].client("honest", "guest:1") as guest, self._sites["b"].client("honest", "host:2") as host:
            while not self.stop.is_set():
                began, tag = time.monotonic(), str(self.rounds)
                small, large = tag.encode(), tag.encode().rjust(80_000, b".")
                guest.put_inline("small", tag, [HOST], "bytes", small)
                lease = guest.lease(len(large))
                lease.buffer[:] = large
                lease.commit("large", tag, [HOST], "object")
                for name, body in (("small", small), ("large", large)):
                    assert bytes(host.get(name, tag, GUEST, timeout=LONGEST_ROUND_SECONDS).buffer) == body
                self.rounds += 1
                self.longest = max(self.longest, time.monotonic() - began)
            guest.leave()
            host.leave()


def working(runner: InThread) -> Counter[str]:
    """What runs on the event loop of the gateways."""

    async def running() -> Counter[str]:
        return Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())

    return runner.run(running())


Look = tuple[Counter[str], int, tuple[object, ...]]
"""What runs, how many descriptors are open, and what is held."""


def most_of(looks: list[Look]) -> Look:
    """What there was at most in any of them; what was held at the last."""
    running: Counter[str] = Counter()
    for look in looks:
        running |= look[0]
    return running, max(look[1] for look in looks), looks[-1][2]


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_tasks_ask_for_another_session_goes_on_and_nothing_is_left_of_them(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    runner = InThread()
    with start_gateways(LAYOUT, tmp_path, runner=runner, limits={"session_messages": 200, "messages": 400}) as sites:

        def left() -> tuple[object, ...]:
            pools = [(pool["slots"] if pool["name"] == "send" else 0, pool["waiting"]) for pool in _pools(sites)]
            boxes = [site.status()["mailbox"] for site in sites.values()]
            tasks = [site.status()["tasks"] for site in sites.values()]
            return pools, boxes, tasks

        looks: deque[Look] = deque(maxlen=2 * LOOKS)

        def lasts() -> bool:
            # what a gateway does once after its start ends, and what it goes on with begins
            looks.append((working(runner), open_descriptors(), left()))
            latest = list(looks)
            return len(latest) == 2 * LOOKS and most_of(latest[:LOOKS]) == most_of(latest[LOOKS:])

        eventually(lasts, 60)
        at_work, open_before, before = most_of(list(looks))

        def more() -> list[object]:
            what = [working(runner) - at_work, max(0, open_descriptors() - open_before), left()]
            return [each for each in what if each and each != before]

        hostile = Hostile(sites["a"].address.removeprefix("unix://"), random.Random(seed))
        honest = Honest(sites)
        honest.start()
        end = time.monotonic() + SECONDS
        while (time.monotonic() < end or honest.rounds < FEWEST_ROUNDS) and honest.failed is None:
            for _ in range(50):
                hostile.step()
            time.sleep(0.002)
        hostile.close()
        honest.stop.set()
        honest.join(2 * LONGEST_ROUND_SECONDS)
        assert honest.failed is None
        assert honest.rounds >= FEWEST_ROUNDS
        assert honest.longest < LONGEST_ROUND_SECONDS
        for session in SESSIONS:
            for of, name in ((GUEST, "a"), (ARBITER, "a"), (HOST, "b")):
                with sites[name].client(session, str(of)) as task:
                    task.leave()
        found: list[object] = []

        def nothing_more() -> bool:
            # looked at once: the connection of a look is still there at a next one at once
            found[:] = more()
            return not found

        with contextlib.suppress(AssertionError):
            eventually(nothing_more)
        assert found == []
    assert [record.exc_text for record in caplog.records if record.exc_info] == []


def _pools(sites: Sites) -> list[dict[str, object]]:
    return [pool for site in sites.values() for pool in site.status()["pools"]]
