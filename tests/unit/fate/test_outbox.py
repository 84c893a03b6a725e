"""One serialisation for several destinations, and a pool that pushes back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from fedrdma_fate.core.digest import block_digest, blocks_of
from fedrdma_fate.fate import outbox as outbox_module
from fedrdma_fate.fate.copying import Progress
from fedrdma_fate.fate.leasing import QUIET_WAIT_SECONDS
from fedrdma_fate.fate.outbox import Outbox
from fedrdma_fate.fate.serialise import ObjectPlan, plan_object
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import Party
from tests.support.fake_gateway import FakeClient, FakeConnector, FakeLease

ARBITER = Party("arbiter", "10000")
GUEST = Party("guest", "9999")
HOST = Party("host", "10000")
EVERYBODY = (ARBITER, GUEST, HOST)


@pytest.fixture
def connector(tmp_path: Path) -> FakeConnector:
    return FakeConnector(tmp_path, "session", ARBITER, EVERYBODY)


@pytest.fixture
def client(connector: FakeConnector) -> FakeClient:
    return connector.connect()


@pytest.fixture
def outbox(client: FakeClient, connector: FakeConnector) -> Outbox:
    return Outbox(client, connector, 60.0)


def plan(value: object, name: str = "model") -> ObjectPlan:
    return plan_object(value, None, name, "1", [])


def received(client: FakeClient, party: Party, name: str = "model", tag: str = "1") -> bytes:
    return bytes(FakeClient(client.directory, "session", party).get(name, tag, ARBITER, timeout=0).buffer)


def test_an_object_put_to_one_party_after_the_other_is_serialised_once(outbox: Outbox, client: FakeClient) -> None:
    arrays = [np.arange(20_000.0), np.ones((300, 100)).T]

    assert outbox.put_object(plan(arrays), "model", "1", [GUEST])
    assert not outbox.put_object(plan(arrays), "model", "1", [HOST])

    assert (outbox.serialised, outbox.reused) == (1, 1)
    assert [lease.history for lease in client.leases] == [["keep", "commit"]]
    assert received(client, GUEST) == received(client, HOST)


def test_an_object_put_to_all_at_once_is_serialised_once_and_not_kept(outbox: Outbox, client: FakeClient) -> None:
    outbox.put_object(plan(np.arange(20_000.0)), "model", "1", [GUEST, HOST])

    assert (outbox.serialised, outbox.reused) == (1, 0)
    assert [lease.history for lease in client.leases] == [["commit"]]


@pytest.mark.parametrize("changed", [0, 12_345, 19_999])
def test_an_object_that_changed_between_two_puts_is_sent_as_it_is_now(
    outbox: Outbox, client: FakeClient, changed: int
) -> None:
    array = np.zeros(20_000)
    outbox.put_object(plan(array), "model", "1", [GUEST])
    array[changed] = 1

    assert outbox.put_object(plan(array), "model", "1", [HOST])

    assert (outbox.serialised, outbox.reused) == (2, 0)
    assert [lease.history for lease in client.leases] == [["keep", "release"], ["keep"]]
    assert received(client, GUEST) != received(client, HOST)


def test_a_change_in_the_pickled_part_is_seen(outbox: Outbox) -> None:
    array = np.zeros(20_000)

    outbox.put_object(plan([array, 1]), "model", "1", [GUEST])
    outbox.put_object(plan([array, 2]), "model", "1", [HOST])

    assert (outbox.serialised, outbox.reused) == (2, 0)


@pytest.mark.parametrize(("name", "tag"), [("other", "1"), ("model", "2")])
def test_the_kept_slot_goes_back_with_the_next_name_or_tag(
    outbox: Outbox, client: FakeClient, name: str, tag: str
) -> None:
    array = np.zeros(20_000)
    outbox.put_object(plan(array), "model", "1", [GUEST])

    outbox.put_object(plan(array), name, tag, [HOST])

    assert client.leases[0].history == ["keep", "release"]
    assert outbox.serialised == 2


def test_the_kept_slot_goes_back_before_a_get_a_small_object_or_bytes(outbox: Outbox, client: FakeClient) -> None:
    array = np.zeros(20_000)
    outbox.put_object(plan(array), "a", "1", [GUEST])
    outbox.settle()
    outbox.put_object(plan(array), "b", "1", [GUEST])
    outbox.put_object(plan("small"), "c", "1", [GUEST])
    outbox.put_object(plan(array), "d", "1", [GUEST])
    outbox.put_bytes(b"bytes", "bytes", "e", "1", [GUEST])

    assert [lease.history for lease in client.leases] == [["keep", "release"]] * 3


def test_small_objects_and_bytes_need_no_slot(outbox: Outbox, client: FakeClient) -> None:
    outbox.put_object(plan([1, np.zeros(10)]), "a", "1", [GUEST, HOST])
    outbox.put_bytes(b"x" * 1000, "bytes", "b", "1", [GUEST])

    assert client.leases == []
    assert received(client, GUEST, "b") == b"x" * 1000


def test_long_bytes_take_a_slot_of_their_length(outbox: Outbox, client: FakeClient) -> None:
    outbox.put_bytes(b"x" * 100_000, "bytes", "b", "1", [GUEST])

    assert [lease.history for lease in client.leases] == [["commit"]]
    assert received(client, GUEST, "b") == b"x" * 100_000


def test_a_refused_commit_gives_the_slot_back_and_keeps_nothing(outbox: Outbox, client: FakeClient) -> None:
    array = np.zeros(20_000)
    outbox.put_object(plan(array), "model", "1", [GUEST])
    outbox.settle()

    with pytest.raises(GatewayError) as caught:
        outbox.put_object(plan(array), "model", "1", [GUEST])

    assert caught.value.code is ErrorCode.DUPLICATE_PUSH
    assert client.leases[1].history == ["keep", "release"]
    outbox.put_object(plan(array), "next", "1", [GUEST, HOST])
    assert client.leases[2].history == ["commit"]


def test_a_refused_second_commit_gives_the_slot_back_and_the_object_is_serialised_anew(
    outbox: Outbox, client: FakeClient
) -> None:
    array = np.zeros(20_000)
    outbox.put_object(plan(array), "model", "1", [GUEST])
    with pytest.raises(GatewayError):
        outbox.put_object(plan(array), "model", "1", [GUEST])

    outbox.put_object(plan(array), "model", "1", [HOST])

    assert [lease.history for lease in client.leases] == [["keep", "keep", "release"], ["keep"]]
    assert (outbox.serialised, outbox.reused) == (2, 0)


def test_a_failure_while_writing_gives_the_slot_back(outbox: Outbox, client: FakeClient) -> None:
    class Failing(ObjectPlan):
        total_bytes = 100_000

        def write_into(self, _buffer: memoryview, _progress: Progress | None = None, **_: bool) -> None:
            raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        outbox.put_object(Failing("'model'", b"", [], []), "model", "1", [GUEST])

    assert client.leases[0].history == ["release"]


@pytest.mark.parametrize("is_object", [True, False])
def test_of_a_payload_that_is_not_short_the_gateway_is_told_the_digests_that_it_knows_it_again_by(
    outbox: Outbox, client: FakeClient, monkeypatch: pytest.MonkeyPatch, is_object: bool
) -> None:
    told: list[int] = []
    monkeypatch.setattr(FakeLease, "written", lambda _lease, _at, digests: told.extend(digests))
    for floats in (1000, 200_000):
        assert not told
        if is_object:
            outbox.put_object(plan(np.arange(float(floats))), f"m{floats}", "1", [GUEST])
        else:
            outbox.put_bytes(np.arange(float(floats)).tobytes(), "bytes", f"m{floats}", "1", [GUEST])
    body = received(client, GUEST, "m200000")
    assert told == [block_digest(body[start:end]) for start, end in blocks_of(len(body))]


@pytest.mark.parametrize("digests_wanted", [True, False])
@pytest.mark.parametrize(
    ("early", "history"),
    [
        ("committed", ["unfinished", "written", "release"]),
        ("digests-wanted", ["unfinished", "written", "commit"]),
        ("later", ["unfinished", "commit"]),
    ],
)
def test_a_large_object_is_handed_over_before_it_is_written_where_the_gateway_takes_that(
    outbox: Outbox,
    client: FakeClient,
    early: Literal["committed", "digests-wanted", "later"],
    history: list[str],
    digests_wanted: bool,
) -> None:
    client.early, client.digests_wanted = early, digests_wanted
    array = np.arange(outbox_module.EARLY_FROM_BYTES // 8 + 5.0)

    outbox.put_object(plan(array), "model", "1", [GUEST, HOST])

    assert client.leases[0].history == history
    assert received(client, GUEST) == received(client, HOST)
    assert np.array_equal(np.frombuffer(received(client, HOST)[-array.nbytes :]), array)


def test_what_was_handed_over_unfinished_to_one_party_is_kept_for_the_others(
    outbox: Outbox, client: FakeClient
) -> None:
    client.early = "committed"
    array = np.arange(outbox_module.EARLY_FROM_BYTES // 8 + 5.0)

    outbox.put_object(plan(array), "model", "1", [GUEST])
    outbox.put_object(plan(array), "model", "1", [HOST])

    assert [lease.history for lease in client.leases] == [["unfinished", "written", "commit"]]
    assert (outbox.serialised, outbox.reused) == (1, 1)


def test_a_failure_while_writing_what_was_handed_over_gives_the_slot_back(outbox: Outbox, client: FakeClient) -> None:
    class Failing(ObjectPlan):
        total_bytes = outbox_module.EARLY_FROM_BYTES

        def write_into(self, _buffer: memoryview, _progress: Progress | None = None, **_: bool) -> None:
            raise RuntimeError("device lost")

    client.early = "committed"
    with pytest.raises(RuntimeError, match="device lost"):
        outbox.put_object(Failing("'model'", b"", [], []), "model", "1", [GUEST])

    assert client.leases[0].history == ["unfinished", "release"]


def test_a_long_wait_for_room_is_told_and_then_goes_on(
    outbox: Outbox, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.busy = 1

    with caplog.at_level(logging.WARNING):
        outbox.put_object(plan(np.zeros(20_000)), "model", "1", [GUEST])

    assert client.waits == [QUIET_WAIT_SECONDS, 60.0 - QUIET_WAIT_SECONDS]
    assert "'model' waits for 160" in caplog.text
    assert "went on" in caplog.text


def test_a_pool_that_stays_full_is_an_error_with_its_code(outbox: Outbox, client: FakeClient) -> None:
    client.busy = 2

    with pytest.raises(MemoryPoolError) as caught:
        outbox.put_object(plan(np.zeros(20_000)), "model", "1", [GUEST])

    assert caught.value.code is ErrorCode.POOL_TIMEOUT


def test_a_short_time_out_is_asked_for_as_it_is(client: FakeClient, connector: FakeConnector) -> None:
    client.busy = 1

    with pytest.raises(MemoryPoolError):
        Outbox(client, connector, 0.5).put_object(plan(np.zeros(20_000)), "model", "1", [GUEST])

    assert client.waits == [0.5]


def test_a_payload_that_never_fits_is_refused_at_once(outbox: Outbox, client: FakeClient) -> None:
    client.largest_bytes = 100_000

    with pytest.raises(MemoryPoolError) as caught:
        outbox.put_object(plan(np.zeros(20_000)), "model", "1", [GUEST])

    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert len(client.waits) == 1
