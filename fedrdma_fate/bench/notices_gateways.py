"""How long updates lie at an arbiter's gateway until they are added: the row `gateway` of `fedrdma bench notices`.

Two gateways of this host, one update after the other, each put when the one before it is in the sum. The times are
those of the gateway's own metrics.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.aggregate_update import put_update
from fedrdma_fate.bench.aggregate_watch import is_connected, wait
from fedrdma_fate.bench.baselines.gateway_process import GatewayProcess
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed
from fedrdma_fate.wire.frames import Party

_ROOM_UPDATES = 3
"""Of each region: the sum, what is being added, and what is being written."""
_HEADROOM_BYTES = 64 * 2**20
"""Beside the updates: standing grants, the block kept aside, rounding."""
_SECONDS = 120.0
"""For anything that is waited for."""
_ARBITER = Party("arbiter", "1")
_NAME, _TAG = "bench_mixed_client_values", "notices"


class Wait(NamedTuple):
    """Of one update: seconds until its addition began, and until it was in the sum."""

    start: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class UpdatesOneByOne:
    """A sum that is being asked for, to which updates are put one after the other.

    Attributes:
        setting: what is summed.
        arbiter: the gateway that adds.
        clients: the gateway that lends.
        tasks: of the clients, by rank.
        metrics: where the arbiter's gateway tells its metrics.
        asked: what comes of the sum.
    """

    setting: AggregateSetting
    arbiter: GatewayProcess
    clients: GatewayProcess
    tasks: Sequence[GatewayClient]
    metrics: str
    asked: Future[ReceivedSum | NotSummed]

    def put(self, rank: int, update: npt.NDArray[np.uint8]) -> None:
        """Put the update of a rank."""
        put_update(self.tasks[rank], self.setting, rank, update, _NAME, _TAG, _ARBITER, _SECONDS)

    def wait_until_given_back(self) -> None:
        """Until nothing is lent: what was is in the sum. The arbiter's gateway, which is timed, is asked nothing.

        Raises:
            RowError: something is lent for too long.
        """
        wait(lambda: _lent(self.clients) == 0, _SECONDS, "an update to be given back")

    def arbiter_workers(self) -> list[int]:
        """Ids of the processes that add.

        Raises:
            RowError: the arbiter's gateway does not answer.
        """
        if (status := self.arbiter.status()) is None:
            raise RowError("the arbiter's gateway does not answer")
        return list(status["sum_workers"]["processes"])

    def counts(self) -> tuple[int, Wait]:
        """Updates that were added, and the sums of their times; asked of the gateway's event loop."""
        return _counts(self.metrics)

    def end(self) -> None:
        """All were put: the sum is there.

        Raises:
            RowError: nothing was added.
        """
        summed = self.asked.result(_SECONDS)
        if not isinstance(summed, ReceivedSum) or summed.reason:
            raise RowError(f"the gateway has not added: {summed.reason}")


@contextlib.contextmanager
def updates_one_by_one(setting: AggregateSetting) -> Iterator[UpdatesOneByOne]:
    """Two gateways, and a sum that is asked for at one of them.

    Raises:
        RowError: a gateway has ended, or does not answer.
    """
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="notices-")))
        control, metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
        hosts = [str(setting.party(rank)) for rank in range(setting.updates)]
        room = _ROOM_UPDATES * setting.update_bytes + _HEADROOM_BYTES
        common = {"security": "off", "transport": setting.transport}
        memory = {"send_bytes": room, "receive_bytes": room, "directory": str(workspace)}
        memory["spill_directory"] = str(workspace)
        clients = GatewayProcess(
            {
                **common,
                "site": "clients",
                "parties": hosts,
                "listen": {"control": control},
                "memory": memory,
                "peers": [{"site": "arbiter", "parties": [str(_ARBITER)]}],
            },
            workspace,
        )
        stack.callback(clients.stop)
        arbiter = GatewayProcess(
            {
                **common,
                "site": "arbiter",
                "parties": [str(_ARBITER)],
                "listen": {"control": "127.0.0.1:0", "metrics": metrics},
                "memory": memory,
                # each update by itself is what is measured
                "aggregate": {"order": "exact", "site_sums": False},
                "peers": [{"site": "clients", "parties": hosts, "address": control}],
            },
            workspace,
        )
        stack.callback(arbiter.stop)
        wait(lambda: is_connected(arbiter) and is_connected(clients), _SECONDS, "the gateways to connect")
        its = stack.enter_context(GatewayClient(arbiter.address, "bench", _ARBITER))
        tasks = [
            stack.enter_context(GatewayClient(clients.address, "bench", setting.party(rank)))
            for rank in range(setting.updates)
        ]
        sources = [setting.party(rank) for rank in range(setting.updates)]
        asked = pool.submit(its.get_sum, _NAME, _TAG, sources, timeout=_SECONDS)
        wait(lambda: bool((arbiter.status() or {}).get("sums")), _SECONDS, "the sum to be asked for")
        yield UpdatesOneByOne(setting, arbiter, clients, tasks, metrics, asked)


def waits_at_a_gateway(setting: AggregateSetting) -> list[Wait]:
    """Of each update since it lay there whole; `end` since its worker was told.

    Raises:
        RowError: nothing was added.
    """
    with updates_one_by_one(setting) as updates:
        update, found = make_update(setting), list[Wait]()
        before = Wait(0.0, 0.0)
        for rank in range(setting.updates):
            updates.put(rank, update)
            updates.wait_until_given_back()
            count, total = updates.counts()
            if count != rank + 1:
                raise RowError(f"{count} updates are in the sum, and {rank + 1} were put")
            found.append(Wait(total.start - before.start, total.end - before.end))
            before = total
        updates.end()
        return found


def _lent(gateway: GatewayProcess) -> int | None:
    """Slots of its send region that are leased; None where it does not answer."""
    status = gateway.status()
    pools = [] if status is None else status["pools"]
    return next((int(pool["slots"]) for pool in pools if pool["name"] == "send"), None)


def _counts(address: str) -> tuple[int, Wait]:
    """Updates that were added, and the sums of their times."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
    added = values.get('fedrdma_update_wait_seconds_count{order="exact"}', 0.0)
    waited, seconds = (
        values.get(f'fedrdma_{name}_seconds_sum{{order="exact"}}', 0.0) for name in ("update_wait", "addition")
    )
    return int(added), Wait(waited, seconds)
