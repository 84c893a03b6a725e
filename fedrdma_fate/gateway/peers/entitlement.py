"""Which messages a peer may speak of: those from its own parties to ours, in sessions that ours know them to be in."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping

import msgspec

from fedrdma_fate.gateway.messages.sessions import Sessions, mixed_error
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import PROBE_TRANSFERS_FROM, Frame, GrantRequest, MessageKey, Offer, Party
from fedrdma_fate.wire.site_sum import is_site_sum


class Entitlement:
    """What one peer may name in its frames and datagrams.

    Which fields of a frame hold a MessageKey is found from their types, so that a new frame is checked without being
    mentioned here. Frames that name a transfer or a grant alone are looked up among those of the same peer, by whoever
    acts on them. May be used by several threads.
    """

    def __init__(
        self,
        peer: str,
        site: str,
        routes: Routes,
        sessions: Sessions | None = None,
        is_ordered: Callable[[MessageKey], bool] = lambda _key: False,
    ) -> None:
        """
        Args:
            peer: name of the peer's site.
            site: name of this site, for people.
            routes: which site serves which party.
            sessions: who is in which session.
            is_ordered: whether this is a sum that the peer was asked for, be its parties whose they may.
        """
        self._is_ordered = is_ordered
        self._sessions = sessions or Sessions()
        self._peer = peer
        self._site = site
        self._routes = routes
        self._fields: dict[type[Frame], tuple[str, ...]] = {}

    def objection(self, frame: Frame) -> FedRDMAError | None:
        """Why the peer may not name a message that this frame names: WRONG_PARTY or SESSION_NOT_OPEN."""
        fields = self._fields.get(type(frame))
        if fields is None:
            fields = self._fields[type(frame)] = fields_with_messages(type(frame))
        if not fields or _is_of_a_probe(frame):
            return None
        keys = (key for field in fields for key in _keys_in(getattr(frame, field)))
        return next((error for key in keys if (error := self._misrouted(key) or self._not_open(key))), None)

    def admits(self, frame: Frame) -> bool:
        """Whether the peer may name all messages that this frame names."""
        return self.objection(frame) is None

    def _misrouted(self, key: MessageKey) -> FedRDMAError | None:
        if is_site_sum(key) and self._is_ordered(key):
            return None
        if not self._routes.is_local(key.destination):
            text = f"{key.destination} is not served at {self._site}"
        elif self._routes.find(key.source) != self._peer:
            text = f"{self._site} does not know {key.source} as a party of {self._peer}"
        else:
            return None
        return GatewayError(ErrorCode.WRONG_PARTY, text)

    def _not_open(self, key: MessageKey) -> FedRDMAError | None:
        return None if self._sessions.admits(key) else why_not_admitted(self._sessions, key)


def why_not_admitted(sessions: Sessions, key: MessageKey) -> GatewayError:
    """The error for a message that a session does not admit."""
    if sessions.ended.reason(key.session) is not None:
        return sessions.ended.error(key.session)
    if sessions.is_of_another_engine(key):
        return mixed_error(key)
    return not_in_session(key.session, key.destination, key.source)


def not_in_session(session: str, party: Party, other: Party) -> GatewayError:
    """The error for a message of a session whose task does not know the other party to be in it."""
    return GatewayError(
        ErrorCode.SESSION_NOT_OPEN, f"the task of {party} in the session {session!r} does not know {other} to be in it"
    )


def fields_with_messages(kind: type[Frame]) -> tuple[str, ...]:
    """The fields of a frame that hold message keys, at any depth."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if _holds_keys(field.type))


def _is_of_a_probe(frame: Frame) -> bool:
    """A probe's key is that of no message: what arrives under it is dropped, and nobody waits for it."""
    return isinstance(frame, Offer | GrantRequest) and frame.transfer >= PROBE_TRANSFERS_FROM


def _holds_keys(kind: object) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind is MessageKey or any(_holds_keys(field.type) for field in msgspec.structs.fields(kind))
    return any(_holds_keys(argument) for argument in typing.get_args(kind))


def _keys_in(value: object) -> Iterator[MessageKey]:
    if isinstance(value, MessageKey):
        yield value
        return
    parts: tuple[object, ...] = ()
    if isinstance(value, msgspec.Struct):
        parts = tuple(getattr(value, field) for field in value.__struct_fields__)
    elif isinstance(value, Mapping):
        parts = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = tuple(value)
    for part in parts:
        yield from _keys_in(part)
