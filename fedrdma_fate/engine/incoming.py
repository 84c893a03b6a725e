"""Receiving transfers of one link, and the slots granted to its peer."""

from __future__ import annotations

import ctypes
import dataclasses
from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.actions import Action, ClearHeader, ComputeDigest, CopyStaged, Failed, Finished, SendFrame
from fedrdma_fate.core.digest import chunk_digest
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.engine.events import LinkEvents, LinkSettings, TransferProgress, TransferStats
from fedrdma_fate.ports import Endpoint, Slot
from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import Grant, Offer, Refused, Restart
from fedrdma_fate.wire.header import HEADER_BYTES, decode_header, header_present

_BAD_LOOKS = 100
"""Polling may see a header half landed: only one that stays bad for so many looks is damaged."""


@dataclasses.dataclass(slots=True)
class _Granted:
    """A slot the peer may write into, and what it is used for."""

    slot: Slot
    asked_by: int
    offer: Offer | None = None
    receiver: Receiver | None = None
    announced: bool = False
    looks: int = 0
    started: float = 0.0


class IncomingTransfers:
    """All grants given to a peer on one link, and what comes in through them. Runs on the link's thread."""

    def __init__(self, settings: LinkSettings, events: LinkEvents) -> None:
        self._settings = settings
        self._events = events
        self._endpoint: Endpoint | None = None
        self._granted: dict[int, _Granted] = {}

    # -- commands -------------------------------------------------------------------------------------------------

    def grant(self, grant: int, slot: Slot, transfer: int) -> None:
        """Let the peer write into a slot: for the transfer that asked, or (0) as a credit."""
        self._granted[grant] = _Granted(slot, transfer)
        if self._endpoint is not None:
            self._expose(self._endpoint, grant)

    def path_up(self, endpoint: Endpoint) -> None:
        """The data path is new: grant everything anew under its keys."""
        self._endpoint = endpoint
        for grant, granted in self._granted.items():
            if granted.receiver is not None:
                granted.receiver.restart()
            granted.announced = False
            self._expose(endpoint, grant)

    def path_lost(self) -> None:
        """Nothing can come until it is renewed."""
        self._endpoint = None

    def peer_restarted(self) -> None:
        """What was on its way is lost, and sent anew under new offers if its sender still has it."""
        granted, self._granted = self._granted, {}
        for grant in granted:
            self._withdraw(grant)
        self._events.slots_returned([entry.slot for entry in granted.values()])

    def on_return(self, grant: int) -> None:
        """The peer gives a grant back."""
        granted = self._granted.get(grant)
        if granted is not None and granted.receiver is None:
            self._forget(grant)
            self._events.slots_returned([granted.slot])

    def reject(self, offer: Offer, code: ErrorCode, reason: str) -> None:
        """The owner will not have this transfer."""
        granted = self._granted.get(offer.grant)
        if granted is not None and granted.offer is None:
            self._forget(offer.grant)
            self._events.slots_returned([granted.slot])
        self._refuse(offer, code, reason)

    def idle_credits(self) -> list[int]:
        """Standing grants that nothing has come through yet."""
        return [grant for grant, entry in self._granted.items() if entry.asked_by == 0 and entry.offer is None]

    # -- from the peer --------------------------------------------------------------------------------------------

    def on_offer(self, offer: Offer, now: float) -> None:
        """A transfer begins."""
        granted = self._granted.get(offer.grant)
        if granted is not None and granted.offer == offer:
            return
        if granted is None or granted.offer is not None:
            self._refuse(offer, ErrorCode.GRANT_VIOLATION, f"grant {offer.grant} is not free")
            return
        try:
            plan = ChunkPlan(offer.total_bytes, offer.chunk_bytes, offer.enable_bytes)
        except ValueError as error:
            self._refuse(offer, ErrorCode.UNEXPECTED_EVENT, str(error))
            return
        if SlotLayout(plan, offer.mode).slot_bytes > granted.slot.length:
            needed = f"{offer.total_bytes} bytes do not fit the granted slot of {granted.slot.length}"
            self._refuse(offer, ErrorCode.GRANT_VIOLATION, needed)
            return
        granted.offer = offer
        granted.started = now
        granted.receiver = Receiver(offer.transfer, plan, ReceiveSettings(offer.mode))
        if self._settings.poll_headers:
            self._clear_stale_header(granted, granted.receiver)
        if granted.announced:
            self._look_at_header(offer.grant, granted, now)

    def on_reconcile(self, transfers: Iterable[tuple[int, int]]) -> None:
        """The peer resumes these transfers: tell it which are not known here any more."""
        for transfer, grant in transfers:
            granted = self._granted.get(grant)
            known = granted is not None and (granted.offer is None or granted.offer.transfer == transfer)
            if not known:
                self._events.frame(Restart(self._settings.transport, transfer))

    def on_immediate(self, grant: int, now: float) -> None:
        """A header was written behind everything before it."""
        granted = self._granted.get(grant)
        if granted is None or self._settings.poll_headers:
            return
        if granted.receiver is None:
            granted.announced = True
        else:
            self._look_at_header(grant, granted, now)

    def on_landed(self, grant: int, offset: int, length: int, now: float) -> None:
        """A chunk was seen to land."""
        granted = self._granted.get(grant)
        if granted is not None and granted.receiver is not None:
            self._carry_out(grant, granted, granted.receiver.on_landed(offset, length), now)

    def on_abort(self, transfer: int, code: ErrorCode, reason: str, now: float) -> None:
        """The sender gave a transfer up."""
        for grant, granted in list(self._granted.items()):
            if granted.offer is not None and granted.offer.transfer == transfer and granted.receiver is not None:
                self._carry_out(grant, granted, granted.receiver.on_abort(code, reason), now)

    # -- time -----------------------------------------------------------------------------------------------------

    def wants_polling(self) -> bool:
        """Whether somebody has to look for headers."""
        return self._settings.poll_headers and any(entry.receiver is not None for entry in self._granted.values())

    def look_for_headers(self, now: float) -> None:
        """`notify: poll` (paper, section 3.2): look at the first bytes of every slot in use."""
        for grant, granted in list(self._granted.items()):
            if granted.receiver is None:
                continue
            at = granted.receiver.layout.header_at
            if not header_present(granted.slot.view[at : at + HEADER_BYTES]):
                granted.looks = 0
            elif _is_valid(granted.slot.view[at : at + HEADER_BYTES]) or granted.looks >= _BAD_LOOKS:
                granted.looks = 0
                self._look_at_header(grant, granted, now)
            else:
                granted.looks += 1

    def progress(self) -> list[TransferProgress]:
        """What is under way."""
        return [
            TransferProgress(
                entry.offer.transfer,
                entry.offer.key,
                "receive",
                entry.offer.mode,
                entry.receiver.state.value,
                entry.offer.total_bytes,
                entry.receiver.placed_bytes,
                entry.started,
            )
            for entry in list(self._granted.values())
            if entry.offer is not None and entry.receiver is not None
        ]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _expose(self, endpoint: Endpoint, grant: int) -> None:
        granted = self._granted[grant]
        remote = endpoint.expose(grant, granted.slot)
        self._events.frame(
            Grant(self._settings.transport, grant, remote.key, remote.address, remote.length, granted.asked_by)
        )

    def _refuse(self, offer: Offer, code: ErrorCode, reason: str) -> None:
        self._events.frame(Refused(offer.transfer, code.value, reason))

    def _clear_stale_header(self, granted: _Granted, receiver: Receiver) -> None:
        """A slot used before may show the header of an earlier transfer at the place that is looked at."""
        at = receiver.layout.header_at
        raw = granted.slot.view[at : at + HEADER_BYTES]
        if not _is_valid(raw) or decode_header(raw).transfer != receiver.transfer:
            raw[:] = bytes(HEADER_BYTES)

    def _look_at_header(self, grant: int, granted: _Granted, now: float) -> None:
        receiver = granted.receiver
        assert receiver is not None
        at = receiver.layout.header_at
        try:
            header = decode_header(granted.slot.view[at : at + HEADER_BYTES])
        except WireError as error:
            self._carry_out(grant, granted, receiver.on_bad_header(error.message), now)
        else:
            self._carry_out(grant, granted, receiver.on_header(header), now)

    def _carry_out(self, grant: int, granted: _Granted, actions: Iterable[Action], now: float) -> None:
        receiver, offer = granted.receiver, granted.offer
        assert receiver is not None
        assert offer is not None
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            match action:
                case ComputeDigest(chunk):
                    part = granted.slot.part(receiver.layout.payload_at + chunk.offset, chunk.length)
                    queue.extend(receiver.on_digest(chunk.index, chunk_digest(part.view)))
                case CopyStaged(source, target, length):
                    base = granted.slot.region.address + granted.slot.offset
                    # unlike a memoryview assignment, memmove lets other threads run
                    ctypes.memmove(base + target, base + source, length)
                case ClearHeader(at):
                    granted.slot.view[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
                case SendFrame(frame):
                    self._events.frame(frame)
                case Finished():
                    self._forget(grant)
                    stats = TransferStats(now - granted.started, 0, 0)
                    self._events.received(offer, granted.slot, receiver.layout.payload_at, stats)
                case Failed(code, reason):
                    self._forget(grant)
                    self._events.receive_failed(offer, granted.slot, code, reason)
                case _:
                    raise RuntimeError(f"a receiver cannot ask for {action}")

    def _forget(self, grant: int) -> None:
        self._granted.pop(grant, None)
        self._withdraw(grant)

    def _withdraw(self, grant: int) -> None:
        if self._endpoint is not None:
            self._endpoint.withdraw(grant)


def _is_valid(raw: memoryview) -> bool:
    try:
        decode_header(raw)
    except WireError:
        return False
    return True
