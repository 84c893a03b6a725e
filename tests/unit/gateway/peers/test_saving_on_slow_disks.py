"""`durable` on a disk that takes seconds for each file: who sends thousands of messages holds up nobody else."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import cast

import pytest

from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal.journal import Journal
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.saving import IN_JOURNAL_BYTES, MOST_COPYING, Saving
from fedrdma_fate.memory.payload_copies import PayloadCopies
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Party

MANY = 60


class Context:
    """As much of a gateway as `Saving` needs."""

    def __init__(self, directory: Path) -> None:
        self.copies = PayloadCopies(directory)
        self.journal = SyncedJournal()
        self.tasks: set[asyncio.Task[None]] = set()


class SyncedJournal(Journal):
    """Has no file, and is on disk at once."""

    async def synced(self) -> None:
        pass


def message(number: int) -> Message:
    key = MessageKey("s", f"m{number}", "t", Party("guest", "1"), Party("host", "2"))
    return Message(key, "bytes", IN_JOURNAL_BYTES + 1, body=bytes(IN_JOURNAL_BYTES + 1), transfer=number)


def test_thousands_of_messages_of_one_peer_on_a_slow_disk_hold_up_neither_those_of_another_nor_the_gateways_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: slow.wait(30.0))

    async def run() -> None:
        slow.set()
        context = Context(tmp_path)
        slow.clear()
        busy, other = (Saving(cast("GatewayContext", context)) for _ in range(2))
        arrived: list[int] = []

        def failed(_: Message, error: FedRDMAError) -> None:
            raise error

        def begin(peer: Saving, number: int) -> None:
            peer.begin(message(number), lambda: arrived.append(number), failed)

        for number in range(1, MANY + 1):
            begin(busy, number)
        begin(other, MANY + 1)
        try:
            # in those, names of hosts and certificates are looked up
            for _ in range(MANY):
                await asyncio.wait_for(asyncio.to_thread(lambda: None), 10.0)
            while len(os.listdir(context.copies.path)) < MOST_COPYING + 1:
                await asyncio.sleep(0.01)
        finally:
            slow.set()
        await asyncio.gather(*context.tasks)
        assert sorted(arrived) == list(range(1, MANY + 2))
        context.copies.close()

    asyncio.run(run())
