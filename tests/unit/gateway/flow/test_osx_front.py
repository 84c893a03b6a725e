"""Scheduling calls as FATE Flow makes them with `proxy_name: osx`: its own client against a gateway's front."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrdma_fate.gateway.flow import osx_front
from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.gateway.flow.call_watch import CallWatch
from fedrdma_fate.gateway.flow.osx_front import METHOD, SERVICE
from fedrdma_fate.gateway.flow.packet import call_of, packet_of
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.flow import LAYOUT, SECONDS, FlowSites, body_for, flow_sites
from tests.support.ports import ports_of_this_process
from tests.support.sites import eventually, start_gateways

client = pytest.importorskip("ofx.api.models.fate_flow.resource", reason="FATE's client is not installed")
wrapping = pytest.importorskip("ofx.api.utils.grpc_utils", reason="FATE's client is not installed")

PATH = "/v2/partner/job/create"
HEADERS = {"initiator-party-id": "9999", "Nonce": "1234", "Signature": "ab"}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowSites]:
    with flow_sites(tmp_path_factory.mktemp("sites")) as made:
        yield made


def ask(two: FlowSites, path: str = PATH, to: str = "10000", **options: Any) -> Any:
    """By FATE's own client: at most three tries."""
    given = {
        "job_id": "1",
        "method": "POST",
        "host": "127.0.0.1",
        "port": two.port("a", "osx"),
        "endpoint": path,
        "src_party_id": "",
        "dest_party_id": to,
        "json_body": body_for("host", to),
        "headers": dict(HEADERS),
        "source_host": "127.0.0.1",
        "source_port": 9380,
        "timeout": int(SECONDS),
    }
    return client.APIClient.remote_on_grpc_proxy(**{**given, **options})


def packet(**options: Any) -> bytes:
    """As FATE's client makes it."""
    given = {
        "json_body": body_for("host", "10000"),
        "http_method": "POST",
        "url": PATH,
        "src_party_id": "",
        "dst_party_id": "10000",
        "job_id": "1",
        "headers": dict(HEADERS),
        "overall_timeout": 10,
        "source_host": "127.0.0.1",
        "source_port": 9380,
    }
    made: bytes = wrapping.wrap_proxy_grpc_packet(**{**given, **options}).SerializeToString()
    return made


def test_a_call_of_fate_flows_own_client_goes_to_the_other_site_and_comes_back(two: FlowSites) -> None:
    two.flows["b"].answer = lambda _call: (200, "application/json", b'{"code": 0, "message": "made"}')

    assert ask(two) == {"code": 0, "message": "made"}

    seen = two.flows["b"].calls[-1]
    assert seen.path == PATH
    assert {name: seen.headers[name] for name in HEADERS} == HEADERS
    assert seen.headers["dest-party-id"] == "10000"


def test_a_call_to_an_own_party_goes_to_the_own_server(two: FlowSites) -> None:
    before = len(two.flows["b"].calls)
    assert ask(two, to="9999", json_body=body_for("guest", "9999"))["code"] == 0
    assert two.flows["a"].calls[-1].path == PATH
    assert len(two.flows["b"].calls) == before


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"path": "/v2/job/submit"}, "FR617"),
        ({"method": "GET"}, "FR617"),
        ({"json_body": body_for("host", "9999")}, "FR602"),
        ({"headers": {"dest-party-id": "9999"}}, "FR617"),
        ({"headers": {"initiator-party-id": "10000"}}, "FR602"),
        ({"to": "4711"}, "FR602"),
    ],
)
def test_what_is_not_forwarded_is_told_with_a_code(two: FlowSites, options: dict[str, Any], code: str) -> None:
    before = [len(flow.calls) for flow in two.flows.values()]
    with pytest.raises(grpc.RpcError) as refused:
        ask(two, **options)
    assert code in str(refused.value)
    assert [len(flow.calls) for flow in two.flows.values()] == before


@pytest.mark.parametrize("raw", [b"", b"\xff" * 20, b"\x0a\xff", bytes(3_000_000)], ids=len)
def test_what_is_no_packet_is_refused_and_the_next_call_is_served(two: FlowSites, raw: bytes) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{two.port('a', 'osx')}") as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        with pytest.raises(grpc.RpcError) as refused:
            call(raw, timeout=SECONDS)
        code = refused.value.code()  # type: ignore[attr-defined]
        assert code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert ask(two)["code"] == 0


def test_other_methods_are_not_implemented(two: FlowSites) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{two.port('a', 'osx')}") as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/somethingElse")
        with pytest.raises(grpc.RpcError) as refused:
            call(packet(), timeout=SECONDS)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_a_call_that_is_given_up_and_made_again_is_carried_out_once(two: FlowSites) -> None:
    go = threading.Event()

    def answer(_call: object) -> tuple[int, str, bytes]:
        go.wait(SECONDS)
        return 200, "application/json", b'{"code": 0, "message": "at last"}'

    two.flows["b"].answer = answer
    before = len(two.flows["b"].calls)
    with grpc.insecure_channel(f"127.0.0.1:{two.port('a', 'osx')}") as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        first = call.future(packet(), timeout=SECONDS)
        eventually(lambda: len(two.flows["b"].calls) == before + 1, SECONDS)
        first.cancel()
        repeats = two.sites.runner.gateways["a"]._assembly.calls.repeats  # type: ignore[attr-defined]
        eventually(lambda: repeats._abandoned, SECONDS)
        second = call.future(packet(), timeout=SECONDS)
        eventually(lambda: not repeats._abandoned, SECONDS)
        go.set()
        assert b"at last" in second.result()
    assert len(two.flows["b"].calls) == before + 1


# --- the packet ---


def test_a_packet_is_read_as_fate_flows_own_classes_wrote_it() -> None:
    call = call_of(packet())
    assert (call.path, dict(call.headers)) == (PATH, {"dest-party-id": "10000", **HEADERS})
    assert b'"party_id": "10000"' in call.body


def test_an_answer_is_written_as_fate_flows_own_classes_read_it() -> None:
    body = b'{"data": "' + b"x" * 70_000 + b'"}'
    written = packet_of(SchedulingCall(PATH, (), b""), Answer(200, body))
    assert wrapping.proxy_pb2.Packet.FromString(written).body.value == body


@pytest.mark.parametrize("cut", range(1, len(packet()), 7))
def test_a_packet_that_is_cut_off_is_refused_or_is_no_call_of_anybody(cut: int) -> None:
    whole = packet()
    assert _read(whole[:cut]) != call_of(whole)


def _read(raw: bytes) -> SchedulingCall | ErrorCode:
    try:
        return call_of(raw)
    except GatewayError as error:
        return error.code


def test_a_packet_with_two_headers_or_bodies_is_refused() -> None:
    for more in (packet(url="/v2/job/submit"), packet(dst_party_id="9999")):
        with pytest.raises(GatewayError) as refused:
            call_of(packet() + more)
        assert refused.value.code is ErrorCode.CALL_REFUSED


@pytest.mark.parametrize("to", ["9999", "10000"])
def test_where_no_fate_flow_is_named_scheduling_calls_are_refused(tmp_path: Path, to: str) -> None:
    fronts = dict(zip(LAYOUT, ports_of_this_process(len(LAYOUT)), strict=True))

    def of_site(name: str) -> dict[str, Any]:
        return {"listen": {"osx": f"127.0.0.1:{fronts[name]}"}}

    with start_gateways(LAYOUT, tmp_path, of_site=of_site):
        with grpc.insecure_channel(f"127.0.0.1:{fronts['a']}") as channel:
            call: Any = channel.unary_unary(f"/{SERVICE}/{METHOD}")
            with pytest.raises(grpc.RpcError) as refused:
                call(packet(dst_party_id=to, json_body=body_for("host", to)), timeout=SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
        assert "FR619" in str(refused.value)


def test_a_call_that_is_over_before_it_is_begun_is_not_carried_out() -> None:
    class Over:
        code: object = None

        def add_callback(self, _callback: object) -> bool:
            return False

        def peer(self) -> str:
            return "ipv4:127.0.0.1:40000"

        def abort(self, code: object, _details: str) -> None:
            self.code = code
            raise RuntimeError

    class Untouched:
        further_headers = ()

    async def run() -> None:
        front = osx_front.OsxFront("listen.osx", "127.0.0.1:0", Untouched(), CallWatch(Complaints()))  # type: ignore[arg-type]
        over = Over()
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(front._unary_call, iter([packet()]), over)
        assert over.code is grpc.StatusCode.CANCELLED

    asyncio.run(run())


def test_calls_that_are_begun_and_not_made_end_and_give_their_threads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(osx_front, "CALL_SECONDS", 0.4)
    monkeypatch.setattr(osx_front, "MOST_THREADS", 2)
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(SECONDS)
        yield from ()

    with flow_sites(tmp_path) as two:
        channels = [grpc.insecure_channel(f"127.0.0.1:{two.port('a', 'osx')}") for _ in range(2)]
        try:
            begun = [each.stream_unary(f"/{SERVICE}/{METHOD}").future(nothing()) for each in channels]
            for each in begun:
                assert each.exception(SECONDS) is not None
            # a connection lives shortly here, and the machine may be slow
            eventually(lambda: _answered(two), SECONDS)
        finally:
            never.set()
            for channel in channels:
                channel.close()


def _answered(two: FlowSites) -> bool:
    try:
        return bool(ask(two)["code"] == 0)
    except grpc.RpcError:
        return False
