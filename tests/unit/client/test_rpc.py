"""What a task is told where it reaches no gateway."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fedrdma_fate.client.rpc import unreachable
from fedrdma_fate.wire.errors import ErrorCode


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "Start it with"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Start it with"),
        (PermissionError(errno.EACCES, "Permission denied"), "Run this as the gateway's user"),
    ],
)
def test_who_may_not_use_the_socket_is_not_told_to_start_the_gateway(error: OSError, remedy: str) -> None:
    told = unreachable(Path("/run/fedrdma/gateway.sock"), error)
    assert told.code is ErrorCode.GATEWAY_UNREACHABLE
    assert f"no gateway answers at unix:///run/fedrdma/gateway.sock: [Errno {error.errno}] {error.strerror}." in str(
        told
    )
    assert remedy in told.remedy
