"""What an earlier run of this site's gateway has left: its journal, and the memory and files that that speaks of.

Nothing that is found is believed without a look: the journal is of this version and this site, a region is the very
file that the journal names, sealed, and as long as it is to be.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fedrdma_fate.gateway.config.schema import MemoryConfig
from fedrdma_fate.gateway.journal.kept_sums import KeptSum
from fedrdma_fate.gateway.journal.state import JournalState, replay
from fedrdma_fate.gateway.journal_records import Began, Lost, Received, encode_record
from fedrdma_fate.memory import journal_file
from fedrdma_fate.memory.journal_file import DamagedJournalError, JournalFile, ShortenedJournalError, read_records
from fedrdma_fate.memory.keeper import NEW_SOCKET_NAME, SOCKET_NAME, Keeper
from fedrdma_fate.memory.owned_directory import OwnedDirectory
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.memory.region_directory import RECEIVE_REGION, SEND_REGION, RegionDirectory
from fedrdma_fate.quantities import counted
from fedrdma_fate.unix_sockets import close_all
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey

logger = logging.getLogger(__name__)

_LOCK_NAME = "lock"
_SPILL = "spill"
"""What a keeper calls the lock of the directory of spilled messages; regions have their own names."""

_NOWHERE = -1
"""No slot begins there: what was to be sent from one that is gone is told to be lost, by each run until it is."""


class StateDirectory:
    """Where a site's gateway keeps its journal, and where its keeper is found. One gateway has it at a time."""

    def __init__(self, parent: Path, site: str) -> None:
        """Make it, or take the one of an earlier run.

        Raises:
            MemoryPoolError: SPILL_FAILED when that is not possible.
            GatewayError: STATE_IN_USE when another gateway has it.
        """
        # a site may have any name, a directory may not
        self.path = parent / f"journal-{hashlib.sha256(site.encode()).hexdigest()[:16]}"
        self.fileno = self._lock = -1
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            self.fileno = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            status = os.fstat(self.fileno)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, f"user {status.st_uid} owns it")
            os.fchmod(self.fileno, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(_LOCK_NAME, flags, 0o600, dir_fd=self.fileno)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise GatewayError(
                ErrorCode.STATE_IN_USE,
                f"another gateway of {site!r} runs, whose journal lies in {self.path}.",
                "Stop it, or give this one a `state_directory` of its own.",
            ) from error
        except OSError as error:
            self.close()
            raise MemoryPoolError(
                ErrorCode.SPILL_FAILED,
                f"cannot have the directory {self.path} for the journal: {error.strerror}.",
                "Point state_directory, or memory.spill_directory, at a directory that the gateway's user may write; "
                "what a run of another user has left there, run as that user, or give to the gateway's (`chown -R`).",
            ) from error

    def remove(self) -> None:
        """Remove what lies in it, and the directory; never raises."""
        if self.fileno < 0:
            return
        journal_file.remove(self.fileno)
        for name in (SOCKET_NAME, NEW_SOCKET_NAME, _LOCK_NAME):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self.fileno)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def close(self) -> None:
        """Let another gateway have it. May be repeated."""
        for descriptor in (self.fileno, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self.fileno = self._lock = -1


class EarlierRun:
    """What is left of the run before this one.

    Attributes:
        state: what its journal says; empty where there is none that can be used.
        region: its receive region, None where that is gone.
        send_region: its send region, likewise.
        spill: its directory of spilled messages, likewise.
        why_gone: why memory is gone, for both ends of what lay there.
        lacking: why its journal does not say all: nobody knows what became of the messages that it names.
        keeper: what has kept it, until this run has one of its own.
    """

    def __init__(self) -> None:
        self.state = JournalState()
        self.region: SharedRegion | None = None
        self.send_region: SharedRegion | None = None
        self.spill: OwnedDirectory | None = None
        self.why_gone = ""
        self.lacking = ""
        self.keeper: Keeper | None = None
        self._is_missing = False

    @property
    def journal_identity(self) -> str:
        """Of its journal; empty where there is none that says all, for then peers are to know that it does not."""
        return "" if self.state.began is None or self.lacking else self.state.began.journal

    @property
    def why_unknown(self) -> str:
        """Why tasks of the earlier run are not known any more; empty where nothing of it is missing."""
        if self._is_missing:
            return "it has found no journal of an earlier run"
        return self.why_gone if self.lacking else ""

    @classmethod
    def find(
        cls, directory: StateDirectory, site: str, boot: str, regions: RegionDirectory, memory: MemoryConfig
    ) -> EarlierRun:
        """Look for it; what cannot be used is said in the log.

        Args:
            directory: of the site.
            site: its name.
            boot: of the machine, now.
            regions: gets the regions that are found.
            memory: how long they are to be.

        Raises:
            MemoryPoolError: JOURNAL_UNUSABLE where its journal cannot be read, or is of another site, and where memory
                that its messages lie in is to have another length now; then they stay there.
        """
        run = cls()
        run.state, run.lacking = _read(directory, site, boot)
        taken = Keeper.take_over(directory.path)
        run.keeper, held = (None, {}) if taken is None else taken
        try:
            began = run.state.began
            if began is None:
                run._is_missing = True
                if taken is not None:
                    logger.error(
                        "[%s] the memory of an earlier run is there, and its journal in %s is not: what it had is "
                        "gone, and the peers end the sessions that it was in",
                        ErrorCode.JOURNAL_UNUSABLE.value,
                        directory.path,
                    )
                return run
            if run.lacking:
                run.why_gone = f"its journal lacks records: {run.lacking}"
                return run
            if began.boot != boot:
                run.why_gone = "the machine was started anew"
                if not began.synced:
                    # the end of the journal may have been on no disk, and nobody sees that it is not there
                    run.lacking = run.why_gone
                    logger.warning(
                        "[%s] the machine was started anew, and the end of the journal in %s may never have been on "
                        "disk: the peers end the sessions that it speaks of",
                        ErrorCode.JOURNAL_UNUSABLE.value,
                        directory.path,
                    )
                return run
            adopt = functools.partial(run._adopt, held, regions, warm=memory.warm)
            received, sent = int(memory.receive_bytes), int(memory.send_bytes)
            run._check_length(held, RECEIVE_REGION, received, began.region_bytes)
            run._check_length(held, SEND_REGION, sent, began.send_region_bytes)
            run.region = adopt(RECEIVE_REGION, received, began.region, began.region_bytes)
            run.send_region = adopt(SEND_REGION, sent, began.send_region, began.send_region_bytes)
            lock = held.pop(_SPILL, None)
            try:
                run.spill = OwnedDirectory.take_over(Path(began.spill), lock)
            except OSError as error:
                logger.warning("messages that an earlier run has spilled to %s are gone: %s", began.spill, error)
            return run
        finally:
            close_all(list(held.values()))

    def give_up_what_is_gone(self) -> None:
        """What lay in a region that is gone is lost, before a journal names it beside another region.

        What its peer was not told of has not come, and what has a copy on disk is not lost.
        """
        self.state.forget_pending()
        if self.region is None:
            self.state.coming.clear()
        for name, record in list(self.state.messages.items()):
            if record.copy or (not self.lacking and (record.body is not None or record.file)):
                continue
            if (self.send_region if record.sending else self.region) is not None:
                continue
            del self.state.messages[name]
            if not record.handed and not self._is_pulled(record.key):
                # else its task has it, in memory that lives as long as the task does
                self.lose(record, self.why_gone)
        if self.region is None:
            for kept in self.state.sums:
                self._lose_sum(kept)
        if self.send_region is None:
            self.state.leases.clear()
            for name, outgoing in self.state.outgoing.items():
                if outgoing.body is None:
                    self.state.outgoing[name] = msgspec.structs.replace(outgoing, offset=_NOWHERE)

    def _is_pulled(self, key: MessageKey) -> bool:
        """Whether a task has it for sure: not where it was lent to one that is still to say so."""
        sessions = self.state.sessions
        return sessions.was_pulled(key) and sessions.pull(key).client not in self.state.tasks

    def _lose_sum(self, kept: KeptSum) -> None:
        """Who was in a sum is lost with it; what a task has got is its own memory."""
        self.state.sums.forget(kept.began.number)
        if kept.handed is not None:
            return
        for party, origin, transfer in kept.updates():
            key = kept.began.keys[party]
            # it was pulled, and came to nothing
            self.state.sessions.forget_pull(key)
            self.lose(Received(origin, transfer, key, "object", 0), f"it was in a sum; {self.why_gone}")

    def lose(self, record: Received, why: str) -> Lost:
        """A message that was confirmed is gone; the log says so."""
        who = record.origin or "here"
        lost = Lost(
            record.origin,
            record.transfer,
            record.key,
            f"it was here, and was lost when the gateway was killed: {why}",
        )
        logger.error("[%s] %s from %s is lost: %s", ErrorCode.MESSAGE_LOST.value, record.key, who, why)
        self.state.apply(lost)
        return lost

    def _check_length(self, held: Mapping[str, int], name: str, length: int, was: int) -> None:
        """See that no message is lost by a change of the configuration. What tasks have lives as long as they do."""
        in_it = sum(
            record.sending == (name == SEND_REGION)
            and record.body is None
            and not (record.file or record.copy or record.handed or record.pending)
            for record in self.state.messages.values()
        )
        if name == SEND_REGION:
            in_it += sum(record.body is None for record in self.state.outgoing.values())
        else:
            # each update that is in a sum was a message
            in_it += sum(len(kept.parties_in) for kept in self.state.sums if kept.handed is None)
        if length == was or name not in held or not in_it:
            return
        if self.keeper is not None:
            # so that the next one finds it
            self.keeper.leave()
            self.keeper = None
        raise MemoryPoolError(
            ErrorCode.JOURNAL_UNUSABLE,
            f"memory.{name}_bytes is {length}, and was {was} in the earlier run of this gateway, in whose memory "
            f"{counted(in_it, 'message')} would be lost. Nothing was changed.",
            f"Start it with {was}, have them pulled, or give them up by stopping it for good (SIGINT); then change it.",
        )

    def _adopt(
        self,
        held: dict[str, int],
        regions: RegionDirectory,
        name: str,
        length: int,
        inode: int,
        was: int,
        *,
        warm: bool,
    ) -> SharedRegion | None:
        fileno = held.pop(name, None)
        if fileno is None:
            self.why_gone = "nothing has kept the memory of a gateway that was killed"
        elif was != length:
            os.close(fileno)
            self.why_gone = f"memory.{name}_bytes was {was} and is {length} now"
        else:
            try:
                return regions.adopt_region(name, fileno, length, inode, warm=warm)
            except MemoryPoolError as error:
                self.why_gone = error.message
        logger.error("the %s memory of an earlier run is gone, with what lay in it: %s", name, self.why_gone)
        return None


def begin_journal(
    directory: StateDirectory, began: Began, state: JournalState, *, synced: bool = False
) -> JournalFile | None:
    """A journal that says what there is now; None, and a line in the log, where it cannot be written.

    Raises:
        MemoryPoolError: JOURNAL_UNUSABLE where it has to be on disk (`synced`), and cannot be. Then that of an earlier
            run stays: peers were told that what it names is here.
    """
    state.began = began
    try:
        return JournalFile(directory.fileno, map(encode_record, state.records()), synced=synced)
    except OSError as error:
        if synced:
            raise MemoryPoolError(
                ErrorCode.JOURNAL_UNUSABLE,
                f"with `durable: true`, there has to be a journal, and it cannot be written in {directory.path}: "
                f"{error.strerror}. What an earlier run has left there stays.",
                "Make room there; or, where nothing waits, point `state_directory` elsewhere.",
            ) from error
        logger.error(
            "[%s] no journal in %s: %s. A gateway that is killed loses what it has.",
            ErrorCode.JOURNAL_UNUSABLE.value,
            directory.path,
            error.strerror,
        )
        # what an earlier one says will not be so any more
        journal_file.remove(directory.fileno)
        return None


def start_keeper(directory: StateDirectory, seconds: float, held: Mapping[str, int], spill: int) -> Keeper | None:
    """What holds these regions, and the lock of the spilled messages; None, and a line in the log, if none starts."""
    try:
        return Keeper.start(directory.path, seconds, {**held, _SPILL: spill})
    except OSError as error:
        logger.error("nothing keeps the memory of this gateway if it is killed: %s", error)
        return None


def _read(directory: StateDirectory, site: str, boot: str) -> tuple[JournalState, str]:
    """What the journal there says, and why it does not say all.

    Args:
        directory: where it lies.
        site: whose it has to be.
        boot: of the machine, now.

    Raises:
        MemoryPoolError: JOURNAL_UNUSABLE where it cannot be read, or is of another site; it is left as it is.
    """
    torn, damage = 0, None
    try:
        try:
            records, torn = read_records(directory.fileno)
        except DamagedJournalError as error:
            records, damage = error.records, error
        state = replay(records)
    except FileNotFoundError:
        return JournalState(), ""
    except OSError as error:
        raise MemoryPoolError(
            ErrorCode.JOURNAL_UNUSABLE,
            f"the journal of an earlier run in {directory.path} cannot be read: {error.strerror}.",
            "See to the disk, or remove that directory, and with it what waits.",
        ) from error
    except MemoryPoolError as error:
        raise MemoryPoolError(error.code, error.message, f"{error.remedy} It is {directory.path}.") from error
    if records and (state.began is None or state.began.site != site):
        whose = "nobody's" if state.began is None else f"of the site {state.began.site!r}"
        raise MemoryPoolError(
            ErrorCode.JOURNAL_UNUSABLE,
            f"the journal in {directory.path} cannot be used: it is {whose}, and stays as it is.",
            "Give each site a `state_directory` of its own; a copy of another site's may be removed.",
        )
    if torn:
        logger.warning(
            "[%s] ignored the last %d bytes of the journal in %s: they are no record, and nobody was told of it",
            ErrorCode.JOURNAL_UNUSABLE.value,
            torn,
            directory.path,
        )
    if damage is None:
        return state, ""
    is_crash = state.began is not None and state.began.boot != boot and state.began.synced
    if is_crash and isinstance(damage, ShortenedJournalError):
        # nobody is told of what is not synced yet
        return state, ""
    logger.error("%s It is in %s.", damage, directory.path)
    return state, damage.why
