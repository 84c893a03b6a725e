"""Which authorities a certificate needs to be believed."""

from __future__ import annotations

from cryptography import x509

from fedrdma_fate.security.trial_authority import make_authority, make_site
from fedrdma_fate.security.trust import Trust
from tests.support.certificates import DAY, now


def test_above_a_certificate_are_all_its_issuers_and_no_other_authority() -> None:
    root, other = make_authority("root", now(), DAY), make_authority("other", now(), DAY)
    below = make_authority("below", now(), DAY, issuer=root)
    # one of the same name, whose key it is not
    namesake = make_authority("below", now(), DAY)
    listed = [each.certificate for each in (other, namesake, below, root)]
    site = make_site(below, ["a"], now(), DAY).certificate

    trust = Trust(tuple(listed), ())

    assert trust.above([site]) == (below.certificate, root.certificate)
    assert trust.above([make_site(other, ["a"], now(), DAY).certificate]) == (other.certificate,)
    # the intermediate one is the site's to show, where only the root is listed
    assert Trust((root.certificate, other.certificate), ()).above([site, below.certificate]) == (root.certificate,)
    assert nobody(site) == ()


def nobody(site: x509.Certificate) -> tuple[x509.Certificate, ...]:
    return Trust((make_authority("stranger", now(), DAY).certificate,), ()).above([site])
