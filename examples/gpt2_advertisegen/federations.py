"""The federation that a silo's messages travel through: ours, or FATE's own to compare with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from fate.arch.computing.backends.standalone import CSession
from fate.arch.federation.api._serdes import _FederationBytesCoder
from fate.arch.federation.backends.standalone import StandaloneFederation

from examples.gpt2_advertisegen.plan import PARTIES, SiloConfig
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.journal import Journal
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.wire.frames import Party

PartyTuple = tuple[str, str]


def _nothing() -> None:
    """What happens before a get unless somebody asked for more."""


def _pair(party: Party) -> PartyTuple:
    return (party.role, party.party_id)


class ObservableFedRDMA(FedRDMAFederation):
    """Our federation, telling before it waits for a message.

    Attributes:
        before_get: called then; what was put before is sent or lies in a send slot.
    """

    before_get: Callable[[], None] = staticmethod(_nothing)

    def _pull_bytes(self, name: str, tag: str, parties: Sequence[PartyTuple]) -> list[Any]:
        self.before_get()
        return [*super()._pull_bytes(name, tag, parties)]


class ObservableStandalone(StandaloneFederation):  # type: ignore[misc]  # FATE has no types
    """FATE's standalone federation, telling before it waits, and with the journal that ours writes.

    Attributes:
        before_get: called before it waits for a message; what was put before is stored.
    """

    before_get: Callable[[], None] = staticmethod(_nothing)

    def __init__(self, journal: Journal, session: CSession, session_id: str, party: PartyTuple) -> None:
        super().__init__(session, session_id, party, [_pair(other) for other in PARTIES])
        self._journal = journal

    def _push_bytes(self, v: bytes, name: str, tag: str, parties: list[PartyTuple]) -> None:
        begin = time.monotonic()
        super()._push_bytes(v, name, tag, parties)
        self._note("put", name, tag, v, begin, parties)

    def _pull_bytes(self, name: str, tag: str, parties: list[PartyTuple]) -> list[bytes]:
        self.before_get()
        begin = time.monotonic()
        values: list[bytes] = super()._pull_bytes(name, tag, parties)
        for value, party in zip(values, parties, strict=True):
            self._note("get", name, tag, value, begin, [party])
        return values

    def _note(
        self, op: Literal["put", "get"], name: str, tag: str, value: bytes, begin: float, parties: list[PartyTuple]
    ) -> None:
        peers = [Party(*party) for party in parties]
        self._journal.record(op, "bytes", name, tag, message_bytes(value), time.monotonic() - begin, peers)


def message_bytes(value: bytes) -> int:
    """Length of a message as FATE pickled it: of the value itself, or of what its slices add up to."""
    if _FederationBytesCoder.decode_mode(value) == 1:
        return int(_FederationBytesCoder.decode_split(value)[1])
    return len(value)


def open_federation(config: SiloConfig, computing: CSession) -> ObservableFedRDMA | ObservableStandalone:
    """The federation that the silo was told to use."""
    party, path = _pair(config.party), config.files.journal
    if config.federation == "standalone":
        journal = Journal(path, config.session, config.party)
        return ObservableStandalone(journal, computing, config.session, party)
    return ObservableFedRDMA(
        federation_session_id=config.session,
        computing_session=computing,
        party=party,
        parties=[_pair(other) for other in PARTIES],
        gateway=config.gateway,
        options=FederationOptions(journal=str(path)),
    )
