"""The gateways that run on this host, one for each of its silos, with pools cut to the job's payloads."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from examples.gpt2_advertisegen.plan import ARBITER, CLIENTS, PARTIES, RunFiles
from examples.gpt2_advertisegen.processes import Child, Children, JobFailedError
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.client.client import ask_status
from fedrdma_fate.core.plan import DEFAULT_CHUNK_BYTES, ChunkPlan, SlotLayout
from fedrdma_fate.gateway.config.schema import TransportName
from fedrdma_fate.security.trial_files import tls_settings
from fedrdma_fate.wire.errors import GatewayError
from fedrdma_fate.wire.frames import Mode, Party

MASKED_VALUE_BYTES = 16
"""A masked value travels as two float64: fraction and whole part."""

AGGREGATED_VALUE_BYTES = 8

_REGION_LINK = "/memfd:fedrdma-"
"""How Linux shows an open region of a gateway among a process's descriptors."""

_MEBIBYTE = 2**20
_RING_SLOTS = 2
_RING_SLOT_BYTES = 4 * _MEBIBYTE
_WARM_SHARE = 4
"""Pools on one host that together take more than this part of its memory are filled slot by slot."""
READY_SECONDS = 60.0
"""How long gateways of one host may take to find each other."""

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class PoolBytes:
    """Sizes of one gateway's memory pools, bytes."""

    send: int
    receive: int


def pool_bytes(party: Party, parameters: int, arrays: int) -> PoolBytes:
    """Pools that hold one round's payloads of a party, and little more.

    A client sends its masked values and gets the aggregate back. The arbiter takes the masked values of all clients
    at once and sends one aggregate, from one slot, to everybody.

    Args:
        party: whose gateway.
        parameters: values that the federation carries.
        arrays: in how many arrays.
    """
    masked = _payload_bytes(parameters * MASKED_VALUE_BYTES, 2 * arrays)
    aggregate = _payload_bytes(parameters * AGGREGATED_VALUE_BYTES, arrays)
    if party == ARBITER:
        return PoolBytes(_send_pool(aggregate), _receive_pool(masked, len(CLIENTS)))
    return PoolBytes(_send_pool(masked), _receive_pool(aggregate, 1))


def _payload_bytes(values: int, arrays: int) -> int:
    """Values with what describes them: alignment, shapes and the pickle around them."""
    return values + 256 * arrays + 64 * 1024


def _send_pool(payload: int) -> int:
    return _whole_mebibytes(payload) + _MEBIBYTE


def _receive_pool(payload: int, count: int) -> int:
    """Room for `count` payloads in the mode that takes the most, beside the rings (which may take half at most)."""
    slot = SlotLayout(ChunkPlan(payload, DEFAULT_CHUNK_BYTES), "fedrdma").slot_bytes
    rings = (len(PARTIES) - 1) * _RING_SLOTS * _RING_SLOT_BYTES
    return max(_whole_mebibytes(count * slot) + _MEBIBYTE, rings) + rings


def _whole_mebibytes(size: int) -> int:
    return -(-size // _MEBIBYTE) * _MEBIBYTE


class Gateways:
    """The gateways that a run has on this host."""

    def __init__(
        self,
        files: RunFiles,
        sockets: Path,
        mode: Mode,
        transport: TransportName,
        controls: Mapping[Party, str],
        ready_seconds: float = READY_SECONDS,
        certificates: Path | None = None,
    ) -> None:
        """
        Args:
            files: the run's files.
            sockets: directory for the unix sockets.
            mode: how payloads travel.
            transport: data path between the gateways.
            controls: host:port of the control channels of all three, wherever they run.
            ready_seconds: how long they may take to find each other, and be without each other later.
            certificates: directory with those of all three, as `fedrdma certs` makes them; None is without protection.
        """
        self._files = files
        self._sockets = sockets
        self._mode = mode
        self._transport = transport
        self._controls = controls
        self._ready_seconds = ready_seconds
        self._certificates = certificates
        self._meeting: Path | None = None
        self._warm = True
        self._own: tuple[Party, ...] = ()
        self._complete_at = 0.0
        self._next_look = 0.0
        self.children: list[Child] = []

    def address(self, party: Party) -> str:
        """Address of the gateway of a party's site, for its tasks."""
        return f"unix://{self._sockets / party.role}.sock"

    def start(
        self,
        children: Children,
        pools: dict[Party, PoolBytes],
        environment: dict[str, str],
        root: Path,
    ) -> None:
        """Start a gateway for each party in `pools`, and return when every one is connected to both others.

        Args:
            children: gets the processes.
            pools: sizes of each one's memory.
            environment: of the processes.
            root: where they start.

        Raises:
            JobFailedError: one ended, or they do not find each other.
        """
        self._own = tuple(pools)
        pools_bytes = sum(pool.send + pool.receive for pool in pools.values())
        # the run's own, so that nothing stays behind when a gateway is killed
        self._meeting = Path(tempfile.mkdtemp(prefix="gateways-", dir=self._files.output))
        # only memory that is there from the start can stay registered with an RDMA device
        self._warm = self._transport == "verbs" or pools_bytes <= psutil.virtual_memory().total // _WARM_SHARE
        for party in self._own:
            directory = self._files.trace(party).parent
            directory.mkdir(parents=True)
            config = directory / "gateway.yaml"
            config.write_text(yaml.safe_dump(self._config(party, pools[party], self._meeting)), encoding="utf-8")
            command = [sys.executable, "-m", "fedrdma_fate.cli.main", "gateway", "--config", str(config)]
            name = f"gateway-{party.role}"
            child = children.start(name, command, self._files.log(name), environment, root)
            # for good: SIGTERM would leave what waits, and its memory, to a next run
            child.ends_by = signal.SIGINT
            self.children.append(child)
        self._complete_at = time.monotonic()
        while self._missing():
            children.check()
            self.check_peers()
            time.sleep(_POLL_SECONDS)

    def check_peers(self) -> None:
        """Make sure that no gateway has been without another for too long; looks once in a while only.

        Raises:
            JobFailedError: one has, and FATE would wait for ever.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        missing = self._missing()
        if not missing:
            self._complete_at = now
        elif now - self._complete_at > self._ready_seconds:
            raise JobFailedError(
                f"no connection for {self._ready_seconds:g} s: {', '.join(missing)}; logs: {self._files.logs}"
            )

    def pool_memory(self) -> int:
        """Bytes that the gateways' regions take up in shared memory now, each counted once."""
        return sum(region_bytes(child.process.pid for child in self.children).values())

    def remove_files(self) -> None:
        """Remove what a killed gateway may have left, once all have ended."""
        if self._meeting is not None:
            shutil.rmtree(self._meeting, ignore_errors=True)

    def transfers(self) -> list[dict[str, Any]]:
        """Transfers in progress, as the sending gateways see them."""
        found: list[dict[str, Any]] = []
        for party in self._own:
            status: Any = self._status(party)
            found += [transfer for transfer in status.get("transfers", ()) if transfer["direction"] == "send"]
        return found

    def _status(self, party: Party) -> dict[str, object]:
        try:
            return ask_status(self.address(party))
        except GatewayError:
            return {}

    def _missing(self) -> list[str]:
        """Connections that are not there."""
        found = []
        for party in self._own:
            status: Any = self._status(party)
            there = {peer["site"] for peer in status.get("peers", ()) if peer["connected"]}
            others = (other.role for other in PARTIES if other != party)
            found += [f"{party.role} to {other}" for other in others if other not in there]
        return found

    def _security(self, party: Party) -> dict[str, Any]:
        if self._certificates is None:
            return {"security": "off", "security_off_beyond_loopback": True}
        return {"security": "mtls", "tls": tls_settings(self._certificates, party.role)}

    def _config(self, party: Party, pool: PoolBytes, meeting: Path) -> dict[str, Any]:
        control = self._controls[party]
        any_port = f"{control.rpartition(':')[0]}:0"
        return {
            "site": party.role,
            "parties": [str(party)],
            **self._security(party),
            "listen": {"control": control, "grpc": any_port, "socket": self.address(party)},
            "mode": self._mode,
            "transport": self._transport,
            "memory": {
                "directory": str(meeting),
                "send_bytes": pool.send,
                "receive_bytes": pool.receive,
                "warm": self._warm,
                "ring_slots": _RING_SLOTS,
                "ring_slot_bytes": _RING_SLOT_BYTES,
                "spill_directory": str(self._files.trace(party).parent / "spill"),
            },
            "peers": [
                {"site": other.role, "parties": [str(other)], "address": self._controls[other]}
                for other in PARTIES
                if other != party
            ],
            "trace": str(self._files.trace(party)),
        }


def region_bytes(pids: Iterable[int]) -> dict[int, int]:
    """What each region that these processes have open takes up, by its inode; those that have ended have none."""
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link).startswith(_REGION_LINK):
                        status = link.stat()
                        found[status.st_ino] = status.st_blocks * 512
    return found


def loopback_controls() -> dict[Party, str]:
    """A control channel for every party on this host, at ports that nobody listens on now."""
    ports = zip(PARTIES, free_ports(len(PARTIES)), strict=True)
    return {party: f"127.0.0.1:{port}" for party, port in ports}
