"""Connections that were refused before their peer was known: logged and counted, by the reason."""

from __future__ import annotations

import logging

from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.security.tls_refusals import TlsRefusedError
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError

logger = logging.getLogger(__name__)

_WHY = {
    ErrorCode.MALFORMED_FRAME: "malformed",
    ErrorCode.PROTOCOL_VERSION: "protocol",
    ErrorCode.PEER_UNKNOWN: "unknown-site",
    ErrorCode.PEER_IDENTITY: "wrong-site",
    ErrorCode.PEER_UNREACHABLE: "no-greeting",
}
"""Reasons in a word, for the metrics."""


class RefusedChannels:
    """Belongs to the event loop's thread."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints

    def note(self, host: str, error: FedRDMAError, why: str = "") -> None:
        """A connection was refused.

        Args:
            host: where it came from, or led to.
            error: why.
            why: in a word of the code's own; else by the error.
        """
        if not why:
            why = error.why if isinstance(error, TlsRefusedError) else _WHY.get(error.code, "other")
        message = "refused a control channel of %s: [%s] %s %s"
        values = (host, error.code.value, error.message, error.remedy)
        self._complaints.add(logger, f"refused channel: {why}", host, message, *values, level=logging.ERROR)
