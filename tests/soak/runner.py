"""Gateways that work for long: rounds of messages, two sessions at a time, and a fault every so many rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.client.sessions import ask_sessions
from fedrdma_fate.gateway.journal.state import REMEMBERED_CONFIRMED, REMEMBERED_TRANSFERS
from fedrdma_fate.gateway.messages.closed_parties import MOST_CLOSED
from fedrdma_fate.memory.heap import GIVE_BACK_SECONDS
from fedrdma_fate.wire.errors import FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, Mode
from tests.soak.measure import Sample, measure
from tests.support.certificates import TestAuthority
from tests.support.connections import cut, reset, silence, strike, why_not_half_open
from tests.support.sites import Site, Sites, eventually, party, runner_of

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MESSAGES = 5
"""Each way in a round."""

AT_ONCE = 2
"""Sessions."""

FILL_MESSAGES = 4
"""Each way in a short session."""

FILL_SESSIONS = max(MOST_CLOSED, -(-max(REMEMBERED_TRANSFERS, REMEMBERED_CONFIRMED) // FILL_MESSAGES))
"""Until all that is remembered of sessions and transfers has come to its bound."""

MOST_ATTEMPTS = 6
"""Of a round, each in a session of its own: a fault that strikes costs one, and there is one fault in a block."""

QUIET_SECONDS = 60.0
"""Until nothing of what a block has left is held any more: `timeouts.session`, and the time to connect anew."""

SETTLE_SECONDS = GIVE_BACK_SECONDS + 1.0
"""Until a gateway has given the kernel back what lies free: how much that is depends on what came last."""

START_SECONDS = 120.0
"""For a gateway to start or stop, on a machine that does other things besides."""

PULL_SECONDS = 30.0

RING_SLOTS = 2

SETTINGS: dict[str, Any] = {
    "memory": {"send_bytes": "24MiB", "receive_bytes": "16MiB", "ring_slots": RING_SLOTS, "ring_slot_bytes": "256KiB"},
    # what is remembered of sessions whose tasks were struck ends while the soak runs
    "timeouts": {"idle": 20.0, "connect": 3.0, "drain": 2.0, "peer_silence": 3.0, "session": 20.0},
    # so that it is rotated often
    "trace_bytes": "1MiB",
}


@dataclasses.dataclass
class Outcome:
    """What came of a soak.

    Attributes:
        rounds: that ended well.
        messages: that came with their bytes.
        total_bytes: of these.
        repeated: attempts that a fault ended, whose tasks were told, by the code.
        wrong: what must not be, in words.
        faults: how often each has struck.
        renewed: certificates.
        samples: of each site.
        seconds: that it took.
    """

    rounds: int = 0
    messages: int = 0
    total_bytes: int = 0
    repeated: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    renewed: int = 0
    samples: dict[str, list[Sample]] = dataclasses.field(default_factory=lambda: {name: [] for name in LAYOUT})
    seconds: float = 0.0


class Soak:
    """Belongs to one thread; rounds run in others."""

    def __init__(
        self, sites: Sites, authority: TestAuthority | None, seed: int, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        """
        Args:
            sites: running, connected, of `LAYOUT`, in processes of their own.
            authority: which has given them their certificates, if they have any.
            seed: of everything that is drawn.
            settle_seconds: that gateways have nothing to do before they are measured.
        """
        self.outcome = Outcome()
        self._sites = sites
        self._authority = authority
        self._chance = random.Random(f"faults {seed}")
        self._seed = seed
        self._settle_seconds = settle_seconds
        self._lives = Counter[str]()
        self._lock = threading.Lock()
        self._struck = False
        self._to_leave: set[str] = set()

    def run(
        self,
        rounds: int,
        every: int,
        *,
        kill_until: int,
        deadline: float,
        fill: int = 0,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Run.

        Args:
            rounds: how many.
            every: a fault strikes in each block of so many.
            kill_until: gateways are killed, or started anew, before this round; after it each lives on, so that it
                is seen how it grows.
            deadline: when to end before all rounds are done, by the monotonic clock.
            fill: when nobody is killed any more, so many short sessions at first, which no fault strikes: by them a
                gateway has all that it remembers of the past, see `FILL_SESSIONS`.
            tell: is told after each block.
        """
        began = time.monotonic()
        renewals = {rounds // 4 // every, rounds * 3 // 4 // every} if self._authority is not None else set()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for block in range(-(-rounds // every)):
                numbers = range(block * every, min(rounds, (block + 1) * every))
                kills = numbers.start < kill_until
                if fill and not kills:
                    self._fill(pool, fill)
                    tell(f"{fill} short sessions until {time.monotonic() - began:.0f} s")
                    fill = 0
                self._struck = False
                done = [pool.submit(self._round, number) for number in numbers]
                strike_at = self._chance.randrange(max(1, len(numbers) - AT_ONCE))
                while sum(each.done() for each in done) < strike_at:
                    time.sleep(0.01)
                fault = self._chance.choice(self._faults(kills))
                self._strike(fault)
                if block in renewals:
                    self._renew()
                for each in done:
                    each.result()
                self._quiet(numbers.stop)
                self.outcome.seconds = time.monotonic() - began
                tell(f"{numbers.stop:5} {self.outcome.seconds:6.0f} s  {fault}")
                if self.outcome.wrong or time.monotonic() > deadline:
                    return

    # -- rounds ---------------------------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        for attempt in range(MOST_ATTEMPTS):
            session = f"soak-{number}" + (f"-{attempt}" if attempt else "")
            try:
                messages, total_bytes = self._exchange(session)
            except FedRDMAError as error:
                with self._lock:
                    self.outcome.repeated[error.code.value] += 1
                    self._to_leave.add(session)
                    if not self._struck:
                        self.outcome.wrong.append(f"round {number}: no fault had struck, but: {error}")
                        return
                with contextlib.suppress(AssertionError):
                    eventually(lambda: all(site.connected() for site in self._sites.values()), QUIET_SECONDS)
                continue
            except AssertionError as error:
                with self._lock:
                    self.outcome.wrong.append(f"round {number}: {error}")
                return
            with self._lock:
                self.outcome.rounds += 1
                self.outcome.messages += messages
                self.outcome.total_bytes += total_bytes
            return
        with self._lock:
            self.outcome.wrong.append(f"round {number} did not end in {MOST_ATTEMPTS} attempts")

    def _fill(self, pool: ThreadPoolExecutor, count: int) -> None:
        self._struck = False
        for done in [pool.submit(self._short, f"fill-{number}") for number in range(count)]:
            done.result()
        self._quiet(0)
        for samples in self.outcome.samples.values():
            # of no round
            samples.pop()

    def _short(self, session: str) -> None:
        """Small messages both ways; nothing has struck, so all come."""
        bodies = {(name, f"m{number}"): session.encode() for name in LAYOUT for number in range(FILL_MESSAGES)}
        try:
            self._carry(session, bodies, random.Random(f"{self._seed} {session}"))
        except AssertionError as error:
            with self._lock:
                self.outcome.wrong.append(str(error))

    def _exchange(self, session: str) -> tuple[int, int]:
        """Messages both ways; how many, and their bytes."""
        chance = random.Random(f"{self._seed} {session}")
        mode: Mode = chance.choice(get_args(Mode))
        bodies = {
            (name, f"m{number}"): body_of(chance, session, name, number)
            for name in LAYOUT
            for number in range(MESSAGES)
        }
        self._carry(session, bodies, chance, mode=mode)
        return len(bodies), sum(map(len, bodies.values()))

    def _carry(
        self, session: str, bodies: Mapping[tuple[str, str], bytes], chance: random.Random, **options: Any
    ) -> None:
        """Push these, by their site and label, pull and compare all, in an order drawn; then both parties leave."""
        ends = {name: parties[0] for name, parties in LAYOUT.items()}
        with contextlib.ExitStack() as stack:
            clients = {name: stack.enter_context(self._sites[name].client(session, **options)) for name in ends}
            order = list(bodies)
            chance.shuffle(order)
            for name, label in order:
                (to,) = (one for other, one in ends.items() if other != name)
                push(clients[name], label, to, bodies[name, label])
            chance.shuffle(order)
            for name, label in order:
                (puller,) = (client for other, client in clients.items() if other != name)
                received = puller.get(label, "t", party(ends[name]), timeout=PULL_SECONDS)
                assert received.buffer == bodies[name, label], f"{session}/{label} of {name} has other bytes"
                del received
            for client in clients.values():
                client.leave()

    # -- faults ---------------------------------------------------------------------------------------------------

    def _faults(self, kills: bool) -> Sequence[str]:
        kinds = ["stopped", "stopped for long", "control cut", "data cut", "all cut", "all reset"]
        if not why_not_half_open():
            kinds.append("all half-open")
        if kills:
            kinds += ["killed", "killed", "both killed", "stopped in order"] * 2
        return [f"{kind} {name}" for kind in kinds for name in LAYOUT]

    def _strike(self, fault: str) -> None:
        kind, _, name = fault.rpartition(" ")
        site = self._sites[name]
        runner = runner_of(self._sites)
        # from now on sessions may be told of it; what is repeated before would be wrong
        self._struck = True
        match kind:
            case "killed" | "both killed":
                struck = [*self._sites.values()] if kind == "both killed" else [site]
                for each in struck:
                    runner.kill(each)
                for each in struck:
                    self._start(each)
            case "stopped in order":
                runner.stop(site)
                self._start(site)
            case "stopped" | "stopped for long":
                runner.signal(site, signal.SIGSTOP)
                # for less, and for longer, than `timeouts.peer_silence`
                time.sleep(1.0 if kind == "stopped" else 4.5)
                runner.signal(site, signal.SIGCONT)
            case _:
                what = {"cut": cut, "reset": reset, "half-open": silence}[kind.split()[1]]
                control = {int(each.config["listen"]["control"].rpartition(":")[2]) for each in self._sites.values()}
                whole = kind.startswith("all")
                of_control = kind.startswith("control")
                count = strike(
                    runner.processes[name].pid,
                    lambda own, other: whole or bool(control & {own, other}) is of_control,
                    what,
                )
                if not count:
                    return
        self.outcome.faults[kind] += 1

    def _start(self, site: Site) -> None:
        self._lives[site.name] += 1
        runner_of(self._sites).start(site)

    def _renew(self) -> None:
        """New certificates for all, as an operator would: the file is replaced while the gateway runs."""
        assert self._authority is not None
        for name, site in self._sites.items():
            serial = f"{self._authority.issue(name).certificate.serial_number:x}"
            eventually(lambda site=site, serial=serial: site.status()["certificate"]["serial"] == serial, 60)  # type: ignore[misc]
            self.outcome.renewed += 1

    # -- what is left ---------------------------------------------------------------------------------------------

    def _quiet(self, number: int) -> None:
        """Wait until nothing is held, and measure."""
        self._sites.wait_until_connected()
        for session in sorted(self._to_leave):
            for site in self._sites.values():
                # as what comes after a task that was killed does; its session may have ended by itself
                with contextlib.suppress(GatewayError), site.client(session) as client:
                    client.leave()
        self._to_leave.clear()
        for name, site in self._sites.items():
            try:
                eventually(lambda site=site: not held_by(site), QUIET_SECONDS)  # type: ignore[misc]
            except AssertionError:
                self.outcome.wrong.append(f"after round {number}, {name} still holds {held_by(site)}")
        time.sleep(self._settle_seconds)
        for name, site in self._sites.items():
            pid = runner_of(self._sites).processes[name].pid
            self.outcome.samples[name].append(measure(pid, site.home, number, self._lives[name]))


def held_by(site: Site) -> dict[str, object]:
    """What a gateway holds of sessions; empty when that is nothing."""
    status = site.status()
    counts = {
        "send slots": site.pool("send")["slots"],
        "messages": status["mailbox"]["messages"],
        "waiting pulls": status["mailbox"]["waiting_pulls"],
        "remembered sessions": status["mailbox"]["sessions"],
        "transfers": len(status["transfers"]),
        "tasks": status["tasks"],
        "pending": sum(peer["pending_messages"] for peer in status["peers"]),
        "receive slots": max(0, site.pool("receive")["slots"] - most_grants(status)),
        "sessions": ask_sessions(site.address)["sessions"],
    }
    return {what: count for what, count in counts.items() if count}


def most_grants(status: dict[str, Any]) -> int:
    """Receive slots that may be granted ahead of time: the ring of each data path, and one large one."""
    return (RING_SLOTS + 1) * sum(len(peer["paths"]) for peer in status["peers"])


def body_of(chance: random.Random, session: str, name: str, number: int) -> bytes:
    """Of mixed size: none, a few bytes, one that goes inline, just more, one of a slot, one that is large."""
    most = chance.choice((0, 200, INLINE_LIMIT_BYTES, 2 * INLINE_LIMIT_BYTES, 1 << 20, 3 << 20))
    length = chance.randint(most // 2, most)
    # no other message has the same bytes at the same place
    step = f"{session}/{name}/{number}/".encode() + chance.randbytes(4099)
    return (step * (length // len(step) + 1))[:length]


def push(client: GatewayClient, name: str, to: str, body: bytes) -> None:
    """Inline where it can be, else in a slot."""
    if len(body) <= INLINE_LIMIT_BYTES:
        client.put_inline(name, "t", [party(to)], "bytes", body)
        return
    lease = client.lease(len(body), timeout=PULL_SECONDS)
    lease.buffer[:] = body
    lease.commit(name, "t", [party(to)], "object")
