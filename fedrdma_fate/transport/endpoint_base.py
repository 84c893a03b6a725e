"""What the endpoints of all transports share: whether they still live, and how the peer's address is read."""

from __future__ import annotations

from collections.abc import Collection

from fedrdma_fate.ports import ChunkService, EndpointAddress, LentRegion, Opener
from fedrdma_fate.wire.errors import ErrorCode, TransportError

TOKEN_BYTES = 16
"""Of what names a half that waits for its other half: random, so that nobody else meets it."""


class EndpointHealth:
    """Remembers why an endpoint lost its link; the first reason stands."""

    def __init__(self, transport: str) -> None:
        self._transport = transport
        self._reason: str | None = None

    @property
    def lost(self) -> bool:
        return self._reason is not None

    def lose(self, reason: str) -> None:
        """From now on `check` raises."""
        if self._reason is None:
            self._reason = reason

    def check(self) -> None:
        """Do nothing while the link lives.

        Raises:
            TransportError: LINK_LOST, with the reason.
        """
        if self._reason is not None:
            raise TransportError(ErrorCode.LINK_LOST, f"the {self._transport} data path is lost: {self._reason}.")


class ReliableEndpoint:
    """Base of endpoints whose path loses nothing and paces itself: what `fedrdma-x` asks of them is the same."""

    def open_with(self, opener: Opener) -> bool:
        """Not here: it would go as it is."""
        del opener
        return False

    @property
    def sealed_by_poster(self) -> bool:
        """Not here: what is sealed is sealed as it is sent."""
        return False

    @property
    def moved_bytes(self) -> int:
        """Not seen, unless an endpoint says so."""
        return 0

    @property
    def readiness_shows_all(self) -> bool:
        """Not unless an endpoint says so."""
        return False

    @property
    def lent_region(self) -> LentRegion | None:
        """None: the peer's memory is its own."""
        return None

    @property
    def chunk_service(self) -> ChunkService:
        """Chunks go as all writes do."""
        return ChunkService()

    def withdraw(self, grant: int) -> None:
        """See `ports.Endpoint`."""
        raise NotImplementedError

    def drain(self, grant: int) -> None:
        """Not here: to write there breaks the link."""
        self.withdraw(grant)

    @property
    def still_open(self) -> Collection[int]:
        """None: it is this side that puts what comes into the slots, or lets nobody."""
        return ()

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """There are none."""
        del data, copies, padding
        return False


def unavailable(transport: str, reason: str, remedy: str = "") -> TransportError:
    """The error for two ends that cannot meet."""
    return TransportError(ErrorCode.TRANSPORT_UNAVAILABLE, f"no {transport} data path: {reason}.", remedy)


def address_text(transport: str, peer: EndpointAddress, name: str) -> str:
    """A text that the peer's address must hold.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE when it does not.
    """
    value = peer.get(name)
    if not isinstance(value, str) or not value:
        raise unavailable(transport, f"the peer's offer has no valid {name!r}, but {value!r}")
    return value


def address_number(transport: str, peer: EndpointAddress, name: str, highest: int) -> int:
    """A number from 1 to `highest` that the peer's address must hold.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE when it does not.
    """
    value = peer.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
        raise unavailable(transport, f"the peer's offer has no valid {name!r}, but {value!r}")
    return value


def address_token(transport: str, peer: EndpointAddress) -> bytes:
    """The token of the peer's waiting half.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE when there is none.
    """
    text = address_text(transport, peer, "token")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise unavailable(transport, f"the peer's offer has no valid 'token', but {text!r}") from None
