"""The `verbs` transport: links of RDMA queue pairs between two gateways."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import ipaddress
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

from fedrdma_fate.ports import Draft, Endpoint, EndpointAddress, Region, Role
from fedrdma_fate.transport.endpoint_base import TOKEN_BYTES, address_number, address_text, address_token, unavailable
from fedrdma_fate.transport.verbs.chunks import ChunkNumbers, KindNumbers
from fedrdma_fate.transport.verbs.device import DeviceContext
from fedrdma_fate.transport.verbs.device_selection import NAME, PortPreference, select_port
from fedrdma_fate.transport.verbs.endpoint import VerbsEndpoint
from fedrdma_fate.transport.verbs.handshake import Handshake, HandshakeError
from fedrdma_fate.transport.verbs.interface import MTUS, RetrySettings, Verbs, VerbsError
from fedrdma_fate.transport.verbs.queue_pairs import LinkQueuePairs, PeerAddress

logger = logging.getLogger(__name__)

MOST_QUEUE_PAIRS = 64
"""Of a kind, for one link: bounds what a configuration, or the address of a peer, can ask of the device."""

ChunkServicePreference = Literal["auto", "rc", "uc"]
_24_BITS = (1 << 24) - 1
"""The largest number of a queue pair, and of a packet (InfiniBand)."""


@dataclasses.dataclass(frozen=True, slots=True)
class VerbsSettings:
    """Parameters of the `verbs` transport.

    Attributes:
        preference: device, port, GID and MTU, where they are not left to the rule.
        queue_pairs: for writes, of each link; the smaller of both sides' numbers is used.
        chunk_queue_pairs: for the chunks of mode `fedrdma-x`, of each link.
        chunk_service: queue pairs that chunks go by: `rc`, or `uc` where both devices have them; `auto` is `uc`, for
            loss may appear at any time, and what a reliable queue pair loses cannot be seen.
        poll: wait for completion events, or (`busy`) keep a core looking.
        retry: how long a queue pair waits for a silent peer. The default waits 0.27 s for an acknowledgement, more
            than a round trip of 200 ms, and gives up after seven turns, 1.9 s.
    """

    preference: PortPreference = dataclasses.field(default_factory=PortPreference)
    queue_pairs: int = 2
    chunk_queue_pairs: int = 4
    chunk_service: ChunkServicePreference = "auto"
    poll: Literal["event", "busy"] = "event"
    retry: RetrySettings = dataclasses.field(default_factory=RetrySettings)

    def __post_init__(self) -> None:
        for count in (self.queue_pairs, self.chunk_queue_pairs):
            if not 1 <= count <= MOST_QUEUE_PAIRS:
                raise ValueError(f"a link has 1 to {MOST_QUEUE_PAIRS} queue pairs of a kind, not {count}")
        if self.preference.mtu is not None and self.preference.mtu not in MTUS:
            raise ValueError(f"an MTU is one of {MTUS}, not {self.preference.mtu}")


def load_verbs() -> Verbs:
    """This host's devices, by pyverbs.

    Raises:
        TransportError: TRANSPORT_UNAVAILABLE when pyverbs, or a library that it needs, is not installed.
    """
    try:
        easy = importlib.import_module("fedrdma_fate.transport.verbs.easy")
    except ImportError as error:
        raise unavailable(
            NAME,
            f"pyverbs cannot be loaded ({error})",
            "Install it: `scripts/setup` does where it can; else apt's python3-pyverbs.",
        ) from error
    return cast(Verbs, easy.EasyVerbs())


class VerbsTransport:
    """Opens the device, and registers memory once for each peer; anew only when the device was gone."""

    def __init__(self, settings: VerbsSettings, regions: Iterable[Region] = (), verbs: Verbs | None = None) -> None:
        """Open the device.

        Args:
            settings: parameters.
            regions: to be registered right away; others are when they are first used.
            verbs: the devices; those of this host when None.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when there is no device that will do.
        """
        self._settings = settings
        self._verbs = load_verbs() if verbs is None else verbs
        self._regions = tuple(regions)
        self._lock = threading.Lock()
        self._drafts: set[_VerbsDraft] = set()
        self._closed = False
        self._registered_before = 0
        self._context = self._make_context()

    @property
    def name(self) -> str:
        return NAME

    @property
    def registrations(self) -> int:
        """How often a region has been registered so far."""
        return self._registered_before + self._context.domains.registrations

    def open(self, role: Role, peer: str = "") -> Draft:
        """Start one data path.

        Args:
            role: who dials.
            peer: whose path it is: no other peer's keys are of any use on it, nor its own elsewhere.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the transport is closed, the device has no queue pairs left, no
                memory can be registered any more, or the device is gone and not back.
        """
        with self._lock:
            if self._closed:
                raise unavailable(NAME, "the transport is closed")
            if self._context.events.device_is_gone():
                self._renew_context()
            try:
                self._context.events.forget()
                settings = self._settings
                pairs = LinkQueuePairs(
                    self._context,
                    self._context.domains.of(peer),
                    settings.queue_pairs,
                    settings.chunk_queue_pairs,
                    unreliable=settings.chunk_service != "rc",
                )
            except VerbsError as error:
                raise unavailable(NAME, str(error), "Is the port up, and are there queue pairs left?") from error
            draft = _VerbsDraft(self._settings, role, pairs, self._regions, self._ended)
            self._drafts.add(draft)
            return draft

    def close(self) -> None:
        """Drop what is not connected; the device is closed when the last link that is connected ends."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._context.stop()
            drafts = list(self._drafts)
        for draft in drafts:
            draft.close()
        self._context.leave()

    def _ended(self, draft: _VerbsDraft) -> None:
        with self._lock:
            self._drafts.discard(draft)

    def _make_context(self) -> DeviceContext:
        context = _open_context(self._settings, self._verbs)
        try:
            for region in self._regions:
                context.domains.prepare(region)
        except BaseException:
            context.leave()
            raise
        port = context.port
        logger.info("verbs: device %s, port %d, GID %d (%s)", port.device, port.port, port.gid_index, port.gid)
        if not context.windows_are_checked:
            logger.warning(
                "verbs: %s does not keep writes inside memory windows, as Soft-RoCE does not: each granted slot is "
                "registered by itself instead",
                port.device,
            )
        return context

    def _renew_context(self) -> None:
        """The device was removed, which ends everything made from it; it may be back, or another one may do."""
        context = self._make_context()
        gone, self._context = self._context, context
        self._registered_before += gone.domains.registrations
        gone.stop()
        # what has gone with the device need not be given back to it
        with contextlib.suppress(VerbsError):
            gone.leave()


class _VerbsDraft:
    def __init__(
        self,
        settings: VerbsSettings,
        role: Role,
        pairs: LinkQueuePairs,
        regions: Sequence[Region],
        ended: Callable[[_VerbsDraft], None],
    ) -> None:
        self._settings = settings
        self._role = role
        self._pairs: LinkQueuePairs | None = pairs
        self._regions = regions
        self._ended = ended
        self._lock = threading.Lock()
        self._abandoned = threading.Event()
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._first_packet = secrets.randbelow(_24_BITS) + 1
        port = pairs.context.port
        chunks = pairs.chunks.numbers
        self._address: dict[str, str | int] = {
            "gid": port.gid,
            "psn": self._first_packet,
            "mtu": port.mtu,
            "signal": pairs.messages.pair.number,
            "pairs": _join(pair.number for pair in pairs.data),
            "chunks_rc": _join(chunks.reliable.chunks),
            "datagrams_rc": chunks.reliable.datagrams,
            "chunks_uc": _join(chunks.unreliable.chunks),
            "datagrams_uc": chunks.unreliable.datagrams,
            "token": self._token.hex(),
        }

    @property
    def address(self) -> EndpointAddress:
        return self._address

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Connect the queue pairs, and test them.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the two do not reach each other.
        """
        with self._lock:
            pairs, self._pairs = self._pairs, None
        if pairs is None:
            raise unavailable(NAME, "the draft was connected or closed before")
        with contextlib.ExitStack() as undo:
            undo.callback(self._ended, self)
            undo.callback(pairs.close)
            peer_address = _read_address(peer)
            handshake = Handshake(pairs, self._role, self._token, address_token(NAME, peer), self._abandoned)
            # here and not before the first write: it takes milliseconds, and more on cards
            for region in self._regions:
                pairs.peer.regions.register(region)
            try:
                pairs.connect(peer_address, self._first_packet, self._settings.retry)
                handshake.run(timeout)
            except (VerbsError, HandshakeError) as error:
                raise unavailable(
                    NAME,
                    f"{self._address['gid']} and {peer_address.gid}: {error}",
                    "Can UDP port 4791 pass both ways, and do both GIDs belong to one network?",
                ) from error
            endpoint = VerbsEndpoint(pairs, handshake.early, busy=self._settings.poll == "busy")
            undo.pop_all()
        self._ended(self)
        return endpoint

    def abandon(self) -> None:
        """See `ports.Draft`."""
        self._abandoned.set()

    def close(self) -> None:
        """Drop a draft that is not connected; one that is being connected looks after itself."""
        with self._lock:
            pairs, self._pairs = self._pairs, None
        if pairs is not None:
            pairs.close()
            self._ended(self)


def _open_context(settings: VerbsSettings, verbs: Verbs) -> DeviceContext:
    try:
        port = select_port(verbs.devices(), settings.preference)
        with contextlib.ExitStack() as undo:
            device = verbs.open(port.device)
            undo.callback(device.close)
            context = DeviceContext(device, port)
            undo.pop_all()
            return context
    except VerbsError as error:
        raise unavailable(NAME, str(error), "`rdma link` shows devices and ports.") from error


def _join(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _read_address(peer: EndpointAddress) -> PeerAddress:
    gid = address_text(NAME, peer, "gid")
    try:
        ipaddress.IPv6Address(gid)
    except ValueError:
        raise unavailable(NAME, f"the peer's offer has no valid 'gid', but {gid!r}") from None
    mtu = address_number(NAME, peer, "mtu", MTUS[-1])
    if mtu not in MTUS:
        raise unavailable(NAME, f"the peer's offer has no valid 'mtu', but {mtu}")
    first_packet = address_number(NAME, peer, "psn", _24_BITS)
    signal = address_number(NAME, peer, "signal", _24_BITS)
    return PeerAddress(gid, first_packet, mtu, signal, _numbers(peer, "pairs"), _chunk_numbers(peer))


def _chunk_numbers(peer: EndpointAddress) -> ChunkNumbers:
    reliable = KindNumbers(_numbers(peer, "chunks_rc"), address_number(NAME, peer, "datagrams_rc", _24_BITS))
    if not peer.get("chunks_uc"):
        return ChunkNumbers(reliable)
    unreliable = KindNumbers(_numbers(peer, "chunks_uc"), address_number(NAME, peer, "datagrams_uc", _24_BITS))
    return ChunkNumbers(reliable, unreliable)


def _numbers(peer: EndpointAddress, name: str) -> tuple[int, ...]:
    text = address_text(NAME, peer, name)
    try:
        numbers = tuple(int(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not 0 < len(numbers) <= MOST_QUEUE_PAIRS or not all(0 < number <= _24_BITS for number in numbers):
        raise unavailable(NAME, f"the peer's offer has no valid {name!r}, but {text!r}")
    return numbers
