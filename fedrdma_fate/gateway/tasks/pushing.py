"""What tasks push: checked whole, then handed to the peers, or kept here where both parties are of this site."""

from __future__ import annotations

from collections.abc import Mapping

from fedrdma_fate.client.protocol import Attach, Commit, PutInline
from fedrdma_fate.engine.events import Payload
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.mailbox import Message
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey, Party


class Pushing:
    """Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext, peers: Mapping[str, Peer]) -> None:
        self._context = context
        self._peers = peers

    def takes_unfinished(self, request: Commit, attach: Attach) -> bool:
        """Whether every destination can use a payload that is still being written."""
        peers = [self._peer_of(destination) for destination in request.destinations]
        return all(peer is not None and peer.sending.takes_unfinished(attach.mode) for peer in peers)

    def wants_digests(self, request: Commit, attach: Attach) -> bool:
        """Whether the payload will be checked anywhere: where it is lent or stays here, nobody does."""
        peers = [self._peer_of(destination) for destination in request.destinations]
        return any(peer is not None and not peer.sending.lends(attach.mode) for peer in peers)

    def on_written(self, payload: Payload) -> None:
        """More of a payload lies in its slot."""
        for peer in self._peers.values():
            peer.sending.on_written(payload)

    def abandon(self, payload: Payload) -> None:
        """A payload will never be whole: where it was committed, it fails."""
        for peer in self._peers.values():
            peer.sending.abandon(payload)

    def commit(self, request: Commit, payload: Payload, lease: Lease, attach: Attach) -> None:
        """Send what lies in a leased slot to all destinations, each of which holds on to the slot.

        Raises:
            GatewayError: DUPLICATE_PUSH or WRONG_PARTY; then nothing is sent to anybody.
            MemoryPoolError: PAYLOAD_TOO_LARGE for one of the destinations; likewise.
        """
        for destination in request.destinations:
            self._check_fits(payload.total_bytes, destination, attach)
        for key in self._register(attach, request):
            share = lease.share(f"transfer:{key}")
            peer = self._peer_of(key.destination)
            if peer is not None:
                peer.sending.put_payload(key, request.kind, payload, share, attach.mode)
            else:
                self._keep(Message(key, request.kind, payload.total_bytes, lease=share), "local")
        self._trace_put(attach, request, payload.total_bytes)

    def put_inline(self, request: PutInline, attach: Attach) -> None:
        """Send a small message to all destinations.

        Raises:
            GatewayError: DUPLICATE_PUSH or WRONG_PARTY; then nothing is sent to anybody.
        """
        for key in self._register(attach, request):
            peer = self._peer_of(key.destination)
            if peer is not None:
                peer.sending.put_inline(key, request.kind, request.body)
            else:
                self._keep(Message(key, request.kind, len(request.body), body=request.body), "inline")
        self._trace_put(attach, request, len(request.body))

    def _register(self, attach: Attach, request: Commit | PutInline) -> tuple[MessageKey, ...]:
        for destination in request.destinations:
            self._check_served(destination)
        keys = tuple(
            MessageKey(attach.session, request.name, request.tag, attach.party, destination)
            for destination in request.destinations
        )
        self._context.mailbox.sessions.note_push(keys)
        return keys

    def _peer_of(self, destination: Party) -> Peer | None:
        """The peer that serves a party, None when it is served here.

        Raises:
            GatewayError: WRONG_PARTY.
        """
        site = self._context.routes.site_of(destination)
        return None if site == self._context.config.site else self._peers[site]

    def _check_served(self, destination: Party) -> None:
        peer = self._peer_of(destination)
        if peer is None or peer.hello is None:
            return
        if not {str(destination), destination.party_id} & set(peer.hello.parties):
            raise GatewayError(
                ErrorCode.WRONG_PARTY,
                f"the gateway of {peer.config.site} does not serve {destination}, but {', '.join(peer.hello.parties)}.",
                "Correct `peers[].parties` here, or `parties` there.",
            )

    def _check_fits(self, total_bytes: int, destination: Party, attach: Attach) -> None:
        """Where the peer is not known yet, it refuses later what it cannot hold."""
        peer = self._peer_of(destination)
        if peer is None or peer.hello is None:
            return
        needed = peer.sending.slot_bytes(total_bytes, attach.mode)
        if needed > peer.hello.receive_bytes:
            raise MemoryPoolError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                f"{total_bytes} bytes for {destination} take a slot of {needed} bytes; site {peer.config.site!r} "
                f"has {peer.hello.receive_bytes} bytes of receive memory.",
                "Raise memory.receive_bytes there.",
            )

    def _keep(self, message: Message, mode: str) -> None:
        """Both parties are served here: the message is delivered where it lies."""
        key, total_bytes = message.key, message.total_bytes
        kept = self._context.mailbox.deliver(message)
        make_room(self._context, self._context.send_pool)
        self._context.trace.emit(
            "delivered",
            session=key.session,
            name=key.name,
            tag=key.tag,
            source=str(key.source),
            destination=str(key.destination),
            bytes=total_bytes,
            mode=mode,
            transport="local",
            seconds=0.0,
            kept=kept,
        )

    def _trace_put(self, attach: Attach, request: Commit | PutInline, total_bytes: int) -> None:
        self._context.trace.emit(
            "put",
            session=attach.session,
            name=request.name,
            tag=request.tag,
            source=str(attach.party),
            destinations=[str(destination) for destination in request.destinations],
            bytes=total_bytes,
            site=self._context.config.site,
        )
