"""Data paths to one peer: what there is of them, and how each is connected, renewed and given up."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping

from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.gateway.background import TimerHandle
from fedrdma_fate.gateway.peers.link_events import LinkEvents
from fedrdma_fate.obs.complaints import EACH_TELLS, Complaints
from fedrdma_fate.ports import Draft, EndpointAddress, LentRegion, Role, Transport
from fedrdma_fate.security.datagram_tags import DatagramKeys
from fedrdma_fate.security.key_schedule import PATH_NONCE_BYTES, new_path_nonce
from fedrdma_fate.security.sealing import PathSealing
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, WireError
from fedrdma_fate.wire.frames import Connect, ControlFrame

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.2
"""Before the second attempt to connect a data path, as for control channels."""
LAST_RETRY_SECONDS = 10.0
"""Between two attempts at most, after doubling: a data path has the other transports to fall back to meanwhile."""

ATTEMPTS_BEFORE_FALLBACK = 3
"""A path that has never come up is given up after so many attempts."""

GIVE_UP_SECONDS = 2.0
"""A main path that has been up, and is down while the control channel is there, after so long: another would carry what
waits for it, and it is tried again soon."""

GIVE_UP_FOR_LAST_RESORT_SECONDS = 120.0
"""The same where only `grpc` is left, by which nothing is fast: a device that is reset is there again before."""

USEFUL_SECONDS = 10.0
"""A connection that carried nothing and was lost before counts as a failed attempt."""


@dataclasses.dataclass(slots=True)
class DataPath:
    """The data path over one transport.

    Attributes:
        link: its link.
        events: carries what happens on it over to us.
        reason: why this transport was chosen.
        main: whether all modes use it, or only mode `grpc`.
        up: whether it is connected.
        up_since: when it was, the last time.
        up_seconds: for how long it was up, the last time.
        carried: whether anything has gone by it since it was connected the last time.
        connecting: whether an attempt to connect it is under way; known to the active side.
        attempt: number of the newest attempt, by which both sides know it: the active side has counted.
        connection: the same as our link knows it, and names it in its events: we have counted, whoever is active.
        ever_up: whether it has ever been connected.
        last_error: why it is not connected.
        failures: attempts that failed, or connections that were lost at once, since it was last of use.
        down_since: when the first of them did.
        retry_seconds: how long to wait before the next attempt.
        draft: our half of the attempt, until the other half comes.
        meeting: our half, from then on.
        nonce: ours, for the keys of this attempt, until the same.
        lent_region: what the peer may lend from, as long as it is connected.
        timer: the next attempt, or the end of waiting for the other half.
        patience: the end of waiting for it to come back.
    """

    link: LinkHandle
    events: LinkEvents
    reason: str
    main: bool
    up: bool = False
    up_since: float = 0.0
    up_seconds: float = 0.0
    carried: bool = False
    connecting: bool = False
    attempt: int = 0
    connection: int = 0
    ever_up: bool = False
    last_error: str = ""
    failures: int = 0
    down_since: float = 0.0
    retry_seconds: float = FIRST_RETRY_SECONDS
    draft: Draft | None = None
    meeting: Draft | None = None
    nonce: bytes = b""
    lent_region: LentRegion | None = None
    timer: TimerHandle | None = None
    patience: TimerHandle | None = None

    def went_down(self, now: float) -> None:
        """It is up no more."""
        if self.up:
            self.up_seconds = now - self.up_since
            self.carried = self.carried or any(progress.done_bytes for progress in self.link.progress())
            self.up = False

    def stop(self) -> None:
        """Drop what was being done to connect it."""
        self.up = self.connecting = False
        self.lent_region = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.draft is not None:
            self.draft.close()
            self.draft = None
        if self.meeting is not None:
            # its link could not meet the half of another attempt before it has waited for this one
            self.meeting.abandon()
            self.meeting = None

    def meet(self, draft: Draft, offer: EndpointAddress, security: tuple[DatagramKeys, PathSealing | None]) -> None:
        """Have our half meet that of the peer."""
        self.meeting = draft
        self.link.connect(draft, offer, self.connection, *security)

    def lose_patience(self) -> None:
        """Nobody waits for it to come back any more."""
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def retire(self) -> None:
        """End it; see `Link.retire`."""
        self.stop()
        self.lose_patience()
        self.events.retire()
        self.link.retire()


class DataPaths:
    """All data paths to one peer. Belongs to the event loop's thread.

    The side that dialled the control channel is active: it starts every attempt. The other asks for one with attempt 0.
    """

    def __init__(
        self,
        site: str,
        transports: Mapping[str, Transport],
        allows: Callable[[str], bool],
        make_link: Callable[[str], tuple[LinkHandle, LinkEvents]],
        send: Callable[[ControlFrame], object],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        clock: Callable[[], float],
        answer_timeout: float,
        give_up: Callable[[str], None],
        open_draft: Callable[[str, Role], Draft] | None = None,
        *,
        has_next: Callable[[str], bool] | None = None,
        drop: Callable[[str, str], None] | None = None,
        secure: Callable[[str, bytes, bytes], tuple[DatagramKeys, PathSealing | None]],
        complaints: Complaints | None = None,
    ) -> None:
        """
        Args:
            site: the peer, for logs.
            transports: by name.
            allows: whether one may be used with this peer, whoever asks for it.
            make_link: makes a link over a transport.
            send: sends a frame to the peer.
            call_later: calls something on this thread after so many seconds.
            clock: seconds, of any origin.
            answer_timeout: seconds that the peer has to send its half of an attempt.
            give_up: called on the active side with a main path that cannot be connected.
            has_next: whether there is another path than the last resort to take in its place; None: there is.
            drop: called with a path beside the main one that is lost: it is not connected anew.
            open_draft: starts a data path over a transport, for this peer; None: as the transport does.
            secure: the keys of one connection over a transport, by our nonce and the peer's, and what seals its chunks.
            complaints: about what the peer asks for, and about paths that cannot be made.
        """
        self._secure = secure
        self._site = site
        self._complaints = complaints or Complaints()
        self._transports = transports
        self._allows = allows
        self._make_link = make_link
        self._send = send
        self._call_later = call_later
        self._clock = clock
        self._answer_timeout = answer_timeout
        self._give_up = give_up
        self._has_next = has_next or (lambda _: True)
        self._drop = drop or (lambda transport, _: self.abandon(transport))
        self._open_draft = open_draft or (lambda name, role: transports[name].open(role))
        self._role: Role = "passive"
        self._online = False
        self._retired: list[LinkHandle] = []
        self._connections: dict[str, int] = {}
        self.paths: dict[str, DataPath] = {}
        self.unusable: dict[str, str] = {}

    @property
    def active(self) -> bool:
        """Whether this side starts every attempt, and chooses the main path."""
        return self._online and self._role == "active"

    @property
    def main(self) -> DataPath | None:
        """The path that all modes but `grpc` use."""
        return next((path for path in self.paths.values() if path.main), None)

    @property
    def main_transport(self) -> str | None:
        """Its transport."""
        return next((name for name, path in self.paths.items() if path.main), None)

    def is_aside(self, transport: str) -> bool:
        """Whether this path is being tried, or left: neither the main one nor that of mode `grpc`."""
        path = self.paths.get(transport)
        return path is not None and not path.main and transport != "grpc"

    def known(self, transport: str) -> KnownPath | None:
        """What the data path over this transport has found of itself, None where there is none."""
        path = self.paths.get(transport)
        return None if path is None else path.link.known_path

    def dispatch(self, outgoing: Outgoing) -> str:
        """Hand a payload to a link: the transport, or an empty string as long as there is none."""
        if outgoing.mode == "grpc":
            self.need("grpc", "mode grpc", main=False).link.send(outgoing)
            return "grpc"
        transport = self.main_transport
        if transport is None:
            return ""
        self.paths[transport].link.send(outgoing)
        return transport

    def written(self, transport: str, transfer: int) -> None:
        """Tell a link that more of a payload lies in its slot."""
        if (path := self.paths.get(transport)) is not None:
            path.link.written(transfer)

    def recall_credits(self) -> None:
        """Ask the peer for what it was granted ahead of time and does not use: others wait for the memory."""
        for path in self.paths.values():
            path.link.recall_credits()

    def cancel(self, transport: str, transfer: int, code: ErrorCode, reason: str) -> bool:
        """Have a link give a payload up; False when there is no such link."""
        if (path := self.paths.get(transport)) is None:
            return False
        path.link.cancel(transfer, code, reason)
        return True

    def online(self, role: Role) -> None:
        """The control channel is up: renew every path."""
        self._role = role
        self._online = True
        for transport in list(self.paths):
            self._start(transport)

    def offline(self, reason: str) -> None:
        """The control channel is gone, and with it the right to any data path."""
        self._online = False
        for path in self.paths.values():
            path.went_down(self._clock())
            path.stop()
            path.lose_patience()
            path.last_error = reason
            path.link.suspend(reason)

    def need(self, transport: str, reason: str, *, main: bool, start: bool = True) -> DataPath:
        """The path over this transport; starts connecting it if it is new, or new as main path: the peer must know."""
        path = self.paths.get(transport)
        changed = path is None or (main and not path.main)
        if path is None:
            path = self.paths[transport] = DataPath(*self._make_link(transport), reason, main)
        if changed:
            path.main, path.reason = main, reason
            if self._online and start:
                self._start(transport)
        return path

    def offers(self, transport: str) -> bool:
        """Whether there may be a path to the peer over this transport."""
        return transport in self._transports and self._allows(transport)

    def on_connect(self, frame: Connect) -> None:
        """The peer's half of an attempt, or its wish for one.

        Raises:
            WireError: MALFORMED_FRAME when its half has no nonce.
        """
        if frame.attempt and len(frame.nonce) != PATH_NONCE_BYTES:
            raise WireError(
                ErrorCode.MALFORMED_FRAME,
                f"a connect frame with a nonce of {len(frame.nonce)} bytes, not {PATH_NONCE_BYTES}.",
            )
        if not self.offers(frame.transport):
            message = "%s asks for the transport %s, which is not offered"
            self._complaints.add(
                logger, "transport not offered", self._site, message, self._site, repr(frame.transport)
            )
            return
        if self._role == "passive":
            self._answer(frame)
        elif frame.attempt == 0:
            self._on_request(frame)
        else:
            self._on_answer(frame)

    def on_up(self, transport: str, connection: int, lent_region: LentRegion | None = None) -> bool:
        """A path was connected, by the attempt that is this connection; whether it may be used."""
        path = self.paths.get(transport)
        if path is None or path.connection != connection or not self._online:
            return False
        path.meeting = None
        path.stop()
        path.lose_patience()
        path.up = path.ever_up = True
        path.up_since, path.carried = self._clock(), False
        path.lent_region = lent_region
        path.last_error = ""
        path.retry_seconds = FIRST_RETRY_SECONDS
        self.unusable.pop(transport, None)
        return True

    def on_lost(self, transport: str, reason: str, code: ErrorCode | None = None) -> None:
        """A path is gone, or could not be connected: try again, later each time, or give it up.

        Args:
            transport: of the path.
            reason: why.
            code: of the error, where there was one.
        """
        path = self.paths.get(transport)
        if path is None or not self._online:
            return
        was_up = path.up
        path.went_down(self._clock())
        path.meeting = None
        path.stop()
        path.last_error = reason
        if self.is_aside(transport):
            self._drop(transport, reason)
            return
        if was_up and (path.carried or path.up_seconds >= USEFUL_SECONDS):
            path.failures = 0
        path.failures += 1
        if path.failures == 1:
            path.down_since = self._clock()
        if self._is_to_be_given_up(transport, path, code) and transport != "grpc":
            self.unusable[transport] = _trouble(path)
            if self._may_give_up(transport, path):
                self._give_up(transport)
                return
        path.timer = self._call_later(path.retry_seconds, lambda: self._start(transport))
        path.retry_seconds = min(path.retry_seconds * 2, LAST_RETRY_SECONDS)

    def abandon(self, transport: str) -> None:
        """Forget a path; see `Link.retire`."""
        path = self.paths.pop(transport)
        path.retire()
        self._retired = [link for link in self._retired if link.alive]
        self._retired.append(path.link)

    def close(self) -> list[LinkHandle]:
        """End all links; those whose threads may still have to be waited for."""
        for transport in list(self.paths):
            self.abandon(transport)
        return self._retired

    def _is_to_be_given_up(self, transport: str, path: DataPath, code: ErrorCode | None) -> bool:
        if transport == "udp" and (path.ever_up or code is ErrorCode.UDP_BLOCKED):
            # to find it out took seconds, and what does not let UDP pass now seldom does in a moment; else an attempt
            # came to nothing by TCP, as it may by chance where packets are lost
            return True
        if path.failures < ATTEMPTS_BEFORE_FALLBACK:
            return False
        return not path.ever_up or self._clock() - path.down_since > self._patience(transport)

    def _may_give_up(self, transport: str, path: DataPath) -> bool:
        return path.main and self._role == "active" and transport != "grpc"

    def _patience(self, transport: str) -> float:
        return GIVE_UP_SECONDS if self._has_next(transport) else GIVE_UP_FOR_LAST_RESORT_SECONDS

    def _lose_patience(self, transport: str) -> None:
        """A path was to come back, however long an attempt takes that is under way."""
        path = self.paths.get(transport)
        if path is None:
            return
        path.patience = None
        if self._online and not path.up and self._may_give_up(transport, path):
            self.unusable[transport] = _trouble(path)
            self._give_up(transport)

    def _start(self, transport: str) -> None:
        path = self.paths.get(transport)
        if path is None:
            return
        path.went_down(self._clock())
        path.stop()
        if self._role == "passive":
            self._send(Connect(transport, path.reason, 0, path.main, {}))
            return
        if path.ever_up and path.patience is None and self._may_give_up(transport, path):
            # an attempt may take longer than that
            path.patience = self._call_later(self._patience(transport), lambda: self._lose_patience(transport))
        path.attempt = path.connection = self._next_connection(transport)
        draft = self._open(transport, "active")
        if draft is not None:
            path.draft = draft
            path.nonce = new_path_nonce()
            path.connecting = True
            path.timer = self._call_later(self._answer_timeout, lambda: self._unanswered(transport))
            offer = dict(draft.address)
            self._send(Connect(transport, path.reason, path.attempt, path.main, offer, path.nonce))

    def _unanswered(self, transport: str) -> None:
        self.on_lost(transport, f"{self._site} did not answer within {self._answer_timeout:g} s")

    def _answer(self, frame: Connect) -> None:
        if frame.attempt == 0:
            return
        path = self.need(frame.transport, frame.reason, main=frame.main, start=False)
        path.went_down(self._clock())
        path.stop()
        path.reason = frame.reason
        path.attempt = frame.attempt
        path.connection = self._next_connection(frame.transport)
        draft = self._open(frame.transport, "passive")
        if draft is not None:
            nonce = new_path_nonce()
            self._send(Connect(frame.transport, frame.reason, frame.attempt, frame.main, dict(draft.address), nonce))
            path.meet(draft, frame.offer, self._secure(frame.transport, nonce, frame.nonce))

    def _on_answer(self, frame: Connect) -> None:
        path = self.paths.get(frame.transport)
        if path is not None and path.draft is not None and frame.attempt == path.attempt:
            draft, path.draft = path.draft, None
            path.stop()
            path.connecting = True
            path.meet(draft, frame.offer, self._secure(frame.transport, path.nonce, frame.nonce))

    def _next_connection(self, transport: str) -> int:
        """A number that no earlier path over it has had, nor this one when the peer was active: what the link tells of
        those late is not of this connection."""
        number = self._connections[transport] = self._connections.get(transport, 0) + 1
        return number

    def _on_request(self, frame: Connect) -> None:
        """The passive side has lost a path, though it may look up from here, or needs one for mode grpc."""
        path = self.paths.get(frame.transport)
        if path is None and frame.transport == "grpc":
            self.need(frame.transport, frame.reason, main=False)
        elif path is not None and not path.connecting:
            self._start(frame.transport)

    def _open(self, transport: str, role: Role) -> Draft | None:
        try:
            return self._open_draft(transport, role)
        except FedRDMAError as error:
            message = "no data path to %s over %s: %s"
            self._complaints.add(
                logger, "no data path", self._site, message, self._site, transport, error, lines=EACH_TELLS
            )
            self.on_lost(transport, str(error))
            return None


def _trouble(path: DataPath) -> str:
    """Why a path is given up."""
    what = "was lost" if path.ever_up else "could not be connected"
    return f"{what} ({path.last_error.rstrip('.')})"
