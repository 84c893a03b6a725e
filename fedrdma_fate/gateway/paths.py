"""Data paths to one peer: which transports there are, which one is used and why, and how it is connected."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping

from fedrdma_fate.engine.link import Link
from fedrdma_fate.ports import Draft, Role, Transport
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import Connect, ControlFrame, Hello

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 10.0
ATTEMPTS_BEFORE_FALLBACK = 3


@dataclasses.dataclass(slots=True)
class DataPath:
    """The data path over one transport.

    Attributes:
        link: its engine.
        reason: why this transport was chosen.
        main: whether `fedrdma` and `fedrdma-e` use it, or only mode `grpc`.
        up: whether it is connected.
        attempt: number of the newest attempt to connect it.
        ever_up: whether it has ever been connected: from then on, transfers are bound to it.
        last_error: why it is not connected.
    """

    link: Link
    reason: str
    main: bool
    up: bool = False
    attempt: int = 0
    ever_up: bool = False
    last_error: str = ""
    retry_seconds: float = FIRST_RETRY_SECONDS
    failures: int = 0
    draft: Draft | None = None


def choose_transport(own: tuple[str, ...], host: str, peer: Hello, unusable: frozenset[str]) -> tuple[str, str]:
    """The transport to use, and why.

    Args:
        own: transports that this side allows, best first.
        host: identity of this host.
        peer: the peer's greeting.
        unusable: transports that were tried in vain.
    """
    notes = []
    for name in own:
        if name not in peer.transports:
            notes.append(f"{name}: not offered by {peer.site}")
        elif name == "shm" and peer.host != host:
            notes.append("shm: other host")
        elif name in unusable:
            notes.append(f"{name}: could not be connected")
        else:
            why = {"shm": "both gateways run on one host", "tcp": "reachable by TCP"}.get(name, "the fallback")
            return name, "; ".join([why, *notes])
    return "grpc", "; ".join(["the fallback", *notes])


class DataPaths:
    """All data paths to one peer. Belongs to the event loop's thread.

    The side that dialled the control channel is active: it starts every attempt. The other asks for one with attempt 0.
    """

    def __init__(
        self,
        site: str,
        transports: Mapping[str, Transport],
        make_link: Callable[[str], Link],
        send: Callable[[ControlFrame], object],
        call_later: Callable[[float, Callable[[], None]], object],
        give_up: Callable[[str], None],
    ) -> None:
        self._site = site
        self._transports = transports
        self._make_link = make_link
        self._send = send
        self._call_later = call_later
        self._give_up = give_up
        self._role: Role = "passive"
        self._online = False
        self.paths: dict[str, DataPath] = {}
        self.unusable: set[str] = set()

    def online(self, role: Role) -> None:
        """The control channel is up: renew every path."""
        self._role = role
        self._online = True
        for name in self.paths:
            self._start(name)

    def offline(self, reason: str) -> None:
        """The control channel is gone, and with it the right to any data path."""
        self._online = False
        for path in self.paths.values():
            path.up = False
            path.last_error = reason
            self._drop_draft(path)
            path.link.suspend(reason)

    def need(self, transport: str, reason: str, *, main: bool, start: bool = True) -> DataPath:
        """The path over this transport; starts connecting it if it is new."""
        if transport not in self.paths:
            self.paths[transport] = DataPath(self._make_link(transport), reason, main)
            if self._online and start:
                self._start(transport)
        return self.paths[transport]

    def on_connect(self, frame: Connect) -> None:
        """The peer's half of an attempt, or its wish for one."""
        if frame.transport not in self._transports:
            logger.warning("%s asks for the transport %r, which is not offered", self._site, frame.transport)
            return
        path = self.need(frame.transport, frame.reason, main=frame.main, start=False)
        path.main = path.main or frame.main
        if frame.attempt == 0 and self._role == "active":
            if path.draft is None and not path.up:
                self._start(frame.transport)
        elif self._role == "passive":
            self._answer(path, frame)
        elif frame.attempt == path.attempt and path.draft is not None:
            draft, path.draft = path.draft, None
            path.link.connect(draft, frame.offer)

    def on_up(self, transport: str) -> None:
        """A path is connected."""
        path = self.paths.get(transport)
        if path is None:
            return
        path.up = path.ever_up = True
        path.last_error = ""
        path.failures = 0
        path.retry_seconds = FIRST_RETRY_SECONDS

    def on_lost(self, transport: str, reason: str) -> None:
        """A path is gone, or could not be connected: try again, later each time."""
        path = self.paths.get(transport)
        if path is None:
            return
        path.up = False
        path.last_error = reason
        path.failures += 1
        if not path.ever_up and path.failures >= ATTEMPTS_BEFORE_FALLBACK and transport != "grpc":
            self.unusable.add(transport)
            if path.main and self._role == "active":
                self._give_up(transport)
                return
        if self._online and self._role == "active":
            self._call_later(path.retry_seconds, lambda: self._retry(transport))
            path.retry_seconds = min(path.retry_seconds * 2, LAST_RETRY_SECONDS)

    def abandon(self, transport: str) -> None:
        """Forget a path that never came up."""
        path = self.paths.pop(transport)
        self._drop_draft(path)
        path.link.close()

    def close(self) -> None:
        """End all links."""
        for path in self.paths.values():
            self._drop_draft(path)
            path.link.close()

    def _retry(self, transport: str) -> None:
        path = self.paths.get(transport)
        if self._online and path is not None and not path.up:
            self._start(transport)

    def _start(self, transport: str) -> None:
        path = self.paths[transport]
        if self._role == "passive":
            self._send(Connect(transport, path.reason, 0, path.main, {}))
            return
        path.attempt += 1
        draft = self._open(path, transport, "active")
        if draft is not None:
            path.draft = draft
            self._send(Connect(transport, path.reason, path.attempt, path.main, dict(draft.offer)))

    def _answer(self, path: DataPath, frame: Connect) -> None:
        if frame.attempt == 0:
            return
        path.reason = frame.reason
        path.attempt = frame.attempt
        draft = self._open(path, frame.transport, "passive")
        if draft is not None:
            self._send(Connect(frame.transport, frame.reason, frame.attempt, frame.main, dict(draft.offer)))
            path.link.connect(draft, frame.offer)

    def _open(self, path: DataPath, transport: str, role: Role) -> Draft | None:
        self._drop_draft(path)
        try:
            return self._transports[transport].open(role)
        except FedRDMAError as error:
            logger.warning("no data path to %s over %s: %s", self._site, transport, error)
            self.on_lost(transport, str(error))
            return None

    def _drop_draft(self, path: DataPath) -> None:
        draft, path.draft = path.draft, None
        if draft is not None:
            draft.close()
