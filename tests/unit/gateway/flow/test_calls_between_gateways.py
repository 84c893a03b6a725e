"""FATE Flow's scheduling calls from front to server, through two gateways; and what goes wrong on the way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.gateway.flow import asking, rules
from fedrdma_fate.gateway.flow.call import Answer
from fedrdma_fate.wire.frames import FlowAnswer, FlowCall, FlowHeard, FlowRefused
from tests.support.flow import SECONDS, FakeFlow, FlowSites, Seen, Told, body_for, call, flow_sites
from tests.support.sites import InThread, eventually

SIGNED = {
    "Signature": "ab12",
    "appId": "App_1",
    "Nonce": "1234",
    "Timestamp": "1700000000000",
    "initiatorPartyId": "9999",
    "initiator-party-id": "9999",
}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[FlowSites]:
    with flow_sites(tmp_path) as made:
        yield made


def gateway(two: FlowSites, site: str) -> Gateway:
    assert isinstance(two.sites.runner, InThread)
    return two.sites.runner.gateways[site]


def on_loop(two: FlowSites, work: Callable[[], object]) -> None:
    """Do something on the gateways' loop."""
    assert isinstance(two.sites.runner, InThread)

    async def done() -> None:
        work()

    two.sites.runner.run(done())


def peer_of(two: FlowSites, site: str, other: str) -> Any:
    assembly = gateway(two, site)._assembly
    assert assembly is not None
    return assembly.peers[other]


class Asking(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, port: int, **options: Any) -> None:
        super().__init__(daemon=True)
        self._port, self._options = port, options
        self.told: Told | None = None
        self.start()

    def run(self) -> None:
        self.told = call(self._port, **self._options)

    def answer(self) -> Told:
        self.join(SECONDS)
        assert self.told is not None, "there is no answer"
        return self.told


class Held:
    """A server's answer that waits until it is let go."""

    def __init__(self, flow: FakeFlow) -> None:
        self._go = threading.Event()
        self.flow = flow
        flow.answer = self._answer

    def _answer(self, _call: Seen) -> tuple[int, str, bytes]:
        self._go.wait(SECONDS)
        return 200, "application/json", b'{"code": 0, "message": "at last"}'

    def wait_for_call(self, count: int = 1) -> None:
        eventually(lambda: len(self.flow.calls) >= count, SECONDS)

    def let_go(self) -> None:
        self._go.set()


def test_a_call_goes_to_the_site_of_its_party_and_the_answer_comes_back(two: FlowSites) -> None:
    two.flows["b"].answer = lambda _call: (200, "application/json", b'{"code": 0, "message": "made"}')

    told = call(two.port("a"), headers=SIGNED)

    assert (told.status, told.document) == (200, {"code": 0, "message": "made"})
    assert two.flows["a"].calls == []
    (seen,) = two.flows["b"].calls
    assert seen.path == "/v2/partner/job/create"
    assert {name: seen.headers.get(name) for name in SIGNED} == SIGNED, "a signature passes as it is"
    assert seen.headers["dest-party-id"] == "10000"
    shown = {(each["site"], each["direction"]): each for each in two.sites["a"].status()["flow"]}
    assert shown["b", "asked"]["answered"] == 1


def test_a_call_to_an_own_party_goes_to_the_own_server(two: FlowSites) -> None:
    told = call(two.port("a"), body=body_for("guest", "9999"), to="9999")

    assert told.status == 200
    assert [seen.path for seen in two.flows["a"].calls] == ["/v2/partner/job/create"]
    assert two.flows["b"].calls == []


def test_a_party_reports_to_its_scheduler(two: FlowSites) -> None:
    told = call(two.port("b"), "/v2/scheduler/task/report", body_for("host", "10000"), to="9999")

    assert told.status == 200
    assert [seen.path for seen in two.flows["a"].calls] == ["/v2/scheduler/task/report"]


def test_an_answer_that_is_an_error_of_fate_flows_passes_as_it_is(two: FlowSites) -> None:
    two.flows["b"].answer = lambda _call: (422, "application/json", b'{"code": 1003}')
    told = call(two.port("a"))
    assert (told.status, told.document) == (422, {"code": 1003})


def test_the_trace_of_both_gateways_has_each_call_with_its_size_and_time(two: FlowSites) -> None:
    two.flows["b"].answer = lambda _call: (422, "application/json", b'{"code": 1003}')
    call(two.port("a"))
    for site, direction, peer in (("a", "asked", "b"), ("b", "served", "a")):
        (event,) = two.sites[site].events("flow_call")
        assert (event["direction"], event["peer"], event["path"]) == (direction, peer, "/v2/partner/job/create")
        assert (event["status"], event["answer_bytes"]) == (422, 14)
        assert event["bytes"] == len(two.flows["b"].calls[0].body)
        assert 0 < event["seconds"] < SECONDS


def test_the_trace_has_calls_that_are_refused_with_their_code_and_not_with_what_they_said(two: FlowSites) -> None:
    assert call(two.port("a"), body=body_for("host", "9999")).status == 403
    (event,) = two.sites["a"].events("flow_call_refused")
    assert (event["direction"], event["code"]) == ("asked", "FR602")
    assert "path" not in event
    assert two.sites["a"].events("flow_call") == []


# --- a server that is not as it should be ---


def test_a_server_that_is_down_is_told_with_a_code(two: FlowSites) -> None:
    two.flows["b"].close()
    told = call(two.port("a"))
    assert told.status == 502
    assert "FR618" in told.reason


@pytest.mark.parametrize(
    ("kind", "body"),
    [("text/html", b"<html>no</html>"), ("application/json", b"{"), ("application/json", b""), ("x", b"[" * 99_999)],
)
def test_an_answer_that_is_no_json_is_told_with_a_code_and_stays_there(two: FlowSites, kind: str, body: bytes) -> None:
    two.flows["b"].answer = lambda _call: (200, kind, body)
    told = call(two.port("a"))
    assert told.status == 502
    assert "FR618" in told.reason
    assert "html>" not in str(told.document)


@pytest.mark.parametrize("status", [600, 999])
def test_an_answer_whose_status_is_none_is_told_with_a_code_and_ends_no_connection(two: FlowSites, status: int) -> None:
    stream = peer_of(two, "a", "b")._stream
    two.flows["b"].answer = lambda _call: (status, "application/json", b"{}")
    assert "FR618" in call(two.port("a")).reason
    assert peer_of(two, "a", "b")._stream is stream


def test_an_answer_that_is_too_long_is_told_with_a_code(two: FlowSites) -> None:
    two.flows["b"].answer = lambda _call: (200, "application/json", b'"' + b"x" * 2**20 + b'"')
    assert "FR618" in call(two.port("a")).reason


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"])
def test_a_server_that_speaks_something_else_is_told_with_a_code(two: FlowSites, said: bytes) -> None:
    two.flows["b"].close()
    with socket.create_server(("127.0.0.1", two.flows["b"].port)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert "FR618" in call(two.port("a")).reason
        thread.join(SECONDS)


def test_a_server_that_is_slow_is_told_with_a_code(two: FlowSites) -> None:
    held = Held(two.flows["b"])
    server = gateway(two, "b")._assembly.calls._server  # type: ignore[union-attr]
    server._seconds = 0.05  # type: ignore[union-attr]
    assert "FR618" in call(two.port("a")).reason
    held.let_go()


# --- the receiving gateway believes nothing ---


BODY = msgspec.json.encode(body_for("host", "10000"))


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (FlowCall(1, "/v2/job/submit", (("dest-party-id", "10000"),), BODY), "FR617"),
        (FlowCall(2, "/v2/partner/job/create", (("dest-party-id", "9999"),), BODY), "FR602"),
        (FlowCall(3, "/v2/partner/job/create", (), BODY), "FR617"),
        (FlowCall(4, "/v2/partner/job/create", (("dest-party-id", "10000"), ("Host", "x")), BODY), "FR617"),
        (FlowCall(5, "/v2/partner/job/create", (("dest-party-id", "10000"), ("Nonce", "1\r\nX: y")), BODY), "FR617"),
        (FlowCall(6, "/v2/partner/job/create", (("dest-party-id", "10000"), ("Dest-Party-Id", "1")), BODY), "FR617"),
        (FlowCall(7, "/v2/partner/job/create", (("dest-party-id", "10000"),), b"{"), "FR617"),
        (
            FlowCall(8, "/v2/partner/job/create", (("dest-party-id", "10000"), ("initiator-party-id", "10000")), BODY),
            "FR602",
        ),
        (
            FlowCall(
                9,
                "/v2/partner/job/create",
                (("dest-party-id", "9999"),),
                msgspec.json.encode(body_for("guest", "9999")),
            ),
            "FR602",
        ),
    ],
    ids=lambda value: str(value.call) if isinstance(value, FlowCall) else value,
)
def test_a_peers_call_is_checked_where_it_comes(two: FlowSites, frame: FlowCall, code: str) -> None:
    assert isinstance(two.sites.runner, InThread)
    heard: list[FlowRefused] = []
    talk = peer_of(two, "a", "b").flow_talk
    talk.asked.on_refused = heard.append

    two.sites.runner.tell("a", "b", frame)

    eventually(lambda: heard, SECONDS)
    assert (heard[0].call, heard[0].code) == (frame.call, code)
    assert two.flows["b"].calls == []


def test_a_call_whose_refusal_cannot_be_said_as_it_is_ends_no_connection(two: FlowSites) -> None:
    assert isinstance(two.sites.runner, InThread)
    heard: list[FlowRefused] = []
    peer_of(two, "a", "b").flow_talk.asked.on_refused = heard.append
    stream = peer_of(two, "b", "a")._stream
    body = b'{"role": "\\ud800", "party_id": "10000"}'

    for _ in range(2):
        two.sites.runner.tell("a", "b", FlowCall(1, "/v2/partner/job/create", (("dest-party-id", "10000"),), body))

    eventually(lambda: len(heard) == 2, SECONDS)
    assert {frame.code for frame in heard} == {"FR602"}
    assert peer_of(two, "b", "a")._stream is stream


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 100_000, b"\xff" * 100_000], ids=lambda body: str(body[:9]))
def test_an_answer_of_a_peer_that_is_no_json_goes_no_further(two: FlowSites, body: bytes) -> None:
    peer = peer_of(two, "b", "a")
    peer.flow_talk.served._carry_out = _answers(body)
    told = call(two.port("a"))
    assert told.status == 502
    assert "FR618" in told.reason


def _answers(body: bytes) -> Callable[[object], Any]:
    async def carry_out(_call: object) -> Answer:
        return Answer(200, body)

    return carry_out


def test_long_bodies_are_read_one_after_the_other_and_beside_the_event_loop(
    two: FlowSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_threads: set[int] = set()
    on_loop(two, lambda: loop_threads.add(threading.get_ident()))
    readers: list[int] = []
    at_once: list[int] = []
    reading = 0
    check = rules.CallRules.check

    def noting(self: rules.CallRules, scheduling: Any, asking_site: str) -> str:
        nonlocal reading
        reading += 1
        at_once.append(reading)
        readers.append(threading.get_ident())
        try:
            return check(self, scheduling, asking_site)
        finally:
            reading -= 1

    monkeypatch.setattr(rules.CallRules, "check", noting)
    asked = [Asking(two.port("a"), body=body_for("host", "10000", filling="x" * 40_000)) for _ in range(4)]

    assert [each.answer().status for each in asked] == [200] * 4
    assert len(readers) == 8, "at both ends"
    assert not loop_threads & set(readers)
    assert max(at_once) <= 2, "one at each gateway"


def test_answers_to_nothing_change_nothing(two: FlowSites) -> None:
    assert isinstance(two.sites.runner, InThread)
    for frame in (FlowAnswer(7, 200, b"{}"), FlowRefused(7, "FR617", "why"), FlowHeard(7)):
        two.sites.runner.tell("a", "b", frame)
    assert call(two.port("b"), body=body_for("guest", "9999"), to="9999").status == 200
    assert call(two.port("a")).status == 200


# --- the connection between the gateways ---


@pytest.mark.parametrize("cut_by", ["a", "b"])
def test_a_call_is_carried_out_once_though_the_connection_breaks_again_and_again(two: FlowSites, cut_by: str) -> None:
    held = Held(two.flows["b"])
    asked = Asking(two.port("a"))
    held.wait_for_call()
    for _ in range(2):
        on_loop(two, lambda: peer_of(two, cut_by, "b" if cut_by == "a" else "a")._stream.close())
        eventually(lambda: not (two.sites["a"].connected() and two.sites["b"].connected()), SECONDS)
        two.sites.wait_until_connected()
    held.let_go()

    assert asked.answer().document == {"code": 0, "message": "at last"}
    assert len(two.flows["b"].calls) == 1


def test_a_peer_that_comes_back_in_time_gets_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "AWAY_SECONDS", SECONDS)
    with flow_sites(tmp_path) as two:
        two.sites.runner.stop(two.sites["b"])
        asked = Asking(two.port("a"))
        eventually(lambda: any(each["under_way"] for each in two.sites["a"].status()["flow"]), SECONDS)
        two.sites.runner.start(two.sites["b"])

        assert asked.answer().status == 200
        assert len(two.flows["b"].calls) == 1


def test_a_peer_that_is_away_is_told_with_a_code(two: FlowSites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "AWAY_SECONDS", 0.05)
    two.sites.runner.stop(two.sites["b"])
    told = call(two.port("a"))
    assert told.status == 503
    assert "FR502" in told.reason


def test_a_call_whose_peer_is_restarted_meanwhile_is_in_doubt_and_says_so(two: FlowSites) -> None:
    held = Held(two.flows["b"])
    asked = Asking(two.port("a"))
    held.wait_for_call()
    two.sites.runner.stop(two.sites["b"])
    two.sites.runner.start(two.sites["b"])

    told = asked.answer()
    held.let_go()
    assert told.status == 504
    assert "FR620" in told.reason


def test_an_answer_that_never_comes_is_told_with_a_code(two: FlowSites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.05)
    held = Held(two.flows["b"])
    told = call(two.port("a"))
    held.let_go()
    assert told.status == 504
    assert "FR620" in told.reason


# --- peers without ---


def test_a_peer_that_knows_no_calls_is_told_with_a_code(two: FlowSites) -> None:
    def forget() -> None:
        peer = peer_of(two, "a", "b")
        peer.hello = msgspec.structs.replace(peer.hello, flow_calls=False)

    on_loop(two, forget)
    told = call(two.port("a"))
    assert told.status == 502
    assert "FR619" in told.reason


def test_a_peer_without_a_server_is_told_with_a_code(tmp_path: Path) -> None:
    with flow_sites(tmp_path, without_server={"b"}) as two:
        told = call(two.port("a"))
        assert told.status == 502
        assert "FR619" in told.reason


# --- FATE Flow makes a call again that it has given up ---


def test_a_call_that_is_given_up_and_made_again_is_carried_out_once(two: FlowSites) -> None:
    held = Held(two.flows["b"])
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", two.port("a")), timeout=SECONDS) as connection:
            connection.sendall(_request(BODY))
            held.wait_for_call()
            eventually(lambda: _abandoned(two) == 0, SECONDS)
        eventually(lambda: _abandoned(two) == 1, SECONDS)
    third = Asking(two.port("a"), body=BODY)
    eventually(lambda: _abandoned(two) == 0, SECONDS)
    held.let_go()

    assert third.answer().document == {"code": 0, "message": "at last"}
    assert len(two.flows["b"].calls) == 1


def test_a_call_that_was_answered_is_carried_out_again_when_it_is_made_again(two: FlowSites) -> None:
    assert call(two.port("a"), body=BODY).status == 200
    assert call(two.port("a"), body=BODY).status == 200
    assert len(two.flows["b"].calls) == 2


def test_two_like_calls_at_once_are_two(two: FlowSites) -> None:
    held = Held(two.flows["b"])
    both = [Asking(two.port("a"), body=BODY) for _ in range(2)]
    held.wait_for_call(2)
    held.let_go()
    assert [each.answer().status for each in both] == [200, 200]


def _request(body: bytes) -> bytes:
    headers = "dest-party-id: 10000\r\nservice: fateflow\r\ninitiator-party-id: \r\nContent-Type: application/json\r\n"
    head = f"POST /v2/partner/job/create HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _abandoned(two: FlowSites) -> int:
    return len(gateway(two, "a")._assembly.calls.repeats._abandoned)  # type: ignore[union-attr]


def test_a_gateway_that_stops_ends_the_calls_of_its_front(two: FlowSites) -> None:
    held = Held(two.flows["b"])
    asked = threading.Thread(target=_call_that_ends, args=(two.port("a"),), daemon=True)
    asked.start()
    held.wait_for_call()
    two.sites.runner.stop(two.sites["a"])
    asked.join(SECONDS)
    held.let_go()
    assert not asked.is_alive()


def _call_that_ends(port: int) -> None:
    try:
        call(port)
    except OSError:
        return
