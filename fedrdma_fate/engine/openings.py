"""Payloads of a link that are whole, and opened a slice at a time; what becomes of those whose tags are wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fedrdma_fate.core.held import Held
from fedrdma_fate.engine.both_ends import SharedWork
from fedrdma_fate.engine.events import (
    Emit,
    FrameToSend,
    PayloadReceived,
    ReceiveFailed,
    RecordsRefused,
    SlotsReturned,
    TransferKept,
    TransferProgress,
    TransferStats,
)
from fedrdma_fate.engine.granted_slot import Ended, wipe
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.link_datagrams import COPIES, LinkDatagrams
from fedrdma_fate.engine.opening import Opening
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import SealBrokenError
from fedrdma_fate.security.sealing import PathOpener
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Delivered, Refused, Restart

logger = logging.getLogger(__name__)

_MOST_BROKEN = 3
"""How often a transfer may come with a wrong tag before it is refused: as often as one with a wrong digest may."""

_REMEMBERED = 256
"""Transfers that came with a wrong tag: many more than a link has at a time."""


class Openings:
    """They need no data path: nobody can write there any more, and each has its keys. Belongs to the link's thread."""

    def __init__(
        self,
        settings: LinkSettings,
        emit: Emit,
        datagrams: LinkDatagrams,
        remember: Callable[[int, Ended], None],
    ) -> None:
        """
        Args:
            settings: of the link.
            emit: tells its owner.
            datagrams: of the link.
            remember: takes a note of a grant that has ended, and how.
        """
        self._settings = settings
        self._emit = emit
        self._datagrams = datagrams
        self._remember = remember
        self._opening: dict[int, Opening] = {}
        self._broken: dict[int, int] = {}
        self._shared: SharedWork | None = None

    def __contains__(self, grant: int) -> bool:
        return grant in self._opening

    def begin(self, grant: int, opening: Opening, opener: PathOpener, now: float) -> None:
        """Open what came into the slot of a grant, which was withdrawn."""
        self._opening[grant] = opening
        try:
            opening.begin(grant, opener)
        except SealBrokenError as error:
            self._refuse(grant, opening, str(error))
            return
        self._advance(grant, opening, now)
        self._close_idle()

    def timer(self) -> float | None:
        """When to call `on_timer`: at once, where there is something to open."""
        return 0.0 if self._opening else None

    def on_timer(self, now: float) -> None:
        """Open some more of each."""
        for grant, opening in list(self._opening.items()):
            self._advance(grant, opening, now)
        self._close_idle()

    def on_abort(self, transfer: int, code: ErrorCode, reason: str) -> None:
        """The sender gave a transfer up."""
        for grant, opening in list(self._opening.items()):
            if opening.offer.transfer == transfer:
                del self._opening[grant]
                self._emit(ReceiveFailed(opening.offer, opening.slot, code, reason))
        self._close_idle()

    def drop(self, grant: int) -> None:
        """The sender has begun it anew, or given it up."""
        opening = self._opening.pop(grant, None)
        if opening is not None:
            self._emit(SlotsReturned((opening.slot,)))
        self._close_idle()

    def clear(self) -> None:
        """The link ends."""
        for grant in list(self._opening):
            self.drop(grant)

    def progress(self) -> list[TransferProgress]:
        """What is under way."""
        return [
            TransferProgress(
                opening.offer.transfer,
                opening.offer.key,
                "receive",
                opening.offer.mode,
                "opening",
                opening.offer.total_bytes,
                opening.opened_bytes,
                opening.started,
            )
            for opening in self._opening.values()
        ]

    def _advance(self, grant: int, opening: Opening, now: float) -> None:
        if opening.is_shared and self._shared is None:
            self._shared = SharedWork()
        if not opening.advance(self._shared if opening.is_shared else None):
            return
        if opening.damaged:
            count, length = len(opening.damaged), sum(chunk.length for chunk in opening.damaged)
            self._emit(RecordsRefused({"forged": count}))
            self._refuse(grant, opening, f"{count} chunks of {length} bytes together have a wrong tag")
            return
        offer = opening.offer
        del self._opening[grant]
        self._broken.pop(offer.transfer, None)
        tells = self._settings.tells_delivered(offer.transfer)
        self._remember(grant, Ended(offer.transfer, tells))
        stats = TransferStats(now - opening.started, 0, 0)
        payload_at, missing = opening.layout.payload_at, opening.missing
        wipe(opening.slot, payload_at, missing)
        if self._settings.kept(offer, opening.slot, payload_at, missing):
            self._emit(PayloadReceived(offer, opening.slot, payload_at, stats, missing))
        else:
            # another link of the peer was faster
            self._emit(SlotsReturned((opening.slot,)))
        if tells:
            self._datagrams.post(Delivered(offer.transfer), COPIES)
            self._emit(FrameToSend(Delivered(offer.transfer)))

    def _close_idle(self) -> None:
        """A thread that opens is kept no longer than there is something to open."""
        if self._shared is not None and not self._opening:
            self._shared.close()
            self._shared = None

    def _refuse(self, grant: int, opening: Opening, reason: str) -> None:
        """Somebody else has written there, or the peer has not sealed it: what is not right has to come anew."""
        offer = opening.offer
        del self._opening[grant]
        self._remember(grant, Ended(offer.transfer, False))
        times = self._broken.pop(offer.transfer, 0) + 1
        logger.error("refused %s: %s", offer.key, reason)
        if times < _MOST_BROKEN:
            self._broken[offer.transfer] = times
            if len(self._broken) > _REMEMBERED:
                del self._broken[next(iter(self._broken))]
            held = opening.held if opening.damaged and self._settings.continues_sealed else Held()
            kept = KeptSlot(offer, opening.slot, held)
            self._emit(TransferKept(kept) if held.ranges else SlotsReturned((opening.slot,)))
            self._emit(FrameToSend(Restart(self._settings.transport, offer.transfer)))
            return
        code, reason = ErrorCode.SEAL_BROKEN, f"{reason}, {times} times"
        self._emit(FrameToSend(Refused(offer.transfer, code.value, reason)))
        self._emit(ReceiveFailed(offer, opening.slot, code, reason))
