"""Sends datagrams of a data path that may have none."""

from __future__ import annotations

import contextlib

from fedrdma_fate.ports import Endpoint
from fedrdma_fate.wire.datagrams import Datagram, encode_datagram
from fedrdma_fate.wire.errors import TransportError

COPIES = 2
"""Of a short datagram that is not sent again."""


def post_datagram(endpoint: Endpoint | None, datagram: Datagram, copies: int = 1) -> bool:
    """Whether it is on its way; it may be lost. A path that breaks just now says so when it is asked for progress."""
    with contextlib.suppress(TransportError):
        return endpoint is not None and endpoint.post_datagram(encode_datagram(datagram), copies)
    return False
