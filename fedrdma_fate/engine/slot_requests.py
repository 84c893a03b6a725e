"""What a link asks its peer for: slots for transfers that no standing grant can hold, so many at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fedrdma_fate.core.backoff import Backoff
from fedrdma_fate.core.credits import RequestShares
from fedrdma_fate.engine.events import Emit, FrameToSend
from fedrdma_fate.engine.link_datagrams import LinkDatagrams
from fedrdma_fate.engine.outgoing_transfer import Repeated
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.wire.frames import GrantRequest

_REPEATS = 4
"""By datagrams, as an offer: the control channel brings it in any case."""


class SlotRequests:
    """Each goes by the control channel, and by datagrams where there are some, again until there is a slot: a packet
    of the control channel that is lost would cost the transfer a quarter of a second."""

    def __init__(self, transport: str, emit: Emit, datagrams: LinkDatagrams) -> None:
        """
        Args:
            transport: name of the data path that the slots are for.
            emit: tells the owner of the link.
            datagrams: those of the data path.
        """
        self._transport = transport
        self._emit = emit
        self._datagrams = datagrams
        self._asked = RequestShares()
        self._repeated: dict[int, Repeated] = {}

    def next_of(self, waiting: Iterable[Outgoing]) -> Outgoing | None:
        """Of messages that wait for a slot, the one that is to ask for it next."""
        return self._asked.next_of(waiting)

    def ask(self, outgoing: Outgoing, slot_bytes: int, now: float) -> None:
        """Ask for a slot, unless so many have been asked for that this one waits for its turn."""
        transfer = outgoing.transfer
        if not self._asked.admit(transfer, outgoing.key.session):
            return
        request = GrantRequest(self._transport, transfer, slot_bytes, outgoing.key)
        self._emit(FrameToSend(request))
        if self._datagrams.post(request):
            self._repeated[transfer] = Repeated(request, Backoff(now, _REPEATS))

    def has_asked(self, transfer: int) -> bool:
        """Whether it has asked for a slot, and not ended."""
        return transfer in self._asked

    def answered(self, transfer: int) -> None:
        """It has a slot."""
        self._repeated.pop(transfer, None)

    def ended(self, transfer: int) -> bool:
        """It wants none any more; whether it had asked for one, so that another may."""
        self.answered(transfer)
        return self._asked.discard(transfer)

    def path_lost(self) -> None:
        """Nothing goes by datagrams until there is a new path."""
        self._repeated.clear()

    def keep(self, transfers: Collection[int]) -> None:
        """All others ask anew."""
        self._asked.keep(transfers)

    def timers(self) -> list[float]:
        """When `on_timer` wants to be called."""
        if not self._repeated:
            return []
        times = (repeated.backoff.timer() for repeated in self._repeated.values())
        return [due for due in times if due is not None]

    def on_timer(self, now: float) -> None:
        """Repeat what is due."""
        for repeated in self._repeated.values():
            if repeated.backoff.on_timer(now):
                self._datagrams.post(repeated.datagram)
