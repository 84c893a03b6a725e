"""Every fault, in every mode, on every kind of data path, with gateways that are processes: a run by its seed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKey, Mode
from tests.soak.runner import RING_SLOTS, held_by
from tests.support.certificates import TestAuthority
from tests.support.gateway_faults import GATEWAY_FAULTS, PEER_SILENCE_SECONDS, GatewayFault, Heal, Place
from tests.support.matrix import MODES, Outcome
from tests.support.matrix_table import CellResult
from tests.support.private_disks import private_disks
from tests.support.repository import ROOT
from tests.support.sites import InProcesses, Site, Sites, eventually, linked_sites, party

PATHS = ("shm", "tcp", "udp")
"""`verbs` needs the testbed: `verbs_matrix.py`."""

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
SIZES = (10, 3000, INLINE_LIMIT_BYTES + 1, 300_000, 1 << 20, 3 << 20)
"""Bytes: inline, in a slot of the ring, and large ones, which are under way for long enough to be struck."""
MESSAGES = 8
PULL_SECONDS = 60.0
"""After which a pull hangs: all is well again long before, and each time-out of these gateways is shorter."""
LEASE_SECONDS = 20.0
"""For room in the send region: as long as the fault lasts, and some."""
TOLD_SECONDS = 30.0
"""Until a sender's next call has told it: `timeouts.idle`, and some."""
QUIET_SECONDS = 60.0
"""Until nothing is held any more: time-outs, and the time to connect anew."""
START_SECONDS = 120.0
"""For a gateway to start or stop, on a machine that does other things besides."""
DISK_SIZE, SHARED_MEMORY_SIZE = "96m", "8m"
"""Of their own file systems, in mount's words: quick to fill."""
MOST_ATTEMPTS = 2 * MESSAGES
"""Of a push: each may hear of another message that failed, and is then not made."""

SETTINGS: dict[str, Any] = {
    "memory": {"send_bytes": "24MiB", "receive_bytes": "12MiB", "ring_slots": RING_SLOTS, "ring_slot_bytes": "256KiB"},
    "timeouts": {"idle": 20.0, "connect": 3.0, "drain": 2.0, "peer_silence": PEER_SILENCE_SECONDS, "session": 600.0},
    # so that a transfer is long enough to be struck
    "chunk": "64KiB",
    "link_enable": "never",
}


class InNamespace(InProcesses):
    """Gateways that see file systems of their own."""

    def __init__(self, enter: list[str]) -> None:
        super().__init__(START_SECONDS)
        self._enter = enter

    def command(self, site: Site) -> list[str]:
        return [*self._enter, *super().command(site)]


@contextlib.contextmanager
def running_place(directory: Path, path: str) -> Iterator[Place]:
    """Two gateways whose data path is of this kind, with certificates."""
    disk, shared_memory = directory / "disk", directory / "shm"
    for each in (disk, shared_memory):
        each.mkdir(parents=True)
    authority = TestAuthority(directory / "tls")
    with (
        private_disks({disk: DISK_SIZE, shared_memory: SHARED_MEMORY_SIZE}) as disks,
        tempfile.TemporaryDirectory(prefix="fr") as sockets,
    ):
        settings = {**SETTINGS, "memory": {**SETTINGS["memory"], "directory": str(shared_memory)}, "transport": path}
        sites = linked_sites(LAYOUT, directory, Path(sockets), authority=authority, **settings)
        for name, site in sites.items():
            site.config["memory"]["spill_directory"] = str(disk / name)
        with Sites.running(sites, InNamespace([] if disks is None else disks.enter)) as running:
            running.wait_until_connected()
            yield Place(running, authority, disks, disk, shared_memory)


class GatewayRun:
    """One run; what is random in it comes of its seed, and what the fault meets does not."""

    def __init__(self, place: Place, fault: GatewayFault, mode: Mode, chance: random.Random, session: str) -> None:
        """
        Args:
            place: gateways that hold nothing.
            fault: that strikes.
            mode: of all messages.
            chance: draws what is drawn.
            session: one that has not been.
        """
        self._place = place
        self._sites = place.sites
        self._fault = fault
        self._mode = mode
        self._session = session
        self._chance = chance
        self.outcome = Outcome()
        self._ends = {"a": party(LAYOUT["a"][0]), "b": party(LAYOUT["b"][0])}
        self._keys: dict[MessageKey, bytes] = {}
        for number in range(MESSAGES):
            source, target = self._chance.choice(("ab", "ab", "ba"))
            key = MessageKey(session, f"m{number}", "t", self._ends[source], self._ends[target])
            self._keys[key] = body_of(self._chance.randrange(1 << 30), self._chance.choice(SIZES))
        self._told: dict[str, list[FedRDMAError]] = {"a": [], "b": []}
        self._unsent: dict[MessageKey, str] = {}
        self._begun, self._on = threading.Event(), threading.Event()
        self._clients: dict[str, GatewayClient] = {}

    def _site_of(self, end: object) -> str:
        return next(name for name, each in self._ends.items() if each == end)

    def play(self) -> Outcome:
        """All of it, and the verdict."""
        begins_after = self._chance.randrange(1, MESSAGES)
        pull_order = self._chance.sample(list(self._keys), MESSAGES)
        delay = self._chance.random() * 0.03
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(MESSAGES + 1) as pool:
            for name in self._ends:
                client = self._sites[name].client(self._session, mode=self._mode)
                self._clients[name] = stack.enter_context(client)
            if self._fault.task == "receiver":
                self._begun.set()
                self._on.set()
                self._push_all(MESSAGES)
                taken = self._kill_receivers_task(pull_order)
                pulls = {key: pool.submit(self._pull, key) for key in self._keys if key not in taken}
            else:
                if self._fault.task == "sender":
                    self._kill_senders_task()
                pushing = pool.submit(self._push_all, begins_after)
                pulls = {key: pool.submit(self._pull, key) for key in pull_order}
                self._begun.wait(QUIET_SECONDS)
                if self._fault.strike is not None:
                    time.sleep(delay)
                    self._strike()
                self._on.set()
                pushing.result()
            self._await_tellings(pulls)
            for key, pull in pulls.items():
                self._judge(key, pull)
            for client in self._clients.values():
                with contextlib.suppress(FedRDMAError):
                    client.leave()
        self._judge_memory()
        return self.outcome

    # -- the fault ------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        assert self._fault.strike is not None
        undo: Heal | None = None
        try:
            undo = self._fault.strike(self._place, self._chance)
            self.outcome.struck = undo is not None
            self._on.set()
            if undo is not None:
                time.sleep(self._fault.seconds)
        finally:
            if undo is not None:
                undo()

    def _kill_senders_task(self) -> None:
        """A task that pushes is killed; another one of its party pushes all again, which is the same push."""
        with _task(self._place, "push", self._session, self._mode, self._keys) as task:
            assert task.stdout is not None
            for _ in range(self._chance.randrange(MESSAGES)):
                task.stdout.readline()
            time.sleep(self._chance.random() * 0.002)
        self.outcome.struck = True

    def _kill_receivers_task(self, order: list[MessageKey]) -> list[MessageKey]:
        """A task that pulls is killed; what it got is not to be had again, and what it was getting may be either."""
        whole: list[MessageKey] = []
        with _task(self._place, "pull", self._session, self._mode, {key: self._keys[key] for key in order}) as task:
            assert task.stdout is not None
            for key in order[: self._chance.randrange(MESSAGES)]:
                said = task.stdout.readline().split()
                if said[1:] != [hashlib.sha256(self._keys[key]).hexdigest()]:
                    self.outcome.wrong.append(f"corrupt: the task that was killed says {said} of {key.name}")
                whole.append(key)
            time.sleep(self._chance.random() * 0.002)
            task.kill()
            whole += order[len(whole) : len(whole) + task.stdout.read().count("\n")]
        self.outcome.struck = True
        self.outcome.delivered += len(whole)
        for key in order[len(whole) : len(whole) + 1]:
            try:
                if self._pull(key) != self._keys[key]:
                    self.outcome.wrong.append(f"corrupt: {key.name} came with other bytes")
            except FedRDMAError as error:
                # it may have died with it
                if error.code is not ErrorCode.DUPLICATE_PULL:
                    self.outcome.wrong.append(f"lost: {key.name}, which a task that was killed was to get: {error}")
            self.outcome.delivered += 1
            whole.append(key)
        return whole

    def _client_of(self, end: object) -> GatewayClient:
        return self._clients[self._site_of(end)]

    # -- messages -------------------------------------------------------------------------------------------------

    def _push_all(self, begins_after: int) -> None:
        for number, (key, body) in enumerate(self._keys.items()):
            if number == begins_after:
                self._begun.set()
                if self._fault.on:
                    self._on.wait(QUIET_SECONDS)
            self._push(key, body)
        self._begun.set()

    def _push(self, key: MessageKey, body: bytes) -> None:
        """Push until it is taken; what is told of others meanwhile is kept."""
        site = self._site_of(key.source)
        for _ in range(MOST_ATTEMPTS):
            try:
                push(self._clients[site], key, body)
                self._unsent.pop(key, None)
                return
            except FedRDMAError as error:
                if error.code is ErrorCode.DUPLICATE_PUSH and self._fault.task == "sender":
                    self._unsent.pop(key, None)
                    # the task that was killed has pushed it, and nobody knows any more with which bytes: that one comes
                    return
                self._told[site].append(error)
                self._unsent[key] = str(error)
                time.sleep(0.05)

    def _pull(self, key: MessageKey) -> bytes:
        ends = time.monotonic() + PULL_SECONDS
        while True:
            try:
                received = self._client_of(key.destination).get(key.name, key.tag, key.source, timeout=PULL_SECONDS)
                return bytes(received.buffer)
            except FedRDMAError as error:
                # nothing answered in time, or there was no descriptor for the message: a get may be repeated
                again = error.code in (ErrorCode.GATEWAY_UNREACHABLE, ErrorCode.REGION_UNAVAILABLE)
                if not again or time.monotonic() > ends:
                    raise
                time.sleep(0.05)

    def _await_tellings(self, pulls: dict[MessageKey, Future[bytes]]) -> None:
        """Wait until the senders of what did not come were told: at their next call."""
        failed = [key for key, pull in pulls.items() if pull.exception() is not None and key not in self._unsent]
        ends = time.monotonic() + TOLD_SECONDS
        while time.monotonic() < ends:
            for site, client in self._clients.items():
                try:
                    client.lease(4096).release()
                except FedRDMAError as error:
                    self._told[site].append(error)
            if all(self._was_told(key) for key in failed):
                return
            time.sleep(0.05)

    def _was_told(self, key: MessageKey) -> bool:
        """Of it, or of the end of its session, whatever became of its messages."""
        return self._was_named(key) or self._has_ended(self._site_of(key.source))

    def _was_named(self, key: MessageKey) -> bool:
        return any(str(key) in str(told) for told in self._told[self._site_of(key.source)])

    def _has_ended(self, site: str) -> bool:
        return any(told.code is ErrorCode.SESSION_ENDED for told in self._told[site])

    # -- the verdict ----------------------------------------------------------------------------------------------

    def _judge(self, key: MessageKey, pull: Future[bytes]) -> None:
        wrong = self.outcome.wrong
        error = pull.exception()
        if error is not None:
            if key in self._unsent:
                self.outcome.told += 1
                self.outcome.why.append(self._unsent[key])
            elif not isinstance(error, FedRDMAError):
                wrong.append(f"error: {key.name}: {error!r}")
            elif error.code is ErrorCode.PULL_TIMEOUT:
                wrong.append(f"hung: {key.name} of {len(self._keys[key])} bytes neither came nor failed: {error}")
            elif not self._was_told(key):
                wrong.append(f"lost: of {key.name} its sender was not told; its receiver: {error}")
            else:
                self.outcome.told += 1
                self.outcome.why.append(str(error))
            return
        if pull.result() != self._keys[key]:
            wrong.append(f"corrupt: {key.name} came with other bytes")
            return
        if self._was_named(key):
            wrong.append(f"error: {key.name} came, and its sender was told that it did not: {self._told}")
            return
        try:
            self._client_of(key.destination).get(key.name, key.tag, key.source, timeout=1.0)
            wrong.append(f"doubled: {key.name} came twice")
        except FedRDMAError as again:
            if again.code is ErrorCode.SESSION_ENDED:
                self.outcome.why.append(str(again))
            elif again.code is not ErrorCode.DUPLICATE_PULL:
                wrong.append(f"doubled: {key.name}, asked for again: {again}")
        self.outcome.delivered += 1

    def _judge_memory(self) -> None:
        self._sites.wait_until_connected()
        for name, site in self._sites.items():
            try:
                eventually(lambda site=site: not held_by(site), QUIET_SECONDS)  # type: ignore[misc]
            except AssertionError:
                self.outcome.wrong.append(f"slots: {name} has left {held_by(site)}")


_sessions = itertools.count(1)


def run_cell(
    place: Place, faults: Mapping[str, GatewayFault], fault: str, mode: Mode, path: str, seeds: range
) -> CellResult:
    """Runs of one cell: its gateways hold nothing before one of them and, where it is right, after.

    One that is not right is the last: what it has left would be the next one's.
    """
    result = CellResult(f"gateways: {fault}", mode, path)
    for seed in seeds:
        chance = random.Random(f"gateways/{fault}/{mode}/{seed}")
        outcome = GatewayRun(place, faults[fault], mode, chance, f"run-{next(_sessions)}").play()
        costs = [f"lost: {why}" for why in outcome.why] if faults[fault].harmless else []
        result.add(outcome, seed, costs)
        if result.wrong:
            break
    return result


def gateway_cells() -> list[tuple[str, Mode, str]]:
    """Fault, mode and data path of every cell."""
    return [(fault, mode, path) for path in PATHS for fault in GATEWAY_FAULTS for mode in MODES]


def some_gateway_cells() -> list[tuple[str, Mode, str]]:
    """Each fault once; modes and data paths by turns."""
    modes, paths = itertools.cycle(MODES), itertools.cycle(PATHS)
    return [(fault, next(modes), next(paths)) for fault in GATEWAY_FAULTS]


def body_of(seed: int, length: int) -> bytes:
    """Bytes that no other message has at the same place."""
    step = random.Random(seed).randbytes(4099)
    return (step * (length // len(step) + 1))[:length]


def push(client: GatewayClient, key: MessageKey, body: bytes) -> None:
    """Inline where it can be, else in a slot."""
    if len(body) <= INLINE_LIMIT_BYTES:
        client.put_inline(key.name, key.tag, [key.destination], "bytes", body)
        return
    lease = client.lease(len(body), timeout=LEASE_SECONDS)
    try:
        lease.buffer[:] = body
        lease.commit(key.name, key.tag, [key.destination], "object")
    except FedRDMAError:
        with contextlib.suppress(FedRDMAError):
            lease.release()
        raise


# -- a task that can be killed ----------------------------------------------------------------------------------------

_TASK = """
import hashlib, sys
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, Party

what, session, mode, *addresses = sys.argv[1:]
ends = {"guest:1": Party("guest", "1"), "host:2": Party("host", "2")}
clients = {
    name: GatewayClient(address, session, end, mode=mode)
    for (name, end), address in zip(ends.items(), addresses)
}
for line in sys.stdin:
    name, source, target, length, step = line.split()
    body = (bytes.fromhex(step) * (int(length) // 4099 + 1))[:int(length)]
    if what == "push":
        if len(body) <= INLINE_LIMIT_BYTES:
            clients[source].put_inline(name, "t", [ends[target]], "bytes", body)
        else:
            lease = clients[source].lease(len(body))
            lease.buffer[:] = body
            lease.commit(name, "t", [ends[target]], "object")
        print(name, flush=True)
    else:
        got = clients[target].get(name, "t", ends[source], timeout=60)
        print(name, hashlib.sha256(got.buffer).hexdigest(), flush=True)
        del got
"""


@contextlib.contextmanager
def _task(
    place: Place, what: str, session: str, mode: Mode, messages: dict[MessageKey, bytes]
) -> Iterator[subprocess.Popen[str]]:
    """A process that pushes or pulls these messages in their order, a line for each; killed when it is left."""
    addresses = [place.sites[name].address for name in LAYOUT]
    with subprocess.Popen(
        [sys.executable, "-c", _TASK, what, session, mode, *addresses],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as task:
        try:
            assert task.stdin is not None
            for key, body in messages.items():
                task.stdin.write(f"{key.name} {key.source} {key.destination} {len(body)} {body[:4099].hex()}\n")
            task.stdin.flush()
            yield task
        finally:
            task.kill()
