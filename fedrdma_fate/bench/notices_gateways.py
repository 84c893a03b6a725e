"""The row `gateway` of `fedrdma bench notices`: how long updates lie at an arbiter's gateway until they are added.

Two gateways of this host, one update after the other, each put when the one before it is in the sum. The times are
those of the gateway's own metrics.
"""

from __future__ import annotations

import contextlib
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.aggregate_update import put_update
from fedrdma_fate.bench.aggregate_watch import is_connected, wait
from fedrdma_fate.bench.baselines.gateway_process import GatewayProcess
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
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


def waits_at_a_gateway(setting: AggregateSetting) -> list[Wait]:
    """Of each update since it lay there whole; `end` since its worker was told.

    Raises:
        RowError: nothing was added.
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
        update, found = make_update(setting), list[Wait]()
        before = Wait(0.0, 0.0)
        for rank, task in enumerate(tasks):
            put_update(task, setting, rank, update, _NAME, _TAG, _ARBITER, _SECONDS)
            wait(lambda count=rank + 1: _counts(metrics)[0] == count, _SECONDS, "an update to be added")  # type: ignore[misc]
            _, total = _counts(metrics)
            found.append(Wait(total.start - before.start, total.end - before.end))
            before = total
        summed = asked.result(_SECONDS)
        if not isinstance(summed, ReceivedSum) or summed.reason:
            raise RowError(f"the gateway has not added: {summed.reason}")
        return found


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
