"""Messages of which something may be missing, between two gateways whose data path loses chunks, from task to task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from fate.arch.context import Context

from fedrdma_fate.client.client import LossTolerance
from fedrdma_fate.core.held import bytes_in
from fedrdma_fate.core.x import bounded_loss
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.gateway import assembly as assembly_module
from fedrdma_fate.gateway.transports import TransportSet, make_transports
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.faulty import FaultPlan, FaultyTransport
from tests.support.sites import Sites, eventually, party, start_gateways

GUEST, HOST = ("guest", "1"), ("host", "2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
CHUNK = 4096
SHARE = 0.05
LOST = frozenset((0, 1, 2))
"""Chunks that are lost each time that they are sent: the last, so that nothing waits behind them."""
LOST_OF_MODEL = frozenset((24, 25, 27))
"""Just behind what has to be whole of a `model`."""

LOST_OF_KINDS = frozenset((10, 45, 70, 90))
"""One chunk in each of the four large arrays of the test of every kind."""

Connected = tuple[Sites, Context, Context]
"""The sites, and what a guest at the first and a host at the second put and get by."""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Starts gateways whose data path loses some chunks, and those of their index of any message."""

    def begin(lost: frozenset[int] = LOST, **settings: Any) -> Any:
        def make(config: Any, *arguments: Any) -> TransportSet:
            made = make_transports(config, *arguments)
            for name, transport in made.items():
                made[name] = FaultyTransport(transport, [FaultPlan(lost_always=lost)])
            return made

        monkeypatch.setattr(assembly_module, "make_transports", make)
        # nothing goes behind the chunks that are lost, again and again, and slow down what does
        monkeypatch.setattr(bounded_loss, "TAIL_DIVISOR", 1 << 20)
        monkeypatch.setattr(Context, "_get_computing", lambda _self: None)
        settings = {"chunk": CHUNK, "transport": "tcp", "mode": "fedrdma-x", "repair_chunks": False, **settings}
        return start_gateways(LAYOUT, tmp_path, **settings)

    return begin


@pytest.fixture
def connected(start: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Connected]:
    """Both are connected; the data path loses what a model may miss, or the chunks that a test names."""
    with start(getattr(request, "param", LOST_OF_MODEL)) as sites:
        made = []
        for site, own in (("a", GUEST), ("b", HOST)):
            options = FederationOptions(journal=str(tmp_path / f"{site}.journal"))
            federation = FedRDMAFederation("s", None, own, [GUEST, HOST], sites[site].address, options)
            made.append(Context(federation=federation))
        yield sites, *made
        for context in made:
            context.federation._client.close()


def model(seed: int = 5) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "bias": random.random(1000),
        "weights": [random.random((300, 256)), random.random((200, 128)).astype(np.float32)],
        "steps": random.integers(1, 9, (100, 100)),
        "round": 3,
    }


def arrays_of(value: dict[str, Any]) -> list[npt.NDArray[Any]]:
    """In the order in which pickle meets them."""
    return [value["bias"], *value["weights"], value["steps"]]


def test_what_is_missing_is_zeros_and_told_and_all_else_is_right(
    connected: Connected, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    sites, guest, host = connected
    sent = model()
    caplog.set_level(logging.INFO)
    with guest.federation.tolerating(SHARE):
        guest.hosts.put("model", sent)
    with host.federation.tolerating(SHARE):
        got = host.guest.get("model")
    told = {each.array: each for each in host.federation.missing("model", _tag(host), GUEST)}
    holes = 0
    for place, (ours, theirs) in enumerate(zip(arrays_of(sent), arrays_of(got), strict=True)):
        expected = ours.copy()
        for first, end in told[place].ranges if place in told else ():
            expected.reshape(-1)[first:end] = 0
            holes += end - first
        assert np.array_equal(theirs, expected), place
    assert set(told) == {1}, "and of a bias and of integers nothing"
    assert holes == len(LOST_OF_MODEL) * CHUNK // 8
    assert got["round"] == 3
    assert f"{holes} elements of 1 arrays are missing" in caplog.text
    assert [event["missing_bytes"] for event in sites["b"].events("delivered")] == [len(LOST_OF_MODEL) * CHUNK]
    assert (tmp_path / "b.journal").read_text().count(f'"missing": {len(LOST_OF_MODEL) * CHUNK}') == 1
    assert host.federation.missing("model", "another", GUEST) == ()


def _tag(context: Context) -> str:
    return str(context.namespace.federation_tag)


@pytest.mark.parametrize("who", ["sender", "receiver", "nobody"])
def test_unless_both_tasks_let_something_be_missing_it_is_waited_for(start: Callable[..., Any], who: str) -> None:
    ours, theirs = SHARE * (who == "sender"), SHARE * (who == "receiver")
    source = party("guest:1")
    with start() as sites, sites["a"].client() as a, sites["b"].client() as b:
        b.tolerate("m", "t", [source], theirs)
        lease = a.lease(2_000_000)
        lease.commit("m", "t", [party("host:2")], "object", loss=LossTolerance(ours))
        with pytest.raises(FedRDMAError) as late:
            b.get("m", "t", source, timeout=1.0, tolerates=True)
        assert late.value.code is ErrorCode.PULL_TIMEOUT


@pytest.mark.parametrize("tolerates", [False, True])
def test_a_sender_whose_receiver_lets_nothing_be_missing_is_told_so(
    start: Callable[..., Any], caplog: pytest.LogCaptureFixture, tolerates: bool
) -> None:
    source = party("guest:1")
    caplog.set_level(logging.INFO)
    with start(frozenset()) as sites, sites["a"].client() as a, sites["b"].client() as b:
        a.lease(200_000).commit("m", "t", [party("host:2")], "object", loss=LossTolerance(SHARE))
        b.get("m", "t", source, timeout=20, tolerates=tolerates)
        # whatever goes the same way later, and comes back
        b.lease(200_000).commit("back", "t", [source], "object")
        a.get("back", "t", party("host:2"), timeout=20)
        told = "lets nothing be missing of 'm'"
        if tolerates:
            assert told not in caplog.text
        else:
            eventually(lambda: told in caplog.text)


@pytest.mark.parametrize("jointly", [True, False])
def test_what_is_missing_of_one_may_be_of_another_for_nothing_where_both_are_read_jointly(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, jointly: bool
) -> None:
    monkeypatch.setitem(LAYOUT, "a", ["guest:1", "guest:2"])
    total = 1_000_000
    # of the three chunks that both lose: but for a byte, twice as many would be too many
    share = (6 * CHUNK - 1) / total
    sources = [party("guest:1"), party("guest:2")]
    with start() as sites, sites["b"].client() as b:
        b.tolerate("m", "t", sources, share, jointly=jointly)
        for source in sources:
            with sites["a"].client(of=str(source)) as a:
                a.lease(total).commit("m", "t", [party("host:2")], "object", loss=LossTolerance(SHARE))
                received = b.get("m", "t", source, timeout=20, tolerates=True)
                assert bytes_in(received.missing) == len(LOST) * CHUNK


@pytest.mark.parametrize("straggler_wait", [0.5, None])
def test_the_last_of_a_round_that_falls_silent_at_its_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    straggler_wait: float | None,
) -> None:
    def make(config: Any, *arguments: Any) -> TransportSet:
        made = make_transports(config, *arguments)
        if config.site == "c":
            for name, transport in made.items():
                # 30 chunks of 64 KiB, and a header
                made[name] = FaultyTransport(transport, [FaultPlan(mute_after_writes=29)] * 9)
        return made

    monkeypatch.setattr(assembly_module, "make_transports", make)
    layout = {"a": ["guest:1"], "b": ["host:2"], "c": ["guest:3"]}
    settings = {"chunk": "64KiB", "transport": "tcp", "mode": "fedrdma-x"}
    total, share = 30 << 16, 0.1
    silos = {"a": party("guest:1"), "c": party("guest:3")}
    with start_gateways(layout, tmp_path, **settings) as sites, sites["b"].client() as b:
        b.tolerate("m", "t", list(silos.values()), share, straggler_wait=straggler_wait)
        for site in silos:
            with sites[site].client() as silo:
                lease = silo.lease(total)
                lease.buffer[:] = b"\x5a" * total
                lease.commit("m", "t", [party("host:2")], "object", loss=LossTolerance(share))
        assert bytes(b.get("m", "t", silos["a"], timeout=20, tolerates=True).buffer) == b"\x5a" * total
        if straggler_wait is None:
            with pytest.raises(FedRDMAError) as late:
                b.get("m", "t", silos["c"], timeout=1, tolerates=True)
            assert late.value.code is ErrorCode.PULL_TIMEOUT
            return
        received = b.get("m", "t", silos["c"], timeout=20, tolerates=True)
        expected = bytearray(b"\x5a" * total)
        for first, end in received.missing:
            expected[first:end] = bytes(end - first)
        assert 0 < bytes_in(received.missing) <= share * total
        assert received.buffer == expected


def test_a_get_that_expects_no_holes_gets_none_and_may_be_made_again(start: Callable[..., Any]) -> None:
    body = np.random.default_rng(1).bytes(2_000_000)
    source = party("guest:1")
    with start() as sites, sites["a"].client() as a, sites["b"].client() as b:
        b.tolerate("m", "t", [source], SHARE)
        lease = a.lease(len(body))
        lease.buffer[:] = body
        lease.commit("m", "t", [party("host:2")], "object", loss=LossTolerance(SHARE))
        delivered = eventually(lambda: sites["b"].events("delivered"))
        assert delivered[0]["missing_bytes"] == len(LOST) * CHUNK
        with pytest.raises(FedRDMAError) as refused:
            b.get("m", "t", source, timeout=10)
        assert refused.value.code is ErrorCode.MESSAGE_INCOMPLETE
        received = b.get("m", "t", source, timeout=10, tolerates=True)
        expected = bytearray(body)
        for start, end in received.missing:
            expected[start:end] = bytes(end - start)
        assert bytes_in(received.missing) == delivered[0]["missing_bytes"]
        assert received.buffer == expected


def test_what_is_missing_of_a_message_that_was_spilled_is_told(start: Callable[..., Any]) -> None:
    body = np.random.default_rng(1).bytes(1_500_000)
    source = party("guest:1")
    settings = {"memory": {"receive_bytes": "4MiB", "send_bytes": "8MiB"}}
    with start(**settings) as sites, sites["a"].client() as a, sites["b"].client() as b:
        for number in range(3):
            b.tolerate(f"m{number}", "t", [source], SHARE)
            lease = a.lease(len(body))
            lease.buffer[:] = body
            lease.commit(f"m{number}", "t", [party("host:2")], "object", loss=LossTolerance(SHARE))
        eventually(lambda: len(sites["b"].events("delivered")) == 3, 30)
        assert sites["b"].events("spilled")
        for number in range(3):
            received = b.get(f"m{number}", "t", source, timeout=10, tolerates=True)
            expected = bytearray(body)
            for start, end in received.missing:
                expected[start:end] = bytes(end - start)
            assert received.missing
            assert received.buffer == expected
            del received


@pytest.mark.parametrize("share", [-1, 0.5, float("nan"), "1 %", None, True])
def test_a_share_that_is_none_is_refused(connected: Connected, share: Any) -> None:
    _, guest, _ = connected
    with pytest.raises(FedRDMAError) as refused, guest.federation.tolerating(share):
        pytest.fail("it was taken")
    assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE


@pytest.mark.parametrize("connected", [LOST_OF_KINDS], indirect=True)
def test_holes_of_arrays_of_every_kind_are_told_in_their_own_elements(connected: Connected) -> None:
    sites, guest, host = connected
    random = np.random.default_rng(7)
    sent = {
        "number": np.array(0.5),
        "empty": np.empty((0, 5)),
        "half": torch.from_numpy(random.random((300, 256)).astype(np.float32)).to(torch.bfloat16),
        "columns": np.asfortranarray(random.random((60, 200))),
        "every other": random.random((200, 100))[::2, 10:],
        "again empty": torch.empty((7, 0), dtype=torch.bfloat16),
        "last": random.random((100, 100)),
    }
    with guest.federation.tolerating(SHARE):
        guest.hosts.put("kinds", sent)
    with host.federation.tolerating(SHARE):
        got = host.guest.get("kinds")
    told = {each.array: each.ranges for each in host.federation.missing("kinds", _tag(host), GUEST)}
    assert set(told) == {2, 3, 4, 6}, "and of what is a number, or empty, nothing"
    holes = 0
    for place, (ours, theirs) in enumerate(zip(sent.values(), got.values(), strict=True)):
        assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
        expected, came = (torch.as_tensor(each).clone().reshape(-1) for each in (ours, theirs))
        for first, end in told.get(place, ()):
            expected[first:end] = 0
            holes += (end - first) * expected.element_size()
        assert torch.equal(came, expected), place
    # what lies between two arrays, to begin the next at a multiple of 64 bytes, is nobody's
    assert (len(LOST_OF_KINDS) - 1) * CHUNK < holes <= len(LOST_OF_KINDS) * CHUNK
    assert [event["missing_bytes"] for event in sites["b"].events("delivered")] == [len(LOST_OF_KINDS) * CHUNK]
