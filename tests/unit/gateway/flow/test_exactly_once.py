"""Calls between two gateways whose connection breaks at any moment, in virtual time; and what bounds them."""

from __future__ import annotations

import asyncio
import collections
import random

import pytest

from fedrdma_fate.gateway.flow import asking, serving
from fedrdma_fate.gateway.flow.asking import AskedCalls
from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.gateway.flow.serving import KEPT_SECONDS, ServedCalls
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import ControlFrame, FlowAnswer, FlowCall, FlowHeard, FlowRefused, Hello
from fedrdma_fate.wire.header import PROTOCOL_VERSION
from tests.support.twin import run_virtually


def hello(incarnation: str = "1") -> Hello:
    return Hello("b", incarnation, PROTOCOL_VERSION, "1", "h", (), (), 0, flow_calls=True)


def a_call(text: str = "") -> SchedulingCall:
    return SchedulingCall("/v2/partner/job/create", (("dest-party-id", "1"),), text.encode())


class Channel:
    """One direction of a connection: frames that were sent, and are not read yet."""

    def __init__(self) -> None:
        self.connected = True
        self.hello: Hello | None = hello()
        self.frames: collections.deque[ControlFrame] = collections.deque()

    def send(self, frame: ControlFrame) -> bool:
        if self.connected:
            self.frames.append(frame)
        return self.connected

    send_first = send


class World:
    """Who asks, who serves, and two directions between them."""

    def __init__(self) -> None:
        self.there, self.back = Channel(), Channel()
        self.tasks: set[asyncio.Task[None]] = set()
        self.carried_out: collections.Counter[bytes] = collections.Counter()
        self.asked = AskedCalls("b", self.there)
        clock = asyncio.get_running_loop().time
        self.served = ServedCalls(self.carry_out, self.back.send, self.tasks, clock)
        self.seconds = 0.1

    async def carry_out(self, call: SchedulingCall) -> Answer:
        self.carried_out[call.body] += 1
        await asyncio.sleep(self.seconds)
        return Answer(200, call.body)

    def carry(self) -> None:
        """Read one frame of each direction."""
        if self.there.frames:
            match self.there.frames.popleft():
                case FlowCall() as frame:
                    self.served.on_call(frame)
                case FlowHeard(call=call):
                    self.served.on_heard(call)
        if self.back.frames:
            match self.back.frames.popleft():
                case FlowAnswer() as frame:
                    self.asked.on_answer(frame)
                case FlowRefused() as frame:
                    self.asked.on_refused(frame)

    def cut(self) -> None:
        for channel in (self.there, self.back):
            channel.connected = False
            channel.frames.clear()

    def connect(self) -> None:
        self.there.connected = self.back.connected = True
        self.asked.online()

    async def until_done(self, *asks: asyncio.Task[Answer]) -> None:
        while not all(each.done() for each in asks):
            self.carry()
            await asyncio.sleep(0.01)
        while self.there.frames or self.back.frames:
            self.carry()


@pytest.mark.parametrize("seed", range(30))
def test_each_call_is_carried_out_once_and_answered_whenever_the_connection_breaks(seed: int) -> None:
    chance = random.Random(seed)

    async def run() -> None:
        world = World()
        asks = [asyncio.ensure_future(world.asked.ask(a_call(str(number)))) for number in range(5)]
        for _ in range(60):
            await asyncio.sleep(chance.random() * 0.05)
            event = chance.random()
            if event < 0.25:
                world.cut()
            elif event < 0.5 and not world.there.connected:
                world.connect()
            else:
                world.carry()
        world.cut()
        world.connect()
        await world.until_done(*asks)
        assert [each.result().body for each in asks] == [str(number).encode() for number in range(5)]
        assert set(world.carried_out.values()) == {1}
        assert (len(world.asked), world.served.under_way) == (0, 0)
        # those that were heard on a channel that broke go by their age
        await asyncio.sleep(KEPT_SECONDS + 1)
        ask = asyncio.ensure_future(world.asked.ask(a_call("last")))
        await world.until_done(ask)
        assert world.served.kept == 0

    run_virtually(run())


def test_a_call_that_comes_twice_while_it_is_carried_out_is_answered_once() -> None:
    async def run() -> None:
        world = World()
        frame = FlowCall(1, "/p", (), b"x")
        world.served.on_call(frame)
        world.served.on_call(frame)
        await asyncio.sleep(1)
        assert (world.carried_out[b"x"], len(world.back.frames)) == (1, 1)

    run_virtually(run())


def test_more_calls_than_may_be_at_once_are_refused_and_those_under_way_go_on() -> None:
    async def run() -> None:
        world = World()
        for number in range(serving.MOST_SERVED + 5):
            world.served.on_call(FlowCall(number, "/p", (), b"x"))
        await asyncio.sleep(1)
        assert world.carried_out[b"x"] == serving.MOST_SERVED
        refused = [frame for frame in world.back.frames if isinstance(frame, FlowRefused)]
        assert [frame.code for frame in refused] == [ErrorCode.LIMIT_REACHED.value] * 5

    run_virtually(run())


@pytest.mark.parametrize("trick", ["heard", "restart"])
def test_no_trick_of_a_peer_makes_more_calls_at_once(trick: str) -> None:
    async def run() -> None:
        world = World()
        for number in range(500):
            world.served.on_call(FlowCall(number, "/p", (), b"x"))
            if trick == "heard":
                world.served.on_heard(number)
                world.served.on_call(FlowCall(number, "/p", (), b"x"))
            else:
                world.served.forget()
        assert world.served.under_way == serving.MOST_SERVED
        await asyncio.sleep(1)
        assert world.carried_out[b"x"] == serving.MOST_SERVED
        assert (world.served.under_way, world.served.kept) == (0, 0)
        world.served.on_call(FlowCall(1, "/p", (), b"y"))
        await asyncio.sleep(1)
        assert world.carried_out[b"y"] == 1

    run_virtually(run())


def test_answers_that_nobody_hears_are_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_KEPT_ANSWERS", 10)
    monkeypatch.setattr(serving, "MOST_KEPT_BYTES", 100)

    async def run() -> None:
        world = World()
        world.seconds = 0.0
        for number in range(50):
            world.served.on_call(FlowCall(number, "/p", (), b"x" * 30))
            await asyncio.sleep(0.01)
        assert world.served.kept == 10
        assert sum(world.carried_out.values()) == 10
        assert 0 < world.served._kept_bytes <= 100
        world.served.on_call(FlowCall(9, "/p", (), b"x" * 30))
        assert sum(world.carried_out.values()) == 10, "one whose answer had no room is not carried out again"
        await asyncio.sleep(KEPT_SECONDS + 1)
        world.served.on_call(FlowCall(99, "/p", (), b"z"))
        await asyncio.sleep(1)
        assert world.carried_out[b"z"] == 1

    run_virtually(run())


def test_no_more_calls_are_asked_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_ASKED", 3)

    async def run() -> None:
        world = World()
        asks = [asyncio.ensure_future(world.asked.ask(a_call())) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(GatewayError) as refused:
            await world.asked.ask(a_call())
        assert refused.value.code is ErrorCode.LIMIT_REACHED
        await world.until_done(*asks)

    run_virtually(run())


def test_no_more_bytes_are_asked_than_may_wait_ahead_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_ASKED_BYTES", 10)

    async def run() -> None:
        world = World()
        first = asyncio.ensure_future(world.asked.ask(a_call("x" * 6)))
        await asyncio.sleep(0)
        with pytest.raises(GatewayError) as refused:
            await world.asked.ask(a_call("x" * 6))
        assert refused.value.code is ErrorCode.LIMIT_REACHED
        await world.until_done(first)
        await world.until_done(asyncio.ensure_future(world.asked.ask(a_call("x" * 6))))

    run_virtually(run())


def test_a_call_that_dies_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(_call: SchedulingCall) -> Answer:
        raise RecursionError

    async def run() -> None:
        world = World()
        monkeypatch.setattr(world.served, "_carry_out", dies)
        for number in range(serving.MOST_SERVED):
            world.served.on_call(FlowCall(number, "/p", (), b"x"))
        await asyncio.sleep(1)
        assert [type(frame) for frame in world.back.frames] == [FlowRefused] * serving.MOST_SERVED
        assert (world.served.under_way, world.served._wanted) == (0, {})

    run_virtually(run())


def test_a_call_that_has_not_gone_goes_to_the_next_run_of_the_peer() -> None:
    async def run() -> None:
        world = World()
        world.cut()
        ask = asyncio.ensure_future(world.asked.ask(a_call("x")))
        await asyncio.sleep(1)
        world.there.hello = hello("2")
        world.connect()
        await world.until_done(ask)
        assert ask.result().body == b"x"

    run_virtually(run())
