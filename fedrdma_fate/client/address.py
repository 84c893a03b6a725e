"""Where a site's gateway listens for its tasks, as configurations name it."""

from __future__ import annotations

from pathlib import Path

from fedrdma_fate.unix_sockets import LONGEST_NAME_BYTES, name_fits
from fedrdma_fate.wire.errors import ConfigError, ErrorCode


def socket_path(address: str) -> Path:
    """The file behind `unix:///path`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when it is not of that form, or its file name is longer than a socket's may be.
    """
    path = address.removeprefix("unix://")
    if path == address or not path.startswith("/") or not name_fits(Path(path)):
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"{address!r} is no address of a gateway's socket.",
            f"Write unix:///absolute/path, with a file name of at most {LONGEST_NAME_BYTES} bytes.",
        )
    return Path(path)
