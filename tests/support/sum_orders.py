"""What sites have been asked to sum, where one test comes after another: an order ends a little after its sum."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.sites import Site, eventually


def orders_of(site: Site, session: str, by: str, tag: str | None = None) -> int:
    """How many sums of a session, or of one tag of it, a site adds for another one that has asked for them."""
    found = [each for each in site.status()["site_sums"] if (each["session"], each["asked_by"]) == (session, by)]
    return sum(tag in (None, each["tag"]) for each in found)


def wait_for_orders_to_end(sites: Mapping[str, Site]) -> None:
    """Return when no site has an order any more, of any session.

    For a test that has a gateway say what it never would: what it says by itself, that the order of a test before is
    over, would end what it was made to say.
    """
    for site in sites.values():
        eventually(lambda site=site: not any(peer["sum_orders"] for peer in site.status()["peers"]))  # type: ignore[misc]
