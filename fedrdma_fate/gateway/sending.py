"""Sends messages to one peer: small ones on the control channel, large ones by a data path."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.tuning import LinkTraits, plan_transfer
from fedrdma_fate.engine.events import Outgoing, Payload, TransferStats
from fedrdma_fate.gateway.config import PeerConfig
from fedrdma_fate.gateway.hub import Hub
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.wire.errors import ErrorCode, error_from_code
from fedrdma_fate.wire.frames import ControlFrame, Inline, MessageKey, MessageKind, Mode, Undeliverable

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Sending:
    """A payload on its way: the lease that keeps its slot."""

    outgoing: Outgoing
    lease: Lease


class Sending:
    """Everything that we send to one peer. Belongs to the event loop's thread."""

    def __init__(
        self,
        peer: PeerConfig,
        hub: Hub,
        send: Callable[[ControlFrame], bool],
        dispatch: Callable[[Outgoing], None],
    ) -> None:
        self._peer = peer
        self._hub = hub
        self._send = send
        self._dispatch = dispatch
        self._inline: dict[int, Inline] = {}
        self._payloads: dict[int, _Sending] = {}
        self._untold: list[Undeliverable] = []

    @property
    def pending(self) -> int:
        """Messages that the peer does not have yet."""
        return len(self._inline) + len(self._payloads)

    def put_inline(self, key: MessageKey, kind: MessageKind, body: bytes) -> None:
        """Send a small message; it is kept until the peer has it."""
        inline = Inline(self._hub.new_transfer(), key, kind, body)
        self._inline[inline.transfer] = inline
        self._send(inline)

    def put_payload(self, key: MessageKey, kind: MessageKind, payload: Payload, lease: Lease, mode: Mode | None) -> int:
        """Send a payload; its lease is released when the peer has it. The id of the transfer."""
        used = self._peer.mode or mode or self._hub.config.mode
        outgoing = Outgoing(self._hub.new_transfer(), key, kind, payload, self._plan(used, payload.total_bytes), used)
        self._payloads[outgoing.transfer] = _Sending(outgoing, lease)
        self._dispatch(outgoing)
        return outgoing.transfer

    def resend_inline(self) -> None:
        """The control channel is new: what the peer has not confirmed may be lost."""
        for inline in self._inline.values():
            self._send(inline)
        self._untold = [notice for notice in self._untold if not self._send(notice)]

    def redispatch(self) -> None:
        """The path that payloads were handed to never came up: hand them to the one chosen instead."""
        for sending in self._payloads.values():
            if sending.outgoing.mode != "grpc":
                self._dispatch(sending.outgoing)

    def on_delivered(self, transfer: int) -> bool:
        """The peer has a message; whether it was a small one."""
        inline = self._inline.pop(transfer, None)
        if inline is None:
            return False
        self._hub.metrics.inline_moved("sent", self._peer.site)
        self._trace("sent", transfer, inline.key, len(inline.body), mode="inline", transport="control", seconds=0.0)
        return True

    def on_refused(self, transfer: int, code: str, reason: str) -> bool:
        """The peer will not have a message; whether it was a small one."""
        inline = self._inline.pop(transfer, None)
        if inline is None:
            return False
        self._undeliverable(transfer, inline.key, error_from_code(code, reason).code, reason)
        return True

    def sent(self, outgoing: Outgoing, stats: TransferStats, transport: str) -> None:
        """The peer has a payload."""
        self._payloads.pop(outgoing.transfer).lease.release()
        total = outgoing.plan.total_bytes
        self._hub.metrics.payload_moved("sent", self._peer.site, outgoing.mode, transport, total)
        self._hub.metrics.transfer_ended("delivered", self._peer.site, outgoing.mode, stats.seconds, stats.resent_bytes)
        self._trace(
            "sent",
            outgoing.transfer,
            outgoing.key,
            total,
            mode=outgoing.mode,
            transport=transport,
            seconds=stats.seconds,
            resent_bytes=stats.resent_bytes,
            chunks=outgoing.plan.count,
            writes=stats.writes,
        )

    def send_failed(self, outgoing: Outgoing, code: ErrorCode, reason: str) -> None:
        """The peer will not get a payload."""
        self._payloads.pop(outgoing.transfer).lease.release()
        self._hub.metrics.transfer_ended("failed", self._peer.site, outgoing.mode, 0.0, 0)
        self._undeliverable(outgoing.transfer, outgoing.key, code, reason)

    def _undeliverable(self, transfer: int, key: MessageKey, code: ErrorCode, reason: str) -> None:
        """Both sides are told: here the party that pushed, there the one that waits."""
        logger.error("%s was not delivered to %s: [%s] %s", key, self._peer.site, code.value, reason)
        self._trace("undeliverable", transfer, key, 0, code=code.value, reason=reason)
        notice = Undeliverable(key, code.value, reason)
        if not self._send(notice):
            self._untold.append(notice)
        told = error_from_code(code.value, f"an earlier push, {key}, was not delivered: {reason}")
        self._hub.mailbox.push_failed(key, told)

    def _plan(self, mode: Mode, total_bytes: int) -> ChunkPlan:
        config = self._hub.config
        chunk = self._peer.chunk or config.chunk
        policy = self._peer.link_enable or config.link_enable
        return plan_transfer(mode, total_bytes, chunk.size_bytes, policy, LinkTraits(rate_bps=self._peer.rate))

    def _trace(self, event: str, transfer: int, key: MessageKey, total_bytes: int, **fields: object) -> None:
        self._hub.trace.emit(
            event,
            transfer=transfer,
            session=key.session,
            name=key.name,
            tag=key.tag,
            source=str(key.source),
            destination=str(key.destination),
            bytes=total_bytes,
            peer=self._peer.site,
            **fields,
        )
