"""Says in good time that a gateway's own certificate ends: nobody is let in with one that has."""

from __future__ import annotations

import datetime
import logging

from cryptography import x509

logger = logging.getLogger(__name__)

SOON = datetime.timedelta(days=30)
"""A certificate that ends sooner is warned of: an organisation's authority may take weeks to make another."""

URGENT = datetime.timedelta(days=7)
"""From here on it is an error: a week has the working days in which somebody can still act."""

_AGAIN = datetime.timedelta(days=1)
"""Between two lines: a log that is read once a day shows it every time, and is not filled by it."""


class EndingNotice:
    """Logs that a certificate ends soon, at the first look and then once a day at most. One thread at a time."""

    def __init__(self) -> None:
        self._told: datetime.datetime | None = None

    def look(self, certificate: x509.Certificate, now: datetime.datetime) -> None:
        """Log a warning within `SOON` of the end and an error within `URGENT`, unless that was done within a day.

        Args:
            certificate: the gateway's own, as it is in use.
            now: with its time zone.
        """
        end = certificate.not_valid_after_utc
        left = end - now
        # a clock that was set back must not silence it for long
        if left >= SOON or (self._told is not None and abs(now - self._told) < _AGAIN):
            return
        self._told = now
        logger.log(
            logging.ERROR if left < URGENT else logging.WARNING,
            "this gateway's certificate %s at %s UTC: have a new one made, and put it in the place of the old",
            "ends" if left > datetime.timedelta() else "has ended",
            f"{end:%Y-%m-%d %H:%M}",
            extra={"certificate_end": end.isoformat(), "days_left": max(0, left.days)},
        )
