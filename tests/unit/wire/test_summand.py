"""The footer of a masked update."""

from __future__ import annotations

import pytest

from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import (
    END_BYTES,
    MOST_DESCRIPTION_BYTES,
    NoSummandError,
    Shape,
    Summand,
    decode_footer,
    encode_footer,
    footer_bytes,
    planes_bytes,
    planes_of,
)

GUEST = Party("guest", "1")
SHAPES: tuple[Shape, ...] = ((3, 5), (), (0,))


def payload(summand: Summand, before: int = 128) -> bytes:
    return bytes(before + planes_bytes(summand.shapes)) + encode_footer(summand)


def test_a_footer_says_whose_update_it_is_and_the_shapes_where_each_plane_lies() -> None:
    summand = Summand((GUEST,), 0.25, SHAPES)
    whole = payload(summand)

    length = footer_bytes(whole[-END_BYTES:])

    assert decode_footer(whole[-length:], len(whole)) == (summand, 128)
    assert [(plane.offset, plane.items, plane.whole) for plane in planes_of(SHAPES)] == [
        (0, 15, False),
        (128, 15, True),
        (256, 1, False),
        (320, 1, True),
        (384, 0, False),
        (448, 0, True),
    ]
    assert planes_bytes(SHAPES) == 512


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -0.5])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    whole = payload(Summand((GUEST,), weight, SHAPES))
    with pytest.raises(NoSummandError, match="its weight"):
        decode_footer(whole, len(whole))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda whole: whole[:-1], "no footer"),
        (lambda whole: whole[-10:], "no footer"),
        (lambda whole: whole[:-END_BYTES] + b"FRSU\2" + whole[-END_BYTES + 5 :], "version 2"),
        (lambda whole: whole[: -END_BYTES - 2] + b"xx" + whole[-END_BYTES:], "CRC-32"),
        (lambda whole: whole[-60:], "longer than itself|do not lie"),
        (lambda whole: whole[200:], "do not lie"),
        (lambda whole: b"x" + whole, "do not lie"),
    ],
)
def test_a_payload_that_is_none_is_refused(change: object, reason: str) -> None:
    whole = change(payload(Summand((GUEST,), None, SHAPES)))  # type: ignore[operator]
    with pytest.raises(NoSummandError, match=reason):
        decode_footer(whole, len(whole))


@pytest.mark.parametrize("shapes", [((2**48,) * 30,), ((2**48, 2**48, 0),), ((-1,),), (), ((1,) * 33,), (("1",),)])
def test_shapes_that_overflow_or_are_none_are_refused(shapes: object) -> None:
    whole = bytes(640) + encode_footer(Summand((GUEST,), None, shapes))  # type: ignore[arg-type]
    with pytest.raises(NoSummandError):
        decode_footer(whole, len(whole))


def test_a_description_without_end_is_neither_made_nor_read() -> None:
    with pytest.raises(NoSummandError, match="a description of"):
        encode_footer(Summand((GUEST,), None, ((1,) * 32,) * (MOST_DESCRIPTION_BYTES // 32)))
    end = b"FRSU\x01\0\0\0" + (2**31).to_bytes(4, "little") + bytes(4)
    with pytest.raises(NoSummandError, match="says that it has"):
        footer_bytes(end)
