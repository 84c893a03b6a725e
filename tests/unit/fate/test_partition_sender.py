"""What a worker sends of a partition: the same bytes in whatever order it gets pairs, where its engine asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedrdma_fate.client.protocol import DIGESTED_BY_TASKS_BYTES
from fedrdma_fate.core.digest import block_digest, blocks_of
from fedrdma_fate.fate.tables import PartitionSender
from fedrdma_fate.wire.frames import Party

HOST, GUEST = Party("host", "1"), Party("guest", "2")
PAIRS = [(bytes([number]), bytes([number]) * number) for number in range(1, 9)]


class Lease:
    """A slot of it; `told` are the digests of its blocks."""

    def __init__(self, gateway: Gateway, total_bytes: int) -> None:
        self.gateway = gateway
        self.buffer = memoryview(bytearray(total_bytes))

    def written(self, written_from: int, block_digests: Sequence[int]) -> None:
        assert not written_from
        self.gateway.told.append(list(block_digests))

    def commit(self, name: str, *_: object) -> None:
        self.gateway.put.append((name, bytes(self.buffer)))


class Gateway:
    """Keeps what a worker puts; connector and client in one."""

    session, party, parties = "s", HOST, (HOST, GUEST)

    def __init__(self) -> None:
        self.put: list[tuple[str, bytes]] = []
        self.told: list[list[int]] = []

    def connect(self, *, brief: bool) -> Gateway:
        assert brief
        return self

    def close(self) -> None:
        pass

    def lease(self, total_bytes: int, *, timeout: float | None = None) -> Lease:
        del timeout
        return Lease(self, total_bytes)

    def put_inline(self, name: str, _tag: str, _destinations: Sequence[Party], _kind: str, body: bytes) -> None:
        self.put.append((name, body))


def sent(pairs: Sequence[tuple[bytes, bytes]], *, repeats: bool) -> list[tuple[str, bytes]]:
    gateway = Gateway()
    sender = PartitionSender(gateway, "table", "t", (GUEST,), None, None, repeats)  # type: ignore[arg-type]
    assert list(sender(3, iter(pairs))) == []
    return gateway.put


def test_a_partition_that_comes_in_another_order_is_the_same_push_where_the_engine_may_make_it_anew() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: `python -c 'import pyspark'` fails")

    assert sent(PAIRS, repeats=True) == sent(PAIRS[::-1], repeats=True)
    assert [name for name, _ in sent(PAIRS, repeats=True)] == ["table#3#0"]


def test_an_engine_that_makes_a_partition_once_has_it_sent_as_it_comes() -> None:
    assert sent(PAIRS, repeats=False) != sent(PAIRS[::-1], repeats=False)


def test_an_empty_partition_is_one_message() -> None:
    assert [name for name, _ in sent([], repeats=False)] == ["table#3#0"]


LONG = [(bytes([number]), bytes([number]) * 400_000) for number in range(60)]


@pytest.mark.parametrize("repeats", [True, False])
def test_where_a_partition_may_be_sent_again_each_of_its_messages_is_short_enough_to_be_known_by_its_digests(
    repeats: bool,
) -> None:
    if repeats:
        pytest.importorskip("pyspark", reason="pyspark is not installed: `python -c 'import pyspark'` fails")
    gateway = Gateway()
    sender = PartitionSender(gateway, "table", "t", (GUEST,), None, None, repeats)  # type: ignore[arg-type]

    sender(3, iter(LONG))

    assert len(gateway.put) > 2
    assert max(len(body) for _, body in gateway.put) <= DIGESTED_BY_TASKS_BYTES
    digests = [[block_digest(body[start:end]) for start, end in blocks_of(len(body))] for _, body in gateway.put]
    assert gateway.told == (digests if repeats else [])
