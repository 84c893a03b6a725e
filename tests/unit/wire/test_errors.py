"""Error codes and their exceptions."""

from __future__ import annotations

import pickle
import re

import pytest

from fedrdma_fate.wire.errors import (
    ConfigError,
    ErrorCode,
    FateError,
    FedRDMAError,
    GatewayError,
    MemoryPoolError,
    TransferError,
    TransportError,
    WireError,
    error_from_code,
)

FAMILIES = {
    "1": ConfigError,
    "2": WireError,
    "3": TransferError,
    "4": MemoryPoolError,
    "5": TransportError,
    "6": GatewayError,
    "7": FateError,
}


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_a_code_from_the_peer_becomes_the_exception_of_its_family(code: ErrorCode) -> None:
    error = error_from_code(code.value, "what happened", "do this")
    assert type(error) is FAMILIES[code.value[2]]
    assert (error.code, error.message, error.remedy) == (code, "what happened", "do this")


@pytest.mark.parametrize("code", ["FR999", "", "FR3", "nonsense"])
def test_a_code_of_a_newer_peer_is_kept_in_the_text(code: str) -> None:
    error = error_from_code(code, "what happened")
    assert type(error) is FedRDMAError
    assert error.code is ErrorCode.UNEXPECTED_EVENT
    assert repr(code) in error.message


def test_every_code_is_written_alike() -> None:
    assert all(re.fullmatch(r"FR[1-7]\d\d", code.value) for code in ErrorCode)


def test_the_text_of_a_code_is_the_code_in_every_python() -> None:
    code = ErrorCode.IDLE_TIMEOUT
    assert (str(code), f"{code}", f"{code:>6}", "".join([code])) == ("FR302", "FR302", " FR302", "FR302")


def test_the_text_names_code_message_and_remedy() -> None:
    assert str(TransferError(ErrorCode.IDLE_TIMEOUT, "no progress.", "Look at the link.")) == (
        "[FR302] no progress. Look at the link."
    )


def test_an_error_survives_pickling_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(WireError(ErrorCode.HEADER_CORRUPT, "bad", "again")))
    assert type(error) is WireError
    assert (error.code, error.message, error.remedy) == (ErrorCode.HEADER_CORRUPT, "bad", "again")
