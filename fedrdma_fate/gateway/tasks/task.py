"""One task of this site, with what it holds: slots that it writes to, and messages that it has got."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    Attach,
    GoOn,
)
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.gateway.journal.journal import Journal
from fedrdma_fate.gateway.journal_records import Came, Leased, SumHanded, Unleased, Went
from fedrdma_fate.gateway.journal_records import Outgoing as OutgoingRecord
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.sessions import engine_of
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.tasks.pushing import LeasedPayload
from fedrdma_fate.gateway.tasks.returning import EarlierSum, Had, digest_of_secret
from fedrdma_fate.gateway.tasks.sum_outcome import SumOutcome
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.memory.shared_slots import range_is_held
from fedrdma_fate.wire.frames import MessageKey


class Task:
    """One task process: its connections share leases, which go back when the last connection ends."""

    def __init__(
        self, attach: Attach, user: int, abandon: Callable[[Payload], None], journal: Journal, place: int
    ) -> None:
        """
        Args:
            attach: who it is.
            user: whose process it is.
            abandon: told of a payload whose slot is given back before it was written whole.
            journal: takes down which slots it has.
            place: of the byte behind the send region that it holds a lock on, as long as it may write there.
        """
        self.place = place
        self._journal = journal
        self._secret = digest_of_secret(attach.secret)
        # a megabyte of names that are kept of the session is enough, and each task has them
        self.attach = msgspec.structs.replace(attach, parties=None, secret=b"")
        self._named: int | None = hash(attach.parties)
        self.user = user
        self.is_awaited = False
        self.unfinished: dict[MessageKey, tuple[Sending, OutgoingRecord]] = {}
        self._in_doubt: list[tuple[Message, int]] = []
        self._pulls: list[tuple[MessageKey, int]] = []
        self._sums: list[EarlierSum] = []
        self._seen_mapped: set[int] = set()
        self.connections = 0
        self.sending: dict[int, LeasedPayload] = {}
        self._abandon = abandon
        self.received: dict[int, Message] = {}
        self._kept: dict[int, Callable[[Message], object]] = {}
        # those of `received` that are sums; None: of an earlier run
        self._summed: dict[int, tuple[tuple[MessageKey, ...], SumOutcome] | None] = {}
        self._returned_sums: dict[tuple[MessageKey, ...], SumOutcome] = {}
        self._next_lease = 0

    def is_of(self, attach: Attach, user: int) -> bool:
        """Whether this is who attaches."""
        if self._named is None:
            # of an earlier run, which has written down a digest of the secret instead
            self._named = hash(attach.parties)
        alike = msgspec.structs.replace(attach, parties=None, secret=b"") == self.attach
        alike = alike and digest_of_secret(attach.secret) == self._secret and hash(attach.parties) == self._named
        return alike and user == self.user

    @classmethod
    def of_earlier_run(cls, had: Had, abandon: Callable[[Payload], None], journal: Journal) -> Task:
        """One that has not come back yet, with what it had."""
        came = had.task
        attach = Attach(CLIENT_PROTOCOL_VERSION, came.client, came.session, came.party, came.mode)
        task = cls(attach, came.user, abandon, journal, came.place)
        task._secret, task._named, task.is_awaited = came.secret, None, True
        task.sending = {number: LeasedPayload(lease) for number, lease in had.leases.items()}
        task.received = {number: message for number, (message, _) in had.messages.items()}
        task._in_doubt = [*had.messages.values(), *had.small]
        task._pulls = had.pulls
        task._sums = had.sums
        for summed in had.sums:
            if (handed := summed.kept.handed) is not None:
                task.received[handed.lease] = summed.message
                task._summed[handed.lease] = None
                task._in_doubt.append((summed.message, handed.asked))
        task.unfinished = {record.key: (sending, record) for sending, record in had.unfinished}
        task._next_lease = max([0, *task.sending, *task.received])
        return task

    def go_on(self, request: GoOn) -> list[Message]:
        """It has come back; messages that were given to it and that it has not got."""
        self.is_awaited = False
        self._next_lease = max(self._next_lease, request.highest)
        unanswered, held = {*request.unanswered}, {*request.held}
        missed = {id(message): message for message, asked in self._in_doubt if asked in unanswered}
        self.received = {number: message for number, message in self.received.items() if id(message) not in missed}
        for message, _ in self._in_doubt:
            if id(message) not in missed and all(message is not mapped for mapped in self.received.values()):
                # it needs no memory of ours any more
                message.discard()
        self._in_doubt.clear()
        # those that it has got are like any message
        self._sums = [each for each in self._sums if each.kept.handed is None or id(each.message) in missed]
        for summed in self._sums:
            missed.pop(id(summed.message), None)
        self._summed = {number: known for number, known in self._summed.items() if number in self.received}
        for number in [number for number in (*self.sending, *self.received) if number not in held]:
            self.release(number)
        return list(missed.values())

    def take_pulls(self, unanswered: Collection[int] = ()) -> list[tuple[MessageKey, bool]]:
        """Lent messages that it has pulled from an earlier run, and whether it has got them, as far as one knows."""
        pulls, self._pulls = self._pulls, []
        missed = {*unanswered}
        return [(key, asked not in missed) for key, asked in pulls]

    def take_sum(self, keys: Sequence[MessageKey]) -> EarlierSum | None:
        """The sum of these messages that an earlier run has begun for it; it then belongs to the caller."""
        found = next((each for each in self._sums if each.kept.began.keys == tuple(keys)), None)
        if found is not None:
            self._sums.remove(found)
        return found

    def has_sum(self, keys: Sequence[MessageKey], outcome: SumOutcome, asked: int) -> int:
        """It is to be given the sum of these messages, which it has asked for; the number of its lease."""
        number = self.new_lease()
        self.received[number] = outcome.message
        self._summed[number] = tuple(keys), outcome
        self._journal.write(SumHanded(outcome.number, number, asked))
        return number

    def return_sum(self, number: int) -> bool:
        """It has not got a sum: that waits for it to ask again. False where this lease is not of a sum of this run."""
        if (known := self._summed.get(number)) is None:
            return False
        keys, outcome = known
        self.take_received(number)
        self.keep_sum(keys, outcome)
        return True

    def keep_sum(self, keys: Sequence[MessageKey], outcome: SumOutcome) -> None:
        """A sum that it cannot be given just now waits for it to ask again."""
        self._journal.write(SumHanded(outcome.number, 0, 0))
        self._returned_sums[tuple(keys)] = outcome

    def take_returned_sum(self, keys: Sequence[MessageKey]) -> SumOutcome | None:
        """The sum of these messages that it was given and has not got; it then belongs to the caller."""
        return self._returned_sums.pop(tuple(keys), None)

    def has_earlier_sum(self, lease: int) -> bool:
        """Whether this is the lease of a sum that it has got from an earlier run."""
        return lease in self._summed and self._summed[lease] is None

    def let_go_of_unmapped(self) -> None:
        """What it was seen to have mapped, and has not any more, goes back, though it has not come back itself."""
        for number, message in list(self.received.items()):
            if message.lease is None:
                continue
            if range_is_held(message.lease.slot):
                self._seen_mapped.add(number)
            elif number in self._seen_mapped:
                self.release(number)

    def note_came(self) -> None:
        """Write down who it is."""
        if self._secret:
            attach = self.attach
            self._journal.write(
                Came(
                    attach.client,
                    self._secret,
                    attach.session,
                    attach.party,
                    attach.mode,
                    self.user,
                    self.place,
                )
            )

    def reopen(self, key: MessageKey) -> tuple[Sending, OutgoingRecord] | None:
        """What it had not written whole when the earlier run was killed, and commits now; None where it is none."""
        return self.unfinished.pop(key, None)

    @property
    def owner(self) -> str:
        return f"task:{self.attach.client}"

    def new_lease(self) -> int:
        """A number that this task has not had."""
        self._next_lease += 1
        return self._next_lease

    def has(self, lease: Lease) -> int:
        """It has a send slot now; the number of its lease."""
        number = self.new_lease()
        slot = lease.slot
        self._journal.write(Leased(self.attach.client, self.place, number, slot.offset, slot.length))
        self.sending[number] = LeasedPayload(lease)
        return number

    def release(self, lease: int) -> None:
        """Give one lease back; an unknown one is ignored."""
        if (sending := self.sending.pop(lease, None)) is not None:
            self._journal.write(Unleased(self.attach.client, lease))
            if sending.written_from:
                self._abandon(sending)
            self._lose(lambda record: record.offset == sending.lease.slot.offset)
            sending.lease.release()
        let_go = self._kept.get(lease, Message.discard)
        if (received := self.take_received(lease)) is not None:
            let_go(received)

    def receive(self, lease: int, message: Message, give_back: Callable[[Message], object] | None) -> None:
        """It has got a message. Where it says how to give it back, it is not discarded when the lease is released."""
        self.received[lease] = message
        if give_back is not None:
            self._kept[lease] = give_back

    def take_received(self, lease: int) -> Message | None:
        """What this lease is of is the caller's, in no doubt any more; None where it is of nothing received."""
        self._kept.pop(lease, None)
        if (message := self.received.pop(lease, None)) is not None:
            self._summed.pop(lease, None)
            self._in_doubt = [doubt for doubt in self._in_doubt if doubt[0] is not message]
            self._sums = [summed for summed in self._sums if summed.message is not message]
        return message

    def _lose(self, is_lost: Callable[[OutgoingRecord], bool]) -> None:
        """What it will not write any more is told to be lost."""
        for key, (peer, record) in list(self.unfinished.items()):
            if is_lost(record):
                del self.unfinished[key]
                peer.note_lost(record, "the gateway was killed before its task had written all of it")

    def held_bytes(self) -> tuple[int, int]:
        """Of slots that it writes to, and of messages that it has got and that lie in a slot or a file here."""
        sending = sum(payload.total_bytes for payload in self.sending.values())
        return sending, sum(message.total_bytes for message in self.received.values())

    def take_popped(self) -> tuple[list[Message], list[MessageKey]]:
        """Messages of queues that an earlier run had begun to hand over, and those that are not here; the caller's."""
        popped = {id(each): each for each in (*self.received.values(), *(message for message, _ in self._in_doubt))}
        popped = {known: each for known, each in popped.items() if engine_of(each.key) == "osx"}
        self.received = {number: each for number, each in self.received.items() if id(each) not in popped}
        self._in_doubt = [doubt for doubt in self._in_doubt if id(doubt[0]) not in popped]
        pulls = [key for key, _ in self._pulls if engine_of(key) == "osx"]
        self._pulls = [pull for pull in self._pulls if engine_of(pull[0]) != "osx"]
        return list(popped.values()), pulls

    def release_all(self) -> int:
        """The process is gone; how many leases it held."""
        held = [*self.sending, *self.received]
        for lease in held:
            self.release(lease)
        for message, _ in self._in_doubt:
            message.discard()
        for summed in self._sums:
            summed.message.discard()
        while self._returned_sums:
            self._returned_sums.popitem()[1].message.discard()
        self._lose(lambda _record: True)
        if self._secret:
            self._journal.write(Went(self.attach.client))
        return len(held)
