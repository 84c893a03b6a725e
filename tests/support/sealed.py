"""A transport whose links are sealed as two gateways would have them, for tests that know nothing of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedrdma_fate.ports import Draft, Endpoint, EndpointAddress, RemoteSlot, Role, Slot, Transport
from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.key_schedule import DirectionKeys, PathKeys
from fedrdma_fate.security.sealing import AttemptSealer, PathOpener, PathSealer, Seal

KEYS_OF_ACTIVE = PathKeys(
    DirectionKeys(b"d" * 32, b"a" * 32, b"f" * 32), DirectionKeys(b"e" * 32, b"b" * 32, b"g" * 32)
)
MESSAGE = b"m" * 32


class SealedTransport:
    """Wraps a transport. Sealers find the grant of a key in `grants`, where a gateway's frames would have said it."""

    grants: dict[int, int] = {}  # noqa: RUF012 - of this process; keys are random

    def __init__(self, inner: Transport, seal: Seal = "on", cipher: str = AES) -> None:
        self.inner = inner
        self.seal = seal
        self.cipher = cipher

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, role: Role) -> Draft:
        keys = KEYS_OF_ACTIVE if role == "active" else KEYS_OF_ACTIVE.reversed
        return _Draft(self.inner.open(role), self, keys)


class _Draft:
    def __init__(self, inner: Draft, transport: SealedTransport, keys: PathKeys) -> None:
        self.inner = inner
        self.transport = transport
        self.keys = keys

    @property
    def address(self) -> EndpointAddress:
        return self.inner.address

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        return SealedEndpoint(self.inner.connect(peer, timeout), self.transport, self.keys)

    def abandon(self) -> None:
        self.inner.abandon()

    def close(self) -> None:
        self.inner.close()


class SealedEndpoint:
    """Wraps an endpoint: gives each target its sealer."""

    def __init__(self, inner: Endpoint, transport: SealedTransport, keys: PathKeys) -> None:
        self.inner = inner
        self.path = PathSealer(keys.send, transport.cipher, transport.seal)
        self.opener = PathOpener(keys.receive, transport.cipher, transport.seal)
        self._sealers: dict[int, AttemptSealer] = {}
        assert inner.open_with(self.opener)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        remote = self.inner.expose(grant, slot)
        SealedTransport.grants[remote.key] = grant
        return remote

    def withdraw(self, grant: int) -> None:
        self.opener.forget(grant)
        self.inner.withdraw(grant)

    def drain(self, grant: int) -> None:
        self.opener.forget(grant)
        self.inner.drain(grant)

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        self.inner.post_write(work_request, source, self._sealed(target), target_offset)

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        self.inner.post_bytes(work_request, data, self._sealed(target), target_offset, immediate)

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        self.inner.post_chunk(work_request, source, self._sealed(target), target_offset, queue_pair, immediate)

    def _sealed(self, target: RemoteSlot) -> RemoteSlot:
        if target.key not in self._sealers:
            self._sealers[target.key] = self.path.begin(1, SealedTransport.grants.get(target.key, 1), MESSAGE)
        return dataclasses.replace(target, sealer=self._sealers[target.key])
