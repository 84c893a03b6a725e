"""What tasks push: checked whole, then handed to the peers, or kept here where both parties are of this site."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from fedrdma_fate.client.protocol import (
    DIGESTED_AT_COMMIT_BYTES,
    DIGESTED_BY_TASKS_BYTES,
    Attach,
    Commit,
    PutInline,
)
from fedrdma_fate.core.digest import block_digest
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Outgoing as OutgoingRecord
from fedrdma_fate.gateway.messages.message import Message, name_of_pusher
from fedrdma_fate.gateway.messages.sessions import Push
from fedrdma_fate.gateway.peers.entitlement import not_in_session, why_not_admitted
from fedrdma_fate.gateway.peers.metering import frames_counted
from fedrdma_fate.gateway.peers.outgoing_room import MESSAGE_BYTES, MOST_AT_ONCE_BYTES, OutgoingRoom
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.spilling import keep_small, make_room, why_no_room_for_small
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MOST_NAME_CHARACTERS, MessageKey, Party
from fedrdma_fate.wire.site_sum import is_site_sum

Reopen = Callable[[MessageKey], tuple[Sending, OutgoingRecord] | None]
"""What a task had not written whole when the gateway was killed, and commits now, and what was to send it."""

_HEAD_BYTES = 512
"""Of the frame of a small message, besides its body and names; it has 128."""


class LeasedPayload(Payload):
    """A payload that a task writes into a slot of the send region.

    Attributes:
        lease: the task's hold on the slot; whoever the payload is pushed to gets a share of it.
    """

    def __init__(self, lease: Lease) -> None:
        length = lease.slot.length
        super().__init__(lease.slot, length, written_from=length)
        self.lease = lease


class Pushing:
    """Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext, peers: Mapping[str, Sending]) -> None:
        """
        Args:
            context: the gateway's.
            peers: what sends to the other sites, by their names.
        """
        self._context = context
        self._peers = peers

    def takes_unfinished(self, request: Commit, attach: Attach) -> bool:
        """Whether every destination can use a payload that is still being written."""
        peers = [self._peer_of(destination) for destination in request.destinations]
        return all(peer is not None and peer.takes_unfinished(attach.mode) for peer in peers)

    def wants_digests(self, request: Commit, attach: Attach, total_bytes: int) -> bool:
        """Whether its digests are of use: by them a push that is made again is found to be the same.

        Not where it is long, and lent or stays here: nobody waits for anything there but for the task to write it.
        """
        if total_bytes <= DIGESTED_BY_TASKS_BYTES:
            return True
        peers = [self._peer_of(destination) for destination in request.destinations]
        return any(peer is not None and not peer.lends(attach.mode) for peer in peers)

    def is_known(self, request: Commit, attach: Attach) -> bool:
        """Whether it was pushed before to any of them."""
        return any(map(self._context.mailbox.sessions.pushed, _keys(request, attach)))

    def is_to_be_compared(self, request: Commit, payload: Payload, attach: Attach) -> bool:
        """Whether only a look at the bytes can say that what was pushed before is the same."""
        pushes = map(self._context.mailbox.sessions.pushed, _keys(request, attach))
        known = [push for push in pushes if push is not None]
        return bool(known) and (payload.whole_digest is None or any(push.digest is None for push in known))

    async def compare(self, request: Commit, payload: LeasedPayload, attach: Attach) -> None:
        """Look at the bytes, of what was pushed before as far as it is still here; then `commit` knows."""
        sessions = self._context.mailbox.sessions
        compared: list[tuple[Payload, Lease]] = [(payload, payload.lease.share())]
        try:
            of_keys = {}
            for key in _keys(request, attach):
                push = sessions.pushed(key)
                if push is not None and push.digest is None and (found := self._find(key)) is not None:
                    compared.append(found)
                    of_keys[key] = push, found[0]
            for each, _ in compared:
                await asyncio.to_thread(each.know_blocks)
            for key, (push, before) in of_keys.items():
                if sessions.pushed(key) is push and (digest := before.whole_digest) is not None:
                    sessions.note_digest(key, digest)
        finally:
            for _, lease in compared:
                lease.release()

    def _find(self, key: MessageKey) -> tuple[Payload, Lease] | None:
        """What was pushed before, where it is still in a slot here, and one more hold on that."""
        peer = self._peer_of(key.destination)
        if peer is not None:
            return peer.find(key)
        message = self._context.mailbox.find(key)
        if message is None or message.lease is None:
            return None
        lease = message.lease.share()
        slot = lease.slot.part(message.payload_at, message.total_bytes)
        return Payload(slot, message.total_bytes), lease

    def on_written(self, payload: Payload) -> None:
        """More of a payload lies in its slot."""
        for peer in self._peers.values():
            peer.on_written(payload)

    def abandon(self, payload: Payload) -> None:
        """A payload will never be whole: where it was committed, it fails."""
        for peer in self._peers.values():
            peer.abandon(payload)

    def commit(
        self,
        request: Commit,
        payload: LeasedPayload,
        attach: Attach,
        user: int,
        reopen: Reopen = lambda _key: None,
    ) -> None:
        """Send a payload to all destinations, each of which holds on to its slot.

        Args:
            request: of the task.
            payload: what it sends.
            attach: who it is.
            user: whose process it is.
            reopen: takes what it had not written whole in an earlier run.

        Raises:
            GatewayError: DUPLICATE_PUSH, WRONG_PARTY or LIMIT_REACHED; then nothing is sent to anybody.
            MemoryPoolError: PAYLOAD_TOO_LARGE for one of the destinations; likewise.
        """
        for destination in request.destinations:
            if (peer := self._peer_of(destination)) is not None:
                peer.check_fits(payload.total_bytes, destination, attach.mode)
        if payload.total_bytes <= DIGESTED_AT_COMMIT_BYTES and not payload.written_from:
            payload.know_blocks()
        # a push that is known, and to be sent nowhere, could neither be made again nor come
        sites = len(self._peers_of(request))
        with self._context.send_sharing.together(sites), self._context.journal.together():
            keys = self._register(attach, request, user, payload.total_bytes, payload.whole_digest, reopen)
            for key in keys:
                share = payload.lease.share(f"transfer:{key}")
                peer = self._peer_of(key.destination)
                if peer is not None:
                    loss = request.loss_share, request.whole_bytes
                    peer.put_payload(key, request.kind, payload, share, attach.mode, *loss)
                else:
                    transfer = self._context.new_transfer()
                    message = Message(
                        key,
                        request.kind,
                        payload.total_bytes,
                        lease=share,
                        user=user,
                        broker=self._context.routes.broker_of(key.source),
                        transfer=transfer,
                    )
                    self._context.journal.keep(message)
                    self._keep(message, "local")
        self._trace_put(attach, request, keys, payload.total_bytes)

    def may_commit(self, request: Commit) -> bool:
        """Whether there is room for another large message for each of its destinations."""
        return not any(peer.outgoing_large.is_full for peer in self._peers_of(request))

    async def wait_to_commit(self, request: Commit, timeout: float) -> None:
        """Wait until there is.

        Raises:
            GatewayError: LIMIT_REACHED after `timeout` seconds.
        """
        await _wait_for_room([peer.outgoing_large for peer in self._peers_of(request)], timeout)

    def may_put(self, request: PutInline, attach: Attach) -> bool:
        """Whether a small message may be put at once: there is room for it, and its session keeps to its rate."""
        peers = self._peers_of(request)
        return not any(peer.outgoing.is_full or not peer.rates.is_open(attach.session) for peer in peers)

    def take(self, request: PutInline, attach: Attach) -> None:
        """One is put that may be."""
        for peer, count in self._peers_of(request).items():
            peer.rates.take(attach.session, _frames(request, attach) * count)

    async def wait_to_put(self, request: PutInline, attach: Attach, timeout: float) -> None:
        """Wait until a small message may be put, as long as it takes for its rate, and take it.

        Raises:
            GatewayError: LIMIT_REACHED after `timeout` seconds without room.
        """
        peers = self._peers_of(request)
        for peer, count in peers.items():
            await peer.rates.wait(attach.session, _frames(request, attach) * count)
        await _wait_for_room([peer.outgoing for peer in peers], timeout)

    def check_size(self, request: PutInline) -> None:
        """See that one small message is not so much for a site that it would keep others out.

        Raises:
            GatewayError: LIMIT_REACHED.
        """
        of_sites = Counter(self._context.routes.site_of(destination) for destination in request.destinations)
        for site, count in of_sites.items():
            if (total := count * (len(request.body) + MESSAGE_BYTES)) > MOST_AT_ONCE_BYTES:
                raise GatewayError(
                    ErrorCode.LIMIT_REACHED,
                    f"a message of {len(request.body)} bytes for {count} parties of {site} is {total} bytes; "
                    f"{MOST_AT_ONCE_BYTES} go at once.",
                    "Push it to fewer parties at a time.",
                )

    def _peers_of(self, request: Commit | PutInline) -> Counter[Sending]:
        """What sends to the destinations at other sites, and to how many of them."""
        peers = (self._peer_of(destination) for destination in request.destinations)
        return Counter(peer for peer in peers if peer is not None)

    def put_inline(self, request: PutInline, attach: Attach, user: int) -> list[asyncio.Task[None]]:
        """Send a small message to all destinations; what moves it to disk, where one is here and there is no memory.

        Raises:
            GatewayError: DUPLICATE_PUSH, WRONG_PARTY or LIMIT_REACHED; then nothing is sent to anybody.
            MemoryPoolError: SPILL_FAILED where a party of this site is to have it and there is no room; likewise.
        """
        moves = []
        with self._context.journal.together():
            keys = self._register(attach, request, user, len(request.body), block_digest(request.body))
            for key in keys:
                peer = self._peer_of(key.destination)
                if peer is not None:
                    peer.put_inline(key, request.kind, request.body)
                    continue
                message = Message(
                    key,
                    request.kind,
                    len(request.body),
                    body=request.body,
                    user=user,
                    broker=self._context.routes.broker_of(key.source),
                    transfer=self._context.new_transfer(),
                )
                if self._keep(message, "inline"):
                    keep_small(self._context, message, message.counts_as)
                    self._context.journal.keep(message)
                if message.moving is not None:
                    moves.append(message.moving)
        self._trace_put(attach, request, keys, len(request.body))
        return moves

    def was_pushed(self, request: Commit, attach: Attach) -> bool:
        """Whether this very task has pushed it to all of them."""
        pushes = map(self._context.mailbox.sessions.pushed, _keys(request, attach))
        return all(push is not None and push.client == attach.client for push in pushes)

    def _register(
        self,
        attach: Attach,
        request: Commit | PutInline,
        user: int,
        total_bytes: int,
        digest: int | None,
        reopen: Reopen = lambda _key: None,
    ) -> tuple[MessageKey, ...]:
        """The messages that are to be sent now: what was pushed before, with the same bytes, is the same push."""
        for destination in request.destinations:
            if (peer := self._peer_of(destination)) is not None:
                peer.check_served(destination)
            if not self._context.mailbox.sessions.names(attach.session, attach.party, destination):
                raise not_in_session(attach.session, attach.party, destination)
        keys = tuple(map(checked_key, _keys(request, attach)))
        sessions = self._context.mailbox.sessions
        for key in keys:
            if self._peer_of(key.destination) is None and sessions.pushed(key) is None:
                if not self._context.mailbox.sessions.admits(key):
                    self._context.mailbox.note_mixed(key)
                    raise why_not_admitted(sessions, key)
                self._check_room(key, user, total_bytes)
                if isinstance(request, PutInline) and (full := why_no_room_for_small(self._context, key)) is not None:
                    raise full
        for key in keys:
            if (unfinished := reopen(key)) is not None:
                sending, record = unfinished
                sending.forget(record)
        return sessions.note_push(keys, Push(attach.client, digest), again=request.again)

    def _check_room(self, key: MessageKey, user: int, total_bytes: int) -> None:
        """As a peer's, so much of a user's, or of a broker's, may wait here for parties of this site."""
        whose = name_of_pusher(user, self._context.routes.broker_of(key.source))
        if objection := self._context.mailbox.objection(whose, key, total_bytes):
            raise GatewayError(
                ErrorCode.LIMIT_REACHED, f"{objection}.", "Have them pulled, or raise what `limits` says of them."
            )

    def _peer_of(self, destination: Party) -> Sending | None:
        """What sends to the site that serves a party, None when it is served here.

        Raises:
            GatewayError: WRONG_PARTY, or ENGINES_MIXED where that has an OSX broker.
        """
        site = self._context.routes.site_of(destination)
        if site == self._context.config.site:
            return None
        if (peer := self._peers.get(site)) is None:
            raise GatewayError(
                ErrorCode.ENGINES_MIXED,
                f"{destination} is at {site}, which has an OSX broker: it takes nothing of the engine fedrdma.",
                "Set the federation engine osx, mode queue, for all parties of the job.",
            )
        return peer

    def _keep(self, message: Message, mode: str) -> bool:
        """Both parties are served here: the message is delivered where it lies; whether it was kept."""
        key, total_bytes = message.key, message.total_bytes
        kept = self._context.mailbox.deliver(message)
        make_room(self._context, self._context.send_pool)
        self._context.trace.delivered_here(key, total_bytes, mode, kept=kept)
        return kept

    def _trace_put(
        self, attach: Attach, request: Commit | PutInline, keys: Sequence[MessageKey], total_bytes: int
    ) -> None:
        if keys:
            site, destinations = self._context.config.site, tuple(key.destination for key in keys)
            self._context.trace.put(
                attach.session, request.name, request.tag, attach.party, destinations, total_bytes, site
            )


async def _wait_for_room(rooms: Sequence[OutgoingRoom], timeout: float) -> None:
    """Until there is some in all of them at once.

    Raises:
        GatewayError: LIMIT_REACHED after `timeout` seconds.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    while (full := next((room for room in rooms if room.is_full), None)) is not None:
        await full.wait_for_room(max(0.0, deadline - asyncio.get_running_loop().time()))


def _frames(request: PutInline, attach: Attach) -> int:
    """As how many the frame of a small message counts at the peer, the names in it included."""
    longest = max(request.destinations, key=lambda party: len(str(party)), default=attach.party)
    names = f"{attach.session}{request.name}{request.tag}{attach.party}{longest}"
    return frames_counted(len(request.body) + len(names.encode()) + _HEAD_BYTES)


def _keys(request: Commit | PutInline, attach: Attach) -> tuple[MessageKey, ...]:
    return tuple(
        MessageKey(attach.session, request.name, request.tag, attach.party, destination)
        for destination in request.destinations
    )


def checked_key(key: MessageKey) -> MessageKey:
    """The key of a task's message, if frames can carry it.

    Raises:
        GatewayError: LIMIT_REACHED when its name or tag is too long.
    """
    if is_site_sum(key):
        raise GatewayError(ErrorCode.LIMIT_REACHED, "a message's name ends as those of sums of sites do.", "Rename it.")
    for what, text in (("name", key.name), ("tag", key.tag)):
        if len(text) > MOST_NAME_CHARACTERS:
            raise GatewayError(
                ErrorCode.LIMIT_REACHED,
                f"the {what} of a message has {len(text)} characters; {MOST_NAME_CHARACTERS} is the limit.",
                "Use a shorter one.",
            )
    return key
