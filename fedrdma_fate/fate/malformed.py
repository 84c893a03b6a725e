"""The error for a payload that is not what it should be, with a text that has an end.

What Python or a library raises at what a peer sent may hold an object of the peer's, as `KeyError(key)` does, and write
it out when it is asked for its text: lists that hold one another twice, and twice again, take some hundred bytes in a
stream, and as text more than any memory. So nothing here asks an error for its text: its type is told, and what it was
raised with where that is text.
"""

from __future__ import annotations

from typing import NoReturn

from fedrdma_fate.wire.errors import ErrorCode, FateError

SHOWN_CHARACTERS = 200
"""Of what a peer chose; long enough for every honest name, and most errors."""

_PANIC = "PanicException"
"""What FATE's classes in Rust raise at bytes that are none of theirs: no Exception, and under no name to import."""


def malformed(reason: str) -> FateError:
    """The error for a payload that is not what it should be."""
    return FateError(
        ErrorCode.PAYLOAD_MALFORMED,
        f"a received payload cannot be read: {reason}.",
        "Run the same fedrdma-fate version on all sites; if it is the same, report this.",
    )


def shown(text: str) -> str:
    """As Python writes text, and cut."""
    return repr(text[:SHOWN_CHARACTERS])


def told(error: BaseException) -> str:
    """Its type and, if it was raised with text, the beginning of that."""
    said = [each[:SHOWN_CHARACTERS] for each in error.args[:1] if type(each) is str]
    return ": ".join([type(error).__name__, *said])


def refuse(reason: str, error: BaseException) -> NoReturn:
    """Refuse a payload because of an error.

    Args:
        reason: what does not work.
        error: why; goes on as it is where it is not about the payload, such as KeyboardInterrupt.

    Raises:
        FateError: PAYLOAD_MALFORMED; without the error as its cause, which whoever logs it would write out.
    """
    if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
        raise error
    raise malformed(f"{reason} ({told(error)})") from None
