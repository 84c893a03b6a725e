"""What others see of this package is as it was: wire format, configuration, command line, metrics, error codes.

tests/snapshots holds it as it was before the source was rearranged (commit 42c4b1c). Where a change is meant to be seen
from outside, write the snapshot anew with `.venv/bin/python -m tests.support.outside NAME`, look at its difference line
by line, and commit it with the change, a line in CHANGELOG.md and, for the wire, a new protocol version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fedrdma_fate.client.protocol import LENGTH_PREFIX, Reply, Request, decode_reply, decode_request
from fedrdma_fate.wire.datagrams import Datagram, decode_datagram
from fedrdma_fate.wire.frames import ControlFrame, Restart, decode_frame, encode_frame
from fedrdma_fate.wire.header import decode_header
from tests.support.outside import WRITERS, as_committed, examples, snapshot

STATIC = sorted(set(WRITERS) - {"running"})


@pytest.mark.parametrize("name", STATIC)
def test_what_others_see_is_as_it_was(name: str) -> None:
    assert as_committed(WRITERS[name]()) == snapshot(name)


@pytest.mark.parametrize(
    ("part", "union", "skip", "decode"),
    [
        ("control_frames", ControlFrame, 0, decode_frame),
        ("datagrams", Datagram, 0, decode_datagram),
        ("requests", Request, LENGTH_PREFIX.size, decode_request),
        ("replies", Reply, LENGTH_PREFIX.size, decode_reply),
    ],
)
def test_what_an_earlier_version_wrote_is_read_as_what_it_meant(
    part: str, union: Any, skip: int, decode: Callable[[bytes], object]
) -> None:
    written = snapshot("wire")[part]
    for name, meant in examples(union):
        assert [decode(bytes.fromhex(each)[skip:]) for each in written[name]] == meant


def test_a_header_that_an_earlier_version_wrote_is_read() -> None:
    for name, written in snapshot("wire")["headers"].items():
        header = decode_header(bytes.fromhex(written))
        assert (header.kind.name, header.transfer, header.count) == (name, 0x11, 0x77)


def test_a_field_that_is_renamed_shows() -> None:
    """The comparison itself: the same values under another name are another encoding."""

    class Renamed(msgspec.Struct, tag_field="frame", tag="restart"):
        transport: str
        transfer_id: int

    before = next(given[0] for tag, given in examples(ControlFrame) if tag == "restart")
    assert isinstance(before, Restart)
    renamed = msgspec.msgpack.encode(Renamed(before.transport, before.transfer))
    assert encode_frame(before).hex() in snapshot("wire")["control_frames"]["restart"]
    assert renamed.hex() not in snapshot("wire")["control_frames"]["restart"]
