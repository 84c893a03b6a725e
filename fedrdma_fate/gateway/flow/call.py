"""A scheduling call of FATE Flow's, and its answer."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence

from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import (
    MOST_CALL_BYTES,
    MOST_CALL_HEADERS,
    MOST_NAME_CHARACTERS,
    MOST_PARTY_CHARACTERS,
)

PARTNER = "/v2/partner/"
"""Where a scheduler calls the parties of a job."""

SCHEDULER = "/v2/scheduler/"
"""Where parties call the scheduler of their job."""

_PATH = re.compile(r"/v2/(partner|scheduler)(/[A-Za-z0-9_-]+)+", re.ASCII)
"""What is forwarded: no dots, no escapes, no empty segments, no query; every route of FATE Flow 2.2 is of this form."""

CARRIED_HEADERS = frozenset(
    {
        "dest-party-id",
        "src-party-id",
        "initiator-party-id",
        "service",
        # a site's signature (fate_flow/hook/flow/site_authentication.py)
        "appid",
        "nonce",
        "timestamp",
        "signature",
        "initiatorpartyid",
    }
)
"""Headers that travel, in lower case; others are between FATE Flow and its proxy, or of another's making."""

ASKING_HEADERS = ("src-party-id", "initiator-party-id", "initiatorpartyid")
"""Those that name a party in whose name a call is made."""

_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?|", re.ASCII)
"""Of a header: what can be written as it was read, whatever reads it (RFC 9110, section 5.5)."""


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulingCall:
    """A call, which is a POST.

    Attributes:
        path: of the request.
        headers: names and values of those that travel, each name once.
        body: JSON.
    """

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        """The value of a header, named in lower case; empty where there is none."""
        return next((value for each, value in self.headers if each.lower() == name), "")


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What FATE Flow answered.

    Attributes:
        status: of HTTP.
        body: JSON.
    """

    status: int
    body: bytes


def refused(why: str) -> GatewayError:
    """The error for a call that is not forwarded."""
    return GatewayError(
        ErrorCode.CALL_REFUSED,
        f"a scheduling call is not forwarded: {why}.",
        f"Only what FATE Flow itself sends under {PARTNER} and {SCHEDULER} is.",
    )


def carried(headers: Iterable[tuple[str, str]], further: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Those headers of a request that travel.

    Args:
        headers: all of them.
        further: names, in lower case, of headers that a site's own authentication hook needs.

    Raises:
        GatewayError: CALL_REFUSED when one comes twice, or holds what is no plain text.
    """
    names = CARRIED_HEADERS.union(further)
    kept = tuple((name, value) for name, value in headers if name.lower() in names)
    check_headers(kept, further)
    return kept


def check_headers(headers: Sequence[tuple[str, str]], further: Sequence[str] = ()) -> None:
    """See that headers may travel.

    Raises:
        GatewayError: CALL_REFUSED.
    """
    names = [name.lower() for name, _ in headers]
    if strange := set(names) - CARRIED_HEADERS.union(further):
        raise refused(f"its header {min(strange)!r} is none that travels")
    if len(names) > MOST_CALL_HEADERS:
        raise refused(f"it has {len(names)} headers that travel, of {MOST_CALL_HEADERS} at most")
    if twice := {name for name in names if names.count(name) > 1}:
        raise refused(f"its header {min(twice)!r} comes twice")
    for name, value in headers:
        if len(value) > MOST_NAME_CHARACTERS or not _VALUE.fullmatch(value):
            raise refused(f"its header {name!r} is too long, or no plain text")


def check_path(path: str) -> None:
    """See that a path is one of FATE Flow's scheduling.

    Raises:
        GatewayError: CALL_REFUSED.
    """
    if len(path) > MOST_PARTY_CHARACTERS or not _PATH.fullmatch(path):
        raise refused(f"its path is {path[:MOST_PARTY_CHARACTERS]!r}")


def document_of(body: bytes) -> dict[str, object]:
    """The JSON object that the body of a call is; nothing in it has two values, so nobody can read another.

    Raises:
        GatewayError: CALL_REFUSED when it is none.
    """
    if len(body) > MOST_CALL_BYTES:
        raise refused(f"its body has {len(body)} bytes, of {MOST_CALL_BYTES} at most")
    try:
        document = json.loads(body.decode(), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise refused(f"its body is no JSON, or not in order: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise refused("its body is no JSON object")
    return document


def is_json(body: bytes) -> bool:
    """Whether the body of an answer can be read as FATE Flow reads it."""
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key comes twice")
    return made
