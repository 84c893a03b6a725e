"""All scheduling calls of a gateway: those that the own FATE Flow makes, and those that come for it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.flow.asking import AskedCalls, unsupported
from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall, is_json
from fedrdma_fate.gateway.flow.repeats import Repeats
from fedrdma_fate.gateway.flow.rules import CallRules
from fedrdma_fate.gateway.flow.serving import ServedCalls
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.obs.complaints import EACH_TELLS
from fedrdma_fate.obs.metrics import ANSWERED
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import FlowAnswer, FlowCall, FlowHeard, FlowRefused

logger = logging.getLogger(__name__)

LONG_BODY_BYTES = 32 * 1024
"""Read beside the event loop, one after the other: a MiB of JSON, made for it, takes a fifth of a second, and a peer
may send dozens at once. FATE Flow's own are shorter."""

_T = TypeVar("_T")


@dataclasses.dataclass(slots=True)
class CallCounts:
    """Of calls with one site, in one direction.

    Attributes:
        answered: by FATE Flow.
        refused: not carried out, or without an answer.
        slowest_seconds: until an answer.
    """

    answered: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0


class CarriesOut(Protocol):
    """The own FATE Flow, as far as it is needed here."""

    async def carry_out(self, call: SchedulingCall) -> Answer:
        """Make a call, once, and wait for the answer; see `server.py`."""
        ...


class FlowCalls:
    """Belongs to the event loop's thread.

    Attributes:
        peers: calls with each of them, by site.
        counts: by direction and site.
        repeats: those of the own FATE Flow, where one that is made again is the same.
    """

    def __init__(
        self,
        context: GatewayContext,
        peers: Mapping[str, Peer],
        server: CarriesOut | None,
        brokers: Mapping[str, CarriesOut] | None = None,
    ) -> None:
        """
        Args:
            context: the gateway's.
            peers: the other sites, by name.
            server: the own FATE Flow; None where there is none.
            brokers: of peers that have no gateway, by name.
        """
        config = context.config
        self._context = context
        self._site = config.site
        self._server = server
        self._brokers = brokers or {}
        self._rules = CallRules(context.routes, config.flow.headers)
        self._reads_long = asyncio.Lock()
        self.repeats = Repeats(self.ask)
        self._clock = asyncio.get_running_loop().time
        self.peers = {site: PeerCalls(site, peer, self, context) for site, peer in peers.items()}
        sites = (config.site, *peers, *self._brokers)
        self.counts = {direction: {site: CallCounts() for site in sites} for direction in ("asked", "served")}

    @property
    def further_headers(self) -> tuple[str, ...]:
        """Names of headers that travel besides those of FATE Flow, in lower case."""
        return self._rules.further_headers

    async def ask(self, call: SchedulingCall) -> Answer:
        """Carry out a call of the own FATE Flow: there, or at the site of the party that it is for.

        Raises:
            FedRDMAError: it was not carried out, or has no answer; see `docs/fate-flow-calls.md`.
        """
        began = self._clock()
        try:
            site = await self._checked(call, self._site)
        except GatewayError as error:
            self._refused("asked", self._site, call, error)
            raise
        try:
            server = self._own_server
            if site == self._site:
                answer = await server.carry_out(call)
            else:
                answer = await self._ask_peer(site, call)
        except FedRDMAError as error:
            self._refused("asked", site, call, error)
            raise
        self._answered("asked", site, call, answer, began)
        return answer

    async def serve(self, site: str, call: SchedulingCall) -> Answer:
        """Carry out a call of a peer's.

        Raises:
            FedRDMAError: see `ask`.
        """
        began = self._clock()
        try:
            destination = await self._checked(call, site)
        except FedRDMAError as error:
            self._refused("served", site, call, error)
            raise
        return await self._serve_checked(site, call, destination, began)

    async def serve_one_of(self, sites: Sequence[str], call: SchedulingCall) -> Answer:
        """Carry out a call of one of these peers; whose it is its parties tell.

        Raises:
            FedRDMAError: see `ask`.
        """
        began = self._clock()
        try:
            site, destination = await self._read(call.body, lambda: self._rules.check_one_of(call, sites))
        except FedRDMAError as error:
            self._refused("served", sites[-1], call, error)
            raise
        return await self._serve_checked(site, call, destination, began)

    async def _serve_checked(self, site: str, call: SchedulingCall, destination: str, began: float) -> Answer:
        try:
            if destination != self._site:
                party = call.header("dest-party-id")
                raise GatewayError(
                    ErrorCode.WRONG_PARTY, f"the party {party!r} of a scheduling call is not served at {self._site}"
                )
            answer = await self._own_server.carry_out(call)
        except FedRDMAError as error:
            self._refused("served", site, call, error)
            raise
        self._answered("served", site, call, answer, began)
        return answer

    def under_way(self, direction: str, site: str) -> int:
        """Calls with a peer that have no answer yet."""
        peer = self.peers.get(site)
        if peer is None:
            return 0
        return len(peer.asked) if direction == "asked" else peer.served.under_way

    async def _checked(self, call: SchedulingCall, asking: str) -> str:
        return await self._read(call.body, lambda: self._rules.check(call, asking))

    async def _ask_peer(self, site: str, call: SchedulingCall) -> Answer:
        if (broker := self._brokers.get(site)) is not None:
            answer = await broker.carry_out(call)
        else:
            answer = await self.peers[site].asked.ask(call)
        if not await self._read(answer.body, lambda: is_json(answer.body)):
            raise GatewayError(ErrorCode.FLOW_UNUSABLE, f"{site} has answered what is no JSON.")
        return answer

    async def _read(self, body: bytes, work: Callable[[], _T]) -> _T:
        """Do what reads a body, where that holds up nobody else."""
        if len(body) <= LONG_BODY_BYTES:
            return work()
        async with self._reads_long:
            return await asyncio.to_thread(work)

    @property
    def _own_server(self) -> CarriesOut:
        if self._server is None:
            raise unsupported(f"{self._site} takes no scheduling calls: its gateway knows no FATE Flow")
        return self._server

    def _answered(self, direction: str, site: str, call: SchedulingCall, answer: Answer, began: float) -> None:
        seconds = self._clock() - began
        sizes = len(call.body), len(answer.body)
        self._context.trace.flow_call(direction, site, call.path, *sizes, answer.status, seconds)
        counts = self.counts[direction][site]
        counts.answered += 1
        counts.slowest_seconds = max(counts.slowest_seconds, seconds)
        self._context.metrics.call_ended(direction, site, ANSWERED, seconds)

    def _refused(self, direction: str, site: str, call: SchedulingCall, error: FedRDMAError) -> None:
        self.counts[direction][site].refused += 1
        self._context.trace.flow_call_refused(direction, site, len(call.body), error.code)
        self._context.metrics.call_ended(direction, site, error.code.value, 0.0)
        message = "a scheduling call %s, %s, ended without an answer: [%s] %s"
        whose = f"of {site}" if direction == "served" else f"to {site}"
        self._context.complaints.add(
            logger, "scheduling call", site, message, whose, call.path, error.code, error.message, lines=EACH_TELLS
        )


class PeerCalls:
    """Of one peer, both ways. See `FlowTalk`."""

    def __init__(self, site: str, peer: Peer, calls: FlowCalls, context: GatewayContext) -> None:
        """
        Args:
            site: name of the peer's.
            peer: it, which tells of frames from now on.
            calls: carries out what it asks.
            context: the gateway's.
        """
        self._peer = peer
        self._incarnation = ""
        self.asked = AskedCalls(site, peer)
        clock = asyncio.get_running_loop().time
        self.served = ServedCalls(lambda call: calls.serve(site, call), peer.send_first, context.tasks, clock)
        peer.flow_talk = self

    def on_frame(self, frame: FlowCall | FlowAnswer | FlowRefused | FlowHeard) -> None:
        """See `FlowTalk`."""
        match frame:
            case FlowCall():
                self.served.on_call(frame)
            case FlowHeard(call=call):
                self.served.on_heard(call)
            case FlowAnswer():
                self.asked.on_answer(frame)
            case FlowRefused():
                self.asked.on_refused(frame)

    def online(self) -> None:
        """See `FlowTalk`."""
        incarnation = "" if self._peer.hello is None else self._peer.hello.incarnation
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self.served.forget()
        self.asked.online()
