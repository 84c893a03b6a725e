"""What the programs of the testbed's hosts compute: their payload, shares of it, and counters."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.softroce.programs import gateways, iperf3_transfers
from deploy.softroce.programs.competing import Arrivals, Flow, parse_flow
from deploy.softroce.programs.counters import Counters, read_counters
from deploy.softroce.programs.gateways import YieldingLinkThread, link_thread
from deploy.softroce.programs.pattern import fill, is_filled
from deploy.softroce.programs.pauses import begin_after
from deploy.softroce.programs.tcp_streams import choose, shares
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.engine.link_thread import LinkThread, MakeLink
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.gateway.config.schema import GatewayConfig
from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.wire.frames import Party


@pytest.mark.parametrize(("size", "streams"), [(100, 8), (64 * 2**20, 8), (3, 8), (7, 1)])
def test_connections_share_a_payload_evenly_and_none_of_it_is_left(size: int, streams: int) -> None:
    parts = shares(size, streams)
    assert (len(parts), sum(parts)) == (streams, size)
    assert max(parts) - min(parts) <= 1


def test_a_payload_with_one_wrong_byte_is_not_the_payload() -> None:
    payload = memoryview(bytearray(2_500_000))
    assert not is_filled(payload)
    fill(payload)
    assert is_filled(payload)
    payload[2_499_999] ^= 1
    assert not is_filled(payload)


def test_what_this_host_sends_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_NETDEV", "lo")
    before = read_counters()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(bytes(5000), ("127.0.0.1", 9))
    assert read_counters().since(before).sent_bytes >= 5000


def test_an_interval_of_counters_is_their_difference() -> None:
    assert Counters(10, 7).since(Counters(4, 5)) == Counters(6, 2)


def test_a_congestion_control_that_the_kernel_lacks_is_named_with_those_it_has() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection,
        pytest.raises(SystemExit, match=r"has no TCP fastest, only: \w"),
    ):
        choose(connection, "fastest")


def test_a_payload_takes_as_long_as_at_the_rate_that_the_receiver_of_iperf3_saw() -> None:
    document = {"end": {"sum_received": {"bytes": 40_000_000, "seconds": 0.5}}}
    assert iperf3_transfers.seconds_of(document, 80_000_000) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"error": "unable to connect to server"}, "iperf3: unable to connect to server"),
        ({"end": {"sum_received": {"bytes": 0, "seconds": 0.5}}}, "nothing arrived"),
    ],
)
def test_a_failure_of_iperf3_is_passed_on(document: dict[str, object], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        iperf3_transfers.seconds_of(document, 1)


def test_without_iperf3_the_program_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="there is no program iperf3"):
        iperf3_transfers.find_program()


def test_a_flow_is_read_as_written() -> None:
    assert parse_flow(0, "x@2.5") == Flow(0, "x", 128 * 2**20, 2.5)
    assert parse_flow(1, "x/16@2") == Flow(1, "x", 16 * 2**20, 2.0)
    assert parse_flow(2, "cubic@3") == Flow(2, "cubic", 128 * 2**20, 3.0)
    with pytest.raises(ValueError, match="could not convert"):
        parse_flow(0, "x@soon")


class Told:
    """Stands for a client whose gateway tells one list of transfers after the other."""

    def __init__(self, *lists: list[tuple[int, str, int]]) -> None:
        self._lists = iter(lists)

    def status(self) -> dict[str, object]:
        return {
            "transfers": [
                {"transfer": number, "direction": direction, "total_bytes": 100, "done_bytes": done}
                for number, direction, done in next(self._lists)
            ]
        }


def test_transfers_that_are_not_under_way_any_more_have_arrived_whole() -> None:
    told = Told([(1, "receive", 40), (7, "send", 3)], [(2, "receive", 10)], [(2, "receive", 30)], [])
    arrivals = Arrivals(cast(GatewayClient, told))
    assert [arrivals.total() for _ in range(4)] == [40, 110, 130, 200]


def test_where_a_path_repeats_transfers_begin_at_quarters_of_its_period_however_long_those_before_took() -> None:
    assert begin_after(7.0, 3.0, 0.0, 5) == 7.5
    # from 3.0 on every 2 s; the transfers' moments of it are 0, 0.5, 1.0 and 1.5
    for now in (3.0, 3.2, 4.4):
        assert begin_after(now, 3.0, 2.0, 0) == begin_after(now, 3.0, 2.0, 4) == 5.0
    assert [begin_after(4.6, 3.0, 2.0, number) for number in range(4)] == [7.0, 5.5, 6.0, 6.5]
    assert begin_after(3.0, 3.0, 2.0, 1) == 3.5


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0.02, 10), st.integers(0, 9))
def test_a_transfer_begins_at_its_moment_of_the_period_half_a_second_to_that_and_a_period_later(
    later: float, began: float, period: float, number: int
) -> None:
    now = began + later
    begin = begin_after(now, began, period, number)
    assert now + 0.5 - 1e-6 <= begin <= now + 0.5 + 2 * period
    moment = (begin - began - number % 4 * period / 4) / period
    assert moment == pytest.approx(round(moment), abs=1e-6)


def test_in_virtual_time_each_turn_of_a_link_lets_the_other_programs_of_the_guest_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yields: list[None] = []
    monkeypatch.setattr("os.sched_yield", lambda: yields.append(None))
    monkeypatch.setenv("TESTBED_VIRTUAL_TIME", "0")
    assert link_thread() is LinkThread, "elsewhere the machine's own scheduler decides"
    monkeypatch.setenv("TESTBED_VIRTUAL_TIME", "1")
    link = link_thread()("peer", LinkSettings("tcp"), lambda _: None)
    link.recall_credits()
    link.close()
    assert not link.alive
    assert len(yields) >= 2, "the turn that carries a command out, and the last one"


def test_a_gateway_of_the_testbed_has_the_links_that_give_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TESTBED_VIRTUAL_TIME", "1")
    monkeypatch.setenv("TESTBED_HOST", "0")
    monkeypatch.setenv("TESTBED_HOSTS", "127.0.0.1")
    made: list[Gateway] = []

    class Seen(Gateway):
        def __init__(self, config: GatewayConfig, make_link: MakeLink) -> None:
            super().__init__(config, make_link)
            made.append(self)

    monkeypatch.setattr(gateways, "Gateway", Seen)
    document = gateways.gateway_document(
        tmp_path, [Party("guest", "1")], port=0, memory={"send_bytes": 1 << 20, "receive_bytes": 1 << 20}
    )
    with gateways.running_gateway(document):
        (gateway,) = made
        assert gateway._assembly is not None
        assert gateway._assembly.context.make_link is YieldingLinkThread
