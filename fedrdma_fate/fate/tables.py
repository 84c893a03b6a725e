"""Tables: every partition is sent, and rebuilt, by a worker of the computing engine with a connection of its own.

What a peer sends is checked pair by pair before the engine gets it (`table_check.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.client.client import Received
from fedrdma_fate.fate.gateway_client import Client, Connector
from fedrdma_fate.fate.journal import Journal
from fedrdma_fate.fate.leasing import lease_visibly, tell_digests
from fedrdma_fate.fate.malformed import malformed
from fedrdma_fate.fate.spark_engine import in_order, is_sparks, made_by_spark, run_over
from fedrdma_fate.fate.table_batches import Pair, batch_bytes, decode_batch, encode_batch
from fedrdma_fate.fate.table_check import check_partitions, check_serdes_types, checked_pairs
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, error_from_code
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, Party

BATCH_BYTES = 8 * 1024 * 1024
"""A partition travels in messages of about this size; a larger value travels alone. While one is on its way, the worker
writes the next, also where all workers share a small send region, and a message that is made again is known again
(`DIGESTED_BY_TASKS_BYTES`)."""

_DYING_SECONDS = 10.0
"""A worker that was killed may still have a partition for so long, as far as its gateway knows."""

# how FATE's standalone engine tells what a worker raised: by its text, in a RuntimeError of its own
_WORKER_FAILURE = re.compile(r"Partition \d+ exec failed: \[(FR\d{3})\] (.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionSender:
    """Runs in a worker: sends one partition to all destinations.

    Attributes:
        connector: opens the worker's connection.
        name: name of the table's message.
        tag: its tag.
        destinations: who gets it.
        put_timeout: seconds to wait for room, per message.
        journal: file for the record of puts.
        repeats: whether the engine may run this again, and give the same partition in another order then.
    """

    connector: Connector
    name: str
    tag: str
    destinations: tuple[Party, ...]
    put_timeout: float | None
    journal: Path | None
    repeats: bool = False

    def __call__(self, partition: int, pairs: Iterable[Pair]) -> list[Pair]:
        """Send a partition; the table made of the results is empty."""
        journal = Journal(self.journal, self.connector.session, self.connector.party)
        client = self.connector.connect(brief=True)
        try:
            ordered = in_order(pairs) if self.repeats else pairs
            for number, (batch, is_last) in enumerate(_batches(ordered)):
                started = time.monotonic()
                name = _message_name(self.name, partition, number)
                total = self._send(client, name, batch, is_last)
                took = time.monotonic() - started
                journal.record("put", "partition", name, self.tag, total, took, self.destinations)
        finally:
            client.close()
            journal.close()
        return []

    def _send(self, client: Client, name: str, batch: Sequence[Pair], is_last: bool) -> int:
        total = batch_bytes(batch)
        if total <= INLINE_LIMIT_BYTES:
            body = bytearray(total)
            encode_batch(batch, is_last, memoryview(body))
            client.put_inline(name, self.tag, self.destinations, "partition", bytes(body))
            return total
        lease = lease_visibly(client, total, self.put_timeout, name)
        try:
            encode_batch(batch, is_last, lease.buffer)
            if self.repeats:
                tell_digests(lease, total)
            lease.commit(name, self.tag, self.destinations, "partition")
        except BaseException:
            lease.release()
            raise
        return total


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionReceiver:
    """Runs in a worker: rebuilds one partition.

    Attributes:
        connector: opens the worker's connection.
        name: name of the table's message.
        tag: its tag.
        source: who sends it.
        get_timeout: seconds to wait, per message.
        journal: file for the record of gets.
        key_serdes_type: how its keys are serialised.
        value_serdes_type: how its values are.
        allowed_names: further names that its pickles may use, as `module:name`.
        keeps: whether another worker may have to rebuild the partition again.
    """

    connector: Connector
    name: str
    tag: str
    source: Party
    get_timeout: float | None
    journal: Path | None
    key_serdes_type: int
    value_serdes_type: int
    allowed_names: tuple[str, ...]
    keeps: bool = False

    def __call__(self, partition: int, _placeholder: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the checked pairs of a partition in the order they were sent, one message in memory at a time.

        Raises:
            FateError: NAME_FORBIDDEN or PAYLOAD_MALFORMED, which ends the partition's transaction with the engine.
            GatewayError: PULL_TIMEOUT, or the gateway is gone or refuses.
        """
        journal = Journal(self.journal, self.connector.session, self.connector.party)
        client = self.connector.connect(brief=True)
        try:
            number, is_last = 0, False
            while not is_last:
                started = time.monotonic()
                name = _message_name(self.name, partition, number)
                message = self._get(client, name)
                if message.kind != "partition":
                    raise malformed(f"{name!r} is of kind {message.kind!r}, not a part of a table")
                took = time.monotonic() - started
                journal.record("get", "partition", name, self.tag, len(message.buffer), took, [self.source])
                pairs, is_last = decode_batch(message.buffer)
                yield from checked_pairs(pairs, self.key_serdes_type, self.value_serdes_type, self.allowed_names)
                number += 1
        finally:
            client.close()
            journal.close()

    def _get(self, client: Client, name: str) -> Received:
        until = time.monotonic() + _DYING_SECONDS
        while True:
            try:
                return client.get(name, self.tag, self.source, timeout=self.get_timeout, keeps=self.keeps)
            except GatewayError as error:
                if not self.keeps or error.code is not ErrorCode.DUPLICATE_PULL or time.monotonic() > until:
                    raise
            time.sleep(_DYING_SECONDS / 100)


def _repeats(computing: Any) -> bool:
    """Whether this engine runs a function again where it has lost what it had made: all but the standalone one may."""
    return not hasattr(computing, "get_standalone_session")


def _batches(pairs: Iterable[Pair]) -> Iterator[tuple[list[Pair], bool]]:
    """Cut a partition into batches, the last one marked; an empty partition is one empty batch."""
    batch: list[Pair] = []
    total = 0
    for pair in pairs:
        added = 16 + len(pair[0]) + len(pair[1])
        if batch and total + added > BATCH_BYTES:
            yield batch, False
            batch, total = [], 0
        batch.append(pair)
        total += added
    yield batch, True


def _message_name(name: str, partition: int, number: int) -> str:
    return f"{name}#{partition}#{number}"


def push_table(
    table: Any,
    name: str,
    tag: str,
    destinations: Sequence[Party],
    connector: Connector,
    *,
    put_timeout: float | None,
    journal: Path | None,
) -> None:
    """Send a table; returns when every partition has been handed to the gateway.

    Raises:
        GatewayError: DUPLICATE_PUSH, or the gateway is gone or refuses.
        MemoryPoolError: POOL_TIMEOUT or PAYLOAD_TOO_LARGE.
        Exception: else as the engine raises it.
    """
    by_spark = is_sparks(table)
    sender = PartitionSender(connector, name, tag, tuple(destinations), put_timeout, journal, repeats=by_spark)
    if by_spark:
        run_over(table, sender)
        return
    with _told_by_code():
        table.mapPartitionsWithIndexNoSerdes(
            sender,
            output_key_serdes_type=table.key_serdes_type,
            output_value_serdes_type=table.value_serdes_type,
            output_partitioner_type=table.partitioner_type,
        )


@contextlib.contextmanager
def _told_by_code() -> Iterator[None]:
    """What a worker of the standalone engine raised inside is raised with its code, where it has one."""
    try:
        yield
    except RuntimeError as error:
        told = _WORKER_FAILURE.match(str(error))
        if told is None:
            raise
        raise error_from_code(told[1], told[2]) from error


def made_by_workers(computing: Any, meta: Any, make: Callable[[int, Iterable[Pair]], Iterator[Pair]]) -> Any:
    """A table of which workers of the engine make each a partition.

    Args:
        computing: FATE's computing session.
        meta: what table it is (FATE's TableMeta).
        make: the pairs of a partition by its number; called in workers.
    """
    if is_sparks(computing):
        return made_by_spark(meta, make)
    placeholder = computing.parallelize(
        range(meta.num_partitions),
        include_key=False,
        partition=meta.num_partitions,
        partitioner_type=meta.partitioner_type,
    )
    return placeholder.mapPartitionsWithIndexNoSerdes(
        make,
        output_key_serdes_type=meta.key_serdes_type,
        output_value_serdes_type=meta.value_serdes_type,
        output_partitioner_type=meta.partitioner_type,
    )


def pull_table(
    computing: Any,
    meta: Any,
    name: str,
    tag: str,
    source: Party,
    connector: Connector,
    *,
    get_timeout: float | None,
    journal: Path | None,
    allowed_names: Collection[str],
    forgotten: deque[tuple[str, str, Party]],
) -> Any:
    """Rebuild a table from its description (FATE's TableMeta).

    Args:
        computing: FATE's computing session.
        meta: as the sender describes the table.
        name: name of the table's message.
        tag: its tag.
        source: who sends it.
        connector: opens the workers' connections.
        get_timeout: seconds to wait, per message.
        journal: file for the record of gets.
        allowed_names: further names that its pickles may use, as `module:name`.
        forgotten: gets what to tell the gateway to forget once the table is no more: prefix of names, tag, source.

    Raises:
        FateError: NAME_FORBIDDEN or PAYLOAD_MALFORMED; nothing of the table can be used then.
        GatewayError: PULL_TIMEOUT, or the gateway is gone or refuses.
        Exception: as the engine raises it.
    """
    check_serdes_types(meta.key_serdes_type, meta.value_serdes_type)
    check_partitions(meta.num_partitions)
    receiver = PartitionReceiver(
        connector,
        name,
        tag,
        source,
        get_timeout,
        journal,
        meta.key_serdes_type,
        meta.value_serdes_type,
        tuple(allowed_names),
        keeps=_repeats(computing),
    )
    with _told_by_code():
        table = made_by_workers(computing, meta, receiver)
    if receiver.keeps:
        # by a finalizer, which may run anywhere: so it does nothing but note it
        weakref.finalize(table, forgotten.append, (f"{name}#", tag, source)).atexit = False  # type: ignore[misc]
    return table
