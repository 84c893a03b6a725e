"""Whether the dialling side's address has changed, as where a NAT gave it a new port (RFC 9000, sections 8.2 and 9).

A ping is numbered and tagged with a key that both sides heard on the control channel. One from another address that
has a higher number than all before makes the listening side send a challenge there, no longer than the ping; only who
has the key can answer it. The same challenge goes to the address in use: where that is answered too, or a newer ping
comes from there, nothing has changed, and somebody has passed copies on (section 9.3.3). So the link follows only where
the address in use is silent, for as long as the other took to answer.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from typing import Any

from fedrdma_fate.transport.udp.packets import CHALLENGE_BYTES, PATH_RESPONSE, PATH_TAG_BYTES, PING

PATH_KEY_BYTES = 32
"""Twice a tag."""

LEAST_SILENCE_SECONDS = 0.15
"""For which the address in use has to say nothing, once the other has answered; longer where that took longer."""

VALIDATION_SECONDS = 3.0
"""After which an address that has not answered is forgotten: three times the initial PTO, as section 8.2.4 says."""

_PURPOSE = b"fedrdma udp path"
"""Keeps these tags apart from whatever else a key might be used for (the personalisation of BLAKE2b, 16 bytes)."""

_NAMED = struct.Struct("<BQ")

Address = tuple[Any, ...]


class PathTags:
    """Tags of pings, and of answers to challenges: keyed BLAKE2b (RFC 7693, section 2.9)."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == PATH_KEY_BYTES
        self._key = key

    def of_ping(self, connection: int, number: int) -> bytes:
        """Of a ping to whom knows the connection by this name."""
        return self._tag(PING, connection, number.to_bytes(4, "little"))

    def of_response(self, connection: int, challenge: bytes) -> bytes:
        """Of the answer to a challenge."""
        return self._tag(PATH_RESPONSE, connection, challenge)

    def is_of_ping(self, tag: bytes, connection: int, number: int) -> bool:
        """Whether it is the tag of such a ping."""
        return hmac.compare_digest(tag, self.of_ping(connection, number))

    def is_of_response(self, tag: bytes, connection: int, challenge: bytes) -> bool:
        """Whether it is the tag of such an answer."""
        return hmac.compare_digest(tag, self.of_response(connection, challenge))

    def _tag(self, kind: int, connection: int, body: bytes) -> bytes:
        named = _NAMED.pack(kind, connection) + body
        return hashlib.blake2b(named, digest_size=PATH_TAG_BYTES, key=self._key, person=_PURPOSE).digest()


class PathValidation:
    """The listening side's view: the address in use, and another one that may take its place. Time is an argument."""

    def __init__(self, connection: int, tags: PathTags, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """
        Args:
            connection: how the peer names it.
            tags: of the connection.
            random: makes so many bytes that nobody can guess.
        """
        self._connection = connection
        self._tags = tags
        self._random = random
        self._highest = 0
        self._candidate: Address | None = None
        self._challenge = b""
        self._asked_at = 0.0
        self._answered_at: float | None = None

    def is_pending(self, now: float) -> bool:
        """Whether an address may yet take the place of the one in use."""
        if self._candidate is not None and self._answered_at is None and now - self._asked_at > VALIDATION_SECONDS:
            self._forget()
        return self._candidate is not None

    def on_ping(self, number: int) -> None:
        """A ping whose tag is right has come from the address in use."""
        if number > self._highest:
            self._highest = number
            self._forget()

    def on_ping_elsewhere(self, number: int, address: Address, now: float) -> bytes | None:
        """A ping whose tag is right has come from another address: the challenge to send there, and to the one in use.

        None where it is no newer than others, as a copy is, and where the address has answered already.
        """
        if number <= self._highest:
            return None
        self._highest = number
        if not self.is_pending(now) or address != self._candidate:
            self._candidate, self._answered_at = address, None
            self._challenge, self._asked_at = self._random(CHALLENGE_BYTES), now
        return self._challenge if self._answered_at is None else None

    def on_response(self, tag: bytes, address: Address | None, now: float) -> bool:
        """An answer to a challenge has come from this address, None: the one in use. False: it is none of ours."""
        if self._candidate is None or not self._tags.is_of_response(tag, self._connection, self._challenge):
            return False
        if address is None:
            self._forget()
        elif address == self._candidate:
            if self._answered_at is None:
                self._answered_at = now
        else:
            return False
        return True

    def take_new_address(self, now: float) -> Address | None:
        """The address to follow the peer to, once it is sure."""
        if self._candidate is None or self._answered_at is None:
            return None
        silence = max(LEAST_SILENCE_SECONDS, self._answered_at - self._asked_at)
        if now - self._answered_at < silence:
            return None
        address = self._candidate
        self._forget()
        return address

    def _forget(self) -> None:
        self._candidate = None
        self._answered_at = None
