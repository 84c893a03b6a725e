"""What FATE's federation for OSX asks of its queues, and what it is answered: osx.proto and FATE's metadata.

Read and written here, as far as FATE uses it: a gateway need not run where FATE is installed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from fedrdma_fate.gateway.flow.packet import field_head, parts, walk
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MOST_NAME_CHARACTERS, MOST_PARTY_CHARACTERS, Party

SESSION, FROM_NODE, TARGET_NODE = "x-ptp-session-id", "x-ptp-from-node-id", "x-ptp-target-node-id"
"""Metadata of a call. Nodes are party ids without a role."""

SOURCE_NODE, TOPIC = "x-ptp-source-node-id", "x-ptp-topic"
"""Between brokers. FATE's client says from-node-id, which a broker neither reads nor hands on, and then names none."""

OK, NOTHING_CAME = "E0000000000", "E0000000601"
"""Codes of an answer: FATE raises LookupError at the second."""

LONGEST_POP_SECONDS = 36_000.0
"""FATE asks to wait for ten hours."""

DEFAULT_POP_SECONDS = 3_600.0
"""Where a pop names no time, as with OSX."""

_TOPIC, _PUSHED, _TIMEOUT = 1, 2, 2
"""Of PushInbound and PopInbound."""

_HEAD = 2
"""Of Message, beside its body."""

MOST_HEAD_BYTES = 64 * 1024
"""Of the head of a Message: FATE writes a name, a tag and some numbers into it."""

_PAYLOAD, _CODE = 2, 3
"""Of TransportOutbound."""


MOST_PAYLOAD_BYTES = 2**31 - 1 - 32
"""Of a message that an answer can bring: gRPC's limit, less what stands before it, 19 bytes. What a push brings is no
longer, for its topic takes as much; what a peer sends may be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """One of the queues of a session.

    Attributes:
        session: the session.
        name: of what goes through it, for a table with the number of a partition.
        source: who pushes.
        destination: who pops.
    """

    session: str
    name: str
    source: Party
    destination: Party


def queue_of(metadata: Mapping[str, str], topic: str, *, pops: bool) -> Queue:
    """The queue that a topic names: SESSION-ROLE-ID-ROLE-ID-NAME, from the first party to the second.

    Args:
        metadata: of the call.
        topic: the topic.
        pops: it is to be popped from, so the caller is the second party, and does not say who the first is.

    Raises:
        GatewayError: QUEUE_CALL_REFUSED.
    """
    queue = _queue_in(session_of(metadata), topic)
    caller = queue.destination if pops else queue.source
    if metadata.get(FROM_NODE) != caller.party_id:
        raise refused(f"it comes from node {metadata.get(FROM_NODE, '')!r:.80}, and its topic is of {caller}")
    if not pops:
        _check_target(metadata, queue)
    return queue


def queue_by_broker(metadata: Mapping[str, str], topic: str) -> Queue:
    """The queue of a push that another site's broker brings: it need not say who has pushed.

    Raises:
        GatewayError: QUEUE_CALL_REFUSED.
    """
    queue = _queue_in(session_of(metadata), topic)
    source = metadata.get(SOURCE_NODE, queue.source.party_id)
    if source != queue.source.party_id:
        raise refused(f"it comes from node {source!r:.80}, and its topic is of {queue.source}")
    _check_target(metadata, queue)
    return queue


def _check_target(metadata: Mapping[str, str], queue: Queue) -> None:
    if metadata.get(TARGET_NODE) != queue.destination.party_id:
        raise refused(f"it is for node {metadata.get(TARGET_NODE, '')!r:.80}, and its topic for {queue.destination}")


def _queue_in(session: str, topic: str) -> Queue:
    if not topic:
        raise refused("it names no topic")
    if len(topic) > 2 * MOST_NAME_CHARACTERS + 4 * (MOST_PARTY_CHARACTERS + 1) + 1:
        raise refused(f"its topic has {len(topic)} characters")
    if not topic.startswith(f"{session}-"):
        raise refused(f"its topic {topic!r:.200} is not of its session {session!r}")
    named = topic[len(session) + 1 :].split("-", 4)
    if len(named) < 5 or not all(named) or max(map(len, named[:4])) > MOST_PARTY_CHARACTERS:
        raise refused(f"its topic {topic!r:.200} does not name two parties and a name behind its session")
    source, destination = Party(named[0], named[1]), Party(named[2], named[3])
    return Queue(session, named[4], source, destination)


def session_of(metadata: Mapping[str, str]) -> str:
    """The session that a call is of.

    Raises:
        GatewayError: QUEUE_CALL_REFUSED.
    """
    session = metadata.get(SESSION, "")
    if not 0 < len(session) <= MOST_NAME_CHARACTERS:
        raise refused(f"it names no session, or one of more than {MOST_NAME_CHARACTERS} characters")
    return session


def pushed(request: memoryview) -> tuple[str, memoryview]:
    """Topic and payload of a PushInbound; the payload, which is no copy, is a Message.

    Raises:
        GatewayError: QUEUE_CALL_REFUSED.
    """
    topic, payload = _parts(request, _TOPIC, _PUSHED)
    (head,) = _parts(payload, _HEAD)
    if len(head) > MOST_HEAD_BYTES:
        raise refused(f"the head of its message has {len(head)} bytes; {MOST_HEAD_BYTES} is the limit")
    try:
        properties = json.loads(bytes(head))
    except (ValueError, RecursionError):
        properties = None
    if not isinstance(properties, dict):
        raise refused("its payload is no Message with a head of JSON")
    return _text(topic), payload


def popped(request: memoryview) -> tuple[str, float]:
    """Topic of a PopInbound or PeekInbound, and for how many seconds a pop waits.

    Raises:
        GatewayError: QUEUE_CALL_REFUSED.
    """
    (topic,) = _parts(request, _TOPIC)
    milliseconds = 0
    for number, value in _walk(request):
        if number == _TIMEOUT and isinstance(value, int):
            milliseconds = value
    # an int32 below zero comes as a number of 64 bits
    seconds = milliseconds / 1000 if 0 < milliseconds < 1 << 31 else DEFAULT_POP_SECONDS
    return _text(topic), min(seconds, LONGEST_POP_SECONDS)


def answer(code: str = OK, payload: bytes = b"") -> bytes:
    """A TransportOutbound."""
    coded = code.encode()
    # in one go: a payload may have 2 GiB
    head = field_head(_PAYLOAD, len(payload)) if payload else b""
    return b"".join((field_head(_CODE, len(coded)), coded, head, payload))


def refused(why: str) -> GatewayError:
    """The error for a call that is none of a queue."""
    return GatewayError(
        ErrorCode.QUEUE_CALL_REFUSED,
        f"a call of OSX's queues is refused: {why}.",
        "Use FATE's own federation for OSX, `mode: queue`.",
    )


def _parts(raw: memoryview, *numbers: int) -> list[memoryview]:
    try:
        return parts(raw, *numbers)
    except GatewayError as error:
        raise refused("it is no message of osx.proto") from error


def _walk(raw: memoryview) -> list[tuple[int, memoryview | int | None]]:
    try:
        return list(walk(raw))
    except GatewayError as error:
        raise refused("it is no message of osx.proto") from error


def _text(raw: memoryview) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise refused("its topic is no text") from error
