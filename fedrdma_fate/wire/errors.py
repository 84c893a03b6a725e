"""Error codes and the exceptions that carry them. Every code has a page in docs/errors/."""

from __future__ import annotations

import enum


class ErrorCode(str, enum.Enum):
    """One stable code per way to fail; the first digit is the layer that found it. Text of it is the code itself."""

    # 1: configuration
    CONFIG_UNKNOWN_KEY = "FR101"
    CONFIG_BAD_VALUE = "FR102"
    CONFIG_UNREADABLE = "FR103"
    INSECURE_REFUSED = "FR104"
    TLS_FILE_UNUSABLE = "FR105"
    KEY_EXPOSED = "FR106"
    KEY_MISMATCH = "FR107"
    CERTIFICATE_SITE = "FR108"
    SEAL_WITHOUT_TLS = "FR109"
    # 2: wire
    MALFORMED_FRAME = "FR201"
    PROTOCOL_VERSION = "FR202"
    HEADER_CORRUPT = "FR203"
    # 3: transfer
    DIGEST_MISMATCH = "FR301"
    IDLE_TIMEOUT = "FR302"
    TRANSFER_ABORTED = "FR303"
    GRANT_VIOLATION = "FR304"
    UNEXPECTED_EVENT = "FR305"
    SEAL_BROKEN = "FR306"
    # 4: memory
    POOL_TIMEOUT = "FR401"
    PAYLOAD_TOO_LARGE = "FR402"
    SPILL_FAILED = "FR403"
    REGION_UNAVAILABLE = "FR404"
    LEASE_UNKNOWN = "FR405"
    JOURNAL_UNUSABLE = "FR406"
    # 5: transport and peers
    TRANSPORT_UNAVAILABLE = "FR501"
    PEER_UNREACHABLE = "FR502"
    PEER_UNKNOWN = "FR503"
    LINK_LOST = "FR504"
    TESTBED_UNAVAILABLE = "FR505"
    DATA_HOST_REFUSED = "FR506"
    TLS_REFUSED = "FR507"
    PEER_IDENTITY = "FR508"
    CERTIFICATE_ENDED = "FR509"
    SEAL_MISMATCH = "FR510"
    UDP_BLOCKED = "FR511"
    # 6: gateway and sessions
    GATEWAY_UNREACHABLE = "FR601"
    WRONG_PARTY = "FR602"
    DUPLICATE_PUSH = "FR603"
    DUPLICATE_PULL = "FR604"
    PULL_TIMEOUT = "FR605"
    SESSION_CLOSED = "FR606"
    GATEWAY_STOPPING = "FR607"
    CLIENT_PROTOCOL = "FR608"
    USER_REFUSED = "FR609"
    LIMIT_REACHED = "FR610"
    SESSION_NOT_OPEN = "FR611"
    MESSAGE_LOST = "FR612"
    STATE_IN_USE = "FR613"
    SESSION_ENDED = "FR614"
    SUM_LOST = "FR615"
    MESSAGE_INCOMPLETE = "FR616"
    CALL_REFUSED = "FR617"
    FLOW_UNUSABLE = "FR618"
    CALLS_UNSUPPORTED = "FR619"
    CALL_IN_DOUBT = "FR620"
    QUEUE_CALL_REFUSED = "FR621"
    ENGINES_MIXED = "FR622"
    BROKER_FAILED = "FR623"
    NO_TASK_ACCESS = "FR624"
    # 7: FATE
    FATE_VERSION = "FR701"
    FATE_ABSENT = "FR702"
    UNSERIALISABLE = "FR703"
    PAYLOAD_MALFORMED = "FR704"
    NAME_FORBIDDEN = "FR705"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def explanation(self) -> str:
        """Where its page is shown: a sentence for whoever sees the code alone."""
        return f"`fedrdma explain {self.value}` says more."


class FedRDMAError(Exception):
    """An error with a stable code, what happened, and what to do about it.

    Attributes:
        code: the stable code; `docs/errors/<code>.md` explains it.
        message: what happened, with the values involved.
        remedy: what the reader can do, or an empty string.
    """

    def __init__(self, code: ErrorCode, message: str, remedy: str = "") -> None:
        super().__init__(code, message, remedy)
        self.code = code
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        advice = f" {self.remedy}" if self.remedy else ""
        return f"[{self.code.value}] {self.message}{advice}"


class ConfigError(FedRDMAError):
    """The configuration is wrong; names the key, the value and what would be right."""


class WireError(FedRDMAError):
    """Bytes from a peer or a task do not parse."""


class TransferError(FedRDMAError):
    """A transfer ended without being delivered."""


class MemoryPoolError(FedRDMAError):
    """A slot, a region or the spill store could not serve."""


class TransportError(FedRDMAError):
    """A data path or a peer is not usable."""


class GatewayError(FedRDMAError):
    """The gateway refused or could not serve a request."""


class FateError(FedRDMAError):
    """FATE is absent, of another version, or handed us what cannot travel."""


_EXCEPTIONS: dict[str, type[FedRDMAError]] = {
    "1": ConfigError,
    "2": WireError,
    "3": TransferError,
    "4": MemoryPoolError,
    "5": TransportError,
    "6": GatewayError,
    "7": FateError,
}
"""By the first digit of a code."""


def error_from_code(code: str, message: str, remedy: str = "") -> FedRDMAError:
    """The typed exception for a code received from the other side.

    An unknown code (a newer peer) becomes a plain `FedRDMAError` under UNEXPECTED_EVENT, with the code in its text.
    """
    try:
        known = ErrorCode(code)
    except ValueError:
        return FedRDMAError(ErrorCode.UNEXPECTED_EVENT, f"unknown error {code!r}: {message}", remedy)
    return _EXCEPTIONS[known.value[2]](known, message, remedy)
