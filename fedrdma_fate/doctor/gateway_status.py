"""What the checks read of a gateway's status document; whoever answers may say anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from fedrdma_fate.wire.errors import ErrorCode, GatewayError

Length = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Of a region, in bytes."""


class PathStatus(msgspec.Struct, frozen=True):
    """A data path to a peer."""

    transport: str
    up: bool
    reason: str = ""
    last_error: str = ""


class PeerStatus(msgspec.Struct, frozen=True):
    """Another site; its parties as they are configured here, and as it says itself once it is connected, as it says how
    long a payload may be that it takes."""

    site: str
    connected: bool
    version: str | None = None
    last_error: str = ""
    parties: tuple[str, ...] = ()
    parties_by_itself: tuple[str, ...] | None = None
    largest_payload_bytes: Length | None = None
    paths: tuple[PathStatus, ...] = ()
    sum_parent: str | None = None
    sum_fan_in: int | None = None


class BrokerStatus(msgspec.Struct, frozen=True):
    """Another site, which has an OSX broker."""

    site: str
    address: str
    pushed: int = 0
    last_error: str = ""
    parties: tuple[str, ...] = ()


class PoolStatus(msgspec.Struct, frozen=True):
    """A region of the gateway: `send` or `receive`."""

    name: str
    length: Length


class NoticesStatus(msgspec.Struct, frozen=True):
    """How workers that add are told of updates."""

    way: str
    reason: str = ""


class SumWorkersStatus(msgspec.Struct, frozen=True):
    """The processes that add."""

    notices: NoticesStatus | None = None


class FrontsStatus(msgspec.Struct, frozen=True):
    """Where FATE Flow reaches the gateway, as `host:port` of this host."""

    flow: str | None = None
    osx: str | None = None


class PathRate(msgspec.Struct, frozen=True):
    """A site, and how fast the path to it is."""

    site: str
    bits_per_second: float


class SlowParent(msgspec.Struct, frozen=True):
    """How fast the path to the parent is, and who is reached as fast or faster."""

    bits_per_second: float
    faster: tuple[PathRate, ...]


class GatewayStatus(msgspec.Struct, frozen=True):
    """The document, as far as it is looked at."""

    site: str
    version: str
    peers: tuple[PeerStatus, ...]
    parties: tuple[str, ...] = ()
    pools: tuple[PoolStatus, ...] = ()
    brokers: tuple[BrokerStatus, ...] = ()
    fronts: FrontsStatus | None = None
    sum_workers: SumWorkersStatus | None = None
    sum_parent: str | None = None
    sum_parent_slow: SlowParent | None = None


def read_status(document: Mapping[str, Any]) -> GatewayStatus:
    """A document as it came.

    Raises:
        GatewayError: CLIENT_PROTOCOL where it is no status of a gateway.
    """
    try:
        return msgspec.convert(document, GatewayStatus)
    except msgspec.ValidationError as error:
        raise GatewayError(
            ErrorCode.CLIENT_PROTOCOL,
            f"the gateway's answer is no status: {error}.",
            "See what listens at its socket; run the same fedrdma-fate version here and there.",
        ) from error
