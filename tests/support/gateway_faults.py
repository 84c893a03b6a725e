"""What can be done to gateways that are processes, to their connections, disks and certificates, from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.support.certificates import TestAuthority
from tests.support.connections import copies, cut, heal, lose, replay, reset, silence, truncate
from tests.support.private_disks import PrivateDisks
from tests.support.sites import Sites, eventually, runner_of

PEER_SILENCE_SECONDS = 3.0
"""`timeouts.peer_silence` of these gateways: longer than a loaded machine holds one up."""

CERTIFICATE_SECONDS = 8.0
"""For which one is valid that is to expire: gateways look every 5 s whether there is a new one."""

RENEWAL_SECONDS = 60.0

FEWEST_DESCRIPTORS = 12
"""Less than a gateway has open, so that it can open nothing; `poll` still waits for a link's own few."""

LOST_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class Place:
    """Two gateways and what surrounds them.

    Attributes:
        sites: they, each in a process of its own.
        authority: gave them their certificates.
        disks: file systems that only they see, where there can be some.
        disk: the one of the journal and of spilled messages.
        shared_memory: the one of `memory.directory`.
    """

    sites: Sites
    authority: TestAuthority
    disks: PrivateDisks | None
    disk: Path
    shared_memory: Path

    def pid(self, name: str) -> int:
        """Of a gateway that runs."""
        return runner_of(self.sites).processes[name].pid

    def control_ports(self) -> set[int]:
        """Where they listen for control channels."""
        return {int(site.config["listen"]["control"].rpartition(":")[2]) for site in self.sites.values()}


Heal = Callable[[], object]
Strike = Callable[[Place, random.Random], Heal | None]
"""Does it, and returns what undoes it; None where it could not happen."""


def nothing() -> None:
    """Undoes what is done for good."""


# -- connections ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _chosen(place: Place, name: str, which: str) -> Iterator[list[socket.socket]]:
    """Copies of a gateway's sockets: of its control channel, of its data paths, or all."""
    control = place.control_ports()
    with copies(place.pid(name), datagrams=which != "control") as found:
        chosen = []
        for each in found:
            is_stream = each.type == socket.SOCK_STREAM
            with contextlib.suppress(OSError):
                ports = {each.getsockname()[1], *([each.getpeername()[1]] if is_stream else [])}
                if which == "all" or bool(ports & control) == (which == "control"):
                    chosen.append(each)
        yield chosen


def _streams(place: Place, chance: random.Random, which: str, what: Callable[[socket.socket], None]) -> Heal | None:
    """Done for good to the connections of one gateway."""
    count = 0
    with _chosen(place, chance.choice("ab"), which) as found:
        for each in found:
            if each.type == socket.SOCK_STREAM:
                with contextlib.suppress(OSError):
                    what(each)
                    count += 1
    return nothing if count else None


def _packets(place: Place, chance: random.Random, what: Callable[[socket.socket], None]) -> Heal | None:
    """Done to all that one gateway, or both, get, until it is undone."""
    struck = chance.choice(("a", "b", "ab"))
    count = 0
    for name in struck:
        with _chosen(place, name, "all") as found:
            for each in found:
                with contextlib.suppress(OSError):
                    what(each)
                    count += 1

    def undo() -> None:
        for name in struck:
            with _chosen(place, name, "all") as found:
                for each in found:
                    with contextlib.suppress(OSError):
                        heal(each)

    return undo if count else None


def _replayed(place: Place, chance: random.Random) -> Heal | None:
    """What one gateway has not read yet comes once more: it stands still, so that there is something."""
    target, source = chance.choice(("ab", "ba"))
    runner = runner_of(place.sites)
    runner.signal(place.sites[target], signal.SIGSTOP)
    try:
        count, ends = 0, time.monotonic() + 1.0
        while not count and time.monotonic() < ends:
            time.sleep(0.02)
            with _chosen(place, target, "all") as targets, _chosen(place, source, "all") as sources:
                for each in targets:
                    if (other := _other_end(each, sources)) is not None:
                        count += replay(each, other)
    finally:
        runner.signal(place.sites[target], signal.SIGCONT)
    return nothing if count else None


def _other_end(each: socket.socket, others: Sequence[socket.socket]) -> socket.socket | None:
    if each.type == socket.SOCK_DGRAM:
        return next((other for other in others if other.type == socket.SOCK_DGRAM), None)
    with contextlib.suppress(OSError):
        ends = each.getpeername(), each.getsockname()
        for other in others:
            with contextlib.suppress(OSError):
                if other.type == socket.SOCK_STREAM and (other.getsockname(), other.getpeername()) == ends:
                    return other
    return None


# -- processes --------------------------------------------------------------------------------------------------------


def _killed(place: Place, chance: random.Random, who: str = "", full: bool = False) -> Heal | None:
    """SIGKILL; the next run starts when all is undone, where the disk was full until then."""
    runner = runner_of(place.sites)
    struck = who or chance.choice("ab")
    if full:
        if place.disks is None:
            return None
        place.disks.fill(place.disk)
        time.sleep(chance.random() * 0.3)
    for name in struck:
        runner.kill(place.sites[name])
    if full and place.disks is not None:
        place.disks.clear(place.disk)
    for name in struck:
        runner.start(place.sites[name])
    return nothing


def _stopped_in_order(place: Place, chance: random.Random) -> Heal | None:
    site = place.sites[chance.choice("ab")]
    runner_of(place.sites).stop(site)
    runner_of(place.sites).start(site)
    return nothing


def _suspended(place: Place, chance: random.Random, seconds: float, who: str = "") -> Heal | None:
    """SIGSTOP, for a while."""
    runner = runner_of(place.sites)
    struck = [place.sites[name] for name in who or chance.choice("ab")]
    for site in struck:
        runner.signal(site, signal.SIGSTOP)
    time.sleep(seconds)
    for site in struck:
        runner.signal(site, signal.SIGCONT)
    return nothing


# -- what runs out ----------------------------------------------------------------------------------------------------


def _full(place: Place, chance: random.Random, directory: str) -> Heal | None:
    """Another one takes all the room; connections are cut, so that there is something to open anew."""
    if place.disks is None:
        return None
    where = place.disk if directory == "disk" else place.shared_memory
    place.disks.fill(where)
    _streams(place, chance, chance.choice(("control", "data", "all")), cut)
    return functools.partial(place.disks.clear, where)


def _without_descriptors(place: Place, chance: random.Random) -> Heal | None:
    pid = place.pid(chance.choice("ab"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEWEST_DESCRIPTORS, before[1]))
    _streams(place, chance, chance.choice(("control", "data", "all")), cut)
    return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def _certificate_expired(place: Place, chance: random.Random) -> Heal | None:
    """One is taken up that ends at once; whoever undoes it issues another, as an operator would."""
    name = chance.choice("ab")

    def serial() -> str:
        return str(place.sites[name].status()["certificate"]["serial"])

    def issue(valid: datetime.timedelta) -> None:
        pair = place.authority.issue(name, valid=valid)
        eventually(lambda: serial() == f"{pair.certificate.serial_number:x}", RENEWAL_SECONDS)

    ends = time.monotonic() + CERTIFICATE_SECONDS
    issue(datetime.timedelta(seconds=CERTIFICATE_SECONDS))
    time.sleep(max(0.0, ends - time.monotonic()) + 0.5)
    # what is connected already is ended by who looks at its certificate again; who comes anew is refused
    _streams(place, chance, "all", cut)
    return lambda: issue(datetime.timedelta(days=1))


@dataclasses.dataclass(frozen=True)
class GatewayFault:
    """What happens to the gateways of a run.

    Attributes:
        strike: does it; None where it happens to tasks.
        seconds: for which it lasts, before it is undone.
        on: whether part of the messages are pushed only when it is on.
        task: "sender" or "receiver": whose task is killed.
        harmless: it costs time, and no message.
    """

    strike: Strike | None = None
    seconds: float = 0.0
    on: bool = False
    task: str = ""
    harmless: bool = False


def _connection_fault(which: str, what: Callable[[socket.socket], None]) -> GatewayFault:
    return GatewayFault(functools.partial(_streams, which=which, what=what))


GATEWAY_FAULTS: dict[str, GatewayFault] = {
    "none": GatewayFault(harmless=True),
    "control cut": _connection_fault("control", cut),
    "control reset": _connection_fault("control", reset),
    "control half open": _connection_fault("control", silence),
    "data cut": _connection_fault("data", cut),
    "data reset": _connection_fault("data", reset),
    "data half open": _connection_fault("data", silence),
    "packets lost": GatewayFault(functools.partial(_packets, what=functools.partial(lose, share=LOST_SHARE)), 1.0),
    "packets truncated": GatewayFault(
        functools.partial(_packets, what=functools.partial(truncate, share=LOST_SHARE, kept_bytes=100)), 1.0
    ),
    "replayed": GatewayFault(_replayed),
    "sender killed": GatewayFault(functools.partial(_killed, who="a"), harmless=True),
    "receiver killed": GatewayFault(functools.partial(_killed, who="b"), harmless=True),
    "both killed": GatewayFault(functools.partial(_killed, who="ab"), harmless=True),
    "killed on a full disk": GatewayFault(functools.partial(_killed, full=True)),
    "stopped in order": GatewayFault(_stopped_in_order, harmless=True),
    "suspended": GatewayFault(functools.partial(_suspended, seconds=0.5), harmless=True),
    "suspended for long": GatewayFault(functools.partial(_suspended, seconds=PEER_SILENCE_SECONDS + 1.5)),
    "both suspended for long": GatewayFault(
        functools.partial(_suspended, seconds=PEER_SILENCE_SECONDS + 1.5, who="ab")
    ),
    "sending task killed": GatewayFault(task="sender", harmless=True),
    "receiving task killed": GatewayFault(task="receiver", harmless=True),
    "disk full": GatewayFault(functools.partial(_full, directory="disk"), 0.5, on=True),
    "shared memory full": GatewayFault(functools.partial(_full, directory="shared memory"), 0.5, on=True),
    "no descriptors": GatewayFault(_without_descriptors, 0.5, on=True),
    "certificate expired": GatewayFault(_certificate_expired, 0.5, on=True),
}

BY_FILTER = ("control half open", "data half open", "packets lost", "packets truncated")
"""Need a filter on a socket, see `why_not_half_open`."""
