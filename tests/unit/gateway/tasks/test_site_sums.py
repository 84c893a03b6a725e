"""Sums of a site: two sites send theirs to an arbiter's, and each party counts once whatever happens to them.

More than 500 lines: gateways are started once for all of it.
"""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from fedrdma_fate.aggregate.place import PLANES_AT
from fedrdma_fate.cli.status import render
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed, Sum
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.tasks import site_addition
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import SumOrder, SumOrders
from fedrdma_fate.wire.site_sum import SiteSum, encode_site_sum, site_sum_key
from fedrdma_fate.wire.summand import planes_of
from tests.support.raw_task import Connection
from tests.support.sites import InThread, Site, Sites, eventually, linked_sites, party, start_gateways
from tests.support.sum_orders import orders_of, wait_for_orders_to_end
from tests.support.summands import SHAPES, bits, masked, pairs_in, written

EACH = 4
NAMES = [f"host:{number}" for number in range(2 * EACH)]
SOURCES = [party(name) for name in NAMES]
UPDATES = masked(SHAPES, len(SOURCES), seed=5)
UPDATE_BYTES = len(written(UPDATES[0], SOURCES[0], 1.0))
LAYOUT = {"a": ["arbiter:1"], "b": NAMES[:EACH], "c": NAMES[EACH:]}
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "24MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
LONG_WAIT = 600.0
"""Seconds that no site waits in a test."""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool | float, dict[str, Site]]]:
    """With sums of sites, without, and with sites that wait for nobody."""
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(
                start_gateways(LAYOUT, tmp_path_factory.mktemp(f"sites-{kind}"), memory=MEMORY, aggregate=aggregate)
            )
            for kind, aggregate in (
                (True, {"site_sums": True, "site_wait": LONG_WAIT}),
                (False, {"site_sums": False}),
                (0.0, {"site_sums": True, "site_wait": 0.0}),
            )
        }


class Session:
    """A session in which everybody has a task."""

    def __init__(self, sites: dict[str, Site], name: str, stack: ExitStack) -> None:
        self.name = name
        self.sites = sites
        self.pool = stack.enter_context(ThreadPoolExecutor(1))
        self.arbiter = stack.enter_context(sites["a"].client(name, "arbiter:1"))
        self.hosts = [
            stack.enter_context(sites["b" if number < EACH else "c"].client(name, each))
            for number, each in enumerate(NAMES)
        ]

    def push(self, number: int, body: bytes | None = None) -> None:
        body = written(UPDATES[number], SOURCES[number], float(number)) if body is None else body
        client: GatewayClient = self.hosts[number]
        lease = client.lease(len(body))
        lease.buffer[:] = body
        lease.commit("masked", "t", [party("arbiter:1")], "object")

    def ask(self) -> Future[ReceivedSum | NotSummed]:
        """Ask for the sum, and wait until sites have been asked for theirs."""
        future = self.pool.submit(self.arbiter.get_sum, "masked", "t", SOURCES, timeout=60.0)
        for site in "bc":
            eventually(lambda site=site: self.orders_at(site) > 0)
        return future

    def orders_at(self, site: str) -> int:
        """Which the arbiter's site has with this one, in this session."""
        return orders_of(self.sites[site], self.name, "a")

    def site_sums_sent(self) -> int:
        """Transfers of sums of sites that have come."""
        delivered = self.sites["a"].events("delivered")
        return sum(
            event["session"] == self.name and "sum of a site" in event["name"] and event["kept"] for event in delivered
        )

    def bytes_come(self) -> int:
        """Of payloads, over the data paths to the arbiter's site."""
        delivered = self.sites["a"].events("delivered")
        return sum(event["bytes"] for event in delivered if event["session"] == self.name)


@pytest.fixture
def make_session(
    sites: dict[bool | float, dict[str, Site]], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Session]]:
    with ExitStack() as stack:
        numbers = iter(range(100))
        yield lambda kind=True: Session(sites[kind], f"{request.node.name}-{next(numbers)}", stack)


def whole(future: Future[ReceivedSum | NotSummed]) -> tuple[Any, float | None]:
    """The bits of a sum of all, and its weight."""
    summed = future.result(timeout=90)
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.reason) == (tuple(range(len(NAMES))), "")
    return bits(pairs_in(summed.buffer, summed.shapes)), summed.weight


def expected(sites: dict[str, Site], name: str) -> tuple[Any, float | None]:
    """Without sums of sites."""
    with ExitStack() as stack:
        session = Session(sites, name, stack)
        for number in range(len(NAMES)):
            session.push(number)
        return whole(session.pool.submit(session.arbiter.get_sum, "masked", "t", SOURCES, timeout=60.0))


@pytest.fixture(scope="module")
def alone(sites: dict[bool | float, dict[str, Site]]) -> tuple[Any, float | None]:
    return expected(sites[False], "alone")


def test_status_says_how_many_sums_of_sites_are_awaited(make_session: Callable[..., Session]) -> None:
    session = make_session()
    future = session.ask()
    (found,) = [each for each in session.sites["a"].status()["sums"] if each["session"] == session.name]
    assert (found["missing"], found["site_sums"], found["worker"]) == (len(NAMES), 2, None)
    shown = io.StringIO()
    Console(file=shown, width=300).print(render(session.sites["a"].status()))
    assert f"{len(NAMES)}, 2 sums of sites among them: " in shown.getvalue()
    for number in range(len(NAMES)):
        session.push(number)
    whole(future)


def added_at(sites: dict[str, Site], site: str) -> float:
    """Updates that a site has counted as added."""
    runner = sites.runner  # type: ignore[attr-defined]
    lines = runner.gateways[site]._assembly.context.metrics.render().splitlines()
    name = 'fedrdma_added_updates_total{order="exact"} '
    return next((float(line[len(name) :]) for line in lines if line.startswith(name)), 0.0)


def test_two_sites_send_one_sum_each_and_the_bits_are_those_of_each_party_alone(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    before = {site: added_at(session.sites, site) for site in "abc"}
    future = session.ask()
    for number in (6, 0, 3, 5, 1, 2, 7, 4):
        session.push(number)

    assert whole(future) == alone
    # each site has added its own, and the arbiter's the two sums
    assert {site: added_at(session.sites, site) - before[site] for site in "abc"} == {"a": 2, "b": EACH, "c": EACH}
    eventually(lambda: session.site_sums_sent() == 2)
    assert session.bytes_come() < 2.1 * UPDATE_BYTES
    for site in "bc":
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)


def test_who_was_sent_before_the_order_came_is_left_alone_and_counts_once(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    for number in (0, 5):
        session.push(number)
    eventually(lambda: session.bytes_come() > 1.9 * UPDATE_BYTES)
    future = session.ask()
    for number in (1, 2, 3, 4, 6, 7):
        session.push(number)

    assert whole(future) == alone
    assert session.site_sums_sent() == 2


def test_a_site_of_which_one_is_left_is_not_asked(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    for number in (0, 1, 2):
        session.push(number)
    eventually(lambda: session.bytes_come() > 2.9 * UPDATE_BYTES)
    future = session.pool.submit(session.arbiter.get_sum, "masked", "t", SOURCES, timeout=60.0)
    eventually(lambda: session.orders_at("c") > 0)
    assert session.orders_at("b") == 0
    for number in range(3, 8):
        session.push(number)

    assert whole(future) == alone


def test_who_is_late_comes_alone_and_the_sum_of_the_others_is_none_the_worse(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session(0.0)
    future = session.ask()
    for number in range(7):
        session.push(number)
    eventually(lambda: session.bytes_come() > 0 and session.sites["b"].pool("send")["slots"] == 0)
    session.push(7)

    assert whole(future) == alone
    for site in "bc":
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)


def test_one_that_is_no_summand_goes_alone_and_everybody_counts_once(make_session: Callable[..., Session]) -> None:
    session = make_session()
    future = session.ask()
    pickled = bytes(range(256)) * 4096
    session.push(2, pickled)
    for number in (0, 1, 3, 4, 5, 6, 7):
        session.push(number)
    summed = future.result(timeout=90)

    parties_in: tuple[int, ...] = ()
    if isinstance(summed, ReceivedSum):
        assert "host:2: it is no summand" in summed.reason
        parties_in = summed.parties_in
    assert 2 not in parties_in
    for number in set(range(8)) - set(parties_in):
        body = pickled if number == 2 else written(UPDATES[number], SOURCES[number], float(number))
        assert bytes(session.arbiter.get("masked", "t", SOURCES[number], timeout=30).buffer) == body


def spoilt(number: int) -> bytes:
    """An update in which a number is none, behind many that are."""
    pairs = [(fraction.copy(), whole_numbers.copy()) for fraction, whole_numbers in UPDATES[number]]
    pairs[-1][0][-1] = np.nan
    return written(pairs, SOURCES[number], float(number))


@pytest.mark.parametrize("first", [True, False])
def test_an_update_with_a_number_that_is_none_goes_alone_and_the_sums_of_both_sites_are_in_without_it(
    make_session: Callable[..., Session], first: bool
) -> None:
    session = make_session()
    future = session.ask()
    for number in (2, 0, 1, 3) if first else (0, 1, 2, 3):
        session.push(number, spoilt(2) if number == 2 else None)
    eventually(lambda: session.bytes_come() > 1.9 * UPDATE_BYTES)
    for number in (4, 5, 6, 7):
        session.push(number)
    summed = future.result(timeout=90)

    assert isinstance(summed, ReceivedSum)
    assert summed.reason == "host:2: a number in it is none, infinite, or larger than a masked one can be"
    assert summed.parties_in == (0, 1, 3, 4, 5, 6, 7)
    assert session.site_sums_sent() == 2
    assert session.bytes_come() < 3.1 * UPDATE_BYTES
    for number, (fraction, whole_numbers) in enumerate(pairs_in(summed.buffer, summed.shapes)):
        others = [update[number] for at, update in enumerate(UPDATES) if at != 2]
        assert np.abs(fraction - sum(each[0] for each in others)).max(initial=0) < 1e-13
        assert np.array_equal(whole_numbers, sum(each[1] for each in others))
    assert bytes(session.arbiter.get("masked", "t", SOURCES[2], timeout=30).buffer) == spoilt(2)
    for site in "bc":
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)


def test_the_arbiters_task_goes_away_and_what_was_kept_back_comes_alone(make_session: Callable[..., Session]) -> None:
    session = make_session()
    task = Connection(session.sites["a"], session.name, party("arbiter:1"))
    task.send(Sum("masked", "t", tuple(SOURCES)))
    eventually(lambda: session.orders_at("b") > 0)
    for number in range(3):
        session.push(number)
    assert session.sites["b"].pool("send")["slots"] >= 3
    task.close()

    eventually(lambda: session.orders_at("b") == 0)
    with session.sites["a"].client(session.name, "arbiter:1") as again:
        for number in range(3):
            body = written(UPDATES[number], SOURCES[number], float(number))
            assert bytes(again.get("masked", "t", SOURCES[number], timeout=30).buffer) == body


def test_a_sum_that_times_out_leaves_nobody_behind(make_session: Callable[..., Session]) -> None:
    session = make_session()
    future = session.pool.submit(session.arbiter.get_sum, "masked", "t", SOURCES, timeout=4.0)
    eventually(lambda: session.orders_at("b") > 0)
    for number in range(3):
        session.push(number)
    with pytest.raises(FedRDMAError) as caught:
        future.result(timeout=60)
    assert caught.value.code is ErrorCode.PULL_TIMEOUT
    for number in range(3):
        body = written(UPDATES[number], SOURCES[number], float(number))
        assert bytes(session.arbiter.get("masked", "t", SOURCES[number], timeout=30).buffer) == body


def lies(change: Callable[[SiteSum], SiteSum], monkeypatch: pytest.MonkeyPatch) -> None:
    """What site b says of its sum."""

    def encode(site_sum: SiteSum) -> bytes:
        # the first call makes room for it
        is_real = all(part.transfer != site_addition.MOST_TRANSFER for part in site_sum.parts)
        changed = change(site_sum) if is_real and site_sum.parts[0].party in SOURCES[:EACH] else site_sum
        return encode_site_sum(changed)

    monkeypatch.setattr(site_addition, "encode_site_sum", encode)


def renamed(site_sum: SiteSum, *names: str) -> SiteSum:
    parts = [msgspec.structs.replace(part, party=party(n)) for part, n in zip(site_sum.parts, names, strict=True)]
    return msgspec.structs.replace(site_sum, parts=tuple(parts))


@pytest.mark.parametrize(
    "change",
    [
        lambda site_sum: renamed(site_sum, "host:0", "host:1", "host:2", "host:4"),
        lambda site_sum: renamed(site_sum, "host:0", "host:1", "host:2", "host:9"),
        lambda site_sum: renamed(site_sum, "host:0", "host:1", "host:2", "host:2"),
        lambda site_sum: msgspec.structs.replace(site_sum, parties=7),
        lambda site_sum: msgspec.structs.replace(site_sum, shapes=((3,), *site_sum.shapes[1:])),
        lambda site_sum: msgspec.structs.replace(site_sum, shapes=tuple(reversed(site_sum.shapes))),
        lambda site_sum: msgspec.structs.replace(
            site_sum, parts=tuple(msgspec.structs.replace(part, weight=float("nan")) for part in site_sum.parts)
        ),
        lambda site_sum: msgspec.structs.replace(
            site_sum, parts=tuple(msgspec.structs.replace(part, weight=-1.0) for part in site_sum.parts)
        ),
    ],
    ids=[
        "other sites'",
        "nobody's",
        "twice",
        "other whole",
        "too short",
        "other shapes",
        "weights are none",
        "weights are negative",
    ],
)
def test_a_sum_that_cannot_be_right_is_refused_and_its_parties_come_alone(
    make_session: Callable[..., Session],
    alone: tuple[Any, float | None],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[SiteSum], SiteSum],
) -> None:
    lies(change, monkeypatch)
    session = make_session()
    future = session.ask()
    # that of c is in when the other comes
    for number in (4, 5, 6, 7):
        session.push(number)
    eventually(lambda: session.site_sums_sent() == 1)
    for number in (0, 1, 2, 3):
        session.push(number)

    assert whole(future) == alone
    for site in "bc":
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_sum_with_a_number_that_is_none_is_taken_out_again_whether_or_not_it_comes_first(
    make_session: Callable[..., Session],
    alone: tuple[Any, float | None],
    monkeypatch: pytest.MonkeyPatch,
    comes_first: bool,
) -> None:
    send = site_addition.SiteAddition._send

    async def spoil(self: Any) -> None:
        if self._parts[0].party in SOURCES[:EACH]:
            at = PLANES_AT + list(planes_of(SHAPES))[-1].offset
            self._lease.slot.view[at : at + 8] = np.array([0.5]).tobytes()
        await send(self)

    monkeypatch.setattr(site_addition.SiteAddition, "_send", spoil)
    session = make_session()
    future = session.ask()
    first, second = (range(4), range(4, 8)) if comes_first else (range(4, 8), range(4))
    for number in first:
        session.push(number)
    eventually(lambda: session.bytes_come() > 0)
    for number in second:
        session.push(number)

    assert whole(future) == alone


@pytest.mark.parametrize("before", [True, False])
def test_a_site_that_sends_its_parties_alone_besides_counts_each_once(
    make_session: Callable[..., Session],
    alone: tuple[Any, float | None],
    monkeypatch: pytest.MonkeyPatch,
    before: bool,
) -> None:
    put = Sending.put_site_sum

    def both(self: Sending, key: Any, payload: Any, lease: Any, mode: Any) -> int:
        kept = [transfer for transfer in self._transfers if self.is_kept_back(transfer)]
        if before:
            self.send_alone(kept[:2])
        transfer = put(self, key, payload, lease, mode)
        self.send_alone(kept)
        return transfer

    monkeypatch.setattr(Sending, "put_site_sum", both)
    session = make_session()
    future = session.ask()
    for number in range(8):
        session.push(number)

    assert whole(future) == alone
    for site in "bc":
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)
    eventually(lambda: session.sites["a"].status()["mailbox"]["messages"] == 0)


def test_without_room_for_a_sum_its_parties_come_alone(
    make_session: Callable[..., Session], alone: tuple[Any, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> None:
        raise site_addition.NoRoomError("none")

    monkeypatch.setattr(site_addition.SiteAddition, "_make_room", no_room)
    session = make_session()
    future = session.ask()
    for number in range(8):
        session.push(number)

    assert whole(future) == alone
    assert session.site_sums_sent() == 0


def test_a_task_cannot_push_what_looks_like_the_sum_of_a_site(make_session: Callable[..., Session]) -> None:
    session = make_session()
    key = site_sum_key(session.name, "masked", "t", SOURCES[0], party("arbiter:1"))
    assert key is not None
    with pytest.raises(FedRDMAError, match="sums of sites"):
        session.hosts[0].put_inline(key.name, "t", [party("arbiter:1")], "bytes", b"x")


def test_a_site_that_adds_no_sums_is_asked_for_none_and_the_other_one_is(
    tmp_path: Path, alone: tuple[Any, float | None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with ExitStack() as stack:
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="fr"))
        aggregate = {"site_sums": True, "site_wait": LONG_WAIT}
        layout = linked_sites(LAYOUT, tmp_path, Path(sockets), memory=MEMORY, aggregate=aggregate)
        # as an older version says of itself
        layout["c"].config["aggregate"] = {"site_sums": False}
        sites = stack.enter_context(Sites.running(layout, InThread()))
        sites.wait_until_connected()
        session = Session(sites, "mixed", stack)
        future = session.pool.submit(session.arbiter.get_sum, "masked", "t", SOURCES, timeout=60.0)
        eventually(lambda: session.orders_at("b") == 1)
        assert session.orders_at("c") == 0
        assert "the updates of 4 of c's parties come one by one" in caplog.text
        assert "is of an older version, or has aggregate.site_sums: false" in caplog.text
        assert "of b's parties come one by one" not in caplog.text
        for number in range(8):
            session.push(number)

        assert whole(future) == alone
        eventually(lambda: session.site_sums_sent() == 1)


@pytest.mark.parametrize(
    "order",
    [
        SumOrder(1, "s", "masked", "t", party("arbiter:1"), tuple(SOURCES[EACH:]), 8),
        SumOrder(1, "s", "masked", "t", SOURCES[5], tuple(SOURCES[:EACH]), 8),
        SumOrder(1, "s", "masked", "t", SOURCES[0], tuple(SOURCES[:EACH]), 8),
        SumOrder(1, "s", "masked", "t", party("arbiter:1"), (SOURCES[0], SOURCES[0]), 8),
        SumOrder(1, "s", "masked", "t", party("arbiter:1"), tuple(SOURCES[:EACH]), 3),
    ],
    ids=["of others' parties", "to others'", "to our own", "one twice", "of a smaller whole"],
)
def test_an_order_that_cannot_be_right_is_not_obeyed_and_those_beside_it_are(
    sites: dict[bool | float, dict[str, Site]], order: SumOrder
) -> None:
    running = sites[True]
    assert isinstance(running, Sites)
    assert isinstance(running.runner, InThread)
    wait_for_orders_to_end(running)
    right, another = (
        SumOrder(number, "never", "masked", f"t{number}", party("arbiter:1"), tuple(SOURCES[:EACH]), 8)
        for number in (7, 8)
    )

    def standing() -> int:
        return sum(peer["sum_orders"] for peer in running["b"].status()["peers"] if peer["site"] == "a")

    running.runner.tell("a", "b", SumOrders((right,)))
    eventually(lambda: standing() == 1)
    running.runner.tell("a", "b", SumOrders((right, order, another)))
    eventually(lambda: standing() == 2)
    running.runner.tell("a", "b", SumOrders((order,)))
    eventually(lambda: standing() == 0)
