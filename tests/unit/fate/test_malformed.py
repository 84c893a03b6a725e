"""Errors about what a peer sent: typed, and with a text that has an end."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedrdma_fate.fate.malformed import SHOWN_CHARACTERS, refuse, shown, told
from fedrdma_fate.wire.errors import ErrorCode, FateError


class PanicException(BaseException):
    """As those of classes in Rust are: no Exception."""


class _Untold:
    """Must not be asked for its text."""

    def __repr__(self) -> str:
        raise AssertionError

    __str__ = __repr__


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no digits"), "ValueError: no digits"),
        (PanicException("index out of bounds"), "PanicException: index out of bounds"),
        (MemoryError(), "MemoryError"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (KeyError(_Untold()), "KeyError"),
        (ValueError("x" * 10_000), "ValueError: " + "x" * SHOWN_CHARACTERS),
        (KeyError(7), "KeyError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_told_by_its_type_and_the_beginning_of_its_text(error: BaseException, text: str) -> None:
    with pytest.raises(FateError, match=rf"it does not load \({re.escape(text)}\)") as caught:
        refuse("it does not load", error)
    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
def test_what_is_not_about_the_payload_goes_on_as_it_is(error: Any) -> None:
    with pytest.raises(type(error)) as caught:
        refuse("it does not load", error)
    assert caught.value is error


def test_text_is_cut() -> None:
    assert shown("a\n" * 10_000) == repr("a\n" * (SHOWN_CHARACTERS // 2))
    assert told(ValueError("a" * 300)).count("a") == SHOWN_CHARACTERS + 1
