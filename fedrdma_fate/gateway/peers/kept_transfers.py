"""Slots in which transfers of a peer may go on: by another data path, or in another run of this gateway.

What lies there as sealed is opened, by tags that its sender tells, when its data path is gone (docs/resuming.md).
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable

from fedrdma_fate.core.held import Piece, Ranges
from fedrdma_fate.core.plan import HEADER_SPACE_BYTES
from fedrdma_fate.engine.events import TransferNoted, TransferSealed
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.told_tags import Opened, ToldTags, open_told
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Coming, ComingSealed, Stopped
from fedrdma_fate.gateway.peers.path_keys import SEALED_IN_SLOT
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.ports import Slot
from fedrdma_fate.security.key_schedule import KEY_BYTES
from fedrdma_fate.security.sealing import PathOpener
from fedrdma_fate.security.slot_records import AttemptKey, SlotOpener
from fedrdma_fate.wire.frames import ChunkTags, Offer

logger = logging.getLogger(__name__)

MOST_KEPT = 64
"""Slots of a peer's transfers that are kept from one data path to the next: what it had been granted, and no more of it
than a path has transfers under way for."""

MOST_TOLD_BYTES = 8 * 1024 * 1024
"""Of counters and tags of all slots of a peer: of 350,000 chunks. One record of the journal has all of a slot, and no
longer one than 16 MiB is read (`memory/journal_file.py`). Of what more is told nothing is taken; it comes again."""

KEY_AT = HEADER_SPACE_BYTES // 2
"""Where in its slot the key of an attempt lies: on the page of the header, far behind that. In memory that outlives the
gateway, beside the bytes that it opens, and never on a disk."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """A slot in which a transfer may go on, and when it is given up.

    Attributes:
        slot: with what lies there.
        lease: of it.
        timer: gives it up.
        told: tags of what lies there sealed.
        opening: what a thread does that opens it just now; nobody else may have it.
    """

    slot: KeptSlot
    lease: Lease
    timer: asyncio.TimerHandle
    told: ToldTags
    opening: asyncio.Future[Opened] | None = None


class KeptTransfers:
    """Those of one peer. Belongs to the event loop's thread."""

    def __init__(self, peer: str, context: GatewayContext, complain: Callable[..., None]) -> None:
        """
        Args:
            peer: name of its site.
            context: the gateway's.
            complain: about what the peer sends: a kind, a message and its values.
        """
        self._peer = peer
        self._context = context
        self._complain = complain
        self._kept: dict[int, _Kept] = {}
        # transfers that the journal says are coming, by where their slots start
        self._noted: dict[int, int] = {}
        # of grants
        self._told: dict[int, ToldTags] = {}
        self._sealed: dict[int, TransferSealed] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def noted(self) -> int:
        """Transfers that the journal says are coming."""
        return len(self._noted)

    # -- what is kept ---------------------------------------------------------------------------------------------

    def keep(self, kept: KeptSlot, lease: Lease, told: ToldTags | None = None) -> None:
        """For a while; what was kept of this transfer before is given up."""
        transfer, idle = kept.offer.transfer, self._context.config.timeouts.idle
        self.drop(transfer)
        timer = asyncio.get_running_loop().call_later(idle, self.drop, transfer)
        self._kept[transfer] = _Kept(kept, lease, timer, told or ToldTags(kept.slot.length))
        while len(self._kept) > MOST_KEPT:
            self.drop(next(iter(self._kept)))

    def drop(self, transfer: int) -> None:
        """It does not go on there."""
        kept = self._kept.pop(transfer, None)
        if kept is not None:
            kept.timer.cancel()
            if kept.opening is None:
                self.release(kept.lease)

    def drop_all(self) -> None:
        """Somebody else needs the memory."""
        for transfer in list(self._kept):
            self.drop(transfer)

    def of_message(self, offers: Callable[[Offer], bool]) -> list[int]:
        """Transfers whose offers are such."""
        return [transfer for transfer, kept in self._kept.items() if offers(kept.slot.offer)]

    def fits(self, transfer: int, slot_bytes: int) -> bool:
        """Whether its slot is kept, and long enough for how it is sent now; one that is not is given up."""
        kept = self._kept.get(transfer)
        if kept is not None and kept.lease.slot.length < slot_bytes:
            self.drop(transfer)
        return transfer in self._kept

    def is_sealed(self, transfer: int) -> bool:
        """Whether what is kept of it has to be opened."""
        kept = self._kept.get(transfer)
        return kept is not None and kept.slot.sealed is not None

    def take(self, transfer: int, transport: str) -> tuple[KeptSlot, Lease]:
        """For it to go on there over this transport; one that is open."""
        kept = self._kept.pop(transfer)
        kept.timer.cancel()
        slot = kept.lease.slot
        seals_in_slot = transport in SEALED_IN_SLOT and self._context.config.sealing != "off"
        if seals_in_slot and kept.slot.held.tagged and slot.offset in self._noted:
            # where whoever can forge packets may write, what the journal knows to lie there is not sure any more
            self._note_pieces(kept.slot, (), tagged=False)
        return kept.slot, kept.lease

    async def open(self, transfer: int) -> None:
        """Open what lies there sealed, by a thread, as far as its tags are known. Where that fails, it is given up."""
        kept = self._kept.get(transfer)
        if kept is not None and kept.slot.sealed is not None:
            # neither ends it when this is cancelled, nor raises what it raises
            await asyncio.wait([kept.opening or self._open(kept)])

    def _open(self, kept: _Kept) -> asyncio.Future[Opened]:
        opened = asyncio.ensure_future(asyncio.to_thread(open_told, kept.slot, kept.told))
        opening = self._kept[kept.slot.offer.transfer] = dataclasses.replace(kept, opening=opened)
        # also where nobody waits for it any more
        opened.add_done_callback(functools.partial(self._on_opened, opening))
        return opened

    def _on_opened(self, kept: _Kept, done: asyncio.Future[Opened]) -> None:
        offer, slot = kept.slot.offer, kept.lease.slot
        error = None if done.cancelled() else done.exception()
        if error is not None:
            logger.error("what came of transfer %s of %s cannot be opened", offer.transfer, self._peer, exc_info=error)
        if self._kept.get(offer.transfer) is not kept:
            self.release(kept.lease)
            return
        kept = self._kept[offer.transfer] = dataclasses.replace(kept, opening=None)
        if done.cancelled() or error is not None:
            self.drop(offer.transfer)
            return
        opened = done.result()
        self._kept[offer.transfer] = dataclasses.replace(kept, slot=opened.slot)
        if self._context.journal.is_kept and (opened.pieces or slot.offset in self._noted):
            self._note_pieces(opened.slot, opened.pieces, tagged=True)
        _wipe_key(slot)

    def _note_pieces(self, kept: KeptSlot, pieces: tuple[Piece, ...], *, tagged: bool) -> None:
        slot = kept.slot
        self._note(
            Coming(
                self._peer,
                kept.offer,
                slot.offset,
                slot.length,
                HEADER_SPACE_BYTES,
                tagged=tagged,
                digested=True,
                pieces=pieces,
            )
        )

    # -- what another run may go on with --------------------------------------------------------------------------

    def note(self, noted: TransferNoted) -> None:
        """So much has come: write it down."""
        slot, offer = noted.slot, noted.offer
        self._note(
            Coming(
                self._peer,
                offer,
                slot.offset,
                slot.length,
                noted.payload_at,
                noted.tagged,
                noted.digested,
                noted.pieces,
            )
        )

    def sealed(self, begun: TransferSealed) -> None:
        """What comes into this slot is sealed, and this opens it."""
        self._sealed[begun.offer.grant] = begun

    def on_tags(self, frame: ChunkTags, granted: Callable[[int], Slot | None]) -> None:
        """The peer tells tags of what it has sealed, and perhaps sent, into a slot: while it does, or later.

        Args:
            frame: what it tells.
            granted: the slot of a grant that there is.
        """
        kept = self._kept.get(frame.transfer)
        offer: Offer | None = None
        opener: SlotOpener | None = None
        adopted: Ranges = ()
        if kept is not None and kept.slot.offer.grant == frame.grant:
            told, slot, offer, opener = kept.told, kept.lease.slot, kept.slot.offer, kept.slot.sealed
            adopted = kept.slot.adopted
            if kept.opening is not None or opener is None:
                return
        else:
            found, begun = granted(frame.grant), self._sealed.get(frame.grant)
            if found is None:
                return
            slot = found
            told = self._told.setdefault(frame.grant, ToldTags(slot.length))
            if begun is not None:
                offer, opener, adopted = begun.offer, begun.opener, begun.adopted
        if self._told_bytes + len(frame.tags) > MOST_TOLD_BYTES or not told.add(frame):
            what = "did not take tags of transfer %s of %s: of another attempt, or too many"
            self._complain("tags", what, frame.transfer, self._peer, level=logging.INFO)
        elif offer is not None and isinstance(opener, PathOpener) and self._context.journal.is_kept:
            self._note_sealed(offer, slot, opener.key_of(told.introduction), told, adopted)

    @property
    def _told_bytes(self) -> int:
        ahead = sum(told.total_bytes for told in self._told.values())
        return ahead + sum(kept.told.total_bytes for kept in self._kept.values())

    def _note_sealed(self, offer: Offer, slot: Slot, key: AttemptKey, told: ToldTags, adopted: Ranges) -> None:
        if not (runs := told.take_unnoted()):
            return
        slot.view[KEY_AT : KEY_AT + KEY_BYTES] = key.key
        digest = hashlib.sha256(key.key).digest()
        about = (key.cipher, key.encrypts, key.introduction, digest, adopted, runs)
        self._note(ComingSealed(self._peer, offer, slot.offset, slot.length, *about))

    def _note(self, record: Coming | ComingSealed) -> None:
        # in an earlier slot it comes no more
        for offset in [offset for offset, transfer in self._noted.items() if transfer == record.offer.transfer]:
            del self._noted[offset]
        self._noted[record.offset] = record.offer.transfer
        self._context.journal.write(record)

    def restore(self, kept: KeptSlot, lease: Lease, told: ToldTags | None = None) -> None:
        """An earlier run was killed in the middle of a transfer: it may go on in its slot."""
        self._noted[kept.slot.offset] = kept.offer.transfer
        self.keep(kept, lease, told)

    # -- what is over ---------------------------------------------------------------------------------------------

    def take_told(self, grant: int) -> ToldTags | None:
        """A grant is over: the tags that were told of it."""
        self._sealed.pop(grant, None)
        return self._told.pop(grant, None)

    def received(self, slot: Slot) -> None:
        """What was coming has come, and has a record that says so."""
        self._noted.pop(slot.offset, None)
        _wipe_key(slot)

    def release(self, lease: Lease) -> None:
        """Give a slot back in which a message was perhaps coming, as the journal may say."""
        if (transfer := self._noted.pop(lease.slot.offset, None)) is not None:
            self._context.journal.write(Stopped(self._peer, transfer))
        _wipe_key(lease.slot)
        lease.release()


def kept_key(record: ComingSealed, slot: Slot) -> AttemptKey | None:
    """The key that lies in a slot, where it is the one of which the journal speaks."""
    key = bytes(slot.view[KEY_AT : KEY_AT + KEY_BYTES])
    if hashlib.sha256(key).digest() != record.key_digest:
        return None
    return AttemptKey(key, record.cipher, record.encrypts, record.introduction)


def told_of(record: ComingSealed) -> ToldTags:
    """The tags that a record has."""
    told = ToldTags(record.length)
    for first, tags in record.runs:
        told.add(ChunkTags(record.offer.transfer, record.offer.grant, record.introduction, first, tags))
    told.take_unnoted()
    return told


def _wipe_key(slot: Slot) -> None:
    if slot.length >= KEY_AT + KEY_BYTES:
        slot.view[KEY_AT : KEY_AT + KEY_BYTES] = bytes(KEY_BYTES)
