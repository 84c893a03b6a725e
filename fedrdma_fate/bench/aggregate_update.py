"""How a client of `fedrdma bench aggregate` puts its update."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.aggregate_setting import AggregateSetting, mark
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import Summand, encode_footer


def put_update(
    client: GatewayClient,
    setting: AggregateSetting,
    rank: int,
    update: npt.NDArray[np.uint8],
    name: str,
    tag: str,
    arbiter: Party,
    timeout: float,
) -> None:
    """Put the update of a client, as what a gateway can add.

    Args:
        client: of its task.
        setting: what is measured.
        rank: of the client, which its update is marked with.
        update: as all send it, but for the mark.
        name: of the message.
        tag: of the message.
        arbiter: to whom.
        timeout: seconds for memory.
    """
    footer = encode_footer(Summand((setting.party(rank),), 1.0, setting.shapes))
    lease = client.lease(len(update) + len(footer), timeout=timeout)
    raw: Any = np.frombuffer(lease.buffer, np.uint8)
    raw[: len(update)] = update
    raw[len(update) :] = np.frombuffer(footer, np.uint8)
    mark(raw[: len(update)], setting, rank)
    del raw
    lease.commit(name, tag, [arbiter], "object")
