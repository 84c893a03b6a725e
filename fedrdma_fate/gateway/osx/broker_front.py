"""What OSX brokers of peers take for one of theirs: they push to parties here, and bring scheduling calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator

import grpc

from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.gateway.flow.call_watch import CallWatch
from fedrdma_fate.gateway.flow.calls import FlowCalls
from fedrdma_fate.gateway.flow.repeats import Repeats
from fedrdma_fate.gateway.osx.brokers import BrokerSites
from fedrdma_fate.gateway.osx.transport import QueueTransport
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

MOST_READING = 4
"""Scheduling calls of a broker that are read at once: grpcio reads all of one, up to 2 GiB, before anybody sees its
length, and one as it should be has some kB."""

READING_SECONDS = 10.0
"""That the next one waits for its turn to be read: then FATE Flow has given it up."""

Carry = Callable[[SchedulingCall], Awaitable[Answer]]


class BrokerService:
    """Pushes of brokers. Belongs to the event loop's thread, but for what grpcio calls."""

    def __init__(self, transport: QueueTransport, sites: BrokerSites, watch: CallWatch) -> None:
        """
        Args:
            transport: takes what is pushed.
            sites: that have a broker.
            watch: of their calls.
        """
        self._transport = transport
        self._sites = sites
        self._watch = watch

    def handler(self) -> grpc.GenericRpcHandler:
        """See `Service`."""
        return self._transport.broker_handler(self._sites, self._watch)

    def wait(self) -> None:
        """See `Service`."""
        self._transport.wait()

    def close(self) -> None:
        """See `Service`."""
        self._transport.close()


class BrokerScheduling:
    """Scheduling calls of brokers: each is held against the rules as one of the site that it comes from."""

    def __init__(self, calls: FlowCalls, sites: BrokerSites) -> None:
        """In the event loop's thread.

        Args:
            calls: carries them out.
            sites: that have a broker.
        """
        self._calls = calls
        self._sites = sites
        # a call that is made again is the same only where it is the same site's; all where none shows a certificate
        self._repeats = {each: Repeats(self._carry(each)) for each in sites.groups}
        self._reading = {each: threading.BoundedSemaphore(MOST_READING) for each in sites.groups}

    @property
    def further_headers(self) -> tuple[str, ...]:
        """See `Scheduling`."""
        return self._calls.further_headers

    def of(self, context: grpc.ServicerContext) -> Repeats:
        """See `Scheduling`."""
        return self._repeats[self._sites.calling(context)]

    @contextlib.contextmanager
    def reading(self, context: grpc.ServicerContext) -> Iterator[None]:
        """See `Scheduling`: a broker that sends none to its end, or long ones, holds up its own alone."""
        reading = self._reading[self._sites.calling(context)]
        if not reading.acquire(timeout=READING_SECONDS):
            raise GatewayError(
                ErrorCode.LIMIT_REACHED,
                f"{MOST_READING} scheduling calls of this broker are being read.",
                "See why its calls do not come to their end.",
            )
        try:
            yield
        finally:
            reading.release()

    def close(self) -> None:
        """See `Scheduling`."""
        for each in self._repeats.values():
            each.close()

    def _carry(self, sites: tuple[str, ...]) -> Carry:
        async def carry(call: SchedulingCall) -> Answer:
            return await self._calls.serve_one_of(sites, call)

        return carry
