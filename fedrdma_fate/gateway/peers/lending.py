"""Lends payloads to a gateway of this host, whose tasks map them where they lie in our send region.

The in-place message queue of LIFL (section 4.1) between gateways: nothing is copied, and one slot serves all receivers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable

from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Sent
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.memory.shared_slots import range_is_held
from fedrdma_fate.wire.frames import Lend, LendRecall, MessageKey

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Between two looks at what was lent to a gateway that has gone."""

GRACE_SECONDS = 30.0
"""A task that was just told of a lent slot may not have mapped it yet when its gateway goes."""


@dataclasses.dataclass(slots=True)
class _Loan:
    """A transfer that moves nothing: the peer uses the payload where it lies, and returns it.

    Attributes:
        outgoing: the message.
        lease: keeps its slot.
        began: when it was offered, by time.monotonic.
        accepted: the peer has it.
        gone_at: since when the peer cannot return it, by time.monotonic.
        forgotten: the peer was restarted: it never will.
        was_used: when the peer had gone, a task of its was seen to use it.
    """

    outgoing: Outgoing
    lease: Lease
    began: float
    accepted: bool = False
    gone_at: float | None = None
    forgotten: bool = False
    was_used: bool = False


class Lending:
    """What is lent to one peer. Belongs to the event loop's thread."""

    def __init__(
        self,
        peer: str,
        context: GatewayContext,
        send: Callable[[Lend | LendRecall], bool],
        send_anew: Callable[[Outgoing, Lease], object],
    ) -> None:
        """
        Args:
            peer: name of its site.
            context: the gateway's.
            send: sends a frame, if there is a control channel.
            send_anew: takes a message, and its lease, that nobody at the peer may have got.
        """
        self._peer = peer
        self._context = context
        self._send = send
        self._send_anew = send_anew
        self._loans: dict[int, _Loan] = {}
        self._declined = False
        self._leaving = False
        self._watch: asyncio.TimerHandle | None = None
        context.recalls[context.send_pool].append(self.recall)

    @property
    def count(self) -> int:
        """Loans that have not come back."""
        return len(self._loans)

    @property
    def returnable(self) -> int:
        """Loans that the peer knows of."""
        return sum(not loan.forgotten for loan in self._loans.values())

    @property
    def lent_bytes(self) -> int:
        """Payload bytes of all loans."""
        return sum(loan.outgoing.payload.total_bytes for loan in self._loans.values())

    # -- lending --------------------------------------------------------------------------------------------------

    def lend(self, outgoing: Outgoing, lease: Lease) -> bool:
        """Lend a message, where that leaves room for what else is to be sent; whether it was lent."""
        if self._declined or self._leaving or not self._context.send_pool.can_spare:
            return False
        share = lease.share(f"lent:{self._peer}")
        self._loans[outgoing.transfer] = loan = _Loan(outgoing, share, time.monotonic())
        self._offer(loan)
        return True

    def resend(self) -> None:
        """The control channel is new: what has not been returned, as far as we know, is offered again."""
        for loan in self._loans.values():
            if not loan.forgotten:
                self._offer(loan)

    def recall(self, _owner: str | None = None) -> None:
        """The send region is full: ask for what no task has pulled yet, whoever pushed it."""
        self._recall_all(final=False)

    def leave(self) -> None:
        """We go away, and our slots keep their bytes: ask for all loans."""
        self._leaving = True
        self._recall_all(final=True)

    # -- what the peer says ---------------------------------------------------------------------------------------

    def on_delivered(self, transfer: int) -> tuple[Outgoing, float] | None:
        """The peer has taken a message: which one, and after how many seconds; None when it was not lent, or before."""
        loan = self._loans.get(transfer)
        if loan is None or loan.accepted:
            return None
        loan.accepted = True
        return loan.outgoing, time.monotonic() - loan.began

    def on_declined(self, transfer: int, reason: str) -> bool:
        """The peer cannot use what is lent: whether this message has to be sent otherwise."""
        message = "%s does not borrow: %s; payloads are copied to it"
        self._context.complaints.add(logger, "loans not used", self._peer, message, self._peer, reason)
        self._declined = True
        return self.end(transfer)

    def end(self, transfer: int) -> bool:
        """A message is not lent any more; whether it was."""
        loan = self._loans.pop(transfer, None)
        # when we leave, the bytes have to stay as they are for those who have mapped them
        if loan is not None and not self._leaving:
            if loan.accepted:
                self._context.journal.write(Sent(self._peer, transfer))
            loan.lease.release()
        return loan is not None

    def end_session(self, session: str) -> None:
        """A session is over: what was lent of it comes back, from a gateway that is gone as soon as no task uses it."""
        for loan in self._loans.values():
            if loan.outgoing.key.session == session:
                # where it was not, nobody will take it any more
                loan.accepted = True
        self._look_later()

    def holds(self, session: str) -> bool:
        """Whether anything of it is lent."""
        return any(loan.outgoing.key.session == session for loan in self._loans.values())

    def find(self, key: MessageKey) -> tuple[Payload, Lease] | None:
        """A message that is lent, and one more hold on it; None where it is not."""
        loan = next((loan for loan in self._loans.values() if loan.outgoing.key == key), None)
        return None if loan is None else (loan.outgoing.payload, loan.lease.share())

    # -- a peer that is gone --------------------------------------------------------------------------------------

    def peer_lost(self) -> None:
        """Loans may not come back; see what becomes of them."""
        now = time.monotonic()
        for loan in self._loans.values():
            loan.gone_at = loan.gone_at or now
        self._look_later()

    def peer_back(self) -> None:
        """The same run of the peer is connected again: it knows its loans."""
        for loan in self._loans.values():
            if not loan.forgotten:
                loan.gone_at = None

    def peer_restarted(self) -> list[int]:
        """The peer has forgotten its loans, though tasks of its may still use them.

        Those that it had taken, and no task of its uses, are sent anew: no task has pulled them, or none needs them any
        more, which the peer knows.

        Returns:
            those it had not taken yet.
        """
        self._declined = False
        self.peer_lost()
        untaken = [transfer for transfer, loan in self._loans.items() if not loan.accepted]
        for transfer in untaken:
            self.end(transfer)
        for loan in list(self._loans.values()):
            if not loan.forgotten and not range_is_held(loan.lease.slot):
                self._give_up(loan)
            loan.forgotten = True
        return untaken

    def close(self) -> None:
        """Look no more."""
        if self._watch is not None:
            self._watch.cancel()

    # -- internals ------------------------------------------------------------------------------------------------

    def _give_up(self, loan: _Loan) -> None:
        """Lend it no more, and send it instead; as the journal has it, it has been so all the time."""
        del self._loans[loan.outgoing.transfer]
        self._send_anew(loan.outgoing, loan.lease.share(f"transfer:{loan.outgoing.key}"))
        if not self._leaving:
            loan.lease.release()

    def _offer(self, loan: _Loan) -> None:
        message, slot = loan.outgoing, loan.lease.slot
        self._send(Lend(message.transfer, message.key, message.kind, message.payload.total_bytes, slot.offset))

    def _recall_all(self, *, final: bool) -> None:
        for transfer, loan in self._loans.items():
            # whoever has forgotten a loan would say that nobody uses it
            if not loan.forgotten:
                self._send(LendRecall(transfer, final))

    def _look_later(self) -> None:
        if self._watch is None and self._loans:
            self._watch = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """End the loans of a gateway that has gone, once no task of its uses them.

        What no task was seen to use may never have been pulled: it waits for the gateway, as what is not lent does.
        """
        self._watch = None
        now, restart = time.monotonic(), self._context.config.timeouts.restart
        gone = {t: loan for t, loan in self._loans.items() if loan.accepted and loan.gone_at is not None}
        for transfer, loan in gone.items():
            if range_is_held(loan.lease.slot):
                loan.was_used = True
                continue
            was_used = loan.was_used or loan.forgotten
            patience = GRACE_SECONDS if was_used else max(GRACE_SECONDS, restart)
            if loan.gone_at is None or loan.gone_at >= now - patience:
                continue
            if not was_used and self._context.mailbox.sessions.ended.reason(loan.outgoing.key.session) is None:
                self._give_up(loan)
            else:
                logger.info("%s is not used any more by tasks of %s", loan.outgoing.key, self._peer)
                self.end(transfer)
        if gone:
            self._look_later()
