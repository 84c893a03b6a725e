"""A gateway made of files in a directory: for FATE-side tests, from threads and from processes."""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedrdma_fate.client.client import WHOLE, LossTolerance
from fedrdma_fate.client.protocol import NotSummed
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKind, Party

_KIND_BYTES = 16


@dataclasses.dataclass
class FakeLease:
    """A slot in anonymous memory; `history` tells what happened to it."""

    client: FakeClient
    buffer: memoryview
    history: list[str] = dataclasses.field(default_factory=list)
    digests_wanted: bool = True
    pending: tuple[str, str, Sequence[Party], MessageKind] | None = None

    def commit(
        self,
        name: str,
        tag: str,
        destinations: Sequence[Party],
        kind: MessageKind,
        *,
        keep: bool = False,
        loss: LossTolerance = WHOLE,
    ) -> None:
        self.client.losses.append(loss)
        self.history.append("keep" if keep else "commit")
        self.client.deliver(name, tag, destinations, kind, self.buffer)
        if not keep:
            self.buffer.release()

    def commit_unfinished(
        self, name: str, tag: str, destinations: Sequence[Party], kind: MessageKind, *, loss: LossTolerance = WHOLE
    ) -> Literal["committed", "digests-wanted", "later"]:
        self.client.losses.append(loss)
        self.history.append("unfinished")
        self.digests_wanted = self.client.digests_wanted
        if self.client.early == "committed":
            self.pending = (name, tag, destinations, kind)
        return self.client.early

    def written(self, written_from: int, block_digests: Sequence[int]) -> None:
        assert self.client.early != "later" or "unfinished" not in self.history, "nobody wants to know"
        assert bool(block_digests) == self.digests_wanted
        if not written_from:
            self.history.append("written")
            if self.pending is not None:
                self.client.deliver(*self.pending, self.buffer)

    def release(self) -> None:
        self.history.append("release")
        self.buffer.release()


@dataclasses.dataclass
class FakeMessage:
    kind: MessageKind
    buffer: memoryview
    missing: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass
class FakeClient:
    """One party's client; `leases` are all it ever gave out.

    Attributes:
        largest_bytes: a lease of more than this is refused, as the pool would.
        busy: how many leases time out before one is given.
        waits: the time-outs that leases were asked for with.
        early: the answer to an unfinished commit.
        digests_wanted: the other part of that answer.
        losses: what might be missing of what was committed.
        tolerated: how much may be missing of what is got, by name and source.
        expected_sums: which were said to be asked for.
        pulled: files of the messages that were got by it.
    """

    directory: Path
    session: str
    party: Party
    largest_bytes: int | None = None
    busy: int = 0
    waits: list[float | None] = dataclasses.field(default_factory=list)
    leases: list[FakeLease] = dataclasses.field(default_factory=list)
    left: bool = False
    early: Literal["committed", "digests-wanted", "later"] = "later"
    digests_wanted: bool = True
    losses: list[LossTolerance] = dataclasses.field(default_factory=list)
    tolerated: dict[tuple[str, Party], float] = dataclasses.field(default_factory=dict)
    expected_sums: list[tuple[str, tuple[Party, ...]]] = dataclasses.field(default_factory=list)
    pulled: set[Path] = dataclasses.field(default_factory=set)

    def lease(self, total_bytes: int, *, timeout: float | None = None) -> FakeLease:
        self.waits.append(timeout)
        if self.largest_bytes is not None and total_bytes > self.largest_bytes:
            raise MemoryPoolError(ErrorCode.PAYLOAD_TOO_LARGE, f"{total_bytes} bytes are too many.")
        if self.busy:
            self.busy -= 1
            raise MemoryPoolError(ErrorCode.POOL_TIMEOUT, f"no room for {total_bytes} bytes in {timeout} s.")
        memory = mmap.mmap(-1, total_bytes)
        # what an earlier message left there
        memory[:] = b"\xa5" * total_bytes
        lease = FakeLease(self, memoryview(memory))
        self.leases.append(lease)
        return lease

    def put_inline(self, name: str, tag: str, destinations: Sequence[Party], kind: MessageKind, body: bytes) -> None:
        assert len(body) <= INLINE_LIMIT_BYTES
        self.deliver(name, tag, destinations, kind, body)

    def forget(self, prefix: str, tag: str, source: Party) -> None: ...

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
        del tag, straggler_wait
        if jointly:
            # where each loses something else
            share /= len(sources)
        self.tolerated.update({(name, source): share for source in sources})

    def get(
        self,
        name: str,
        tag: str,
        source: Party,
        *,
        timeout: float | None = None,
        tolerates: bool = False,
        keeps: bool = False,
    ) -> FakeMessage:
        assert tolerates == ((name, source) in self.tolerated)
        path = self._path(name, tag, source, self.party)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not path.exists():
            if deadline is not None and time.monotonic() >= deadline:
                raise GatewayError(ErrorCode.PULL_TIMEOUT, f"{name!r} did not come in {timeout} s.")
            time.sleep(0.002)
        if path in self.pulled:
            raise GatewayError(ErrorCode.DUPLICATE_PULL, f"{name!r} was pulled before.")
        if not keeps:
            self.pulled.add(path)
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        kind = bytes(content[:_KIND_BYTES]).decode().strip()
        return FakeMessage(kind, content[mmap.PAGESIZE :])  # type: ignore[arg-type]

    def get_sum(self, name: str, tag: str, sources: Sequence[Party], *, timeout: float | None = None) -> NotSummed:
        del name, tag, sources, timeout
        return NotSummed("this gateway does not add", expected=False)

    def expect_sum(self, name: str, sources: Sequence[Party]) -> None:
        self.expected_sums.append((name, tuple(sources)))

    def leave(self) -> None:
        self.left = True

    def close(self) -> None:
        pass

    def deliver(
        self, name: str, tag: str, destinations: Sequence[Party], kind: MessageKind, body: bytes | memoryview
    ) -> None:
        for destination in destinations:
            path = self._path(name, tag, self.party, destination)
            if path.exists():
                raise GatewayError(ErrorCode.DUPLICATE_PUSH, f"{name!r} was pushed before.")
            draft = path.with_suffix(f".{os.getpid()}")
            with draft.open("wb") as file:
                file.write(kind.encode().ljust(mmap.PAGESIZE))
                file.write(body)
            draft.rename(path)

    def _path(self, name: str, tag: str, source: Party, destination: Party) -> Path:
        key = repr((self.session, name, tag, str(source), str(destination))).encode()
        return self.directory / hashlib.sha1(key).hexdigest()


@dataclasses.dataclass(frozen=True)
class FakeConnector:
    """Pickles, like the real one; every `connect` gives a new client."""

    directory: Path
    session: str
    party: Party
    parties: tuple[Party, ...]

    def connect(self, *, brief: bool = False) -> FakeClient:
        del brief
        return FakeClient(self.directory, self.session, self.party)
