"""What a handshake that failed means, in words for the operators of both sites."""

from __future__ import annotations

import datetime
import ssl

from cryptography import x509

from fedrdma_fate.wire.errors import ErrorCode, TransportError

_VERIFY: dict[int, tuple[str, str]] = {
    3: ("no-revocation-list", "Name a revocation list of every authority in `tls.revocation_lists`, or none."),
    9: ("not-yet-valid", "Compare the clocks of both sites."),
    10: ("expired", "Have a new one made; if it should still be valid, compare the clocks of both sites."),
    12: ("revocation-list-expired", "Fetch the authority's newest revocation list."),
    23: ("revoked", "Its site has to have a new one made."),
}
"""By the codes of OpenSSL's X509_V_ERR_…: why in a word, and what to do."""

_OTHER_VERIFY = ("wrong-authority", "The authority that made it has to be among `tls.authorities` here.")

_REASONS: dict[str, tuple[str, str, str]] = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "no-certificate",
        "the other side has shown no certificate",
        "It is no gateway, or has `security` set otherwise.",
    ),
    "UNSUPPORTED_PROTOCOL": ("tls-version", "the other side has no TLS 1.3", "Only TLS 1.3 is spoken here."),
    "WRONG_VERSION_NUMBER": ("no-tls", "the other side speaks no TLS", "Set `security` alike at both sites."),
    "WRONG_SSL_VERSION": ("no-tls", "the other side speaks no TLS", "Set `security` alike at both sites."),
    "HTTP_REQUEST": ("no-tls", "the other side speaks HTTP", "It is no gateway."),
    "UNEXPECTED_EOF_WHILE_READING": ("cut", "the connection ended within the handshake", ""),
}
"""By OpenSSL's names: why in a word, what happened, and what to do."""


class TlsRefusedError(TransportError):
    """A handshake that failed.

    Attributes:
        why: in a word, for the metrics.
    """

    def __init__(self, why: str, message: str, remedy: str) -> None:
        super().__init__(ErrorCode.TLS_REFUSED, message, remedy)
        self.why = why


def tls_refusal(error: ssl.SSLError, own: x509.Certificate, now: datetime.datetime) -> TlsRefusedError:
    """The error for it.

    Args:
        error: of Python's `ssl`.
        own: our certificate, whose dates are told where the other side does not take it.
        now: with its time zone.
    """
    reason = error.reason or ""
    clock = f"the clock here says {now:%Y-%m-%d %H:%M} UTC"
    if isinstance(error, ssl.SSLCertVerificationError):
        why, remedy = _VERIFY.get(error.verify_code, _OTHER_VERIFY)
        return TlsRefusedError(
            why, f"the other side's certificate is not believed: {error.verify_message}; {clock}.", remedy
        )
    if "ALERT" in reason:
        alert = reason.rpartition("ALERT_")[2].lower().replace("_", " ")
        begin, end = own.not_valid_before_utc, own.not_valid_after_utc
        return TlsRefusedError(
            "refused-us",
            f"the other side does not take our certificate or our TLS: {alert}. Ours is valid from "
            f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC; {clock}.",
            "Its log says why. If it calls the certificate bad or expired, compare the clocks of both sites.",
        )
    why, what, remedy = _REASONS.get(reason, ("handshake", f"TLS failed: {reason or error}", ""))
    return TlsRefusedError(why, f"{what}.", remedy)
