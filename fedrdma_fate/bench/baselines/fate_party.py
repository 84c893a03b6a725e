"""A FATE party that puts or gets through its context, whatever federation is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec
from fedrdma_fate.wire.errors import ErrorCode, FateError

Side = Literal["sender", "receiver"]

PARTIES: dict[Side, tuple[str, str]] = {"sender": ("guest", "9999"), "receiver": ("host", "10000")}
SESSION = "bench"
MESSAGE = "payload"


class FateSender:
    """The guest: `ctx.hosts.put`."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """Put all arrays as one object."""
        self._context.indexed_ctx(iteration).hosts.put(MESSAGE, payload.arrays)

    def close(self) -> None:
        """Leave the federation and stop the computing engine."""
        self._context.destroy()


class FateReceiver:
    """The host: `ctx.guest.get`."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        """Get the arrays."""
        del spec
        arrays: list[Array] = self._context.indexed_ctx(iteration).guest.get(MESSAGE)
        return arrays

    def close(self) -> None:
        """Leave the federation and stop the computing engine."""
        self._context.destroy()


def require_fate() -> None:
    """Fail early and plainly where FATE is not installed.

    Raises:
        FateError: FATE_ABSENT.
    """
    try:
        import fate.arch  # noqa: F401
    except ImportError as error:
        raise FateError(
            ErrorCode.FATE_ABSENT,
            f"FATE is not installed: {error}.",
            "Install the wheel of a clone with its extra fate (docs/operators.md, Installing).",
        ) from error


def computing_session(side: Side, data_directory: Path) -> Any:
    """FATE's standalone computing engine, which every context has."""
    from fate.arch.computing.backends.standalone import CSession

    return CSession(session_id=f"{SESSION}-{side}", data_dir=str(data_directory))


def make_context(computing: Any, federation: Any) -> Any:
    """FATE's context for a party."""
    from fate.arch.context import Context

    return Context(computing=computing, federation=federation)
