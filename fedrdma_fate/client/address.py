"""Where a site's gateway listens for its tasks, as configurations name it."""

from __future__ import annotations

from pathlib import Path

from fedrdma_fate.wire.errors import ConfigError, ErrorCode


def socket_path(address: str) -> Path:
    """The file behind `unix:///path`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when it is not of that form, or longer than a unix socket may be.
    """
    path = address.removeprefix("unix://")
    if path == address or not path.startswith("/") or len(path) > 100:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"{address!r} is no address of a gateway's socket.",
            "Write unix:///absolute/path of at most 100 characters.",
        )
    return Path(path)
