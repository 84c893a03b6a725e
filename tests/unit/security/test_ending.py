"""The end of a gateway's own certificate is told in good time, and not more than once a day."""

from __future__ import annotations

import datetime
import json
import logging

import pytest
from cryptography import x509

from fedrdma_fate.obs.log import JsonFormatter
from fedrdma_fate.security.ending import SOON, URGENT, EndingNotice
from fedrdma_fate.security.trial_authority import make_authority
from tests.support.certificates import DAY, now

HOUR = datetime.timedelta(hours=1)


@pytest.fixture(scope="module")
def certificate() -> x509.Certificate:
    return make_authority("site", now(), 100 * DAY).certificate


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records]


def test_nothing_is_said_while_the_end_is_far(certificate: x509.Certificate, caplog: pytest.LogCaptureFixture) -> None:
    EndingNotice().look(certificate, certificate.not_valid_after_utc - SOON)
    assert not caplog.records


@pytest.mark.parametrize(
    ("left", "level", "says"),
    [
        (SOON - HOUR, logging.WARNING, "ends at"),
        (URGENT, logging.WARNING, "ends at"),
        (URGENT - HOUR, logging.ERROR, "ends at"),
        (-HOUR, logging.ERROR, "has ended at"),
    ],
)
def test_the_first_look_says_it_with_the_end_and_the_days_left(
    certificate: x509.Certificate,
    caplog: pytest.LogCaptureFixture,
    left: datetime.timedelta,
    level: int,
    says: str,
) -> None:
    end = certificate.not_valid_after_utc
    EndingNotice().look(certificate, end - left)
    (record,) = caplog.records
    assert record.levelno == level
    assert says in record.getMessage()
    entry = json.loads(JsonFormatter().format(record))
    assert (entry["certificate_end"], entry["days_left"]) == (end.isoformat(), max(0, left.days))


def test_it_is_said_once_a_day_at_most(certificate: x509.Certificate, caplog: pytest.LogCaptureFixture) -> None:
    notice, start = EndingNotice(), certificate.not_valid_after_utc - 8 * DAY + HOUR
    for hours in range(49):
        notice.look(certificate, start + hours * HOUR)
    assert levels(caplog) == [logging.WARNING, logging.ERROR, logging.ERROR]


def test_a_clock_that_was_set_back_does_not_silence_it(
    certificate: x509.Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    notice, end = EndingNotice(), certificate.not_valid_after_utc
    notice.look(certificate, end - DAY)
    notice.look(certificate, end - 20 * DAY)
    assert levels(caplog) == [logging.ERROR, logging.WARNING]


def test_after_renewal_nothing_more_is_said(certificate: x509.Certificate, caplog: pytest.LogCaptureFixture) -> None:
    notice, end = EndingNotice(), certificate.not_valid_after_utc
    notice.look(certificate, end - DAY)
    renewed = make_authority("site", now(), 400 * DAY).certificate
    notice.look(renewed, end + DAY)
    assert levels(caplog) == [logging.ERROR]
