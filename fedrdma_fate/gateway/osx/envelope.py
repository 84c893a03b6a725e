"""What brokers of OSX say to each other: `Inbound` and `Outbound` of osx.proto around what a client has pushed."""

from __future__ import annotations

from collections.abc import Mapping

from fedrdma_fate.gateway.flow.packet import field_head, parts
from fedrdma_fate.gateway.osx.requests import SESSION, SOURCE_NODE, TARGET_NODE, TOPIC, Queue, refused
from fedrdma_fate.wire.errors import GatewayError

SERVICE, METHOD = "org.ppc.ptp.PrivateTransferProtocol", "invoke"
"""Of gRPC, which a broker has for others."""

_URI, _PROVIDER = "x-ptp-uri", "x-ptp-tech-provider-code"
"""Metadata between brokers."""

_PUSH_URI = "grpcs://fedai.org/org.ppc.ptp.PrivateTransferTransport/push"
"""As brokers write it, whatever their addresses are; the path behind the host is what they look at."""

_IN_PAYLOAD, _OUT_CODE, _OUT_MESSAGE = 2, 3, 4
"""Fields of Inbound and of Outbound."""


def metadata_of(queue: Queue, topic: str) -> tuple[tuple[str, str], ...]:
    """What goes with a push to a broker."""
    said = {
        _PROVIDER: "FATE",
        _URI: _PUSH_URI,
        SESSION: queue.session,
        SOURCE_NODE: queue.source.party_id,
        TARGET_NODE: queue.destination.party_id,
        TOPIC: topic,
    }
    # metadata of gRPC are plain text; the topic is in the message as well
    return tuple((name, value) for name, value in said.items() if value.isascii() and value.isprintable())


def check_uri(metadata: Mapping[str, str]) -> None:
    """See that a broker pushes: it may ask nothing else of another.

    Raises:
        GatewayError: QUEUE_CALL_REFUSED.
    """
    uri = metadata.get(_URI, "")
    path = "/" + uri.partition("://")[2].partition("/")[2] if "://" in uri else uri
    if path != "/" + _PUSH_URI.partition("://")[2].partition("/")[2]:
        raise refused(f"a broker asks for {uri!r:.120}; it may push, and nothing else")


def inbound(request: bytes | memoryview) -> bytes:
    """What carries a PushInbound to a broker."""
    return b"".join((field_head(_IN_PAYLOAD, len(request)), request))


def pushed_by(raw: memoryview) -> memoryview:
    """The PushInbound in what a broker brings.

    Raises:
        GatewayError: QUEUE_CALL_REFUSED.
    """
    try:
        return parts(raw, _IN_PAYLOAD)[0]
    except GatewayError as error:
        raise refused("it is no message of osx.proto") from error


def outcome_of(raw: bytes) -> tuple[str, str]:
    """Code and message of what a broker answered.

    Raises:
        ValueError: it is no Outbound.
    """
    try:
        code, message = parts(raw, _OUT_CODE, _OUT_MESSAGE)
    except GatewayError as error:
        raise ValueError("it answered what is no message of osx.proto") from error
    return code.decode("utf-8", "replace"), message.decode("utf-8", "replace")


def outbound(code: str) -> bytes:
    """An Outbound that says how it went."""
    coded = code.encode()
    return field_head(_OUT_CODE, len(coded)) + coded
