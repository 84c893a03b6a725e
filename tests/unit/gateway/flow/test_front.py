"""What reaches the front of a gateway and is no call of FATE Flow's: refused, counted, and nobody else's trouble."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from fedrdma_fate.gateway.flow import front, request
from fedrdma_fate.wire.frames import MOST_CALL_BYTES
from tests.support.flow import SECONDS, FlowSites, body_for, call, flow_sites, raw
from tests.support.sites import eventually

GOOD = json.dumps(body_for("host", "10000")).encode()
HEAD = b"POST /v2/partner/job/create HTTP/1.1\r\nHost: x\r\ndest-party-id: 10000\r\n"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowSites]:
    with flow_sites(tmp_path_factory.mktemp("sites")) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_reaches_a_server(two: FlowSites, request: pytest.FixtureRequest) -> Iterator[None]:
    before = [len(flow.calls) for flow in two.flows.values()]
    yield
    if "good" not in request.fixturenames:
        assert [len(flow.calls) for flow in two.flows.values()] == before


@pytest.fixture
def good() -> None:
    """The test makes calls that are carried out."""


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "path",
    [
        "/v2/job/submit",
        "/v2/data/download",
        "//v2/partner/job/create",
        "/v2//partner/job/create",
        "/v2/partner//job/create",
        "/v2/partner/../job/submit",
        "/v2/partner/%2e%2e/job/submit",
        "/v2/partner/job%2fcreate",
        "/v2/partner/job/create?x=1",
        "/v2/partner/job/create#x",
        "/v2/partner/job/create/",
        "/v2/partner/",
        "/v2/partner",
        "/V2/partner/job/create",
        "/v2/partner/job;x/create",
        "/v2/partner/job\\create",
        "/v1/partner/job/create",
        "http://127.0.0.1/v2/partner/job/create",
        "/v2/partner/" + "a" * 300,
        "/",
        "*",
    ],
)
def test_only_the_paths_of_scheduling_are_forwarded(two: FlowSites, path: str) -> None:
    told = call(two.port("a"), path)

    assert told.status == 403
    assert "FR617" in told.reason
    assert "FR617" in told.document["message"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE"])
def test_only_posts_are_forwarded(two: FlowSites, method: str) -> None:
    answer = raw(two.port("a"), HEAD.replace(b"POST", method.encode()) + b"Content-Length: 2\r\n\r\n{}")
    assert status_of(answer) == 405


@pytest.mark.parametrize(
    ("body", "to"),
    [
        (body_for("host", "9999"), "10000"),
        (body_for("host", "10000"), "9999"),
        (body_for("guest", "10000"), "10000"),
        (body_for("", "10000"), "10000"),
        ({"role": "host"}, "10000"),
        ({"party_id": "10000"}, "10000"),
        ({"role": "host", "party_id": 10000}, "10000"),
        ({"role": ["host"], "party_id": "10000"}, "10000"),
        (body_for("host", "4711"), "4711"),
        (body_for("host", "10000"), ""),
        (b'{"role": "host", "party_id": "10000", "party_id": "9999"}', "10000"),
        (b'{"role": "host", "party_id": "9999", "party_id": "10000"}', "10000"),
        (body_for("host", "10000", dag={"conf": {"initiator_party_id": "10000"}}), "10000"),
        (b"[]", "10000"),
        (b"", "10000"),
        (b"\xff\xfe{}", "10000"),
        ('{"role": "host", "party_id": "10000"}'.encode("utf-16"), "10000"),
        (b"[" * 100_000, "10000"),
        (b'{"a": 1' + b"0" * 10_000 + b"}", "10000"),
    ],
)
def test_a_body_that_does_not_fit_its_header_is_refused(two: FlowSites, body: object, to: str) -> None:
    told = call(two.port("a"), body=body, to=to)

    assert told.status == 403
    assert "FR602" in told.reason or "FR617" in told.reason


def dag(tasks: object = None, **conf: object) -> dict[str, object]:
    return {"parties": [], "tasks": tasks or {}, "conf": {"initiator_party_id": "9999", **conf}}


@pytest.mark.parametrize(
    "unnamed",
    [
        None,
        [],
        {},
        {"conf": None},
        {"conf": {}},
        {"conf": []},
        dag(initiator_party_id=""),
        dag(initiator_party_id=None),
        dag(initiator_party_id=0),
        {"conf": [["initiator_party_id", "10000"]]},
        {"conf": [["initiator_party_id", "9999"]]},
        [["conf", {"initiator_party_id": "10000"}]],
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v2/partner/job/create", "/v2/scheduler/job/create"])
def test_a_job_that_does_not_name_its_initiator_in_the_one_way_is_refused(
    two: FlowSites, path: str, unnamed: object
) -> None:
    told = call(two.port("a"), path, {"role": "guest", "party_id": "9999", "dag": unnamed}, to="9999")
    assert "FR617" in told.reason


def test_no_other_site_schedules_a_job(two: FlowSites) -> None:
    told = call(two.port("a"), "/v2/scheduler/job/create", {"dag": dag()}, to="10000")
    assert "FR617" in told.reason


def test_the_own_scheduler_makes_a_job(two: FlowSites, good: None) -> None:
    del good
    assert call(two.port("a"), "/v2/scheduler/job/create", {"dag": dag()}, to="9999").status == 200


@pytest.mark.parametrize(
    "name", ["../../x", "/etc", "a/b", "a\\b", "..", ".", "a\0b", "a\nb", "x" * 2000, 7, None, ["a"]]
)
@pytest.mark.parametrize("key", ["job_id", "task_id", "role", "party_id"])
def test_what_fate_flow_makes_a_directory_of_is_no_path(two: FlowSites, key: str, name: object) -> None:
    body = {**body_for("host", "10000"), key: name}
    told = call(two.port("a"), body=body, to=name if key == "party_id" and name == ".." else "10000")  # type: ignore[arg-type]
    assert told.status == 403


@pytest.mark.parametrize(
    "made",
    [
        dag({"../../x": {}}),
        dag([["../../x", {}]]),
        dag(inheritance={"job_id": "../x", "task_list": []}),
        dag(inheritance={"job_id": "1", "task_list": ["../x"]}),
        dag(inheritance=[["job_id", "../x"]]),
    ],
    ids=str,
)
def test_names_within_a_job_are_no_paths(two: FlowSites, made: object) -> None:
    told = call(two.port("a"), body=body_for("host", "10000", dag=made))
    assert "FR617" in told.reason


def test_a_job_as_fate_flow_makes_it_passes(two: FlowSites, good: None) -> None:
    del good
    made = dag({"reader_0": {}}, scheduler_party_id="9999", inheritance=None)
    body = body_for("host", "10000", dag=made, job_id="202611261200000000000", task_id="202611261200000000000_reader_0")
    assert call(two.port("a"), body=body).status == 200


@pytest.mark.parametrize(
    ("role", "party_id"), [(["host"], "10000"), ("host", 10000), ("host", ["10000"]), ("host", None)]
)
def test_a_report_whose_party_is_no_text_is_refused(two: FlowSites, role: object, party_id: object) -> None:
    body = {"role": role, "party_id": party_id}
    assert call(two.port("b"), "/v2/scheduler/task/report", body, to="9999").status == 403


@pytest.mark.parametrize("name", ["initiator-party-id", "initiatorPartyId", "src-party-id"])
def test_a_call_in_the_name_of_another_sites_party_is_refused(two: FlowSites, name: str) -> None:
    told = call(two.port("a"), headers={name: "10000"})

    assert told.status == 403
    assert "FR602" in told.reason


def test_a_report_of_another_sites_party_is_refused(two: FlowSites) -> None:
    told = call(two.port("a"), "/v2/scheduler/task/report", body_for("host", "10000"))
    assert "FR602" in told.reason


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (HEAD + b"Content-Length: 40\r\nContent-Length: 41\r\n\r\n" + b" " * 41, 400),
        (HEAD + b"Content-Length: 40, 41\r\n\r\n" + b" " * 41, 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: +5\r\n\r\n12345", 400),
        (HEAD + b"Content-Length: 0x5\r\n\r\n12345", 400),
        (HEAD + b"\r\n", 411),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}", 411),
        (HEAD + b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Transfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Content-Length : 2\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: 2\r\n folded\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: 2\n\n{}", 400),
        (HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: 2\r\nX: a\rb\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: 2\r\nX: a\x00b\r\n\r\n{}", 400),
        (HEAD + b"no colon\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: 1000000000\r\n\r\n", 413),
        (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
        (HEAD + b"X: " + b"y" * 20_000 + b"\r\nContent-Length: 2\r\n\r\n{}", 431),
        (b"x" * 20_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),
        (
            HEAD + b"Content-Length: 2\r\n\r\n{}POST /v2/job/submit HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
            400,
        ),
        (HEAD + b"dest-party-id: 9999\r\nContent-Length: 2\r\n\r\n{}", 403),
        (HEAD + b"Nonce: \xe4\r\nContent-Length: 2\r\n\r\n{}", 403),
        (HEAD + b"Nonce: " + b"9" * 2000 + b"\r\nContent-Length: 2\r\n\r\n{}", 403),
    ],
    ids=lambda value: str(value)[-60:] if isinstance(value, bytes) else str(value),
)
def test_what_two_readers_could_understand_differently_is_refused(two: FlowSites, request_: bytes, status: int) -> None:
    assert status_of(raw(two.port("a"), request_)) == status


def test_a_gigabyte_is_refused_before_it_comes_and_the_answer_is_read_all_the_same(two: FlowSites) -> None:
    told = call(two.port("a"), body=b" " * (MOST_CALL_BYTES + 1))
    assert told.status == 413


def test_a_body_of_the_greatest_length_passes(two: FlowSites, good: None) -> None:
    del good
    body = GOOD[:-1] + b" " * (MOST_CALL_BYTES - len(GOOD)) + b"}"

    assert call(two.port("a"), body=body).status == 200
    assert two.flows["b"].calls[-1].body == body


def test_who_asks_whether_to_go_on_is_told_to(two: FlowSites, good: None) -> None:
    del good
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(GOOD)
    with socket.create_connection(("127.0.0.1", two.port("a")), timeout=SECONDS) as connection:
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 100")
        connection.sendall(GOOD)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_headers_that_are_none_of_fate_flows_stay_here(two: FlowSites, good: None) -> None:
    del good
    call(two.port("a"), headers={"Cookie": "c", "Authorization": "a", "X-Forwarded-For": "1.2.3.4", "Nonce": "1234"})

    seen = {name.lower() for name in two.flows["b"].calls[-1].headers}
    assert seen & {"cookie", "authorization", "x-forwarded-for", "user-agent"} == set()
    assert "nonce" in seen


def test_a_request_that_does_not_come_is_ended(two: FlowSites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "REQUEST_SECONDS", 0.05)
    for part in (b"", HEAD, HEAD + b"Content-Length: 5\r\n\r\n1"):
        assert status_of(raw(two.port("a"), part)) == 408


def test_a_head_that_comes_byte_by_byte_is_looked_through_once(
    two: FlowSites, good: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del good
    looked = 0
    pattern = request._LONE_LINE_END

    class Counting:
        def search(self, data: bytes, begin: int = 0) -> object:
            nonlocal looked
            looked += len(data) - begin
            return pattern.search(data, begin)

    monkeypatch.setattr(request, "_LONE_LINE_END", Counting())
    monkeypatch.setattr(request, "_READ_BYTES", 1)
    head = HEAD + b"X: " + b"y" * 4000 + b"\r\nContent-Length: %d\r\n\r\n" % len(GOOD)

    assert status_of(raw(two.port("a"), head + GOOD)) == 200
    assert looked < 4 * len(head)


@pytest.mark.parametrize("head", [HEAD + b"X: y\n\r\n", HEAD + b"X: a\rb\r\n\r\n", b"POST / HTTP/1.1\n\n"])
def test_half_a_line_end_is_found_however_little_comes_at_once(
    two: FlowSites, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_READ_BYTES", 1)
    assert status_of(raw(two.port("a"), head)) == 400


def test_a_connection_that_ends_early_leaves_nothing(two: FlowSites) -> None:
    for part in (b"", HEAD, HEAD + b"Content-Length: 5\r\n\r\n1"):
        assert raw(two.port("a"), part, ends=True) == b""


def test_more_connections_than_may_be_are_ended_and_the_next_is_served(
    two: FlowSites, good: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del good
    monkeypatch.setattr(front, "MOST_CONNECTIONS", 3)
    idle = [socket.create_connection(("127.0.0.1", two.port("a")), timeout=SECONDS) for _ in range(8)]
    try:
        ended = eventually(lambda: [each for each in idle if _has_ended(each)] or None)
        eventually(lambda: sum(map(_has_ended, idle)) >= 5)
        assert ended
    finally:
        for each in idle:
            each.close()
    eventually(lambda: _served(two))


def _served(two: FlowSites) -> bool:
    try:
        return call(two.port("a")).status == 200
    except OSError:
        return False


def _has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_many_calls_at_once_are_all_answered(two: FlowSites, good: None) -> None:
    del good
    before = len(two.flows["b"].calls)
    statuses: list[int] = []

    def one(number: int) -> None:
        statuses.append(call(two.port("a"), body=body_for("host", "10000", number=number)).status)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)

    assert statuses == [200] * 40
    assert len({seen.body for seen in two.flows["b"].calls[before:]}) == 40


def test_status_counts_what_was_refused(two: FlowSites) -> None:
    call(two.port("a"), "/v2/job/submit")

    counted = {(each["site"], each["direction"]): each for each in two.sites["a"].status()["flow"]}
    assert counted["a", "asked"]["refused"] >= 1
