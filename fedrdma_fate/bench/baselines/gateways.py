"""Our own rows: `ctx.put` and `ctx.get` through two gateways, in one mode over one transport."""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedrdma_fate.bench.baselines.fate_party import (
    PARTIES,
    SESSION,
    FateReceiver,
    FateSender,
    Side,
    computing_session,
    make_context,
    require_fate,
)
from fedrdma_fate.bench.baselines.gateway_process import GatewayProcess
from fedrdma_fate.bench.baselines.interface import RowError, Schedule, Service, SideBytes, complaining
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.gateway.config.schema import Seal
from fedrdma_fate.gateway.peers.receiving import FIRST_AHEAD_FRACTION
from fedrdma_fate.memory.region import PAGE_BYTES
from fedrdma_fate.security.trial_files import make_certificates, tls_settings
from fedrdma_fate.wire.frames import Mode

logger = logging.getLogger(__name__)

Kept = Literal["in memory", "nothing", "on disk"]

_SMALL = "inline/control"
"""How messages of up to 64 KiB go, whatever the mode; the first message is longer."""

HEADROOM_BYTES = 64 * 2**20
"""Room in a pool beside one payload: standing grants, staging chunks, headers."""

START_SECONDS = 60.0
"""For both gateways to start and to connect: their pools are touched page by page meanwhile."""
SETTLE_SECONDS = 60.0
"""For all slots to come back after a payload; longer, and one was lost."""
MESSAGE_SECONDS = 600.0
"""For one message, the largest over the slowest row; longer, and the row has failed."""

_LOOK_SECONDS = 0.005
"""Between two looks at the gateways' status, which are answered by the event loop that is being measured."""
_RESTART_SECONDS = 1.0
"""A journal is kept all the same; but nobody starts a gateway again that dies, and its row need not wait for it."""

_DRAIN_SECONDS = 1.0
"""A gateway that is stopped waits so long for messages: after a failure one may be left that nobody takes."""
_RING_BYTES = 8 * 2**20
"""Of standing grants for each data path: what HEADROOM_BYTES leaves room for, also where a link has two."""
_CERTIFICATES_HOLD = datetime.timedelta(days=1)
"""Longer than a row takes."""
_RING_SLOTS = 2
"""That they are cut into."""
_AHEAD_BYTES = 256 * 1024
"""The slot that is granted ahead for the next message of fedrdma-x is so much longer than the payload, at most."""


class GatewayService(Service):
    """Two gateways with a party each."""

    def __init__(
        self, sender: GatewayProcess, receiver: GatewayProcess, pair: GatewayPair, workspace: Path, largest_bytes: int
    ) -> None:
        super().__init__(
            functools.partial(_open_sender, sender.address, workspace),
            functools.partial(_open_receiver, receiver.address, workspace),
        )
        self._sender = sender
        self._receiver = receiver
        self._pair = pair
        self._largest_bytes = largest_bytes

    @property
    def sender_helpers(self) -> Sequence[int]:
        return (self._sender.pid,)

    @property
    def receiver_helpers(self) -> Sequence[int]:
        return (self._receiver.pid,)

    def wait_until_connected(self) -> None:
        """Wait for both gateways, and for their data path where the mode has one from the start.

        Raises:
            RowError: the gateways chose another transport, ended, or do not come up.
        """
        self._wait(self._connected, START_SECONDS, "the gateways to connect")

    def settle(self) -> None:
        """Wait until everything is delivered and all payload slots are back."""
        self._wait(self._at_rest, SETTLE_SECONDS, "the payload's slots to come back")

    def extra_shared(self) -> SideBytes:
        """The most that was ever leased from a side's pools, less one payload and what is leased at rest."""
        beyond = (self._beyond_rest(gateway) - self._largest_bytes for gateway in (self._sender, self._receiver))
        return SideBytes(*(max(0, extra) for extra in beyond))

    def check(self) -> None:
        """Every payload must have gone in the row's mode, over its transport; small ones go on the control channel."""
        expected = f"{'lent' if self._pair.lends else self._pair.mode}/{self._pair.transport}"
        ways = {f"{event['mode']}/{event['transport']}" for event in self._sender.traced("sent")}
        if ways - {_SMALL} != {expected}:
            raise RowError(f"payloads did not go as {expected} but as {', '.join(sorted(ways)) or 'nothing'}")

    def complaints(self) -> str:
        """The ends of both logs."""
        return "\n".join(f"The {gateway.site}'s gateway: {gateway.log}" for gateway in (self._sender, self._receiver))

    def _connected(self, gateway: GatewayProcess) -> bool:
        status = gateway.status()
        if status is None or not status["peers"][0]["connected"]:
            return False
        if self._pair.mode == "grpc":
            return True
        for path in status["peers"][0]["paths"]:
            if path["main"] and path["transport"] != self._pair.transport:
                raise RowError(f"the gateways chose {path['transport']}: {path['reason']} {path['last_error']}".strip())
            if path["main"]:
                return bool(path["up"])
        return False

    def _at_rest(self, gateway: GatewayProcess) -> bool:
        status = gateway.status()
        if status is None or status["transfers"] or any(peer["pending_messages"] for peer in status["peers"]):
            return False
        # standing grants stay leased: a ring of them for each data path, and one for the next message of fedrdma-x
        standing = _RING_BYTES * sum(len(peer["paths"]) for peer in status["peers"])
        return all(pool["leased_bytes"] <= standing + self._ahead(pool["length"]) for pool in status["pools"])

    def _beyond_rest(self, gateway: GatewayProcess) -> int:
        status = gateway.status()
        if status is None:
            raise RowError(f"the {gateway.site}'s gateway does not answer")
        return sum(max(0, pool["high_water_bytes"] - self._rest(pool)) for pool in status["pools"])

    def _rest(self, pool: Mapping[str, Any]) -> int:
        """What is leased of a pool without any message."""
        leased = int(pool["leased_bytes"])
        if self._pair.mode != "fedrdma-x" or pool["name"] != "receive":
            return leased
        # what is granted ahead before any message is more than what is granted after one
        return max(leased, _RING_BYTES + self._ahead(pool["length"]))

    def _ahead(self, region_bytes: int) -> int:
        """What may be granted ahead for the next message, as long as the last or, before any, a part of the region."""
        if self._pair.mode != "fedrdma-x":
            return 0
        # slots are whole pages
        return max(self._largest_bytes + _AHEAD_BYTES, int(region_bytes * FIRST_AHEAD_FRACTION) + PAGE_BYTES)

    def _wait(self, reached: Callable[[GatewayProcess], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not (reached(self._sender) and reached(self._receiver)):
            if time.monotonic() > deadline:
                raise RowError(f"waited {seconds:.0f} s for {what}")
            time.sleep(_LOOK_SECONDS)


class GatewayPair:
    """See the module."""

    schedule = Schedule()

    def __init__(
        self, mode: Mode, transport: str, *, lend: bool = True, seal: Seal = "off", kept: Kept = "in memory"
    ) -> None:
        """
        Args:
            mode: transfer mode.
            transport: data path.
            lend: over `shm`, in modes that write in place: lend messages, as is the default, or copy them.
            seal: what is done to chunks; where it is not `off`, the gateways have certificates.
            kept: what outlives a gateway that is killed: messages in memory, as is the default, by the journal and a
                keeper; nothing, without a journal; or messages on disk (`durable`).
        """
        self.kept: Kept = kept
        self.seal: Seal = seal
        self.mode: Mode = mode
        self.transport = transport
        self.lend = lend

    @property
    def name(self) -> str:
        sealed = {"off": "", "on": "-sealed", "integrity": "-integrity"}[self.seal]
        kept = {"in memory": "", "nothing": "-unkept", "on disk": "-durable"}[self.kept]
        return f"{self.mode}/{self.transport}" + ("" if self.lend else "-copied") + sealed + kept

    @property
    def lends(self) -> bool:
        """Whether payloads are not moved at all."""
        return (
            self.lend and self.kept != "on disk" and self.transport == "shm" and self.mode in ("fedrdma-e", "fedrdma-x")
        )

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Baseline.start`.

        The pools have room for one payload only, so that none can lie in two slots; but what has room for one only does
        not lend.
        """
        require_fate()
        control = f"127.0.0.1:{free_ports(1)[0]}"
        with contextlib.ExitStack() as stack:
            configs = {side: self._config(side, control, largest_bytes) for side in PARTIES}
            if self.seal != "off":
                now = datetime.datetime.now(datetime.timezone.utc)
                make_certificates(workspace, list(PARTIES), now, _CERTIFICATES_HOLD)
                for side, config in configs.items():
                    config.update(security="mtls", seal=self.seal, tls=tls_settings(workspace, side))
            meeting = stack.enter_context(tempfile.TemporaryDirectory(prefix="gateways-", dir=workspace))

            def run(side: Side) -> GatewayProcess:
                config = configs[side]
                config["memory"] |= {"directory": meeting, "spill_directory": str(workspace)}
                gateway = GatewayProcess(config, workspace)
                stack.callback(gateway.stop)
                return gateway

            service = GatewayService(run("sender"), run("receiver"), self, workspace, largest_bytes)
            with complaining(service):
                service.wait_until_connected()
            yield service

    def _config(self, side: Side, control: str, largest_bytes: int) -> dict[str, Any]:
        """The receiver dials: only the sender's control port has to be known beforehand."""
        sends = side == "sender"
        other: Side = "receiver" if sends else "sender"
        large, small = largest_bytes + HEADROOM_BYTES, HEADROOM_BYTES
        to_send = largest_bytes + large if self.lends else large
        return {
            "site": side,
            "parties": [_party(side)],
            "security": "off",
            "mode": self.mode,
            "transport": "auto" if self.mode == "grpc" else self.transport,
            "shm": {"lend": self.lend},
            "listen": {"control": control if sends else "127.0.0.1:0"},
            "memory": {
                "send_bytes": to_send if sends else small,
                "receive_bytes": small if sends else large,
                "ring_slots": _RING_SLOTS,
                "ring_slot_bytes": _RING_BYTES // _RING_SLOTS,
            },
            # a party that failed may leave a message that nobody takes
            "timeouts": {"drain": _DRAIN_SECONDS, "restart": 0.0 if self.kept == "nothing" else _RESTART_SECONDS},
            "durable": self.kept == "on disk",
            "peers": [{"site": other, "parties": [_party(other)], "address": None if sends else control}],
        }


def _party(side: Side) -> str:
    return ":".join(PARTIES[side])


def _context(side: Side, address: str, workspace: Path) -> Any:
    from fedrdma_fate.fate.federation import FedRDMAFederation
    from fedrdma_fate.fate.settings import FederationOptions

    computing = computing_session(side, workspace / "data")
    options = FederationOptions(put_timeout=MESSAGE_SECONDS, get_timeout=MESSAGE_SECONDS)
    parties = list(PARTIES.values())
    return make_context(
        computing, FedRDMAFederation(SESSION, computing, PARTIES[side], parties, address, options=options)
    )


def _open_sender(address: str, workspace: Path) -> FateSender:
    return FateSender(_context("sender", address, workspace))


def _open_receiver(address: str, workspace: Path) -> FateReceiver:
    return FateReceiver(_context("receiver", address, workspace))
