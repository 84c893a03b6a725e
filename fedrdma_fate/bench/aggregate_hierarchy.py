"""Rows of `fedrdma bench aggregate` in which leaves add and a top adds their sums: ours, and what others build.

`tree`: updates lie in shared memory, and workers of a gateway add them: four leaves and a top. The others are of
processes joined by gRPC on loopback (`aggregate_node.py`), as the LIFL paper's SF and SL: `grpc` directly, `broker`
through a process that stores and forwards, `broker-sidecar` with a proxy in front of each end besides. What a FATE
message, a real broker or a container would cost in addition is not in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgspec
import numpy as np

from fedrdma_fate.aggregate.place import PLANES_AT
from fedrdma_fate.aggregate.worker import WorkerLostError
from fedrdma_fate.bench.aggregate_adder import Adder, SharedMemory, Update
from fedrdma_fate.bench.aggregate_node import Neighbours, NodeSetting, cut
from fedrdma_fate.bench.aggregate_setting import AggregateRow, AggregateSetting, check, mark, pairs_of
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.processes import MemoryWatch, cpu_seconds

LEAVES = 4
"""That the paper's figures 4 and 7 have, for 8 updates."""

_LOOK_SECONDS = 0.01
"""Between two looks at memory, and at whether all that was sent has been added."""
_REST_SECONDS = 120.0
"""For updates to be added."""


def leaves_for(setting: AggregateSetting) -> list[list[int]]:
    """The ranks whose updates each leaf adds."""
    many = min(LEAVES, setting.updates)
    return [list(range(leaf, setting.updates, many)) for leaf in range(many)]


def copy_of(update: Update, setting: AggregateSetting, rank: int) -> Update:
    """The update of a rank, as a client has it."""
    its = update.copy()
    mark(its, setting, rank)
    return its


# -- in shared memory ---------------------------------------------------------------------------------------------


def tree(setting: AggregateSetting, update: Update) -> AggregateRow:
    """Leaves and a top that add where updates lie.

    Raises:
        RowError: there is no memory, no worker could add, or the sum is wrong.
    """
    try:
        return asyncio.run(_tree(setting, update))
    except (OSError, WorkerLostError) as error:
        raise RowError(f"workers could not add: {error}") from error


async def _tree(setting: AggregateSetting, update: Update) -> AggregateRow:
    with contextlib.ExitStack() as stack:
        updates = [SharedMemory(stack, setting.update_bytes) for _ in range(setting.updates)]
        many = len(leaves_for(setting)) + 1
        adders = [Adder(stack, setting) for _ in range(many)]
        # the first round warms up: workers have started, and have mapped what they add
        await _TreeRound(setting, updates, adders, 1).measure(update)
        return await _TreeRound(setting, updates, adders, 2).measure(update)


class _TreeRound:
    def __init__(
        self, setting: AggregateSetting, updates: Sequence[SharedMemory], adders: Sequence[Adder], number: int
    ) -> None:
        self._setting = setting
        self._updates = updates
        *self._leaves, self._top = adders
        self._leaf_of = {rank: leaf for leaf, ranks in enumerate(leaves_for(setting)) for rank in ranks}
        for leaf, ranks in zip(self._leaves, leaves_for(setting), strict=True):
            leaf.begin(number, len(ranks))
        self._top.begin(number, len(self._leaves))
        self._waiting = self._most = 0

    async def measure(self, update: Update) -> AggregateRow:
        setting = self._setting
        its = [copy_of(update, setting, rank) for rank in (0, 1)]
        used, started = self._cpu_seconds(), time.monotonic()
        under_way = []
        for rank in range(1, setting.updates):
            await self._put(rank, its[1])
            under_way.append(asyncio.create_task(self._add(rank)))
            if rank + 1 < setting.updates:
                mark(its[1], setting, rank + 1)
                mark(its[1], setting, rank, -1)
        await asyncio.gather(*under_way)
        await self._put(0, its[0])
        put = time.monotonic()
        await self._add(0)
        done = time.monotonic()
        used = self._cpu_seconds() - used
        check(setting, update, pairs_of(memoryview(self._top.memory.mapping)[PLANES_AT:], setting))
        for adder in (*self._leaves, self._top):
            await adder.end()
        return AggregateRow("tree", setting.model, setting.updates, done - started, done - put, used, self._most)

    async def _put(self, rank: int, update: Update) -> None:
        """What a client does: it writes its update into a slot."""
        self._count(self._setting.update_bytes)
        slot: Any = np.frombuffer(self._updates[rank].mapping, np.uint8)
        await asyncio.to_thread(np.copyto, slot, update)

    async def _add(self, rank: int) -> None:
        leaf = self._leaves[self._leaf_of[rank]]
        async with leaf.turn:
            await self._add_to(leaf, self._updates[rank].descriptor, 0)
        if leaf.left:
            return
        async with self._top.turn:
            await self._add_to(self._top, leaf.memory.descriptor, PLANES_AT)

    async def _add_to(self, adder: Adder, descriptor: int, offset: int) -> None:
        if adder.opened.mapped_by == 0:
            # its sum is there from the first update on
            self._count(self._setting.update_bytes)
        await adder.add(descriptor, offset)
        self._count(-self._setting.update_bytes)

    def _count(self, count: int) -> None:
        self._waiting += count
        self._most = max(self._most, self._waiting)

    def _cpu_seconds(self) -> float:
        return cpu_seconds([adder.process_id for adder in (*self._leaves, self._top)]) + time.process_time()


# -- over gRPC ----------------------------------------------------------------------------------------------------


def over_grpc(setting: AggregateSetting, update: Update, *, broker: bool, proxies: bool) -> AggregateRow:
    """Leaves and a top that are joined by gRPC.

    Args:
        setting: what to sum.
        update: of a party, unmarked.
        broker: whether each message goes through a process that stores and forwards it.
        proxies: whether one passes by a proxy of its sender, and one of its receiver.

    Raises:
        RowError: a process has ended, does not answer, or the sum is wrong.
    """
    name = "broker-sidecar" if proxies else "broker" if broker else "grpc"
    with nodes_that_answer(), contextlib.closing(_Nodes(setting, broker=broker, proxies=proxies)) as nodes:
        # the first round warms up: channels are connected
        nodes.round(name, update, 1)
        return nodes.round(name, update, 2)


def all_over_grpc(setting: AggregateSetting, update: Update, *, leaves: bool) -> AggregateRow:
    """All updates sent at once, over gRPC: to leaves and from these to a top, or without leaves to one node.

    Raises:
        RowError: a process has ended, does not answer, or the sum is wrong.
    """
    name = "grpc" if leaves else "grpc-flat"
    with (
        nodes_that_answer(),
        contextlib.closing(_Nodes(setting, broker=False, proxies=False, leaves=leaves)) as nodes,
    ):
        # the first round warms up: channels are connected
        nodes.round(name, update, 1, last_alone=False)
        return nodes.round(name, update, 2, last_alone=False)


@contextlib.contextmanager
def nodes_that_answer() -> Iterator[None]:
    """What keeps nodes from answering is why a row was not measured."""
    try:
        yield
    except grpc.RpcError as error:
        raise RowError(f"a node does not answer: {error}") from error
    except OSError as error:
        raise RowError(f"a node cannot be started: {error}") from error


def start_node(stack: contextlib.ExitStack, setting: NodeSetting) -> tuple[str, int]:
    """Start a node, which ends with the stack: its address, and its process.

    Raises:
        RowError: it has ended.
        OSError: it cannot be started.
    """
    document = json.dumps(msgspec.to_builtins(setting))
    process = subprocess.Popen(
        [sys.executable, "-m", "fedrdma_fate.bench.aggregate_node", document, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    port = process.stdout.readline().strip()
    if not port:
        raise RowError("a node has ended before it listened")
    return f"127.0.0.1:{int(port)}", process.pid


class _Nodes:
    """The processes."""

    def __init__(self, setting: AggregateSetting, *, broker: bool, proxies: bool, leaves: bool = True) -> None:
        self._setting = setting
        self._stack = contextlib.ExitStack()
        self._pids: list[int] = []
        self._neighbours = Neighbours()
        self._leaves: list[str]
        self._routes: dict[int, tuple[str, ...]]
        with contextlib.ExitStack() as stack:
            stack.callback(self._neighbours.close)
            store = (self._start(stack, NodeSetting("store")),) if broker else ()

            def start(updates: int, route: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
                """A node that adds: its address, and the way to it."""
                adds = NodeSetting("add", updates, setting.update_bytes, route)
                address = self._start(stack, adds)
                proxy = (self._start(stack, NodeSetting("proxy")),) if proxies else ()
                return address, (*store, *proxy, address)

            def own_proxy() -> tuple[str, ...]:
                """That of a sender."""
                return (self._start(stack, NodeSetting("proxy")),) if proxies else ()

            if not leaves:
                self._top, route = start(setting.updates, ())
                self._leaves = [self._top]
                self._routes = dict.fromkeys(range(setting.updates), (*own_proxy(), *route))
                self._stack = stack.pop_all()
                return
            parts = leaves_for(setting)
            self._top, to_top = start(len(parts), ())
            self._leaves = []
            self._routes = {}
            clients = own_proxy()
            for ranks in parts:
                address, route = start(len(ranks), (*own_proxy(), *to_top))
                self._leaves.append(address)
                self._routes.update((rank, (*clients, *route)) for rank in ranks)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End all."""
        self._stack.close()

    def round(self, name: str, update: Update, number: int, *, last_alone: bool = True) -> AggregateRow:
        """Send all updates, that of the first rank last where it is alone, and wait for the sum: of so many rounds."""
        setting = self._setting
        its = [copy_of(update, setting, rank) for rank in range(setting.updates)]
        with MemoryWatch([self._pids], _LOOK_SECONDS) as memory, ThreadPoolExecutor(setting.updates) as pool:
            used, started = self._cpu_seconds(), time.monotonic()
            sent = [pool.submit(self._send, rank, its[rank]) for rank in range(1, setting.updates)]
            if last_alone:
                for each in sent:
                    each.result()
                self._rest((number - 1) * setting.updates + setting.updates - 1)
            put = time.monotonic()
            last = pool.submit(self._send, 0, its[0])
            self._neighbours.ask(self._top, "Wait", b"%d" % number)
            done = time.monotonic()
            for each in (*sent, last):
                each.result()
            used = self._cpu_seconds() - used
        del its
        check(setting, update, pairs_of(b"".join(self._neighbours.fetch(self._top)), setting))
        (most,) = memory.growth
        return AggregateRow(name, setting.model, setting.updates, done - started, done - put, used, most)

    def _send(self, rank: int, update: Update) -> None:
        self._neighbours.send(self._routes[rank], cut(update))

    def _rest(self, added: int) -> None:
        """Wait until so many updates were added by leaves."""
        deadline = time.monotonic() + _REST_SECONDS
        while sum(int(self._neighbours.ask(leaf, "Added")) for leaf in self._leaves) < added:
            if time.monotonic() > deadline:
                raise RowError(f"waited {_REST_SECONDS:.0f} s for the updates to be added")
            time.sleep(_LOOK_SECONDS)

    def _cpu_seconds(self) -> float:
        return cpu_seconds(self._pids) + time.process_time()

    def _start(self, stack: contextlib.ExitStack, setting: NodeSetting) -> str:
        """Start a node; its address."""
        address, process = start_node(stack, setting)
        self._pids.append(process)
        return address
