"""A twin whose gateways have journals, and can be killed right behind any record of them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.client.protocol import CLIENT_PROTOCOL_VERSION, Attach, Commit, PutInline
from fedrdma_fate.gateway.assembly import limits_of
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal.earlier_run import EarlierRun
from fedrdma_fate.gateway.journal.journal import Journal
from fedrdma_fate.gateway.journal.state import replay
from fedrdma_fate.gateway.journal_records import Began, Coming, encode_record
from fedrdma_fate.gateway.messages.budget import Budget
from fedrdma_fate.gateway.messages.mailbox import Mailbox
from fedrdma_fate.gateway.peers.receiving import pool_owner
from fedrdma_fate.gateway.restoring import restore
from fedrdma_fate.gateway.tasks.pushing import LeasedPayload, Pushing
from fedrdma_fate.memory.journal_file import JournalFile, read_records
from fedrdma_fate.memory.owned_directory import OwnedDirectory
from fedrdma_fate.memory.payload_copies import PayloadCopies
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.ports import Region
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKey, Mode
from tests.support.twin import PARTIES, Half, Twin


class _WatchedFile(JournalFile):
    """Tells of each write, and takes none any more from whoever is dead."""

    def __init__(self, directory: int, records: Any, on_append: Callable[[], bool]) -> None:
        super().__init__(directory, records)
        self._on_append = on_append
        self.is_dead = False

    def sync(self) -> None:
        if self.is_dead:
            raise OSError(errno.EIO, "its gateway is dead")
        super().sync()

    def append(self, *bodies: bytes) -> bool:
        if self.is_dead:
            return False
        kept = super().append(*bodies)
        self.is_dead = not self._on_append()
        return kept


class _Site:
    """What outlives a gateway."""

    def __init__(self, directory: Path, send_bytes: int, receive_bytes: int) -> None:
        directory.mkdir()
        self.directory = directory
        self.runs = 0
        self.fileno = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.send = SharedRegion.create("send", send_bytes, warm=False)
        self.receive: SharedRegion | None = SharedRegion.create("receive", receive_bytes, warm=False)
        self.appended = 0
        self.kill_at = 0
        self.file: _WatchedFile | None = None
        self.memory: tuple[bytes, bytes] | None = None
        self.spill: OwnedDirectory | None = None
        self._stack = contextlib.ExitStack()
        self._stack.callback(os.close, self.fileno)
        for region in (self.send, self.receive):
            self._stack.callback(region.close)
        self.copies = self._next_copies()

    def _next_copies(self) -> PayloadCopies:
        self.runs += 1
        path = self.directory / f"run-{self.runs}"
        path.mkdir()
        copies = PayloadCopies(path)
        self._stack.callback(copies.leave)
        return copies

    def leave_copies(self) -> None:
        """Whoever is dead may still remove its files: the next one gets names of its own for them."""
        dead, self.copies = self.copies, self._next_copies()
        for name in os.listdir(dead.path):
            os.link(dead.path / name, self.copies.path / name)

    def new_receive_region(self) -> None:
        """In the place of one that is gone."""
        self.receive = SharedRegion.create("receive", 1 << 20, warm=False)
        self._stack.callback(self.receive.close)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        if self.spill is not None:
            self.spill.close()
        self._stack.close()


class KeptTwin(Twin):
    """Gateways a and b with journals. Their regions are real ones, which the next run of a site has again."""

    def __init__(self, directory: Path, seed: int = 0, **settings: Any) -> None:
        self._sites = {site: _Site(directory / f"journal-{site}", 2 << 20, 1 << 20) for site in PARTIES}
        self._earlier: dict[str, EarlierRun] = {}
        super().__init__(directory, seed, **settings)

    def _make(self, site: str) -> Half:
        half = super()._make(site)
        restore(half.context, self._earlier.pop(site), {half.peer.config.site: half.peer})
        return half

    def _context(self, site: str) -> GatewayContext:
        old, kept = super()._context(site), self._sites[site]
        run = self._earlier[site] = EarlierRun()
        with contextlib.suppress(FileNotFoundError):
            run.state = replay(read_records(kept.fileno)[0])
        if kept.memory is not None:
            # as it was when its gateway was killed
            kept.send.view[:], was = kept.memory
            if kept.receive is not None:
                kept.receive.view[:] = was
        run.send_region, run.region = kept.send, kept.receive
        spill = old.spill
        if kept.spill is not None:
            spill.close()
            run.spill, kept.spill = kept.spill, None
            spill = SpillStore(self._directory, site, run.spill)
        is_first = run.state.began is None
        if kept.receive is None:
            run.why_gone = "the test took it"
            kept.new_receive_region()
        run.give_up_what_is_gone()
        run.state.began = Began(site, "boot", 1, 1, 2, 1, "/", synced=old.config.durable)
        kept.memory, kept.appended, kept.kill_at = None, 0, 0
        if kept.file is not None:
            # of the run before, which is dead
            kept.file.close()
        kept.file = _WatchedFile(kept.fileno, map(encode_record, run.state.records()), lambda: self._on_append(site))
        journal = Journal(kept.file, is_durable=old.config.durable)
        run.state.sessions.record = journal.write
        return GatewayContext(
            config=old.config,
            incarnation=old.incarnation,
            host=old.host,
            send_pool=SlotPool(kept.send, "send"),
            receive_pool=SlotPool(kept.receive, "receive", sharers=[pool_owner(old.config.peers[0].site)]),
            spill=spill,
            mailbox=Mailbox(Budget(limits_of(old.config)), None, run.state.sessions),
            routes=old.routes,
            transports=old.transports,
            make_region=old.make_region,
            trace=old.trace,
            metrics=old.metrics,
            journal=journal,
            copies=kept.copies,
            resumes=not is_first,
            journal_identity=f"journal of {site}",
            make_link=old.make_link,
        )

    def _region(self, site: str, name: str, length: int) -> Region:
        # what a pool of its own would lie in is never used
        kept = self._sites[site]
        return (kept.send if name == "send" else kept.receive) or super()._region(site, name, length)

    def close(self) -> None:
        super().close()
        for kept in self._sites.values():
            # in the next turn of the loop, when its owner has heard of all slots that its links give back
            asyncio.get_running_loop().call_soon(kept.close)

    # -- killing --------------------------------------------------------------------------------------------------

    def written(self, site: str) -> int:
        """Writes to its journal in this run."""
        return self._sites[site].appended

    def kill_behind(self, site: str, write: int) -> None:
        """Let it die right behind this write to its journal, counted from now on."""
        self._sites[site].kill_at = self.written(site) + write

    def kill(self, site: str) -> None:
        """It dies here and now, between two things that it does."""
        file = self._sites[site].file
        assert file is not None
        file.is_dead = True
        self._die(site)

    def is_dead(self, site: str) -> bool:
        """Whether it was killed."""
        file = self._sites[site].file
        return file is not None and file.is_dead

    def lose_memory(self, site: str) -> None:
        """Its next run does not get the receive region of this one."""
        self._sites[site].receive = None

    def coming(self, site: str) -> list[Coming]:
        """What its journal says to be under way."""
        return list(replay(read_records(self._sites[site].fileno)[0]).coming.values())

    def damage(self, site: str, offset: int) -> None:
        """One byte of its receive region is another when its next run looks, since it was killed."""
        kept = self._sites[site]
        assert kept.memory is not None
        damaged = bytearray(kept.memory[1])
        damaged[offset] ^= 1
        kept.memory = kept.memory[0], bytes(damaged)

    def _on_append(self, site: str) -> bool:
        kept = self._sites[site]
        kept.appended += 1
        if kept.appended != kept.kill_at:
            return True
        self._die(site)
        return False

    def _die(self, site: str) -> None:
        kept = self._sites[site]
        assert kept.receive is not None
        # what it does from here on, in this turn, it does not do
        kept.memory = bytes(kept.send.view), bytes(kept.receive.view)
        if (stream := self.halves[site].stream) is not None:
            stream.write = lambda frame: None  # type: ignore[method-assign] # noqa: ARG005
        # whoever is dead may still remove its files: the next one gets names of its own for them
        kept.leave_copies()
        kept.spill = OwnedDirectory.create(self._directory, site)
        dead = self.halves[site].context.spill
        for name in os.listdir(dead.path):
            if not (kept.spill.path / name).exists():
                os.link(dead.path / name, kept.spill.path / name)
        self.break_paths()

    # -- traffic --------------------------------------------------------------------------------------------------

    def push(self, site: str, name: str, body: bytes, session: str = "s", mode: Mode = "fedrdma-e") -> MessageKey:
        """Push to the other site as a task does, by what answers its requests.

        Raises:
            FedRDMAError: why it was refused.
        """
        (key,) = self.push_all(site, [name], body, session, mode)
        return key

    def push_all(
        self, site: str, names: Sequence[str], body: bytes, session: str = "s", mode: Mode = "fedrdma-e"
    ) -> list[MessageKey]:
        """The same under several names, from one slot where it is large, as a task pushes to several parties.

        Raises:
            FedRDMAError: why one was refused, when all have been pushed that were not.
        """
        half, other = self.halves[site], "b" if site == "a" else "a"
        pushing = Pushing(half.context, {other: half.peer.sending})
        attach = Attach(CLIENT_PROTOCOL_VERSION, "task", session, half.party, mode)
        destination = PARTIES[other]
        keys = [MessageKey(session, name, "t", half.party, destination) for name in names]
        if len(body) <= INLINE_LIMIT_BYTES:
            for name in names:
                pushing.put_inline(PutInline(name, "t", (destination,), "bytes", body), attach, 0)
            return keys
        lease = half.context.send_pool.lease(len(body), "task")
        assert lease is not None
        payload = LeasedPayload(lease)
        lease.slot.view[:] = body
        payload.on_written(0, ())
        refused: FedRDMAError | None = None
        for name in names:
            try:
                pushing.commit(Commit(1, name, "t", (destination,), "object"), payload, attach, 0)
            except FedRDMAError as error:
                refused = error
        lease.release()
        if refused is not None:
            raise refused
        return keys
