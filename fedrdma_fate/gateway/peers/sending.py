"""Sends messages to one peer: small ones on the control channel, large ones by a data path or by lending them.

More than 500 lines: every way in which a message to a peer goes, or ends, is to be seen in one place.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from fedrdma_fate.core.link_tuner import Finding, LinkTuner
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.tuning import LinkTraits
from fedrdma_fate.engine.events import TransferProgress, TransferStats
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.payload import Outgoing, Payload, SentSoFar
from fedrdma_fate.engine.setup import slot_bytes_needed
from fedrdma_fate.gateway import journal_records as records
from fedrdma_fate.gateway.config.schema import PeerConfig
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal.state import REMEMBERED_CONFIRMED, REMEMBERED_UNDELIVERED
from fedrdma_fate.gateway.peers.lending import Lending
from fedrdma_fate.gateway.peers.outgoing_room import MESSAGE_BYTES, MOST_LARGE, OutgoingRoom
from fedrdma_fate.gateway.peers.path_keys import SEALED_IN_SLOT
from fedrdma_fate.gateway.peers.same_payload import SAME_PAYLOAD
from fedrdma_fate.gateway.peers.session_rates import SessionRates
from fedrdma_fate.gateway.peers.site_sum_talk import SiteSumTalk
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.obs.complaints import EACH_TELLS
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError, WireError, error_from_code
from fedrdma_fate.wire.frames import (
    Abort,
    Hello,
    Inline,
    Lend,
    LendRecall,
    MessageKey,
    MessageKind,
    Mode,
    Party,
    SamePayload,
    Undeliverable,
)
from fedrdma_fate.wire.site_sum import is_site_sum

logger = logging.getLogger(__name__)

_encode_key = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(MessageKey).decode


class Links(Protocol):
    """The data paths to a peer."""

    @property
    def main_transport(self) -> str | None:
        """What `fedrdma` and `fedrdma-e` go over, if there is anything yet."""
        ...

    def known(self, transport: str) -> KnownPath | None:
        """What the data path over this transport has found of itself."""
        ...

    def dispatch(self, outgoing: Outgoing) -> str:
        """Hand a payload to a data path; its transport, or an empty string when there is none yet."""
        ...

    def written(self, transport: str, transfer: int) -> None:
        """Tell the data path that more of a payload lies in its slot."""
        ...

    def cancel(self, transport: str, transfer: int, code: ErrorCode, reason: str) -> bool:
        """Have the data path give a payload up; False when there is no such path."""
        ...


LENT = "lent"
"""How a payload goes that is not moved at all."""

KEPT_BACK = "in-a-sum"
"""How one goes that is added to others here, and only their sum is sent."""

_WITH_OTHERS = (KEPT_BACK, SAME_PAYLOAD)
"""How those go that need no transfer of their own, and the peer's answer is for them alone."""

_NOT_ON_A_PATH = ("", LENT, *_WITH_OTHERS)


@dataclasses.dataclass(slots=True)
class _PendingPayload:
    """A payload on its way to the peer.

    Attributes:
        outgoing: what the data path is told of it.
        lease: keeps its slot.
        path: the transport it was handed to, or LENT, KEPT_BACK, SAME_PAYLOAD; empty as long as there is none.
        alone: whether no other has been on its way to the peer meanwhile.
        whole: whether it was, when it was handed over.
        may_be_there: a data path has had it, in this run or an earlier one.
        was_on_a_path: one has had it in this run.
        same_as: the transfer that brings its bytes, where it goes as SAME_PAYLOAD.
        not_with: transfers up to this one cannot bring them, as the peer has said.
    """

    outgoing: Outgoing
    lease: Lease
    path: str = ""
    alone: bool = True
    whole: bool = True
    may_be_there: bool = False
    was_on_a_path: bool = False
    same_as: int = 0
    not_with: int = 0


class Sending:
    """Everything that we send to one peer. Belongs to the event loop's thread.

    Attributes:
        rtt_seconds: round trip of the control channel, None while it is not known.
        tuners: what decides how payloads are cut, by transport.
        outgoing: how much of small messages is kept, with what they take besides their bodies.
        outgoing_large: how many large ones are.
        rates: how fast they may be put.
        held_there: parties of the peer's, and bytes of its receive memory that their tasks hold while we wait for it;
            as the peer says, for people.
        site_sums: what may keep messages back, to send their sum.
    """

    def __init__(
        self,
        peer: PeerConfig,
        context: GatewayContext,
        send: Callable[[Inline | Undeliverable | Abort | Lend | LendRecall | SamePayload], bool],
        links: Links,
        hello: Callable[[], Hello | None],
        shares_memory: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            peer: the peer.
            context: the gateway's.
            send: sends a frame, if there is a control channel.
            links: the data paths.
            hello: what the peer said of itself, None as long as it has never been connected.
            shares_memory: whether the peer is here, on this host, and takes what is lent to it.
            clock: seconds, of any origin.
        """
        self._peer = peer
        self._context = context
        self._journal = context.journal
        self._send = send
        self._links = links
        self._hello = hello
        self._shares_memory = shares_memory
        self.lending = Lending(peer.site, context, send, self._send_anew)
        self._inline: dict[int, Inline] = {}
        limits = context.config.limits
        self.outgoing = OutgoingRoom(
            peer.site, int(limits.outgoing_bytes), "bytes of small messages", "or raise `limits.outgoing_bytes`"
        )
        self.outgoing_large = OutgoingRoom(peer.site, MOST_LARGE, "large messages", "or push fewer at a time")
        self.rates = SessionRates(limits.session_frames_per_second, limits.frames_per_second, clock)
        self._transfers: dict[int, _PendingPayload] = {}
        self._alone: _PendingPayload | None = None
        # the last transfer that went by a data path, as long as anybody may push these bytes again
        self._brings: weakref.WeakKeyDictionary[Payload, int] = weakref.WeakKeyDictionary()
        self._with_another: dict[int, dict[int, None]] = {}
        self._restored: weakref.WeakValueDictionary[tuple[int, int], Payload] = weakref.WeakValueDictionary()
        # keys as they are encoded, which takes a third of the memory
        self._delivered: OrderedDict[int, bytes] = OrderedDict()
        self._notices: OrderedDict[MessageKey, Undeliverable] = OrderedDict()
        self.rtt_seconds: float | None = None
        self.held_there: tuple[tuple[Party, int], ...] = ()
        self.site_sums: SiteSumTalk | None = None
        self.tuners: defaultdict[str, LinkTuner] = defaultdict(LinkTuner)

    @property
    def pending(self) -> int:
        """Messages that the peer does not have yet."""
        return len(self._inline) + len(self._transfers)

    @property
    def has_to_tell(self) -> bool:
        """Whether the peer may not know yet of a message that will not come."""
        return bool(self._notices)

    def put_inline(self, key: MessageKey, kind: MessageKind, body: bytes) -> None:
        """Send a small message; it is kept until the peer has it."""
        inline = Inline(self._context.new_transfer(), key, kind, body)
        self._journal.write(
            records.Outgoing(self._peer.site, inline.transfer, key, kind, len(body), self._mode(None), body)
        )
        self._notices.pop(key, None)
        self._keep_inline(inline)
        self._journal.then(functools.partial(self._send, inline))

    def _keep_inline(self, inline: Inline) -> None:
        self._inline[inline.transfer] = inline
        self.outgoing.add(len(inline.body) + MESSAGE_BYTES)

    def put_payload(
        self,
        key: MessageKey,
        kind: MessageKind,
        payload: Payload,
        lease: Lease,
        mode: Mode | None,
        loss_share: float = 0.0,
        whole_bytes: int = 0,
    ) -> None:
        """Send a payload; its lease is released when the peer has it.

        Args:
            key: the message.
            kind: what the payload holds.
            payload: its bytes.
            lease: keeps them.
            mode: what the job asks for.
            loss_share: how much of what lies behind `whole_bytes` may be missing in the end.
            whole_bytes: from the start of the payload, that have to come.
        """
        used = self._mode(mode)
        plan = self._plan(used, payload.total_bytes)
        transfer, recut = self._context.new_transfer(), self._recuts(used)
        outgoing = Outgoing(transfer, key, kind, payload, plan, used, recut, loss_share, whole_bytes)
        pending = _PendingPayload(outgoing, lease, alone=not self._transfers, whole=not payload.written_from)
        if self._alone is None or self._alone.outgoing.payload is not payload:
            # one of the same bytes takes nothing from it
            if self._alone is not None:
                self._alone.alone = False
            self._alone = pending if pending.alone else None
        self._keep_payload(pending)
        self._journal.then(functools.partial(self._hand, pending))

    def _keep_payload(self, pending: _PendingPayload) -> None:
        self._journal.write(self._record_of(pending))
        # it was pushed again, and comes after all
        self._notices.pop(pending.outgoing.key, None)
        self._transfers[pending.outgoing.transfer] = pending
        self.outgoing_large.add(1)

    def _record_of(self, pending: _PendingPayload) -> records.Outgoing:
        outgoing, payload = pending.outgoing, pending.outgoing.payload
        return records.Outgoing(
            self._peer.site,
            outgoing.transfer,
            outgoing.key,
            outgoing.kind,
            payload.total_bytes,
            outgoing.mode,
            offset=payload.slot.offset,
            whole=not payload.written_from,
        )

    def restore(self, record: records.Outgoing, lease: Lease | None) -> None:
        """Go on with what an earlier run was to send; it has been offered perhaps, and goes under the same number."""
        self._notices.pop(record.key, None)
        if record.body is not None:
            self._keep_inline(Inline(record.transfer, record.key, record.kind, record.body))
            return
        assert lease is not None
        plan = self._plan(record.mode, record.total_bytes)
        # where it was pushed to several, it is the same for all of them
        where = record.offset, record.total_bytes
        payload = self._restored.get(where) or Payload(lease.slot, record.total_bytes)
        self._restored[where] = payload
        recut = self._recuts(record.mode)
        so_far = SentSoFar(earlier=True)
        outgoing = Outgoing(record.transfer, record.key, record.kind, payload, plan, record.mode, recut, so_far=so_far)
        self._transfers[outgoing.transfer] = _PendingPayload(outgoing, lease, alone=False, may_be_there=True)
        self.outgoing_large.add(1)

    def note_lost(self, record: records.Outgoing, reason: str) -> None:
        """What an earlier run was to send is gone: both ends are told."""
        with self._journal.together():
            self._undeliverable(record.transfer, record.key, ErrorCode.MESSAGE_LOST, reason)
            self._context.mailbox.sessions.forget_push(record.key)
            self._tell_task(record.key, ErrorCode.MESSAGE_LOST, reason)

    def forget(self, record: records.Outgoing) -> None:
        """Its task pushes it anew, and only then it is sent: as if it had not been pushed before."""
        self._journal.write(records.Dropped(self._peer.site, record.transfer))
        self._context.mailbox.sessions.forget_push(record.key)

    def restore_told(self, confirmed: Mapping[int, MessageKey], notices: Iterable[records.Undelivered]) -> None:
        """An earlier run was told that the peer has these, and was to tell it that it will not get those."""
        for transfer, key in confirmed.items():
            self._note_delivered(transfer, key)
        for notice in notices:
            self._note_undeliverable(Undeliverable(notice.key, notice.code, notice.reason))

    def confirmed_sessions(self) -> set[str]:
        """Sessions of messages that the peer has confirmed, the latest of them."""
        return {_decode_key(key).session for key in self._delivered.values()}

    def _ended(self, transfer: int) -> None:
        self._journal.write(records.Sent(self._peer.site, transfer))

    def lends(self, mode: Mode | None) -> bool:
        """Whether payloads of a job that asks for `mode` are lent, as long as there is room."""
        # by its definition, mode fedrdma stages every chunk (paper, section 3.1)
        return self._mode(mode) in ("fedrdma-e", "fedrdma-x") and self._shares_memory()

    def takes_unfinished(self, mode: Mode | None) -> bool:
        """Whether payloads of such a job can be sent while they are still being written: from the last byte on."""
        on_its_way = self._links.main_transport is not None and not self._shares_memory()
        return self._mode(mode) in ("fedrdma-e", "fedrdma-x") and on_its_way

    def on_written(self, payload: Payload) -> None:
        """More of a payload lies in its slot."""
        for pending in self._of(payload):
            if not payload.written_from:
                self._journal.write(records.Whole(self._peer.site, pending.outgoing.transfer))
                if (digest := payload.whole_digest) is not None:
                    self._context.mailbox.sessions.note_digest(pending.outgoing.key, digest)
            if pending.path != KEPT_BACK:
                self._links.written(pending.path, pending.outgoing.transfer)
            elif not payload.written_from and self.site_sums is not None:
                self.site_sums.on_whole(self._peer.site, pending.outgoing)

    def abandon(self, payload: Payload) -> None:
        """A payload will never be whole."""
        reason = "the task that pushed it did not write it to its end"
        # last the one that brings the bytes of the others
        for pending in reversed(self._of(payload)):
            self._context.mailbox.sessions.forget_push(pending.outgoing.key)
            if not self._links.cancel(pending.path, pending.outgoing.transfer, ErrorCode.TRANSFER_ABORTED, reason):
                self.send_failed(pending.outgoing, ErrorCode.TRANSFER_ABORTED, reason)

    def find(self, key: MessageKey) -> tuple[Payload, Lease] | None:
        """A large message that is still here, whole, and one more hold on it; None where it is not."""
        for pending in self._transfers.values():
            if pending.outgoing.key == key and not pending.outgoing.payload.written_from:
                return pending.outgoing.payload, pending.lease.share()
        return self.lending.find(key)

    def _of(self, payload: Payload) -> list[_PendingPayload]:
        return [pending for pending in self._transfers.values() if pending.outgoing.payload is payload]

    def _hand(self, pending: _PendingPayload) -> None:
        if self._keeps_back(pending):
            pending.path = KEPT_BACK
            return
        if self._goes_with_another(pending):
            return
        whole = not pending.outgoing.payload.written_from
        lent = whole and self.lends(pending.outgoing.mode) and self.lending.lend(pending.outgoing, pending.lease)
        if not lent:
            # its share is known before it begins
            self._begin_sharing(pending)
        pending.path = LENT if lent else self._links.dispatch(pending.outgoing)
        pending.may_be_there |= bool(pending.path)
        pending.was_on_a_path |= bool(pending.path)
        if pending.path and not lent and _may_bring(pending.outgoing):
            self._brings[pending.outgoing.payload] = pending.outgoing.transfer

    # -- the same bytes for several parties of the peer's ---------------------------------------------------------

    def _goes_with_another(self, pending: _PendingPayload) -> bool:
        """Whether another transfer brings its bytes; then the peer is told so."""
        outgoing = pending.outgoing
        hello = self._hello()
        if hello is None or not hello.same_payload or pending.was_on_a_path or self.lends(outgoing.mode):
            return False
        if not _may_bring(outgoing):
            return False
        same_as = self._brought_by(pending)
        if same_as is None:
            return False
        pending.path, pending.same_as, pending.may_be_there = SAME_PAYLOAD, same_as, True
        self._with_another.setdefault(same_as, {})[outgoing.transfer] = None
        self._tell_same(pending)
        return True

    def _brought_by(self, pending: _PendingPayload) -> int | None:
        """The transfer that brings the same bytes to the peer, or has brought them a moment ago."""
        transfer = self._brings.get(pending.outgoing.payload)
        if transfer is None or transfer <= pending.not_with:
            return None
        other = self._transfers.get(transfer)
        return None if other is not None and other.path in _NOT_ON_A_PATH else transfer

    def _tell_same(self, pending: _PendingPayload) -> None:
        outgoing, same_as = pending.outgoing, pending.same_as
        total, is_coming = outgoing.payload.total_bytes, same_as in self._transfers
        self._send(SamePayload(outgoing.transfer, outgoing.key, outgoing.kind, total, same_as, is_coming))

    def _alone_again(self, transfers: Iterable[int]) -> list[int]:
        """No other transfer brings their bytes any more."""
        for transfer in (gone := list(transfers)):
            pending = self._transfers[transfer]
            self._forget_same(pending)
            pending.path = ""
        return gone

    def _forget_same(self, pending: _PendingPayload) -> None:
        if pending.path == SAME_PAYLOAD:
            others = self._with_another[pending.same_as]
            del others[pending.outgoing.transfer]
            if not others:
                del self._with_another[pending.same_as]

    def _hand_again(self, transfers: Iterable[int]) -> None:
        for transfer in transfers:
            if (pending := self._transfers.get(transfer)) is not None and not pending.path:
                self._hand(pending)

    def on_same_payload_gone(self, transfer: int, same_as: int) -> None:
        """The peer cannot have the bytes of a message from another transfer: they are sent."""
        pending = self._transfers.get(transfer)
        if pending is None or pending.path != SAME_PAYLOAD or pending.same_as != same_as:
            # it goes otherwise by now
            return
        pending.not_with = same_as
        self._hand_again(self._alone_again([transfer]))

    # -- sums of a site -------------------------------------------------------------------------------------------

    def _keeps_back(self, pending: _PendingPayload) -> bool:
        outgoing = pending.outgoing
        may_not = pending.may_be_there or outgoing.loss_share or is_site_sum(outgoing.key)
        if self.site_sums is None or may_not or self.lends(outgoing.mode):
            return False
        return self.site_sums.keeps_back(self._peer.site, outgoing)

    def put_site_sum(self, key: MessageKey, payload: Payload, lease: Lease, mode: Mode) -> int:
        """Send the sum of messages that are kept back; the number of its transfer.

        Nothing of it is written down: the next run has those messages themselves.
        """
        plan, transfer = self._plan(mode, payload.total_bytes), self._context.new_transfer()
        outgoing = Outgoing(transfer, key, "bytes", payload, plan, mode, self._recuts(mode))
        if self._alone is not None:
            self._alone.alone = False
        pending = _PendingPayload(outgoing, lease, alone=False)
        self._transfers[transfer] = pending
        self.outgoing_large.add(1)
        self._hand(pending)
        return transfer

    @property
    def mode(self) -> Mode:
        """How payloads to the peer travel of which no job says how."""
        return self._mode(None)

    def tell_no_site_sum(self, key: MessageKey) -> None:
        """The peer has asked for a sum that it will not get: its parties' messages go alone."""
        reason = "its parties go alone"
        self._send(Undeliverable(key, ErrorCode.TRANSFER_ABORTED.value, reason))

    def note_in_sum(self, transfers: Iterable[int]) -> None:
        """These messages are in a sum that is being sent: the peer may say that it has them."""
        for transfer in transfers:
            if (pending := self._transfers.get(transfer)) is not None:
                pending.may_be_there = True

    def is_kept_back(self, transfer: int) -> bool:
        """Whether a message waits for a sum."""
        return (pending := self._transfers.get(transfer)) is not None and pending.path == KEPT_BACK

    def send_alone(self, transfers: Iterable[int]) -> None:
        """Messages that were kept back go as they would have gone. What is not kept back is left as it is."""
        kept = [transfer for transfer in transfers if self.is_kept_back(transfer)]
        self._take_back(kept)
        if kept:
            self.hand_over()

    def withdraw_site_sum(self, transfer: int) -> None:
        """A sum is of no use any more. May be repeated."""
        if (pending := self._transfers.get(transfer)) is not None:
            code, reason = ErrorCode.TRANSFER_ABORTED, "the sum of a site is not wanted any more"
            if not self._links.cancel(pending.path, transfer, code, reason):
                self._send(Abort(transfer, code.value, reason))
                self.send_failed(pending.outgoing, code, reason)

    def _begin_sharing(self, pending: _PendingPayload) -> None:
        self._context.send_sharing.begun(self._peer.site, pending.outgoing, self.rtt_seconds)

    def share_begun(self) -> None:
        """What goes on by a data path that is new has its share of the link."""
        for pending in self._transfers.values():
            if pending.path not in _NOT_ON_A_PATH:
                self._begin_sharing(pending)

    def check_served(self, destination: Party) -> None:
        """Where the peer has said which parties it serves, see that this is one of them.

        Raises:
            GatewayError: WRONG_PARTY.
        """
        hello = self._hello()
        if hello is not None and not {str(destination), destination.party_id} & set(hello.parties):
            raise GatewayError(
                ErrorCode.WRONG_PARTY,
                f"the gateway of {self._peer.site} does not serve {destination}, but {', '.join(hello.parties)}.",
                "Correct `peers[].parties` here, or `parties` there.",
            )

    def check_fits(self, total_bytes: int, destination: Party, mode: Mode | None) -> None:
        """See that the peer can hold a payload; where it is not known yet, it refuses later what it cannot.

        Raises:
            MemoryPoolError: PAYLOAD_TOO_LARGE.
        """
        hello = self._hello()
        if hello is None:
            return
        used = self._mode(mode)
        sealed = self._seals_in_slot(used)
        needed = slot_bytes_needed(self._plan(used, total_bytes), used, sealed=sealed, recut=self._recuts(used))
        if needed > hello.receive_bytes:
            tags = ", with room for the tags of its chunks" if sealed else ""
            raise MemoryPoolError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                f"{total_bytes} bytes for {destination} take a slot of {needed} bytes{tags}; site {self._peer.site!r} "
                f"has {hello.receive_bytes} bytes of receive memory.",
                "Raise memory.receive_bytes there.",
            )

    # -- connections ----------------------------------------------------------------------------------------------

    def resend_small(self) -> None:
        """The control channel is new: what the peer has not confirmed may be lost."""
        hello = self._hello()
        others = [each for transfers in self._with_another.values() for each in transfers]
        if hello is not None and not hello.same_payload:
            # an older version now
            self._hand_again(self._alone_again(others))
            others = []
        for transfer in others:
            self._tell_same(self._transfers[transfer])
        for inline in self._inline.values():
            self._send(inline)
        for notice in self._notices.values():
            self._send(notice)
        self.lending.resend()

    def party_is_back(self, session: str, party: Party) -> int:
        """A party of the peer's is in a session again that it had left, and was told of nothing meanwhile.

        It is told once more what will not come. Where whoever pushed that has left by now, it may be of an earlier use
        of the session's name, and nobody is told.

        Returns:
            how many notices were sent.
        """
        is_closed = self._context.mailbox.sessions.is_closed
        told = [
            notice
            for key, notice in self._notices.items()
            if (key.session, key.destination) == (session, party) and not is_closed(session, key.source)
        ]
        for notice in told:
            self._send(notice)
        return len(told)

    def forget_notices(self, session: str, party: Party) -> None:
        """A party of this site is in a session again that it had left: what it pushed before may come anew."""
        for key in [key for key in self._notices if (key.session, key.source) == (session, party)]:
            del self._notices[key]

    def peer_restarted(self) -> None:
        """The peer has forgotten what was lent to it."""
        self._take_back(self.lending.peer_restarted())

    def _send_anew(self, outgoing: Outgoing, lease: Lease) -> None:
        """What was lent to a run of the peer that is gone; the next one may have pulled it, and knows that."""
        # where it is refused now, its receiver is to be told as well
        self._delivered.pop(outgoing.transfer, None)
        self._keep_payload(_PendingPayload(outgoing, lease, alone=False, may_be_there=True))

    def take_back(self, path: str) -> None:
        """A data path was given up: what was handed to it waits for another one."""
        for each in self._transfers.values():
            if each.path == path:
                each.path = ""

    def hand_over(self) -> None:
        """There may be a data path for those that wait for one."""
        for each in self._transfers.values():
            if not each.path:
                self._hand(each)

    def waiting_for_path(self) -> list[TransferProgress]:
        """Payloads that no data path has taken yet."""
        return [
            TransferProgress(
                each.transfer, each.key, "send", each.mode, path or "waiting-for-peer", each.plan.total_bytes, 0, 0.0
            )
            for each, path in ((waiting.outgoing, waiting.path) for waiting in self._transfers.values())
            if path in ("", *_WITH_OTHERS)
        ]

    def give_up(self, code: ErrorCode, reason: str) -> None:
        """Send nothing more; the peer is told of every message that it will not get."""
        # those first whose bytes another one brings
        for outgoing in reversed([each.outgoing for each in self._transfers.values()]):
            self._send(Abort(outgoing.transfer, code.value, reason))
            self.send_failed(outgoing, code, reason)
        for transfer in list(self._inline):
            self.on_refused(transfer, code.value, reason)

    def holds(self, session: str) -> bool:
        """Whether anything of a session is on its way to the peer, or lent to it."""
        keys = [inline.key for inline in self._inline.values()]
        keys += [pending.outgoing.key for pending in self._transfers.values()]
        return any(key.session == session for key in keys) or self.lending.holds(session)

    def held(self) -> Iterator[tuple[MessageKey, int]]:
        """Messages that the peer does not have yet, and their bytes."""
        yield from ((inline.key, len(inline.body)) for inline in self._inline.values())
        yield from ((each.outgoing.key, each.outgoing.plan.total_bytes) for each in self._transfers.values())

    def end_session(self, session: str) -> None:
        """A session is over: give up what is on its way. The peer is told of that once for all of it."""
        code, reason = ErrorCode.SESSION_ENDED, "its session has ended"
        for transfer, inline in list(self._inline.items()):
            if inline.key.session == session:
                self.on_refused(transfer, code.value, reason)
        for pending in reversed([each for each in self._transfers.values() if each.outgoing.key.session == session]):
            if pending.path in _NOT_ON_A_PATH or not self._links.cancel(
                pending.path, pending.outgoing.transfer, code, reason
            ):
                self._send(Abort(pending.outgoing.transfer, code.value, reason))
                self.send_failed(pending.outgoing, code, reason)
        for key in [key for key in self._notices if key.session == session]:
            del self._notices[key]
        self.lending.end_session(session)

    # -- how it went ----------------------------------------------------------------------------------------------

    def on_delivered(self, transfer: int) -> bool:
        """The peer has a message; whether it went by no data path.

        Raises:
            WireError: MALFORMED_FRAME where it cannot have it, which goes on to be sent.
        """
        pending = self._transfers.get(transfer)
        if pending is not None and (pending.outgoing.payload.written_from or not pending.may_be_there):
            raise WireError(
                ErrorCode.MALFORMED_FRAME,
                f"{pending.outgoing.key} is said to be delivered, and not all of it has been sent.",
            )
        if pending is not None and pending.path in _WITH_OTHERS:
            self.sent(pending.outgoing, TransferStats(0.0, 0, 0), "", how=pending.path)
            return True
        if (lent := self.lending.on_delivered(transfer)) is not None:
            outgoing, seconds = lent
            self.sent(outgoing, TransferStats(seconds, 0, 0), "shm", how=LENT)
            return True
        inline = self._inline.pop(transfer, None)
        if inline is None:
            return False
        self._ended(transfer)
        self.outgoing.remove(len(inline.body) + MESSAGE_BYTES)
        self._note_delivered(transfer, inline.key)
        self._context.metrics.inline_moved("sent", self._peer.site)
        body = len(inline.body)
        self._context.trace.sent(transfer, inline.key, body, self._peer.site, "inline", "control", 0.0)
        return True

    def on_refused(self, transfer: int, code: str, reason: str) -> bool:
        """The peer will not have a message; whether it went by no data path."""
        if (encoded := self._delivered.pop(transfer, None)) is not None:
            late = _decode_key(encoded)
            if code == ErrorCode.SESSION_CLOSED.value:
                self._missed(transfer, late, reason)
                return True
            self._complain("turned away", "%s is dropped at %s: [%s] %s", late, self._peer.site, code, reason)
            known = error_from_code(code, reason).code
            with self._journal.together():
                self._tell_task(late, known, reason)
                if known is ErrorCode.MESSAGE_LOST and not self._was_pushed_after(transfer, late):
                    # its party knows it already, but not once it has left and is back
                    self._undeliverable(transfer, late, known, reason)
                else:
                    # it was not to wait for any task there after all
                    self._journal.write(records.Dropped(self._peer.site, transfer))
                self.lending.end(transfer)
            return True
        if (waiting := self._transfers.get(transfer)) is not None and waiting.path in _WITH_OTHERS:
            self.send_failed(waiting.outgoing, error_from_code(code, reason).code, reason)
            return True
        if self.lending.end(transfer):
            if (pending := self._transfers.get(transfer)) is not None:
                self.send_failed(pending.outgoing, error_from_code(code, reason).code, reason)
            return True
        inline = self._inline.pop(transfer, None)
        if inline is None:
            return False
        self.outgoing.remove(len(inline.body) + MESSAGE_BYTES)
        known = error_from_code(code, reason).code
        with self._journal.together():
            self._undeliverable(transfer, inline.key, known, reason)
            self._tell_task(inline.key, known, reason)
        return True

    def _missed(self, transfer: int, key: MessageKey, reason: str) -> None:
        """A message was dropped because its party had left the session, and that is back now, and may wait for it.

        A session's name may be used again: what was pushed before its own party left has nobody who waits.
        """
        with self._journal.together():
            if self._context.mailbox.sessions.pushed(key) is not None and not self._was_pushed_after(transfer, key):
                self._undeliverable(transfer, key, ErrorCode.MESSAGE_LOST, reason)
                self._tell_task(key, ErrorCode.MESSAGE_LOST, reason)
            else:
                self._journal.write(records.Dropped(self._peer.site, transfer))
            self.lending.end(transfer)

    def _was_pushed_after(self, transfer: int, key: MessageKey) -> bool:
        """Whether a later transfer is of the same message: then it is that one's push that is remembered."""
        encoded = _encode_key(key)
        return (
            any(each > transfer and inline.key == key for each, inline in self._inline.items())
            or any(each > transfer and pending.outgoing.key == key for each, pending in self._transfers.items())
            or any(each > transfer and known == encoded for each, known in self._delivered.items())
        )

    def on_lend_declined(self, transfer: int, reason: str) -> None:
        """The peer cannot use a message where it lies: it is sent."""
        if self.lending.on_declined(transfer, reason):
            self._take_back([transfer])
            self.hand_over()

    def on_lend_returned(self, transfer: int) -> None:
        """Nobody at the peer uses a lent message any more."""
        self.on_delivered(transfer)
        self.lending.end(transfer)

    def sent(self, outgoing: Outgoing, stats: TransferStats, transport: str, *, how: str | None = None) -> None:
        """The peer has a payload; `how` it went, if not in its mode."""
        ended = self._transfers.get(outgoing.transfer)
        # what is lent is here until it is returned
        if ended is None or not self._release(outgoing, for_good=how != LENT):
            return
        if how is None and ended.alone:
            # while a task was still writing, the link may have waited
            round_trip = self.rtt_seconds if ended.whole else None
            self.tuners[transport].on_transfer(outgoing.mode, outgoing.plan, stats.seconds, round_trip)
        if not is_site_sum(outgoing.key):
            self._note_delivered(outgoing.transfer, outgoing.key)
        total = outgoing.plan.total_bytes
        mode = how or outgoing.mode
        self._context.metrics.payload_moved("sent", self._peer.site, mode, transport, total)
        self._context.metrics.transfer_ended("delivered", self._peer.site, mode, stats.seconds, stats.resent_bytes)
        chunks = outgoing.plan.count if how is None else 0
        self._context.trace.sent_payload(
            outgoing.transfer, outgoing.key, total, self._peer.site, mode, transport, stats, chunks
        )

    def send_failed(self, outgoing: Outgoing, code: ErrorCode, reason: str) -> None:
        """The peer will not get a payload."""
        if outgoing.transfer not in self._transfers:
            return
        if is_site_sum(outgoing.key):
            self._release(outgoing, for_good=False)
            if self.site_sums is not None:
                self.site_sums.on_sum_failed(self._peer.site, outgoing.transfer)
            return
        # before its slot is given back, and both in one: whoever is not told of it in this run is in the next
        with self._journal.together():
            self._undeliverable(outgoing.transfer, outgoing.key, code, reason)
            if not outgoing.payload.written_from:
                self._tell_task(outgoing.key, code, reason)
        self._release(outgoing, for_good=False)
        if self._brings.get(outgoing.payload) == outgoing.transfer:
            del self._brings[outgoing.payload]
        if others := self._alone_again(self._with_another.get(outgoing.transfer, ())):
            self._journal.then(functools.partial(self._hand_again, others))
        self._context.metrics.transfer_ended("failed", self._peer.site, outgoing.mode, 0.0, 0)

    def _note_delivered(self, transfer: int, key: MessageKey) -> None:
        self._delivered[transfer] = _encode_key(key)
        while len(self._delivered) > REMEMBERED_CONFIRMED:
            self._delivered.popitem(last=False)

    def _note_undeliverable(self, notice: Undeliverable) -> None:
        self._notices[notice.key] = notice
        self._notices.move_to_end(notice.key)
        while len(self._notices) > REMEMBERED_UNDELIVERED:
            self._notices.popitem(last=False)

    def _take_back(self, transfers: Iterable[int]) -> None:
        """These payloads were not delivered after all, and wait for another way."""
        for transfer in transfers:
            self._transfers[transfer].path = ""

    def _release(self, outgoing: Outgoing, *, for_good: bool = True) -> bool:
        """Let the slot go; False when that was done before. For good: the peer has it, and needs it no more."""
        ended = self._transfers.pop(outgoing.transfer, None)
        if ended is not None:
            self._forget_same(ended)
            self._context.send_sharing.ended(self._peer.site, outgoing.transfer)
            if for_good:
                self._ended(outgoing.transfer)
            ended.lease.release()
            self.outgoing_large.remove(1)
        return ended is not None

    def _undeliverable(self, transfer: int, key: MessageKey, code: ErrorCode, reason: str) -> None:
        """The peer is told, for the party that waits there; of a session that has ended it knows."""
        self._context.trace.undeliverable(transfer, key, self._peer.site, code, reason)
        if self._context.mailbox.sessions.ended.reason(key.session) is not None:
            self._journal.write(records.Dropped(self._peer.site, transfer))
            return
        self._complain("undelivered", "%s was not delivered to %s: [%s] %s", key, self._peer.site, code.value, reason)
        self._journal.write(records.Undelivered(self._peer.site, transfer, key, code.value, reason))
        notice = Undeliverable(key, code.value, reason)
        self._note_undeliverable(notice)
        self._journal.then(functools.partial(self._send, notice))

    def _complain(self, kind: str, message: str, *values: object) -> None:
        self._context.complaints.add(
            logger, kind, self._peer.site, message, *values, level=logging.ERROR, lines=EACH_TELLS
        )

    def _tell_task(self, key: MessageKey, code: ErrorCode, reason: str) -> None:
        self._context.mailbox.sessions.push_not_delivered(key, code, reason)

    def _mode(self, asked: Mode | None) -> Mode:
        return self._context.config.mode_for(self._peer.site, asked)

    def _seals_in_slot(self, mode: Mode) -> bool:
        """Whether such a payload's slot has to hold the tags of its chunks, too; mode `grpc` has streams of its own."""
        on_main = self._context.config.sealing != "off" and mode != "grpc"
        return on_main and self._links.main_transport in SEALED_IN_SLOT

    def _recuts(self, mode: Mode) -> bool:
        """Whether the data path may cut such payloads anew when they begin."""
        return mode == "fedrdma-x" and self._chunk_bytes is None

    def _plan(self, mode: Mode, total_bytes: int) -> ChunkPlan:
        config = self._context.config
        policy = self._peer.link_enable or config.link_enable
        transport = self._links.main_transport or ""
        link = LinkTraits(rate_bps=self._peer.rate, is_stream=transport in ("tcp", "udp"))
        return self.tuners[transport].plan(mode, total_bytes, self._chunk_bytes, policy, link, self._seen(transport))

    def rate(self, transport: str) -> Finding | None:
        """What is known of the link's rate, and from where."""
        return self.tuners[transport].rate(self._peer.rate, self._seen(transport))

    def _seen(self, transport: str) -> Finding | None:
        known = self._links.known(transport)
        return None if known is None else Finding(known.state.rate * 8, known.source)

    @property
    def _chunk_bytes(self) -> int | None:
        """The chunk size that was set by hand."""
        return (self._peer.chunk or self._context.config.chunk).size_bytes


def _may_bring(outgoing: Outgoing) -> bool:
    """Whether its transfer may bring the bytes of others as well, or theirs its: all of them, as they are."""
    # mode grpc is what others are measured against
    return not outgoing.loss_share and outgoing.mode != "grpc" and not is_site_sum(outgoing.key)
