"""What the records of a journal amount to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from fedrdma_fate.core.recent_numbers import RecentNumbers
from fedrdma_fate.gateway.journal.kept_sums import KeptSums
from fedrdma_fate.gateway.journal.lost_messages import LostMessages
from fedrdma_fate.gateway.journal_records import (
    AnyRecord,
    Began,
    Came,
    Coming,
    ComingSealed,
    Confirmed,
    Copied,
    Dropped,
    Ended,
    EndedTogether,
    Gone,
    Handed,
    Joined,
    Leased,
    Left,
    Lost,
    Met,
    Missed,
    Numbered,
    Outgoing,
    Over,
    Pulled,
    Pushed,
    PushFailed,
    Received,
    Returned,
    Sent,
    Spilled,
    Stopped,
    SumAdded,
    SumAdding,
    SumBegan,
    SumClosed,
    SumGone,
    SumHanded,
    SumMerged,
    SumMerging,
    SumMoved,
    Together,
    Told,
    Undelivered,
    Unleased,
    Unpulled,
    Unpushed,
    Went,
    Whole,
    decode_record,
    encode_record,
)
from fedrdma_fate.gateway.messages.late_messages import LateMessage, LateMessages
from fedrdma_fate.gateway.messages.sessions import Pull, Push, Sessions
from fedrdma_fate.wire.errors import error_from_code
from fedrdma_fate.wire.frames import MessageKey

REMEMBERED_TRANSFERS = 16384
"""Delivered transfers of each peer that are remembered, so that one sent again is not taken twice."""

REMEMBERED_CONFIRMED = 4096
"""Messages that each peer has: a task that comes after them may not know their source, and they are dropped there, or
its gateway is killed and loses them."""

REMEMBERED_UNDELIVERED = 1024
"""Notices of messages that will not come, for each peer: they are told again on each new control channel, for nobody
confirms them."""


class JournalState:
    """Belongs to one thread.

    Attributes:
        began: what the journal says of itself; None as long as nothing was read.
        sessions: what was pushed and pulled, and who has left.
        messages: those that are here, by site and transfer.
        lost: those that were.
        coming: those that were under way, likewise.
        outgoing: messages that are to be sent, by site and transfer.
        undelivered: messages that will not come, which peers are to be told, by site and message.
        leases: slots that tasks have, by client and number.
        tasks: those that were attached, by client.
        late: messages that were dropped, for their parties had left; those of parties that are back stay as long as
            nothing comes in their place, for nobody confirms that senders were asked.
        sums: those that were being added, or that tasks have.
        met: which journals the peers go on with.
    """

    def __init__(self) -> None:
        self.began: Began | None = None
        self.sessions = Sessions()
        self.messages: dict[tuple[str, int], Received] = {}
        self.lost = LostMessages()
        self.coming: dict[tuple[str, int], Coming | ComingSealed] = {}
        self.outgoing: dict[tuple[str, int], Outgoing] = {}
        self.undelivered: dict[str, OrderedDict[MessageKey, Undelivered]] = {}
        self.leases: dict[tuple[str, int], Leased] = {}
        self.tasks: dict[str, Came] = {}
        self.late = LateMessages()
        self.sums = KeptSums()
        self.met: dict[str, str] = {}
        self._confirmed: dict[str, OrderedDict[int, MessageKey]] = {}
        self._ended: dict[str, RecentNumbers] = {}

    def ended(self, origin: str) -> list[int]:
        """Delivered transfers of a peer, the oldest first."""
        return list(self._ended.get(origin, ()))

    def confirmed(self, peer: str) -> Mapping[int, MessageKey]:
        """Messages that a peer has, by transfer, in the order in which it said so."""
        return self._confirmed.get(peer, {})

    def forget_pending(self) -> None:
        """What the peer was not told of has not come: it sends it again."""
        for name in [name for name, record in self.messages.items() if record.pending]:
            del self.messages[name]

    def apply(self, record: AnyRecord) -> None:
        """One more record."""
        match record:
            case Together(records=records):
                for each in records:
                    self.apply(each)
            case Began():
                self.began = record
            case Received(origin=origin, transfer=transfer):
                self.coming.pop((origin, transfer), None)
                self.late.forget(origin, record.key)
                if not record.pending:
                    self._note_ended(origin, transfer)
                self.messages.setdefault((origin, transfer), record)
            case Coming(origin=origin, offer=offer) | ComingSealed(origin=origin, offer=offer):
                # its link may have written down that it is whole before its owner writes this
                if (origin, offer.transfer) not in self.messages and offer.transfer not in self._ended.get(origin, ()):
                    self._note_coming((origin, offer.transfer), record)
            case Stopped(origin=origin, transfer=transfer):
                self.coming.pop((origin, transfer), None)
            case Copied(origin=origin, transfer=transfer, file=file):
                self._note_ended(origin, transfer)
                self._change(origin, transfer, copy=file, pending=False)
            case Spilled(origin=origin, transfer=transfer, file=file):
                self._change(origin, transfer, file=file)
                if self.began is None or not self.began.synced:
                    # else its record is what its peer was told is on disk, and the file is not synced
                    self._change(origin, transfer, body=None)
            case Handed(origin=origin, transfer=transfer, client=client, lease=lease, asked=asked):
                self._change(origin, transfer, handed=True, client=client, lease=lease, asked=asked)
            case Returned(origin=origin, transfer=transfer):
                self._change(origin, transfer, handed=False, client="", lease=0, asked=0)
            case Gone(origin=origin, transfer=transfer):
                self.messages.pop((origin, transfer), None)
            case Ended(origin=origin, transfer=transfer):
                self._note_ended(origin, transfer)
            case EndedTogether(origin=origin, transfers=transfers):
                for transfer in transfers:
                    self._note_ended(origin, transfer)
            case Lost(origin=origin, transfer=transfer):
                self.messages.pop((origin, transfer), None)
                self.lost.add(record)
            case Outgoing(peer=peer, transfer=transfer):
                self.outgoing[peer, transfer] = record
            case Whole(peer=peer, transfer=transfer):
                if (outgoing := self.outgoing.get((peer, transfer))) is not None:
                    self.outgoing[peer, transfer] = msgspec.structs.replace(outgoing, whole=True)
            case Sent(peer=peer, transfer=transfer):
                if (outgoing := self.outgoing.pop((peer, transfer), None)) is not None:
                    self._note_confirmed(peer, transfer, outgoing.key)
                    if (notices := self.undelivered.get(peer)) is not None:
                        # it was pushed again
                        notices.pop(outgoing.key, None)
            case Confirmed(peer=peer, transfer=transfer, key=key):
                self._note_confirmed(peer, transfer, key)
            case Undelivered(peer=peer, transfer=transfer, key=key):
                self._drop(peer, transfer)
                notices = self.undelivered.setdefault(peer, OrderedDict())
                notices[key] = record
                notices.move_to_end(key)
                while len(notices) > REMEMBERED_UNDELIVERED:
                    notices.popitem(last=False)
            case Dropped(peer=peer, transfer=transfer):
                self._drop(peer, transfer)
            case Met(peer=peer, journal=journal):
                self.met[peer] = journal
            case Leased(client=client, lease=lease):
                self.leases[client, lease] = record
            case Unleased(client=client, lease=lease):
                self.leases.pop((client, lease), None)
            case Came(client=client):
                self.tasks[client] = record
            case Went(client=client):
                self.tasks.pop(client, None)
            case SumBegan() | SumAdding() | SumAdded() | SumClosed() | SumHanded() | SumGone():
                self.sums.apply(record)
            case SumMerging() | SumMerged() | SumMoved():
                self.sums.apply(record)
            case Joined(session=session, party=party, parties=parties):
                if self.sessions.is_closed(session, party):
                    # what it pushed before it left may come anew
                    for notices in self.undelivered.values():
                        for key in [key for key in notices if (key.session, key.source) == (session, party)]:
                            del notices[key]
                self.sessions.remember_join(session, party, parties)
            case Left(session=session, party=party):
                self.sessions.leave(session, party)
                place = session, party
                self.lost.forget(lambda lost: (lost.key.session, lost.key.destination) == place)
            case Over(session=session, reason=reason, sites=sites):
                self.sessions.end(session, reason, sites)
                self.late.end(session)
                self._forget_told(session)
                self.lost.forget(lambda lost: lost.key.session == session)
                for name in [name for name, each in self.coming.items() if each.offer.key.session == session]:
                    del self.coming[name]
            case Pushed(key=key, client=client, digest=digest, failed=failed):
                self.sessions.remember_push(key, Push(client, digest, failed))
            case Unpushed(key=key):
                self.sessions.forget_push(key)
            case Pulled(key=key, client=client, asked=asked):
                self.sessions.note_pull(key, Pull(client, asked))
            case Unpulled(key=key):
                self.sessions.forget_pull(key)
            case Numbered():
                self.sessions.queues.apply(record)
            case PushFailed(key=key, code=code, reason=reason):
                self.sessions.push_failed(key, error_from_code(code, reason))
            case Missed(origin=origin, transfer=transfer, key=key):
                self._note_ended(origin, transfer)
                if self.sessions.ended.reason(key.session) is None:
                    self.late.add(LateMessage(key, origin, transfer))
            case Told(session=session, party=party):
                self.sessions.note_told(session, party)

    def records(self) -> Iterator[AnyRecord]:
        """As few as say the same."""
        if self.began is not None:
            yield self.began
        for origin, transfers in self._ended.items():
            for page in transfers.pages():
                yield EndedTogether(origin, page)
        for peer, journal in self.met.items():
            yield Met(peer, journal)
        yield from self.sessions.records()
        for notices in self.undelivered.values():
            yield from notices.values()
        for peer, confirmed in self._confirmed.items():
            for transfer, key in confirmed.items():
                yield Confirmed(peer, transfer, key)
        yield from self.lost.values()
        yield from self.messages.values()
        # behind those, which would take their place
        for late in self.late:
            yield Missed(late.origin, late.transfer, late.key)
        yield from self.coming.values()
        yield from self.outgoing.values()
        yield from self.leases.values()
        yield from self.tasks.values()
        yield from self.sums.records()

    def _note_coming(self, name: tuple[str, int], record: Coming | ComingSealed) -> None:
        before = self.coming.get(name)
        if before is not None and (before.offer, before.offset) == (record.offer, record.offset):
            if isinstance(before, Coming) and isinstance(record, Coming):
                record = msgspec.structs.replace(record, pieces=before.pieces + record.pieces)
            elif isinstance(before, ComingSealed) and isinstance(record, ComingSealed):
                runs = {**dict(before.runs), **dict(record.runs)}
                record = msgspec.structs.replace(record, runs=tuple(runs.items()))
        self.coming[name] = record

    def _drop(self, peer: str, transfer: int) -> None:
        self.outgoing.pop((peer, transfer), None)
        self._confirmed.get(peer, OrderedDict()).pop(transfer, None)

    def _note_confirmed(self, peer: str, transfer: int, key: MessageKey) -> None:
        if self.sessions.ended.reason(key.session) is not None:
            return
        confirmed = self._confirmed.setdefault(peer, OrderedDict())
        confirmed[transfer] = key
        while len(confirmed) > REMEMBERED_CONFIRMED:
            confirmed.popitem(last=False)

    def _forget_told(self, session: str) -> None:
        """A session is over: nobody is told of its messages any more."""
        for notices in self.undelivered.values():
            for key in [key for key in notices if key.session == session]:
                del notices[key]
        for confirmed in self._confirmed.values():
            for transfer in [transfer for transfer, key in confirmed.items() if key.session == session]:
                del confirmed[transfer]

    def _change(self, origin: str, transfer: int, **changes: object) -> None:
        if (message := self.messages.get((origin, transfer))) is not None:
            self.messages[origin, transfer] = msgspec.structs.replace(message, **changes)

    def _note_ended(self, origin: str, transfer: int) -> None:
        self.coming.pop((origin, transfer), None)
        if not origin:
            return
        self._ended.setdefault(origin, RecentNumbers(REMEMBERED_TRANSFERS)).add(transfer)


def replay(bodies: Iterable[bytes]) -> JournalState:
    """What there was, when the last of these was written.

    Raises:
        MemoryPoolError: JOURNAL_UNUSABLE where one does not parse.
    """
    state = JournalState()
    for body in bodies:
        state.apply(decode_record(body))
    return state


def summarise(bodies: Iterable[bytes]) -> list[bytes]:
    """Fewer records that say the same.

    Raises:
        MemoryPoolError: JOURNAL_UNUSABLE where one does not parse.
    """
    return [encode_record(record) for record in replay(bodies).records()]
