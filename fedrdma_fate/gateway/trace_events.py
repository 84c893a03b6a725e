"""The events of a gateway's trace and their fields, which nothing else names; docs/observability.md lists them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from fedrdma_fate.engine.events import TransferStats
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import MessageKey, Party

Fields = dict[str, object]


class TraceSink(Protocol):
    """Where events go; one JSON line each, its fields in this order."""

    def emit(self, event: str, **fields: object) -> None:
        """Record an event."""
        ...


class TraceEvents:
    """Any thread may call, as the sink allows. Sizes in bytes, times in seconds.

    Attributes:
        reopen: opens the file anew, which somebody may have renamed.
    """

    def __init__(self, sink: TraceSink, reopen: Callable[[], object] = lambda: None) -> None:
        self._sink = sink
        self.reopen = reopen

    # -- messages -------------------------------------------------------------------------------------------------

    def put(
        self,
        session: str,
        name: str,
        tag: str,
        source: Party,
        destinations: Iterable[Party],
        total_bytes: int,
        site: str,
    ) -> None:
        """A task of this site has pushed a message."""
        fields: Fields = {"session": session, "name": name, "tag": tag, "source": str(source)}
        to = [str(destination) for destination in destinations]
        self._sink.emit("put", **fields, destinations=to, bytes=total_bytes, site=site)

    def sent(
        self, transfer: int, key: MessageKey, total_bytes: int, peer: str, mode: str, transport: str, seconds: float
    ) -> None:
        """A peer has a message that took no data path."""
        fields = _transfer(transfer, key)
        way = _way(mode, transport, seconds)
        self._sink.emit("sent", **fields, bytes=total_bytes, peer=peer, **way)

    def sent_payload(
        self,
        transfer: int,
        key: MessageKey,
        total_bytes: int,
        peer: str,
        mode: str,
        transport: str,
        stats: TransferStats,
        chunks: int,
    ) -> None:
        """A peer has a payload that was cut into so many chunks."""
        fields = _transfer(transfer, key)
        way = _way(mode, transport, stats.seconds)
        cost: Fields = {"resent_bytes": stats.resent_bytes, "chunks": chunks, "writes": stats.writes}
        self._sink.emit("sent", **fields, bytes=total_bytes, peer=peer, **way, **cost)

    def undeliverable(self, transfer: int, key: MessageKey, peer: str, code: ErrorCode, reason: str) -> None:
        """A peer will not get a message that was pushed here."""
        fields = _transfer(transfer, key)
        self._sink.emit("undeliverable", **fields, bytes=0, peer=peer, code=code.value, reason=reason)

    def delivered(
        self,
        transfer: int,
        key: MessageKey,
        total_bytes: int,
        peer: str,
        mode: str,
        transport: str,
        seconds: float,
        *,
        kept: bool,
        missing_bytes: int = 0,
    ) -> None:
        """A message of a peer is here; `kept` unless it had come before, or nobody is left to pull it."""
        fields = _transfer(transfer, key)
        way = _way(mode, transport, seconds)
        # only where both tasks have let something be missing
        holes: Fields = {"missing_bytes": missing_bytes} if missing_bytes else {}
        self._sink.emit("delivered", **fields, bytes=total_bytes, **way, peer=peer, kept=kept, **holes)

    def delivered_here(self, key: MessageKey, total_bytes: int, mode: str, *, kept: bool) -> None:
        """A message between two parties of this site is here, where it was pushed."""
        way = _way(mode, "local", 0.0)
        self._sink.emit("delivered", **_key(key), bytes=total_bytes, **way, kept=kept)

    def receive_failed(self, transfer: int, key: MessageKey, peer: str, code: ErrorCode, reason: str) -> None:
        """A message that a peer announced will not come."""
        fields = _transfer(transfer, key)
        self._sink.emit("receive_failed", **fields, code=code.value, reason=reason, peer=peer)

    def spilled(self, key: MessageKey, total_bytes: int) -> None:
        """A message that nobody has pulled was moved to disk."""
        self._sink.emit("spilled", key=str(key), bytes=total_bytes)

    def get(self, key: MessageKey, total_bytes: int) -> None:
        """A task of this site has pulled a message."""
        self._sink.emit("get", **_key(key), bytes=total_bytes)

    def summed(
        self, key: MessageKey, order: str, parties: int, added: int, total_bytes: int, seconds: float, reason: str
    ) -> None:
        """A task of this site gets a sum of messages, of which this is the first by rank; `get` tells of each in it."""
        fields: Fields = {"session": key.session, "name": key.name, "tag": key.tag, "destination": str(key.destination)}
        self._sink.emit(
            "summed",
            **fields,
            order=order,
            parties=parties,
            added=added,
            bytes=total_bytes,
            seconds=seconds,
            reason=reason,
        )

    def session_ended(self, session: str, reason: str, messages: int, total_bytes: int) -> None:
        """A session is over, and so many messages that nobody had pulled were dropped."""
        self._sink.emit("session_ended", session=session, reason=reason, messages=messages, bytes=total_bytes)

    # -- peers ----------------------------------------------------------------------------------------------------

    def link(self, peer: str, transport: str, reason: str) -> None:
        """A data path is up; the reason is why this transport was chosen."""
        self._sink.emit("link", peer=peer, transport=transport, reason=reason)

    def link_lost(self, peer: str, transport: str, reason: str) -> None:
        """A data path is gone, or could not be connected."""
        self._sink.emit("link_lost", peer=peer, transport=transport, reason=reason)

    def peer_lost(self, peer: str, reason: str) -> None:
        """The control channel of a peer has ended."""
        self._sink.emit("peer_lost", peer=peer, reason=reason)

    def flow_call(
        self, direction: str, peer: str, path: str, call_bytes: int, answer_bytes: int, status: int, seconds: float
    ) -> None:
        """FATE Flow has answered a scheduling call."""
        fields: Fields = {"direction": direction, "peer": peer, "path": path, "bytes": call_bytes}
        self._sink.emit("flow_call", **fields, answer_bytes=answer_bytes, status=status, seconds=seconds)

    def flow_call_refused(self, direction: str, peer: str, call_bytes: int, code: ErrorCode) -> None:
        """A scheduling call has no answer; its path may be anything."""
        fields: Fields = {"direction": direction, "peer": peer, "bytes": call_bytes}
        self._sink.emit("flow_call_refused", **fields, code=code.value)

    def share(self, direction: str, peer: str, share: float, link_rate: float | None, found_by: str) -> None:
        """A peer that sends (`receive`), or is sent to (`send`), has another share of the link; bytes a second."""
        own = share * 8 if math.isfinite(share) else None
        total = None if link_rate is None else link_rate * 8
        fields: Fields = {"share_bits_per_second": own, "link_bits_per_second": total, "found_by": found_by}
        self._sink.emit("share", direction=direction, peer=peer, **fields)

    def probed(self, report: Mapping[str, object]) -> None:
        """The path to a peer was measured."""
        self._sink.emit("probed", **report)


def _transfer(transfer: int, key: MessageKey) -> Fields:
    return {"transfer": transfer, **_key(key)}


def _key(key: MessageKey) -> Fields:
    return {
        "session": key.session,
        "name": key.name,
        "tag": key.tag,
        "source": str(key.source),
        "destination": str(key.destination),
    }


def _way(mode: str, transport: str, seconds: float) -> Fields:
    return {"mode": mode, "transport": transport, "seconds": seconds}
