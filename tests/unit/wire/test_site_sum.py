"""The footer of the sum of a site, and the name that it travels under."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fedrdma_fate.wire.frames import MOST_NAME_CHARACTERS, Party
from fedrdma_fate.wire.site_sum import (
    SITE_SUM_END_BYTES,
    Part,
    SiteSum,
    decode_site_sum,
    encode_site_sum,
    is_site_sum,
    site_sum_footer_bytes,
    site_sum_key,
)
from fedrdma_fate.wire.summand import NoSummandError, Shape, Summand, decode_footer, encode_footer, planes_bytes

A, B, ARBITER = Party("host", "1"), Party("host", "2"), Party("arbiter", "3")
SHAPES: tuple[Shape, ...] = ((3, 5), (), (0,))
BOTH = SiteSum(8, (Part(A, 0.5, 11), Part(B, 1.5, 12)), SHAPES)


def footer_of(whole: bytes) -> bytes:
    return whole[-site_sum_footer_bytes(whole[-SITE_SUM_END_BYTES:]) :]


def test_a_footer_says_who_is_in_it_and_comes_back_as_it_was() -> None:
    whole = bytes(128 + planes_bytes(SHAPES)) + encode_site_sum(BOTH)

    assert decode_site_sum(footer_of(whole), len(whole)) == (BOTH, 128)


def test_neither_kind_of_footer_is_taken_for_the_other() -> None:
    planes = bytes(planes_bytes(SHAPES))
    site_sum, summand = planes + encode_site_sum(BOTH), planes + encode_footer(Summand((A,), 0.5, SHAPES))

    with pytest.raises(NoSummandError):
        decode_footer(site_sum, len(site_sum))
    with pytest.raises(NoSummandError):
        site_sum_footer_bytes(summand[-SITE_SUM_END_BYTES:])
    with pytest.raises(NoSummandError):
        decode_site_sum(summand[len(planes) :], len(summand))


def with_weights(*weights: float | None) -> SiteSum:
    parts = [msgspec.structs.replace(part, weight=each) for part, each in zip(BOTH.parts, weights, strict=True)]
    return msgspec.structs.replace(BOTH, parts=tuple(parts))


@pytest.mark.parametrize(
    ("site_sum", "reason"),
    [
        (with_weights(float("nan"), 1.0), "a weight in it is none"),
        (with_weights(float("inf"), 1.0), "a weight in it is none"),
        (with_weights(-0.5, 1.0), "a weight in it is none"),
        (with_weights(None, 1.0), "others have none"),
        (msgspec.structs.replace(BOTH, parts=BOTH.parts[:1] * 2), "twice"),
        (msgspec.structs.replace(BOTH, parts=()), "does not parse"),
        (msgspec.structs.replace(BOTH, shapes=()), "does not parse"),
        (msgspec.structs.replace(BOTH, shapes=((2**40, 2**40),)), "no arrays of such shapes"),
        (msgspec.structs.replace(BOTH, shapes=((2**30,),)), "do not lie inside"),
        (msgspec.structs.replace(BOTH, parts=(Part(A, 0.5, -1), BOTH.parts[1])), "does not parse"),
    ],
)
def test_what_no_sum_can_be_is_refused(site_sum: SiteSum, reason: str) -> None:
    whole = bytes(planes_bytes(SHAPES)) + encode_site_sum(site_sum)
    with pytest.raises(NoSummandError, match=reason):
        decode_site_sum(footer_of(whole), len(whole))


@pytest.mark.parametrize(
    "damage",
    [
        lambda footer: footer[1:],
        lambda footer: b"x" + footer[1:],
        lambda footer: footer[:-SITE_SUM_END_BYTES] + b"FRSS\2" + footer[-SITE_SUM_END_BYTES + 5 :],
        lambda footer: footer[-SITE_SUM_END_BYTES + 1 :],
        lambda _: b"",
    ],
)
def test_a_damaged_footer_is_refused(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(NoSummandError):
        decode_site_sum(damage(encode_site_sum(BOTH)), 10_000)


def test_a_footer_that_says_it_is_longer_than_any_is_not_read() -> None:
    end = encode_site_sum(BOTH)[-SITE_SUM_END_BYTES:]
    with pytest.raises(NoSummandError, match="says that it has"):
        site_sum_footer_bytes(end[:8] + b"\xff" * 4 + end[12:])


def test_its_name_is_told_from_that_of_any_message_in_it_and_a_name_too_long_has_none() -> None:
    key = site_sum_key("s", "masked", "t", A, ARBITER)
    assert key is not None
    assert is_site_sum(key)
    assert not is_site_sum(msgspec.structs.replace(key, name="masked"))
    assert site_sum_key("s", "n" * MOST_NAME_CHARACTERS, "t", A, ARBITER) is None
