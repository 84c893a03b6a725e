"""What lies at both ends of a simulated link: payloads and receive slots."""

from __future__ import annotations

from typing import Protocol

from fedrdma_fate.core.digest import chunk_digest


class Memory(Protocol):
    """Addressable bytes; offsets and lengths in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """A copy of a piece."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Overwrite a piece."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy a piece inside."""
        ...

    def digest(self, offset: int, length: int) -> int:
        """xxh3-64 of a piece."""
        ...


class ByteMemory:
    """Real bytes. Access beyond the end is an error of the protocol, so it raises."""

    def __init__(self, content: bytes) -> None:
        self._bytes = bytearray(content)

    def read(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        return bytes(self._bytes[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        self._check(offset, len(data))
        self._bytes[offset : offset + len(data)] = data

    def copy(self, source: int, target: int, length: int) -> None:
        self.write(target, self.read(source, length))

    def digest(self, offset: int, length: int) -> int:
        return chunk_digest(self.read(offset, length))

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > len(self._bytes):
            raise IndexError(f"[{offset}, {offset + length}) is outside a memory of {len(self._bytes)} bytes")


class PhantomMemory:
    """Keeps headers and no payload, so that gigabytes cost nothing where only time matters.

    Whatever else is read is empty, and any two pieces of one length have the same digest.
    """

    def __init__(self) -> None:
        self._headers: dict[int, bytes] = {}

    def read(self, offset: int, length: int) -> bytes:
        return self._headers.get(offset, b"")[:length]

    def write(self, offset: int, data: bytes) -> None:
        if data:
            self._headers[offset] = data

    def copy(self, source: int, target: int, length: int) -> None:
        """Nothing to copy."""

    def digest(self, offset: int, length: int) -> int:  # noqa: ARG002
        return length
