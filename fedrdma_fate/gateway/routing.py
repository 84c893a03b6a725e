"""Which site serves which party."""

from __future__ import annotations

from fedrdma_fate.gateway.config.schema import GatewayConfig
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party


class Routes:
    """Parties to sites, as configured: `host:10000` goes before `10000`, which stands for every role."""

    def __init__(self, config: GatewayConfig) -> None:
        self._own = config.site
        self._sites: dict[str, str] = dict.fromkeys(config.parties, config.site)
        self._brokers = frozenset(peer.site for peer in config.brokers)
        for peer in config.peers:
            self._sites.update(dict.fromkeys(peer.parties, peer.site))

    def find(self, party: Party) -> str | None:
        """The site that serves a party, None when no site does."""
        return self._sites.get(str(party)) or self._sites.get(party.party_id)

    def site_of(self, party: Party) -> str:
        """The site that serves a party.

        Raises:
            GatewayError: WRONG_PARTY when no site does.
        """
        site = self.find(party)
        if site is None:
            raise GatewayError(
                ErrorCode.WRONG_PARTY,
                f"no site serves the party {party}.",
                f"Add it to `parties` of its site in the gateway's configuration; known: {', '.join(self._sites)}.",
            )
        return site

    def sites_of_id(self, party_id: str) -> set[str]:
        """The sites that serve a party id, in whatever role."""
        return {site for party, site in self._sites.items() if party.rpartition(":")[2] == party_id}

    def broker_of(self, party: Party) -> str:
        """The site that serves the party, where it has an OSX broker; else an empty string."""
        site = self.find(party)
        return site if site is not None and site in self._brokers else ""

    def is_local(self, party: Party) -> bool:
        """Whether this gateway serves the party."""
        return self.find(party) == self._own


def not_served(party: Party, config: GatewayConfig, further: str = "") -> GatewayError:
    """The error for a party that is of no use here, for this site does not serve it.

    Args:
        party: of another site, or of none.
        config: of this gateway.
        further: what may be done, beside looking at what parties there are.
    """
    return GatewayError(
        ErrorCode.WRONG_PARTY,
        f"{party} is not served at site {config.site!r}.",
        f"Parties here: {', '.join(config.parties)}.{further}",
    )
