"""Datagrams of a link's data path, which may have none: sealed as they go out, opened as they come in. Nowhere else."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter

from fedrdma_fate.core.path_probe import TRAIN_DATAGRAMS, Train
from fedrdma_fate.engine.events import DatagramFault
from fedrdma_fate.ports import Endpoint
from fedrdma_fate.security.datagram_tags import (
    DatagramKeys,
    DatagramOpener,
    DatagramSealer,
    ForgedDatagramError,
    ReplayedDatagramError,
)
from fedrdma_fate.wire.datagrams import Datagram, PathProbe, decode_datagram, encode_datagram
from fedrdma_fate.wire.errors import TransportError, WireError

logger = logging.getLogger(__name__)

COPIES = 2
"""Of a short datagram that is not sent again."""


class LinkDatagrams:
    """The datagrams of one link. Belongs to whoever gives the link its turns."""

    def __init__(self, peer: str) -> None:
        """
        Args:
            peer: its name, for the log.
        """
        self._peer = peer
        self._endpoint: Endpoint | None = None
        self._sealer: DatagramSealer | None = None
        self._opener: DatagramOpener | None = None
        self._train = b""
        self._train_left = 0
        self._probe: PathProbe | None = None
        self._dropped: Counter[DatagramFault] = Counter()
        self._complained: set[DatagramFault] = set()

    def path_up(self, endpoint: Endpoint, keys: DatagramKeys) -> None:
        """The data path is new, and so are its keys: counters begin anew, and nothing of an older path is taken."""
        self._endpoint = endpoint
        self._sealer, self._opener = DatagramSealer(keys.send), DatagramOpener(keys.receive)
        self._train, self._train_left = b"", 0
        self._complained.clear()

    def path_lost(self) -> None:
        """There is none until it is renewed."""
        self._endpoint = self._sealer = self._opener = None

    def post(self, datagram: Datagram, copies: int = 1, padding: int = 0) -> bool:
        """Whether it is on its way; it may be lost. A path that breaks just now says so when it is asked for progress.

        Each copy is sealed by itself: a datagram that comes twice is then always somebody else's doing.
        """
        body = encode_datagram(datagram)
        posted = [self._post(body, padding=padding) for _ in range(copies)]
        return any(posted)

    def post_train(self, train: Train) -> bool:
        """Whether the whole train is on its way: equal datagrams, back to back, sealed once for all."""
        return self._post(train.datagram, train.count, train.padding)

    def open(self, sealed: bytes) -> Datagram | None:
        """What the peer has sent; None when it is not from the peer, or came before, or is nothing that is known."""
        if self._train_left and sealed == self._train:
            # as many as a train has: who sends one again can at most fill in for one that was lost
            self._train_left -= 1
            return self._probe
        if self._opener is None:
            return None
        try:
            datagram = decode_datagram(self._opener.open(sealed))
        except ForgedDatagramError:
            self._drop("forged", "its tag is wrong: somebody else has sent or changed it")
            return None
        except ReplayedDatagramError:
            self._drop("replayed", "it has come before")
            return None
        except WireError as error:
            self._drop("malformed", str(error))
            return None
        if isinstance(datagram, PathProbe):
            self._train, self._train_left, self._probe = sealed, TRAIN_DATAGRAMS - 1, datagram
        return datagram

    def note_strays(self, count: int) -> None:
        """The data path has dropped packets that belonged to nothing of it."""
        self._drop("stray", "it belongs to nothing that was granted", count)

    def take_dropped(self) -> Counter[DatagramFault]:
        """How many were dropped since the last call, by reason."""
        dropped, self._dropped = self._dropped, Counter()
        return dropped

    def _post(self, body: bytes, copies: int = 1, padding: int = 0) -> bool:
        endpoint, sealer = self._endpoint, self._sealer
        with contextlib.suppress(TransportError):
            if endpoint is not None and sealer is not None:
                return endpoint.post_datagram(sealer.seal(body), copies, padding)
        return False

    def _drop(self, fault: DatagramFault, reason: str, count: int = 1) -> None:
        """Count it; the first of a kind on each path is logged, for whoever forges has many."""
        self._dropped[fault] += count
        if fault not in self._complained and fault != "stray":
            self._complained.add(fault)
            logger.warning("link to %s: dropped a datagram, and counts further ones: %s", self._peer, reason)
