"""Checks of a site's certificates: they belong together, name the site, and hold for a while yet."""

from __future__ import annotations

import datetime

from fedrdma_fate.doctor.findings import Finding, failure, fine
from fedrdma_fate.gateway.config.schema import GatewayConfig
from fedrdma_fate.security.credentials import CredentialFiles, load_credentials
from fedrdma_fate.security.ending import SOON
from fedrdma_fate.wire.errors import ConfigError

LIST_SOON = datetime.timedelta(days=1)
"""A revocation list that ends sooner is warned of: authorities publish new ones every few days; without, nobody gets
in."""

_CHECK = "certificates"


def check_certificates(config: GatewayConfig | None, now: datetime.datetime) -> Finding:
    """What a gateway would say of them, and what ends soon.

    Args:
        config: the configuration, None where it is not known.
        now: with its time zone.
    """
    if config is None:
        return fine(_CHECK, "not known without a configuration")
    tls = config.tls
    if config.security == "off" or tls.certificate is None or tls.key is None:
        remedy = "Set up certificates, see docs/security.md, before anything but a trial on one host."
        return Finding(_CHECK, "warning", "`security` is `off`: whoever reaches the ports is believed", remedy)
    files = CredentialFiles(tls.certificate, tls.key, tls.authorities, tls.revocation_lists)
    try:
        credentials = load_credentials(files, config.site, now)
    except ConfigError as error:
        return failure(_CHECK, error)
    ends = {f"the certificate {tls.certificate}": (credentials.certificate.not_valid_after_utc, SOON)}
    for authority in credentials.trust.authorities:
        ends[f"the authority {authority.subject.rfc4514_string()}"] = (authority.not_valid_after_utc, SOON)
    for revoked in credentials.trust.lists:
        if revoked.next_update_utc is not None:
            ends[f"the revocation list of {revoked.issuer.rfc4514_string()}"] = (revoked.next_update_utc, LIST_SOON)
    soon = [f"{what} ends at {end:%Y-%m-%d %H:%M} UTC" for what, (end, early) in ends.items() if end - now < early]
    if soon:
        remedy = "Have new ones made, and put them in the place of the old; a running gateway takes them up itself."
        return Finding(_CHECK, "warning", "; ".join(soon), remedy)
    until = credentials.certificate.not_valid_after_utc
    return fine(_CHECK, f"they name site {config.site} and hold until {until:%Y-%m-%d}")
