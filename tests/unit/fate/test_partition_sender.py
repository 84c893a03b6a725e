"""What a worker sends of a partition: the same bytes in whatever order it gets pairs, where its engine asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedrdma_fate.fate.tables import PartitionSender
from fedrdma_fate.wire.frames import Party

HOST, GUEST = Party("host", "1"), Party("guest", "2")
PAIRS = [(bytes([number]), bytes([number]) * number) for number in range(1, 9)]


class Gateway:
    """Keeps what a worker puts; connector and client in one."""

    session, party, parties = "s", HOST, (HOST, GUEST)

    def __init__(self) -> None:
        self.put: list[tuple[str, bytes]] = []

    def connect(self) -> Gateway:
        return self

    def close(self) -> None:
        pass

    def put_inline(self, name: str, _tag: str, _destinations: Sequence[Party], _kind: str, body: bytes) -> None:
        self.put.append((name, body))


def sent(pairs: Sequence[tuple[bytes, bytes]], *, sorts: bool) -> list[tuple[str, bytes]]:
    gateway = Gateway()
    sender = PartitionSender(gateway, "table", "t", (GUEST,), None, None, sorts)  # type: ignore[arg-type]
    assert list(sender(3, iter(pairs))) == []
    return gateway.put


def test_a_partition_that_comes_in_another_order_is_the_same_push_where_the_engine_may_make_it_anew() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: `python -c 'import pyspark'` fails")

    assert sent(PAIRS, sorts=True) == sent(PAIRS[::-1], sorts=True)
    assert [name for name, _ in sent(PAIRS, sorts=True)] == ["table#3#0"]


def test_an_engine_that_makes_a_partition_once_has_it_sent_as_it_comes() -> None:
    assert sent(PAIRS, sorts=False) != sent(PAIRS[::-1], sorts=False)


def test_an_empty_partition_is_one_message() -> None:
    assert [name for name, _ in sent([], sorts=False)] == ["table#3#0"]
