"""Three gateways on this host, one for each silo, with pools cut to the job's payloads."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from examples.gpt2_advertisegen.plan import ARBITER, CLIENTS, PARTIES, RunFiles
from examples.gpt2_advertisegen.processes import Child, Children, JobFailedError
from fedrdma_fate.core.plan import DEFAULT_CHUNK_BYTES, ChunkPlan, SlotLayout
from fedrdma_fate.gateway.client import ask_status
from fedrdma_fate.gateway.config import TransportName
from fedrdma_fate.wire.errors import GatewayError
from fedrdma_fate.wire.frames import Mode, Party

MASKED_VALUE_BYTES = 16
"""A masked value travels as two float64: fraction and whole part."""

AGGREGATED_VALUE_BYTES = 8

_MEBIBYTE = 2**20
_RING_SLOTS = 2
_RING_SLOT_BYTES = 4 * _MEBIBYTE
_WARM_SHARE = 4
"""Pools of three sites on one host that take more than this part of its memory are filled slot by slot."""
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.05


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
    """The gateways of one run."""

    def __init__(self, files: RunFiles, sockets: Path, mode: Mode, transport: TransportName) -> None:
        """
        Args:
            files: the run's files.
            sockets: directory for the unix sockets, with a short path.
            mode: how payloads travel.
            transport: data path between the gateways.
        """
        self._files = files
        self._sockets = sockets
        self._mode = mode
        self._transport = transport
        self._memory: Path | None = None
        self._warm = True
        self.children: list[Child] = []

    def address(self, party: Party) -> str:
        """Address of the gateway of a party's site, for its tasks."""
        return f"unix://{self._sockets / party.role}.sock"

    def start(self, children: Children, pools: dict[Party, PoolBytes], environment: dict[str, str], root: Path) -> None:
        """Start all three, and return when every one has a connection to every other.

        Raises:
            JobFailedError: one ended, or they do not find each other.
        """
        pools_bytes = sum(pool.send + pool.receive for pool in pools.values())
        self._memory = pool_directory(self._files, pools_bytes)
        self._warm = pools_bytes <= psutil.virtual_memory().total // _WARM_SHARE
        ports = dict(zip(PARTIES, _free_ports(len(PARTIES)), strict=True))
        for party in PARTIES:
            directory = self._files.trace(party).parent
            directory.mkdir(parents=True)
            config = directory / "gateway.yaml"
            config.write_text(yaml.safe_dump(self._config(party, ports, pools[party], self._memory)), encoding="utf-8")
            command = [sys.executable, "-m", "fedrdma_fate.cli.main", "gateway", "--config", str(config)]
            name = f"gateway-{party.role}"
            self.children.append(children.start(name, command, self._files.log(name), environment, root))
        deadline = time.monotonic() + _READY_SECONDS
        while not all(self._connected(party) for party in PARTIES):
            children.check()
            if time.monotonic() > deadline:
                raise JobFailedError(
                    f"the gateways did not find each other within {_READY_SECONDS:g} s; logs: {self._files.logs}"
                )
            time.sleep(_POLL_SECONDS)

    def pool_memory(self) -> int:
        """Bytes that the pools take up in shared memory now."""
        if self._memory is None:
            return 0
        return sum(path.stat().st_blocks * 512 for path in self._memory.rglob("*"))

    def remove_pools(self) -> None:
        """Give the pools' memory back, once the gateways have ended."""
        if self._memory is not None:
            shutil.rmtree(self._memory, ignore_errors=True)

    def transfers(self) -> list[dict[str, Any]]:
        """Transfers in progress, as the sending gateways see them."""
        found: list[dict[str, Any]] = []
        for party in PARTIES:
            status: Any = self._status(party)
            found += [transfer for transfer in status.get("transfers", ()) if transfer["direction"] == "send"]
        return found

    def _status(self, party: Party) -> dict[str, object]:
        try:
            return ask_status(self.address(party))
        except GatewayError:
            return {}

    def _connected(self, party: Party) -> bool:
        status: Any = self._status(party)
        peers = status.get("peers", ())
        return bool(peers) and all(peer["connected"] for peer in peers)

    def _config(self, party: Party, ports: dict[Party, int], pool: PoolBytes, memory: Path) -> dict[str, Any]:
        return {
            "site": party.role,
            "parties": [str(party)],
            "security": "off",
            "listen": {"control": f"127.0.0.1:{ports[party]}", "data": "127.0.0.1:0", "socket": self.address(party)},
            "mode": self._mode,
            "transport": self._transport,
            "memory": {
                "directory": str(memory),
                "send_bytes": pool.send,
                "receive_bytes": pool.receive,
                "warm": self._warm,
                "ring_slots": _RING_SLOTS,
                "ring_slot_bytes": _RING_SLOT_BYTES,
                "spill_directory": str(self._files.trace(party).parent / "spill"),
            },
            "peers": [
                {"site": other.role, "parties": [str(other)], "address": f"127.0.0.1:{ports[other]}"}
                for other in PARTIES
                if other != party
            ],
            "trace": str(self._files.trace(party)),
        }


def pool_directory(files: RunFiles, needed: int) -> Path:
    """A new directory for the pools: in shared memory where there is room for all, else in the run, on disk.

    It is the run's own, so that nothing stays behind when a gateway is killed.
    """
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > needed:
        return Path(tempfile.mkdtemp(prefix="fedrdma-run-", dir=shared))
    return Path(tempfile.mkdtemp(prefix="pools-", dir=files.output))


def _free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now."""
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()
