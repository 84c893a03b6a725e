"""Dials the peers and answers those that dial us: greetings first, then the control channel is its peer's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping

from fedrdma_fate.gateway.peers.channel_security import check_site
from fedrdma_fate.gateway.peers.control_channel import Refused, dial, tell_nobody
from fedrdma_fate.gateway.peers.control_connection import ChannelSecurity
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.obs.complaints import cut
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransportError, WireError
from fedrdma_fate.wire.frames import Goodbye, Hello, decode_frame, encode_frame
from fedrdma_fate.wire.greetings import LATER_FIELDS, encode_greeting, known_by_refusal, later_fields_of
from fedrdma_fate.wire.header import PROTOCOL_VERSION

logger = logging.getLogger(__name__)

FIRST_REDIAL_SECONDS = 0.2
"""Before the second attempt to reach a peer: one that was just restarted may be there by then."""
LAST_REDIAL_SECONDS = 5.0
"""Between two attempts at most, after doubling: so long after its return a peer is connected again. Also how long a
channel must have lasted for the next attempt to come soon."""

MOST_REASON_CHARACTERS = 600
"""Of why a channel is refused: errors of ours with dates and advice, in which names of others are cut."""

SECOND_DIALLER_SECONDS = 1.0
"""Of two sites that may both dial, the one with the greater name waits so long for the other to do it."""


_TRIED_AGAIN = "It is tried again; messages for it wait."


class GreetingRefusedError(TransportError):
    """The other side has said goodbye to our greeting.

    Attributes:
        reason: that it gave.
    """

    def __init__(self, whose: str, reason: str) -> None:
        """
        Args:
            whose: who refuses, for people.
            reason: that it gave.
        """
        super().__init__(ErrorCode.PEER_UNREACHABLE, f"{whose} refuses us: {reason.rstrip('.')}.", _TRIED_AGAIN)
        self.reason = reason


class Dialler:
    """Dials and answers. Belongs to the event loop's thread."""

    def __init__(
        self,
        site: str,
        peers: Mapping[str, Peer],
        greeting_timeout: float,
        security: Callable[[], ChannelSecurity | None] = lambda: None,
        refused: Refused = tell_nobody,
    ) -> None:
        """
        Args:
            site: our name.
            peers: by their names.
            greeting_timeout: seconds that the other side has to greet.
            security: makes the next channel one of TLS; None does without.
            refused: told of those whose peers are not known.
        """
        self._security = security
        self._refused = refused
        self._site = site
        self._peers = peers
        self._greeting_timeout = greeting_timeout
        self._goodbye: Goodbye | None = None
        # by site: what an older version, that has just refused our greeting, knows of it
        self._known: dict[str, tuple[str, ...]] = {}

    def stop(self, reason: str, *, forgets: bool) -> None:
        """Open no more channels: a peer that came back behind our goodbye would believe that we go on.

        Args:
            reason: for those who dial from now on.
            forgets: see `Goodbye`; for who has our greeting, and is not served any more.
        """
        self._goodbye = Goodbye(reason, forgets)

    async def keep_dialling(self, peer: Peer, address: str) -> None:
        """Dial the peer whenever it is not connected, for ever; less and less often while that is in vain."""
        delay = SECOND_DIALLER_SECONDS if self._site > peer.config.site else 0.0
        pause = 0.0
        while True:
            await peer.offline.wait()
            await asyncio.sleep(pause + delay)
            if self._goodbye is not None:
                return
            if peer.connected or peer.shut_out:
                pause = LAST_REDIAL_SECONDS if peer.shut_out else pause
                continue
            began = time.monotonic()
            await self._dial(peer, address)
            lasted = time.monotonic() - began
            pause = FIRST_REDIAL_SECONDS if lasted > LAST_REDIAL_SECONDS else _next_pause(pause)

    async def accept(self, stream: ControlStream) -> None:
        """Another gateway has dialled us: greet it, and serve the channel until it ends."""
        try:
            if stream.failure is not None:
                raise stream.failure
            if stream.identity is not None:
                # before anything that it says
                self._peer_of(stream.identity.site)
            hello, known = await self._greeting(stream, "a site that dialled")
            peer = self._peer_of(hello.site)
            check_site(stream, hello.site, f"who greets as {hello.site!r}")
            peer.keys.check(hello)
        except FedRDMAError as error:
            self._refused(stream.remote_host or "unknown", error)
            stream.write(encode_frame(Goodbye(cut(error, MOST_REASON_CHARACTERS))))
            stream.close()
            return
        if peer.shut_out:
            stream.write(encode_frame(Goodbye("cut off for a while: it has sent too much")))
            stream.close()
            return
        if self._goodbye is not None:
            # it has no greeting of ours, so there is nothing to forget
            stream.write(encode_frame(Goodbye(self._goodbye.reason)))
            stream.close()
            return
        stream.admit()
        stream.write(encode_greeting(peer.own_hello(), known))
        await peer.run(stream, hello, hello.site)

    async def _dial(self, peer: Peer, address: str) -> None:
        # once only: whoever is updated is told all again
        known = self._known.pop(peer.config.site, LATER_FIELDS)
        async with contextlib.AsyncExitStack() as stack:
            try:
                stream = await stack.enter_async_context(dial(address, self._security(), self._greeting_timeout))
                check_site(stream, peer.config.site, address)
                stream.write(encode_greeting(peer.own_hello(), known))
                hello, _ = await self._greeting(stream, f"site {peer.config.site} at {address}")
                if hello.site != peer.config.site:
                    raise TransportError(
                        ErrorCode.PEER_UNKNOWN,
                        f"{address} is the gateway of {hello.site!r}, not of {peer.config.site!r}.",
                        "Correct `peers[].address` or `peers[].site`.",
                    )
                peer.keys.check(hello)
            except FedRDMAError as error:
                if isinstance(error, GreetingRefusedError) and self._greets_with_less(peer, known, error.reason):
                    return
                # the same trouble is told once, not at every attempt
                if peer.last_error != (trouble := cut(error, MOST_REASON_CHARACTERS)):
                    peer.last_error = trouble
                    logger.warning("%s: %s", peer.config.site, trouble)
                    if error.code in (ErrorCode.TLS_REFUSED, ErrorCode.PEER_IDENTITY):
                        self._refused(address, error)
                return
            if self._goodbye is not None:
                # who does not name its own journal does not know that field; and who was away when this gateway told of
                # what it had does not know of that
                forgets = self._goodbye.forgets and bool(hello.journal) and not peer.has_to_tell
                stream.write(encode_frame(Goodbye(self._goodbye.reason, forgets)))
                return
            stream.admit()
            await peer.run(stream, hello, self._site)

    def _greets_with_less(self, peer: Peer, known: Collection[str], reason: str) -> bool:
        """Whether a peer is of an older version, and is greeted without what is new at the next attempt."""
        fewer = known_by_refusal(reason)
        if fewer is None or len(fewer) >= len(known):
            return False
        logger.info("%s is of an older version: it is greeted without %s", peer.config.site, LATER_FIELDS[len(fewer)])
        self._known[peer.config.site] = fewer
        return True

    def _peer_of(self, site: str) -> Peer:
        peer = self._peers.get(site)
        if peer is None:
            raise TransportError(
                ErrorCode.PEER_UNKNOWN,
                f"site {cut(site)!r} is not among the peers of {self._site!r}: {', '.join(self._peers) or 'none'}.",
                "Add it to `peers`, spelt as its own configuration spells `site`.",
            )
        return peer

    async def _greeting(self, stream: ControlStream, whose: str) -> tuple[Hello, frozenset[str]]:
        """The greeting that a control channel begins with, and which of the later fields it has.

        Raises:
            GreetingRefusedError: PEER_UNREACHABLE when the other side refuses us.
            TransportError: PEER_UNREACHABLE when none comes.
            WireError: MALFORMED_FRAME or PROTOCOL_VERSION.
        """
        too_late = f" within {self._greeting_timeout:g} s"
        timer = asyncio.get_running_loop().call_later(self._greeting_timeout, stream.stop_reading, too_late)
        try:
            # in this very task: a further one would take turns of the loop, in which a stranger's end of the stream
            # can come before our answer to it is written
            raw = await stream.read()
        finally:
            timer.cancel()
        if raw is None:
            if stream.failure is not None:
                raise stream.failure
            raise _unreachable(f"{whose} does not answer{stream.end_reason}")
        frame = decode_frame(raw)
        if isinstance(frame, Goodbye):
            raise GreetingRefusedError(whose, frame.reason)
        if not isinstance(frame, Hello):
            raise WireError(ErrorCode.MALFORMED_FRAME, f"{whose} began with a {type(frame).__name__}, not a greeting.")
        if frame.protocol != PROTOCOL_VERSION:
            raise WireError(
                ErrorCode.PROTOCOL_VERSION,
                f"{frame.site} speaks protocol {frame.protocol}, {self._site} {PROTOCOL_VERSION}.",
                "Run the same fedrdma-fate version on both sides.",
            )
        return frame, later_fields_of(raw)


def _next_pause(pause: float) -> float:
    return min(max(FIRST_REDIAL_SECONDS, pause * 2), LAST_REDIAL_SECONDS)


def _unreachable(what: str) -> TransportError:
    return TransportError(ErrorCode.PEER_UNREACHABLE, f"{what}.", _TRIED_AGAIN)
