"""What TLS adds to a small message: round trips over control channels with `security: off` and `mtls`, in turn."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from fedrdma_fate.bench.report import DataTable, format_bytes
from fedrdma_fate.gateway.peers.channel_security import TlsChannel
from fedrdma_fate.gateway.peers.control_channel import ControlServer, dial
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.security.credentials import CredentialFiles
from fedrdma_fate.security.reloading import SiteCredentials, utc_now
from fedrdma_fate.security.trial_files import certificate_path, key_path, make_certificates
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, Delivered, Inline, MessageKey, Party, encode_frame

BODIES = (0, 1024, INLINE_LIMIT_BYTES)
"""Bytes of messages: none, what a job's scalars have, and the most that rides in a frame."""

ROUND_TRIPS = 500
"""Of each message, over each channel, in each repetition: less than a second, and a steady median."""

_CONNECT_SECONDS = 5.0
"""For a connection on loopback, TLS included: far more than it takes."""

_SITES = ("bench-a", "bench-b")
_DAY = datetime.timedelta(days=1)  # of the certificates; they are gone when the measurement ends

Security = Callable[[], TlsChannel | None]


@dataclasses.dataclass(frozen=True, slots=True)
class ControlRow:
    """What a message of one length takes.

    Attributes:
        body_bytes: its length.
        off_seconds: from the message's frame to the answer, with `security: off`; the median.
        mtls_seconds: the same with `mtls`.
    """

    body_bytes: int
    off_seconds: float
    mtls_seconds: float

    @property
    def added_seconds(self) -> float:
        """What TLS adds."""
        return self.mtls_seconds - self.off_seconds


def measure_control(
    repeats: int, tell: Callable[[str], None], bodies: Sequence[int] = BODIES, round_trips: int = ROUND_TRIPS
) -> list[ControlRow]:
    """Measure messages of each length, over both channels in turn; both ends run in one thread.

    Args:
        repeats: of each.
        tell: is called with what is being done.
        bodies: bytes of the messages.
        round_trips: of each message over each channel, in each repetition.

    Raises:
        FedRDMAError: a channel could not be made, or has ended.
    """
    return asyncio.run(_measure(repeats, tell, bodies, round_trips))


async def _measure(
    repeats: int, tell: Callable[[str], None], bodies: Sequence[int], round_trips: int
) -> list[ControlRow]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="fedrdma-bench-") as directory:
        ours, theirs = _credentials(Path(directory))
        async with open_channel(lambda: None, lambda: None) as off, open_channel(ours, theirs) as mtls:
            for body_bytes in bodies:
                tell(f"control channel, {format_bytes(body_bytes)}")
                frame = _message(body_bytes)
                seconds: tuple[list[float], list[float]] = ([], [])
                for _ in range(repeats * round_trips):
                    # one after the other, so that what else the machine does meets both alike
                    for stream, taken in zip((off, mtls), seconds, strict=True):
                        taken.append(await round_trip(stream, frame))
                rows.append(ControlRow(body_bytes, *(statistics.median(taken) for taken in seconds)))
    return rows


@contextlib.asynccontextmanager
async def open_channel(server: Security, client: Security) -> AsyncIterator[ControlStream]:
    """A control channel on loopback whose other end answers each frame.

    Args:
        server: makes the end that answers one of TLS, or not.
        client: the same of the end that dials.

    Raises:
        TransportError: they do not meet.
    """
    listening = ControlServer("127.0.0.1:0", server, _answer)
    await listening.start()
    try:
        async with dial(f"127.0.0.1:{listening.port}", client(), _CONNECT_SECONDS) as stream:
            stream.admit()
            yield stream
    finally:
        await listening.stop()


async def round_trip(stream: ControlStream, frame: bytes) -> float:
    """Seconds from sending a frame to having the answer.

    Raises:
        FedRDMAError: the channel has ended.
    """
    began = time.perf_counter()
    stream.write(frame)
    answer = await stream.read()
    took = time.perf_counter() - began
    if answer is None:
        raise stream.failure or TransportError(
            ErrorCode.PEER_UNREACHABLE, f"the control channel has ended{stream.end_reason}.", "Measure again."
        )
    return took


async def _answer(stream: ControlStream) -> None:
    stream.admit()
    answer = encode_frame(Delivered(1))
    while await stream.read() is not None:
        stream.write(answer)


def _message(body_bytes: int) -> bytes:
    key = MessageKey("session", "name", "tag", Party("guest", "1"), Party("host", "2"))
    return encode_frame(Inline(1, key, "object", bytes(body_bytes)))


def _credentials(directory: Path) -> list[Security]:
    make_certificates(directory, _SITES, utc_now(), _DAY)
    authority = certificate_path(directory, "ca")
    return [
        functools.partial(
            TlsChannel,
            SiteCredentials(
                CredentialFiles(certificate_path(directory, site), key_path(directory, site), (authority,)), site
            ),
        )
        for site in _SITES
    ]


def control_document(rows: Sequence[ControlRow]) -> dict[str, list[dict[str, float]]]:
    """For `--json`."""
    return {"control": [{**dataclasses.asdict(row), "added_seconds": row.added_seconds} for row in rows]}


def control_table(rows: Sequence[ControlRow]) -> DataTable:
    """For people."""
    cells = [
        (
            format_bytes(row.body_bytes),
            *(f"{seconds * 1e3:.3f} ms" for seconds in (row.off_seconds, row.mtls_seconds, row.added_seconds)),
        )
        for row in rows
    ]
    return DataTable(
        "control channel: a message and its answer, on loopback", ("message", "security off", "mtls", "more"), cells
    )
