"""Digests of bytes that change while they are being computed."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.actions import ComputeDigest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.verification import ChunkVerification

PLAN = ChunkPlan(3, 1)
FIRST = PLAN.chunk(0)


@pytest.fixture
def verification() -> ChunkVerification:
    return ChunkVerification(PLAN)


def test_an_answer_is_known_and_not_asked_for_again(verification: ChunkVerification) -> None:
    assert verification.request(FIRST) == [ComputeDigest(FIRST)]
    assert verification.on_digest(0, 5) == []
    assert verification.get(0) == 5
    assert verification.request(FIRST) == []


def test_what_is_being_computed_is_not_asked_for_twice(verification: ChunkVerification) -> None:
    verification.request(FIRST)
    assert verification.request(FIRST) == []


def test_an_answer_about_bytes_that_have_changed_is_dropped_and_asked_for_anew(verification: ChunkVerification) -> None:
    verification.request(FIRST)
    verification.invalidate([0])
    assert verification.request(FIRST) == [], "the outdated computation ends first, or answers could be mixed up"
    assert verification.on_digest(0, 5) == [ComputeDigest(FIRST)]
    assert verification.get(0) is None
    assert verification.on_digest(0, 6) == []
    assert verification.get(0) == 6


def test_an_outdated_answer_that_nobody_wants_is_dropped(verification: ChunkVerification) -> None:
    verification.request(FIRST)
    verification.invalidate([0])
    assert verification.on_digest(0, 5) == []
    assert verification.get(0) is None


def test_a_digest_that_was_told_is_known_whatever_an_outdated_computation_says(verification: ChunkVerification) -> None:
    verification.request(FIRST)
    verification.invalidate([0])
    verification.request(FIRST)
    verification.set(0, 7)
    assert verification.on_digest(0, 5) == [], "it is known, so nobody wants it computed any more"
    assert verification.get(0) == 7


def test_bytes_that_change_twice_are_asked_for_once(verification: ChunkVerification) -> None:
    verification.request(FIRST)
    verification.invalidate([0])
    verification.request(FIRST)
    verification.invalidate([0])
    assert verification.on_digest(0, 5) == []


@pytest.mark.parametrize("index", [0, 2, 99, -1])
def test_an_answer_that_was_not_asked_for_is_ignored(verification: ChunkVerification, index: int) -> None:
    assert verification.on_digest(index, 5) == []
    assert verification.get(index) is None


def test_verification_is_complete_with_every_chunk(verification: ChunkVerification) -> None:
    for chunk in PLAN:
        assert not verification.complete
        verification.request(chunk)
        verification.on_digest(chunk.index, 10 + chunk.index)
    assert verification.complete
    assert list(verification.in_order()) == [10, 11, 12]
    verification.invalidate([1])
    assert not verification.complete


def test_verification_of_an_empty_payload_is_complete() -> None:
    assert ChunkVerification(ChunkPlan(0, 1)).complete
