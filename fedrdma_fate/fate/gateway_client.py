"""How a process of FATE, or a worker of its computing engine, comes by a client of the gateway."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fedrdma_fate.client.access import access_or_none
from fedrdma_fate.client.address import socket_path
from fedrdma_fate.client.client import GatewayClient, Received, ReceivedSum, SendLease
from fedrdma_fate.client.protocol import NotSummed
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MessageKind, Mode, Party

PartyTuple = tuple[str, str]
"""FATE's way to name a party: (role, party id)."""


class Client(Protocol):
    """A connection to the gateway of this site, usable from several threads and, anew, in forked children."""

    def lease(self, total_bytes: int, *, timeout: float | None = None) -> SendLease:
        """A send slot; waits for room, `timeout` seconds at most."""
        ...

    def put_inline(self, name: str, tag: str, destinations: Sequence[Party], kind: MessageKind, body: bytes) -> None:
        """Hand a small message over."""
        ...

    def tolerate(
        self,
        name: str,
        tag: str,
        sources: Sequence[Party],
        share: float,
        *,
        jointly: bool = False,
        straggler_wait: float | None = None,
    ) -> None:
        """Let something be missing of messages that are to be got."""
        ...

    def get(
        self,
        name: str,
        tag: str,
        source: Party,
        *,
        timeout: float | None = None,
        tolerates: bool = False,
        keeps: bool = False,
    ) -> Received:
        """Wait for a message, `timeout` seconds at most, None for ever."""
        ...

    def forget(self, prefix: str, tag: str, source: Party) -> None:
        """Messages that were kept are not wanted any more."""
        ...

    def get_sum(
        self, name: str, tag: str, sources: Sequence[Party], *, timeout: float | None = None
    ) -> ReceivedSum | NotSummed:
        """Wait for the sum of what these parties send, `timeout` seconds at most, None for ever."""
        ...

    def expect_sum(self, name: str, sources: Sequence[Party]) -> None:
        """Such sums will be asked for."""
        ...

    def leave(self) -> None:
        """This party leaves the session."""
        ...

    def close(self) -> None:
        """Drop the connection."""
        ...


class Connector(Protocol):
    """Opens connections for one party of one session. Pickles, so that workers of the computing engine can use it."""

    @property
    def session(self) -> str:
        """Id of the federation session."""
        ...

    @property
    def party(self) -> Party:
        """Whose connections these are."""
        ...

    @property
    def parties(self) -> Sequence[Party]:
        """Everybody in the session."""
        ...

    def connect(self, *, brief: bool = False) -> Client:
        """A new connection; a brief one is for a message or two by one thread, and costs less.

        Raises:
            GatewayError: GATEWAY_UNREACHABLE, or WRONG_PARTY when that gateway does not serve the party.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class GatewayConnector:
    """Connects to the gateway behind a unix socket, or, on hosts where that is not, to its port for them.

    Attributes:
        address: `unix:///path` of the gateway's socket.
        session: federation session id.
        party: the local party.
        parties: everybody in the session.
        mode: transfer mode that this job asks for, instead of the gateway's.
        connect_timeout: seconds to wait for a gateway that is not there yet.
        tasks_access: file that says how to get to the port; None: there is none. Each worker reads its own host's, so
            that no secret travels with what the engine sends to its workers.
    """

    address: str
    session: str
    party: Party
    parties: tuple[Party, ...]
    mode: Mode | None = None
    connect_timeout: float = 30.0
    tasks_access: str | None = None

    def connect(self, *, brief: bool = False) -> Client:
        """See `Connector.connect`.

        Raises:
            GatewayError: NO_TASK_ACCESS, where this host has neither the socket nor the file.
        """
        access = None
        if self.tasks_access is not None:
            access = access_or_none(socket_path(self.address), Path(self.tasks_access))
        return GatewayClient(
            self.address,
            self.session,
            self.party,
            mode=self.mode,
            parties=self.parties,
            connect_timeout=self.connect_timeout,
            brief=brief,
            access=access,
        )


class SoloClient:
    """Stands in for a gateway where there is nobody to talk to."""

    def __init__(self, party: Party, session: str) -> None:
        self._problem = GatewayError(
            ErrorCode.WRONG_PARTY,
            f"{party} is alone in the session {session!r}.",
            "Name the other parties when the federation is made.",
        )

    def lease(self, _total_bytes: int, *, timeout: float | None = None) -> SendLease:
        """Nothing can be sent."""
        del timeout
        raise self._problem

    def put_inline(
        self, _name: str, _tag: str, _destinations: Sequence[Party], _kind: MessageKind, _body: bytes
    ) -> None:
        """Nothing can be sent."""
        raise self._problem

    def tolerate(
        self,
        _name: str,
        _tag: str,
        _sources: Sequence[Party],
        _share: float,
        *,
        jointly: bool = False,
        straggler_wait: float | None = None,
    ) -> None:
        """Nothing will come."""
        del jointly, straggler_wait
        raise self._problem

    def get(
        self,
        _name: str,
        _tag: str,
        _source: Party,
        *,
        timeout: float | None = None,
        tolerates: bool = False,
        keeps: bool = False,
    ) -> Received:
        """Nothing will come."""
        del timeout, tolerates, keeps
        raise self._problem

    def forget(self, _prefix: str, _tag: str, _source: Party) -> None:
        """Nothing has come."""

    def get_sum(
        self, _name: str, _tag: str, _sources: Sequence[Party], *, timeout: float | None = None
    ) -> ReceivedSum | NotSummed:
        """Nothing will come."""
        del timeout
        raise self._problem

    def expect_sum(self, _name: str, _sources: Sequence[Party]) -> None:
        """Nothing will come."""
        raise self._problem

    def leave(self) -> None:
        """Nobody will notice."""

    def close(self) -> None:
        """Nothing is open."""


@dataclasses.dataclass(frozen=True, slots=True)
class SoloConnector:
    """For a party that is alone in its session, as FATE's uploads and transformations are: it needs no gateway.

    Attributes:
        session: federation session id.
        party: the local party.
    """

    session: str
    party: Party

    @property
    def parties(self) -> tuple[Party, ...]:
        """Only the local one."""
        return (self.party,)

    def connect(self, *, brief: bool = False) -> Client:
        """See `Connector.connect`."""
        del brief
        return SoloClient(self.party, self.session)


def to_party(party: PartyTuple) -> Party:
    """FATE's tuple as a party."""
    role, party_id = party
    return Party(role, str(party_id))
