"""What has to be whole lies in front, and everything is read as ever; which elements lie in what is missing."""

from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
import pytest
import torch
from fate.arch.context import Context

from fedrdma_fate.client.client import WHOLE, LossTolerance
from fedrdma_fate.fate.deserialise import load_object, load_with_missing
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.gateway_client import to_party
from fedrdma_fate.fate.layout import decode_object
from fedrdma_fate.fate.missing import MissingElements
from fedrdma_fate.fate.segments import describe
from fedrdma_fate.fate.serialise import ObjectPlan, SegmentPickler, _LookingPickler, plan_object
from fedrdma_fate.wire.errors import ErrorCode, FateError
from tests.support.comparison import assert_same
from tests.support.fake_gateway import FakeConnector

PARTY, OTHER, THIRD = ("guest", "9999"), ("host", "10000"), ("arbiter", "10000")


class Federation:
    """As much of one as a pickler looks at."""

    local_party = PARTY


def planned(value: object, *, tolerant: bool = True) -> tuple[ObjectPlan, bytearray]:
    plan = plan_object(value, Federation(), "name", "tag", [PARTY], tolerant=tolerant)
    buffer = bytearray(b"\xa5" * plan.total_bytes)
    plan.write_into(memoryview(buffer))
    return plan, buffer


def model() -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {
        "first": random.random((50, 40)),
        "bias": random.random(100),
        "tensors": [torch.rand(30, 30, dtype=torch.bfloat16), torch.arange(5000)],
        "bytes": random.bytes(70_000),
        "long": random.random(20_000).astype(np.float32),
        "turned": random.random((60, 20)).T,
        "nothing": np.empty((0, 7)),
        "scalar": np.array(4.0),
        "complex": random.random((40, 40)) + 1j,
    }


def test_a_tolerant_object_is_read_as_any_other() -> None:
    value = model()
    plan, buffer = planned(value)
    assert_same(load_object(memoryview(buffer), None, Federation(), "name", "tag", PARTY), value)
    assert plan.whole_bytes < plan.total_bytes
    segments = decode_object(memoryview(buffer)).segments
    raw_at = len(buffer) - len(decode_object(memoryview(buffer)).raw)
    behind = [segment for segment in segments if raw_at + segment.offset >= plan.whole_bytes]
    assert [segment.shape for segment in behind] == [(50, 40), (30, 30), (20_000,), (20, 60)]
    assert plan.whole_bytes % 64 == 0


@pytest.mark.parametrize(
    "value",
    [
        {"round": 3},
        [np.arange(100_000)],
        [np.zeros(100)],
        np.array(1.0),
        np.empty((0, 5)),
        torch.zeros(4, dtype=torch.complex64),
        b"x" * 100_000,
    ],
    ids=["structure", "integers", "a bias", "a scalar", "empty", "complex", "bytes"],
)
def test_an_object_that_has_nothing_that_may_be_missing_is_whole(value: object) -> None:
    plan, _ = planned(value)
    assert plan.whole_bytes == plan.total_bytes


def test_an_object_that_is_to_be_whole_lies_as_it_always_did() -> None:
    plan, buffer = planned(model(), tolerant=False)
    assert plan.whole_bytes == plan.total_bytes
    assert [segment.shape for segment in decode_object(memoryview(buffer)).segments][:2] == [(50, 40), (100,)]


def test_an_object_that_has_other_arrays_each_time_cannot_be_tolerant() -> None:
    class Changing:
        times = 0

        def __reduce__(self) -> Any:
            Changing.times += 1
            return list, (([np.zeros((9, 9))] * Changing.times),)

    with pytest.raises(FateError) as refused:
        planned(Changing())
    assert refused.value.code is ErrorCode.UNSERIALISABLE


def test_looking_at_an_object_pushes_no_table() -> None:
    pickler = _LookingPickler(Federation(), "name", "tag", [PARTY], io.BytesIO())
    # a federation that can push none would say so
    assert pickler._push_table(object(), "key") == "key"
    assert (
        pickler._get_next_table_key()
        != SegmentPickler(Federation(), "name", "tag", [PARTY], io.BytesIO())._get_next_table_key()
    )


def test_missing_elements_are_told_in_the_order_in_which_pickle_meets_the_arrays() -> None:
    value = {"a": np.ones((4, 64)), "b": np.ones(3), "c": torch.ones(64, 64)}
    plan, buffer = planned(value)
    at = plan.whole_bytes
    a, c = at, at + 4 * 64 * 8
    # the last line of one and the first two of the other; and one in the middle
    holes = [(c - 64, c + 128), (c + 1024, c + 1088)]
    for start, end in holes:
        buffer[start:end] = bytes(end - start)
    loaded, missing = load_with_missing(memoryview(buffer), holes, None, Federation(), "name", "tag", PARTY)
    assert missing == (MissingElements(0, ((248, 256),)), MissingElements(2, ((0, 32), (256, 272))))
    assert [each.count for each in missing] == [8, 48]
    assert a < c
    assert not loaded["a"].reshape(-1)[248:].any()
    assert loaded["a"].reshape(-1)[:248].all()
    assert int(loaded["c"].sum()) == 64 * 64 - 48


def test_sources_of_other_kinds_may_not_miss() -> None:
    for value in (np.zeros((9, 9), np.int8), b"x" * 70_000, torch.zeros(9, 9, dtype=torch.int16), np.zeros(9)):
        source = describe(value)
        assert source is not None
        assert not source.may_miss


# --- the federation ---


@pytest.fixture
def federation(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> FedRDMAFederation:
    monkeypatch.setattr(Context, "_get_computing", lambda _self: None)
    connector = FakeConnector(tmp_path, "session", to_party(PARTY), tuple(map(to_party, (PARTY, OTHER, THIRD))))
    return FedRDMAFederation("session", None, PARTY, [PARTY, OTHER, THIRD], connector=connector)


def test_what_is_put_inside_says_what_may_be_missing_and_what_is_put_outside_does_not(
    federation: FedRDMAFederation,
) -> None:
    client: Any = federation._client
    value = np.ones((300, 300))
    with federation.tolerating(0.1):
        federation.push_object(value, "m", "1", [OTHER])
        with federation.tolerating(0.0):
            federation.push_object(value, "m", "2", [OTHER])
        federation.push_object(value, "m", "3", [OTHER])
    federation.push_object(value, "m", "4", [OTHER])
    assert [loss.share for loss in client.losses] == [0.1, 0.0, 0.1, 0.0]
    assert client.losses[1] == client.losses[3] == WHOLE
    assert 0 < client.losses[0].whole_bytes < value.nbytes


def test_another_thread_has_its_own(federation: FedRDMAFederation) -> None:
    client: Any = federation._client
    value = np.ones((300, 300))
    with federation.tolerating(0.1):
        pushing = threading.Thread(target=lambda: federation.push_object(value, "m", "1", [OTHER]))
        pushing.start()
        pushing.join()
    assert client.losses == [WHOLE]


def test_the_same_object_with_another_share_is_not_sent_as_it_lies_there(federation: FedRDMAFederation) -> None:
    client: Any = federation._client
    value = np.ones((300, 300))
    with federation.tolerating(0.1):
        federation.push_object(value, "m", "1", [OTHER])
    with federation.tolerating(0.2):
        federation.push_object(value, "m", "1", [THIRD])
    assert [loss.share for loss in client.losses] == [0.1, 0.2]
    assert federation.reused == 0
    assert isinstance(client.losses[0], LossTolerance)
