"""The federation backend: FATE's interface over the gateway of this site.

More than 500 lines: that interface is one class, whose methods share what was pushed, pulled and may be missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fate.arch.federation.api import Federation, TableRemotePersistentPickler, TableRemotePersistentUnpickler

from fedrdma_fate.client.client import Received
from fedrdma_fate.client.protocol import MOST_STRAGGLER_WAIT
from fedrdma_fate.core.held import bytes_in
from fedrdma_fate.fate import tables
from fedrdma_fate.fate.aggregation.hook import install_aggregation
from fedrdma_fate.fate.allowed_names import Name
from fedrdma_fate.fate.compatibility import require_supported_fate
from fedrdma_fate.fate.deserialise import load_fate_bytes, load_with_missing
from fedrdma_fate.fate.gateway_client import Connector, GatewayConnector, PartyTuple, SoloConnector, to_party
from fedrdma_fate.fate.hooks import install_object_path
from fedrdma_fate.fate.journal import Journal
from fedrdma_fate.fate.malformed import malformed
from fedrdma_fate.fate.missing import MissingElements
from fedrdma_fate.fate.outbox import Outbox
from fedrdma_fate.fate.serialise import plan_object
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.fate.small_tables import make_small
from fedrdma_fate.fate.sums import ExpectedSum, PulledSummand, footer_for, install_sums, install_sums_ahead
from fedrdma_fate.fate.unpickler import names_with
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import MOST_LOSS_SHARE, Party

logger = logging.getLogger(__name__)

_AGGREGATION = "fate.arch.protocol.secure_aggregation._secure_aggregation"
"""FATE's module of the server whose loop gets masked updates."""

_AGGREGATORS = "fate.ml.aggregator.base"
"""That of what makes it."""

_REMEMBERED_MISSING = 4096
"""Messages of which it is remembered what is missing: a round of as many parties as one session has."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Tolerance:
    """How much may be missing: of what a thread puts, of what it gets, and whether its gets say so to the gateway; and
    how much longer than the others the last that it gets is waited for."""

    puts: float
    gets: float
    tells: bool
    straggler_wait: float | None = None


_NOTHING = _Tolerance(0.0, 0.0, tells=False)


class DuplicateMessageError(GatewayError, ValueError):
    """A name and tag were used twice between the same parties; a ValueError as from FATE's own federations."""


class ReceivedObject:
    """An object that has come but was not looked into yet."""

    def __init__(
        self,
        message: Received,
        names: Mapping[tuple[str, str], Name],
        note_missing: Callable[[str, str, PartyTuple, tuple[MissingElements, ...]], object],
    ) -> None:
        """
        Args:
            message: as it came.
            names: what it may use.
            note_missing: told which elements are missing of its arrays, where some may be.
        """
        self._message = message
        self._names = names
        self._note_missing = note_missing

    def load_object(self, ctx: Any, federation: Any, name: str, tag: str, party: PartyTuple) -> Any:
        """The object; its arrays and tensors are views of the receive slot."""
        message = self._message
        value, missing = load_with_missing(
            message.buffer, message.missing, ctx, federation, name, tag, party, self._names
        )
        if missing:
            self._note_missing(name, tag, party, missing)
        return value


class FedRDMAFederation(Federation):  # type: ignore[misc]
    """FATE's federation over fedrdma gateways. May be used from several threads."""

    def __init__(
        self,
        federation_session_id: str,
        computing_session: Any,
        party: PartyTuple,
        parties: Sequence[PartyTuple],
        gateway: str = "",
        options: FederationOptions | None = None,
        *,
        connector: Connector | None = None,
    ) -> None:
        """
        Args:
            federation_session_id: the same at all parties.
            computing_session: FATE's computing session, which runs the workers that move tables.
            party: the local party as (role, party id).
            parties: everybody in the session.
            gateway: `unix:///path` of the socket of this site's gateway; not needed where the party is alone.
            options: mode, time-outs, journal, and names that received objects may use.
            connector: how to reach a gateway, instead of `gateway`.

        Raises:
            FateError: FATE_VERSION when this FATE is not the one this backend extends.
            GatewayError: GATEWAY_UNREACHABLE or WRONG_PARTY.
            ConfigError: the address is none, the journal cannot be written, or `loss_tolerance` is no share.
        """
        require_supported_fate()
        install_object_path(TableRemotePersistentPickler, TableRemotePersistentUnpickler)
        super().__init__(federation_session_id, party, list(parties))
        self._computing = computing_session
        self._options = options or FederationOptions()
        _check_share(self._options.loss_tolerance)
        _check_straggler_wait(self._options.straggler_wait)
        self._names = names_with(self._options.allowed_names)
        self._connector = connector or _connector(federation_session_id, party, parties, gateway, self._options)
        self._journal = Journal(self._options.journal_path, federation_session_id, to_party(party))
        self._client = self._connector.connect()
        self._expected: dict[tuple[str, str], ExpectedSum[bytes | ReceivedObject]] = {}
        if (aggregation := sys.modules.get(_AGGREGATION)) is not None:
            # where it was imported before us, or there is no extension
            install_sums(aggregation.SecureAggregatorServer)
            install_aggregation(aggregation)
        if (aggregators := sys.modules.get(_AGGREGATORS)) is not None:
            install_sums_ahead(aggregators.BaseAggregatorServer)
        self._outbox = Outbox(self._client, self._connector, self._options.put_timeout)
        self._thread = threading.local()
        self._tolerant_messages = 0
        self._forgotten: deque[tuple[str, str, Party]] = deque()
        self._missing: OrderedDict[tuple[str, str, PartyTuple], tuple[MissingElements, ...]] = OrderedDict()
        # of the latest get of several that failed, alone: what is never got again would keep its memory else
        self._had_come: tuple[tuple[str, str, float], dict[Party, Received]] | None = None

    @property
    def serialised(self) -> int:
        """How many large objects were serialised into a send slot."""
        return self._outbox.serialised

    @property
    def reused(self) -> int:
        """How often a serialised object was sent to further parties as it lay there."""
        return self._outbox.reused

    @contextlib.contextmanager
    def tolerating(self, share: float, *, straggler_wait: float | None = None) -> Iterator[None]:
        """Let so much be missing of the arrays of objects that this thread puts and gets inside; docs/bounded-loss.md.

        It is a bound, and the smaller one of both ends counts. What did not come is zeros in the array, and `missing`
        tells where; so only code that looks there should get objects inside.

        Args:
            share: of each object's arrays of real numbers, but for short ones of one dimension: 0 to 0.2.
            straggler_wait: where one get is of several parties, how much longer than the others the last is waited for,
                once what is missing of it may be: share of the median time of the others' transfers, 0 to 100; None:
                until it was sent.

        Raises:
            ConfigError: CONFIG_BAD_VALUE when one of them is not between these.
        """
        _check_share(share)
        _check_straggler_wait(straggler_wait)
        with self._tolerating(_Tolerance(float(share), float(share), tells=True, straggler_wait=straggler_wait)):
            yield

    @property
    def loss_tolerance(self) -> float:
        """How much may be missing of what FATE's aggregation reads, as this party's job says; 0: nothing."""
        return self._options.loss_tolerance

    @contextlib.contextmanager
    def putting_tolerantly(self) -> Iterator[None]:
        """While this is entered, `loss_tolerance` may be missing of what this thread puts, nothing of what it gets."""
        with self._tolerating(_Tolerance(self.loss_tolerance, 0.0, tells=False)):
            self._tolerant_messages += 1
            yield

    @contextlib.contextmanager
    def getting_tolerantly(
        self, name: str, tag: str, parties: Sequence[PartyTuple], share: float, *, jointly: bool
    ) -> Iterator[None]:
        """While this is entered, this thread gets messages of these parties of each of which `share` may be missing.

        Jointly, so much may be of all together, where what is missing of one is of no use of the others.
        They are known at once, so what comes before its get need not wait for it.
        """
        sources, wait = [to_party(party) for party in parties], self._options.straggler_wait
        self._client.tolerate(name, tag, sources, share, jointly=jointly, straggler_wait=wait)
        with self._tolerating(_Tolerance(0.0, share, tells=False)):
            self._tolerant_messages += len(parties)
            yield

    @contextlib.contextmanager
    def _tolerating(self, tolerance: _Tolerance) -> Iterator[None]:
        outer = self._tolerance
        self._thread.tolerance = tolerance
        try:
            yield
        finally:
            self._thread.tolerance = outer

    @property
    def _tolerance(self) -> _Tolerance:
        """Of this thread."""
        tolerance: _Tolerance = getattr(self._thread, "tolerance", _NOTHING)
        return tolerance

    def missing(self, name: str, tag: str, party: PartyTuple) -> tuple[MissingElements, ...]:
        """Which elements are missing of an object that was got inside `tolerating`: none, where it came whole.

        Args:
            name: name of the message.
            tag: its tag.
            party: its source as (role, party id).
        """
        return self._missing.get((name, tag, party), ())

    def _note_missing(self, name: str, tag: str, party: PartyTuple, missing: tuple[MissingElements, ...]) -> None:
        self._missing[name, tag, party] = missing
        if len(self._missing) > _REMEMBERED_MISSING:
            self._missing.popitem(last=False)
        elements = sum(array.count for array in missing)
        logger.info("of %s/%s from %s, %d elements of %d arrays are missing", name, tag, party, elements, len(missing))

    def get_default_max_message_size(self) -> int:
        """No limit, so that FATE never cuts an object into a table of slices."""
        return sys.maxsize

    def push_object(self, value: object, name: str, tag: str, parties: Sequence[PartyTuple]) -> None:
        """Send an object; returns when it lies in a send slot or with the gateway.

        Raises:
            DuplicateMessageError: one of the parties was sent this name and tag before.
            FateError: UNSERIALISABLE.
            MemoryPoolError: POOL_TIMEOUT or PAYLOAD_TOO_LARGE.
            GatewayError: the gateway refuses it or is gone.
        """
        self._refuse_second_push(name, tag, parties)
        started = time.monotonic()
        share = self._tolerance.puts
        # of what is summed nothing may be missing, nor is what may miss something summed
        footer = footer_for(value, name, self._connector.party) if self._options.sums and not share else b""
        plan = plan_object(value, self, name, tag, parties, footer, tolerant=share > 0)
        destinations = [to_party(party) for party in parties]
        serialised = self._outbox.put_object(plan, name, tag, destinations, share)
        self._push_history.update((name, tag, party) for party in parties)
        seconds = time.monotonic() - started
        logger.debug("put %s/%s: %d bytes in %.3f s", name, tag, plan.total_bytes, seconds)
        self._journal.record("put", "object", name, tag, plan.total_bytes, seconds, destinations, serialised=serialised)

    def push_bytes(self, v: bytes, name: str, tag: str, parties: Sequence[PartyTuple]) -> None:
        """See `push_object`, for bytes as they are."""
        with self._pushing(name, tag, parties):
            super().push_bytes(v, name, tag, parties)

    def push_table(self, table: Any, name: str, tag: str, parties: Sequence[PartyTuple]) -> None:
        """See `push_object`, for a table."""
        with self._pushing(name, tag, parties):
            super().push_table(table, name, tag, parties)

    def pull_bytes(self, name: str, tag: str, parties: Sequence[PartyTuple]) -> list[Any]:
        """Wait for bytes or an object from each party.

        Raises:
            DuplicateMessageError: this name and tag was already pulled from one of them.
            GatewayError: PULL_TIMEOUT, or the gateway is gone or refuses.
            FedRDMAError: why the message will not come.
        """
        with self._pulling(name, tag, parties):
            received: list[Any] = super().pull_bytes(name, tag, parties)
        return received

    @contextlib.contextmanager
    def summing(self, name: str, tag: str, parties: Sequence[PartyTuple]) -> Iterator[None]:
        """While this is entered, the gateway sums what these parties send under this name, before it is pulled."""
        if not self._options.sums:
            yield
            return
        unwrap = functools.partial(self._unwrap, name=name)
        self._expected[name, tag] = ExpectedSum(self._client, name, tag, parties, unwrap)
        try:
            yield
        finally:
            del self._expected[name, tag]

    def expect_sums(self, name: str, parties: Sequence[PartyTuple]) -> None:
        """The sites of these parties are told that sums of what they send under this name will be asked for."""
        if self._options.sums:
            self._client.expect_sum(name, [to_party(party) for party in parties])

    def load_bytes(self, content: bytes, ctx: Any, name: str, tag: str, party: PartyTuple) -> Any:
        """The object in pulled bytes that FATE's own pickler wrote.

        Raises:
            FateError: PAYLOAD_MALFORMED or NAME_FORBIDDEN.
        """
        return load_fate_bytes(content, ctx, self, name, tag, party, self._names)

    def pull_table(
        self, name: str, tag: str, parties: Sequence[PartyTuple], table_metas: Sequence[Any] | None = None
    ) -> list[Any]:
        """See `pull_bytes`, for tables."""
        with self._pulling(name, tag, parties):
            received: list[Any] = super().pull_table(name, tag, parties, table_metas)
        return received

    def make_table(self, content: memoryview, meta: Any) -> Any:
        """A small table that came inside an object, described by FATE's TableMeta.

        Raises:
            FateError: PAYLOAD_MALFORMED or NAME_FORBIDDEN.
        """
        table = make_small(content, self._computing, meta, self._options.allowed_names)
        table.mask_federated_received()
        return table

    def _push_bytes(self, v: bytes, name: str, tag: str, parties: Sequence[PartyTuple]) -> None:
        started = time.monotonic()
        destinations = [to_party(party) for party in parties]
        self._outbox.put_bytes(v, "bytes", name, tag, destinations)
        self._journal.record("put", "bytes", name, tag, len(v), time.monotonic() - started, destinations)

    def _pull_bytes(
        self, name: str, tag: str, parties: Sequence[PartyTuple]
    ) -> list[bytes | ReceivedObject | PulledSummand]:
        self._outbox.settle()
        self._forget()
        started = time.monotonic()
        sources = [to_party(party) for party in parties]
        expected = self._expected.get((name, tag))
        if expected is not None and len(parties) == 1:
            summed = expected.get(parties[0], self._options.get_timeout)
            if summed is not None:
                part, total_bytes = summed
                self._journal.record("get", "object", name, tag, total_bytes, time.monotonic() - started, sources)
                return [part]
        messages = self._get_all(name, tag, sources)
        seconds = time.monotonic() - started
        for message, source in zip(messages, sources, strict=True):
            missing = bytes_in(message.missing)
            self._journal.record(
                "get", message.kind, name, tag, len(message.buffer), seconds, [source], missing=missing
            )
        return [self._unwrap(message, name) for message in messages]

    def _push_table(self, table: Any, name: str, tag: str, parties: Sequence[PartyTuple]) -> None:
        destinations = [to_party(party) for party in parties]
        options = self._options
        tables.push_table(
            table,
            name,
            tag,
            destinations,
            self._connector,
            put_timeout=options.put_timeout,
            journal=options.journal_path,
        )

    def _pull_table(self, name: str, tag: str, parties: Sequence[PartyTuple], table_metas: Sequence[Any]) -> list[Any]:
        self._outbox.settle()
        self._forget()
        options = self._options
        return [
            tables.pull_table(
                self._computing,
                meta,
                name,
                tag,
                to_party(party),
                self._connector,
                get_timeout=options.get_timeout,
                journal=options.journal_path,
                allowed_names=options.allowed_names,
                forgotten=self._forgotten,
            )
            for meta, party in zip(table_metas, parties, strict=True)
        ]

    def _destroy(self) -> None:
        self._outbox.settle()
        if self.loss_tolerance and not self._tolerant_messages:
            told = "loss_tolerance %g was of no use: this party ran no second round of an aggregation that knows it"
            logger.warning(told, self.loss_tolerance)
        try:
            # the client stays open: arrays that were received may outlive us, and their slots are leased through it
            self._client.leave()
        finally:
            self._had_come = None
            self._journal.close()

    def _forget(self) -> None:
        """Tell the gateway of kept tables that are no more."""
        while self._forgotten:
            self._client.forget(*self._forgotten.popleft())

    def _get_all(self, name: str, tag: str, sources: Sequence[Party]) -> list[Received]:
        """One message from each source, in their order, all within the time-out.

        Where one does not come, those that had come are kept for the same get made again.
        """
        timeout = self._options.get_timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        tolerance = self._tolerance
        tolerates = tolerance.gets > 0
        if tolerates and tolerance.tells:
            # of all at once: those that come before it is their turn need not wait for it
            self._client.tolerate(name, tag, sources, tolerance.gets, straggler_wait=tolerance.straggler_wait)
        which, come = (name, tag, tolerance.gets), dict[Party, Received]()
        had_come = self._had_come
        if had_come is not None and had_come[0] == which:
            self._had_come, come = None, had_come[1]
        try:
            for source in sources:
                if source not in come:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    come[source] = self._client.get(name, tag, source, timeout=left, tolerates=tolerates)
            return [come.pop(source) for source in sources]
        finally:
            if come:
                self._had_come = which, come

    def _unwrap(self, message: Received, name: str) -> bytes | ReceivedObject:
        if message.kind == "object":
            return ReceivedObject(message, self._names, self._note_missing)
        if message.kind == "bytes":
            return bytes(message.buffer)
        raise malformed(f"{name!r} is of kind {message.kind!r}, not an object")

    def __getstate__(self) -> None:
        # functions that FATE sends to its workers sometimes close over the context; connections stay here
        return None

    @contextlib.contextmanager
    def _pushing(self, name: str, tag: str, parties: Sequence[PartyTuple]) -> Iterator[None]:
        """Refuse a second push; one that has failed may be made again: then what of it was pushed is the same push."""
        self._refuse_second_push(name, tag, parties)
        try:
            yield
        except Exception:
            self._push_history.difference_update((name, tag, party) for party in parties)
            raise

    def _refuse_second_push(self, name: str, tag: str, parties: Sequence[PartyTuple]) -> None:
        for party in parties:
            if (name, tag, party) in self._push_history:
                raise DuplicateMessageError(
                    ErrorCode.DUPLICATE_PUSH,
                    f"{name!r} with tag {tag!r} was already pushed to {to_party(party)}.",
                    "Use another name, or a sub-context, for each message.",
                )

    @contextlib.contextmanager
    def _pulling(self, name: str, tag: str, parties: Sequence[PartyTuple]) -> Iterator[None]:
        """Refuse a second pull; one that has failed may be made again, and then the gateway says what of it was got."""
        self._refuse_second_pull(name, tag, parties)
        try:
            yield
        except FedRDMAError:
            self._pull_history.difference_update((name, tag, party) for party in parties)
            raise

    def _refuse_second_pull(self, name: str, tag: str, parties: Sequence[PartyTuple]) -> None:
        for party in parties:
            if (name, tag, party) in self._pull_history:
                raise DuplicateMessageError(
                    ErrorCode.DUPLICATE_PULL,
                    f"{name!r} with tag {tag!r} was already pulled from {to_party(party)}.",
                    "Keep what the first get returned.",
                )


def _check_share(share: object) -> None:
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    if not is_number or not 0 <= share <= MOST_LOSS_SHARE:  # type: ignore[operator]
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"a share of {share!r} cannot be missing.",
            f"Say a number from 0, which is nothing, to {MOST_LOSS_SHARE}.",
        )


def _check_straggler_wait(wait: object) -> None:
    is_number = isinstance(wait, int | float) and not isinstance(wait, bool)
    if wait is not None and (not is_number or not 0 <= wait <= MOST_STRAGGLER_WAIT):  # type: ignore[operator]
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"nobody can be waited for {wait!r} times as long as the others took.",
            f"Say a number from 0 to {MOST_STRAGGLER_WAIT:g}, or nothing.",
        )


def _connector(
    session: str, party: PartyTuple, parties: Sequence[PartyTuple], gateway: str, options: FederationOptions
) -> Connector:
    local, everybody = to_party(party), tuple(to_party(each) for each in parties)
    if set(everybody) <= {local}:
        return SoloConnector(session, local)
    return GatewayConnector(
        gateway, session, local, everybody, options.mode, options.connect_timeout, options.tasks_access
    )
