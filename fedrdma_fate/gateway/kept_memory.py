"""What of a gateway outlives it when it is killed: memory in a keeper, files, and the journal that names them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from pathlib import Path

from fedrdma_fate.gateway.config.schema import GatewayConfig
from fedrdma_fate.gateway.journal.earlier_run import EarlierRun, StateDirectory, begin_journal, start_keeper
from fedrdma_fate.gateway.journal.journal import Journal
from fedrdma_fate.gateway.journal_records import Began
from fedrdma_fate.memory.keeper import Keeper
from fedrdma_fate.memory.owned_directory import sweep
from fedrdma_fate.memory.payload_copies import PayloadCopies
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.memory.region_directory import RECEIVE_REGION, SEND_REGION, RegionDirectory
from fedrdma_fate.memory.spill import SpillStore

logger = logging.getLogger(__name__)

KEEPER_LOOK_SECONDS = 1.0
"""Between two looks whether the keeper lives: what kills it alone kills its gateway much later, or never."""

_MOST_PAUSE_SECONDS = 300.0
"""Between two keepers where one after another dies: whatever kills them is not fought."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_identity() -> str:
    """Equal as long as the machine runs."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return os.uname().nodename


class KeptMemory:
    """Where `timeouts.restart` is 0, nothing is kept.

    Attributes:
        earlier: what an earlier run has left, None where nothing is kept.
        copies: payloads on disk, likewise.
    """

    def __init__(self, config: GatewayConfig, directory: StateDirectory | None, earlier: EarlierRun | None) -> None:
        """Use `open`."""
        self.earlier = earlier
        self.copies: PayloadCopies | None = None
        self._held: tuple[dict[str, int], int] | None = None
        self._is_first = earlier is None or earlier.state.began is None
        self._config = config
        self._directory = directory
        self._keeper: Keeper | None = None
        self._spill: SpillStore | None = None
        self._has_to_sweep = False
        self._journal = Journal()

    @classmethod
    def open(cls, config: GatewayConfig, regions: RegionDirectory, undo: contextlib.ExitStack) -> KeptMemory:
        """Look for what an earlier run has left.

        Args:
            config: the gateway's.
            regions: gets the regions that are found.
            undo: gets what closes this again.

        Raises:
            GatewayError: STATE_IN_USE when another gateway of this site runs with the same directory.
            MemoryPoolError: SPILL_FAILED where there can be no such directory, JOURNAL_UNUSABLE where an earlier run's
                journal cannot be read.
        """
        if not config.timeouts.restart:
            return cls(config, None, None)
        memory = config.memory
        directory = StateDirectory(config.state_directory or memory.spill_directory, config.site)
        undo.callback(directory.close)
        earlier = EarlierRun.find(directory, config.site, boot_identity(), regions, memory)
        kept = cls(config, directory, earlier)
        undo.callback(kept.close)
        return kept

    @property
    def receive_region(self) -> SharedRegion | None:
        """That of the earlier run, where it can be used."""
        return None if self.earlier is None else self.earlier.region

    @property
    def send_region(self) -> SharedRegion | None:
        """Likewise."""
        return None if self.earlier is None else self.earlier.send_region

    @property
    def journal_identity(self) -> str:
        """Of the journal that this run goes on with, also where it cannot write it; empty where none is to be kept."""
        began = None if self.earlier is None else self.earlier.state.began
        return "" if began is None else began.journal

    @property
    def resumes(self) -> bool:
        """Whether there was an earlier run, whose messages go on, or whose receivers are told."""
        return self._journal.is_kept and not self._is_first

    def begin(
        self, receive_region: SharedRegion, send_region: SharedRegion, undo: contextlib.ExitStack
    ) -> tuple[SpillStore, Journal]:
        """Make what this run leaves if it is killed: where messages are spilled, and the journal.

        Raises:
            MemoryPoolError: SPILL_FAILED; with `durable`, JOURNAL_UNUSABLE where no journal can be written.
        """
        earlier = self.earlier
        spill = SpillStore(
            self._config.memory.spill_directory, self._config.site, None if earlier is None else earlier.spill
        )
        if self._directory is None or earlier is None:
            undo.callback(spill.close)
            return spill, self._journal
        self._spill = spill
        began = Began(
            self._config.site,
            boot_identity(),
            os.fstat(receive_region.fileno).st_ino,
            int(self._config.memory.receive_bytes),
            os.fstat(send_region.fileno).st_ino,
            int(self._config.memory.send_bytes),
            str(spill.path),
            earlier.journal_identity or secrets.token_hex(8),
            self._config.durable,
        )
        earlier.give_up_what_is_gone()
        is_durable = self._config.durable
        # before a journal names what lies in it
        self.copies = PayloadCopies(self._directory.path)
        file = begin_journal(self._directory, began, earlier.state, synced=is_durable)
        self._journal = Journal(file, is_durable=is_durable)
        if self._journal.is_kept:
            held = {RECEIVE_REGION: receive_region.fileno, SEND_REGION: send_region.fileno}
            self._held = held, spill.lock
            self._keeper = self._start_keeper()
        has_both = earlier.region is not None and earlier.send_region is not None
        if self._keeper is None and self._journal.is_kept and has_both:
            # that of the earlier run has the same regions
            self._keeper, earlier.keeper = earlier.keeper, None
        if earlier.keeper is not None:
            earlier.keeper.end()
            earlier.keeper = None
            # it held the lock of what that run had spilled, which nobody can have any more
            self._has_to_sweep = earlier.spill is None
        earlier.state.sessions.record = self._journal.write
        return spill, self._journal

    async def watch_keeper(self) -> None:
        """Start another keeper where it dies before its gateway, for ever; later each time where that does not help."""
        pause = KEEPER_LOOK_SECONDS
        while True:
            await asyncio.sleep(KEEPER_LOOK_SECONDS)
            if self._held is None:
                return
            if self._has_to_sweep:
                self._has_to_sweep = False
                await asyncio.to_thread(sweep, self._config.memory.spill_directory)
            if self._keeper is not None and self._keeper.is_there:
                pause = max(KEEPER_LOOK_SECONDS, pause - KEEPER_LOOK_SECONDS)
                continue
            logger.error("the keeper of this gateway's memory has died, or there is none: another is started")
            starting = asyncio.ensure_future(asyncio.to_thread(self._start_keeper))
            try:
                await asyncio.shield(starting)
            finally:
                # what it uses must not be closed meanwhile
                self._use_keeper(await starting)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE_SECONDS)

    def _start_keeper(self) -> Keeper | None:
        """May wait for processes."""
        if self._held is None or self._directory is None:
            return None
        return start_keeper(self._directory, self._config.timeouts.restart, *self._held)

    def _use_keeper(self, started: Keeper | None) -> None:
        before, self._keeper = self._keeper, started
        if before is not None:
            before.end()
        if self._held is None and started is not None:
            # the gateway has ended meanwhile
            self._keeper = None
            started.end()

    def leave(self) -> None:
        """The gateway ends in order, and leaves what it has now to the next, as one that is killed does."""
        self._is_first = False
        self._journal.close()

    def forget(self) -> None:
        """The gateway ends in order, and leaves nothing. May be repeated."""
        self._held = None
        self._journal.close()
        if self._spill is not None:
            self._spill.close()
            self._spill = None
        if self.copies is not None:
            self.copies.close()
            self.copies = None
        if self._directory is not None:
            self._directory.remove()
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def close(self) -> None:
        """Close what is open here, and leave what was not forgotten to the next run. May be repeated."""
        if self._is_first:
            # the start has failed, and nobody had anything here before
            self.forget()
            return
        self._held = None
        self._journal.close()
        if self.earlier is not None and self.earlier.keeper is not None:
            self.earlier.keeper.leave()
            self.earlier.keeper = None
        if self._spill is not None:
            self._spill.leave()
            self._spill = None
        if self.copies is not None:
            self.copies.leave()
            self.copies = None
        if self._keeper is not None:
            self._keeper.leave()
            self._keeper = None
