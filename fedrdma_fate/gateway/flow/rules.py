"""Where a scheduling call goes, and whether it may: by its path, its parties, and the site that asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedrdma_fate.gateway.flow.call import (
    ASKING_HEADERS,
    PARTNER,
    SchedulingCall,
    check_headers,
    check_path,
    document_of,
    refused,
)
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party


class CallRules:
    """Both ends hold a call against the same rules; the receiving one believes nothing of what the other has seen."""

    def __init__(self, routes: Routes, further_headers: Sequence[str] = ()) -> None:
        """
        Args:
            routes: which site serves which party.
            further_headers: names of headers that travel besides, as the configuration spells them.
        """
        self._routes = routes
        self.further_headers = tuple(name.lower() for name in further_headers)

    def check(self, call: SchedulingCall, asking: str) -> str:
        """The site that a call is for.

        Args:
            call: what is asked.
            asking: name of the site that asks.

        Raises:
            GatewayError: CALL_REFUSED, or WRONG_PARTY when its parties do not fit each other or the site that asks.
        """
        check_path(call.path)
        check_headers(call.headers, self.further_headers)
        document = document_of(call.body)
        destination = call.header("dest-party-id")
        if not destination:
            raise refused("it has no header dest-party-id")
        for role, party_id in _asking_parties(call, document):
            if not self._serves(asking, role, party_id):
                raise _wrong(f"{asking} asks in the name of the party {party_id!r}, which is none of its own")
        if call.path.startswith(PARTNER):
            return self._site_of_partner(destination, document)
        sites = self._routes.sites_of_id(destination)
        if len(sites) != 1:
            served = "no site serves" if not sites else f"{', '.join(sorted(sites))} all serve"
            raise _wrong(f"{served} the party {destination!r}")
        return next(iter(sites))

    def _site_of_partner(self, destination: str, document: dict[str, object]) -> str:
        role, party_id = document.get("role"), document.get("party_id")
        if not isinstance(role, str) or not role or party_id != destination:
            raise _wrong(
                f"the header dest-party-id is {destination!r}, and the body is for the role {role!r} of {party_id!r}"
            )
        site = self._routes.find(Party(role, destination))
        if site is None:
            raise _wrong(f"no site serves the party {role}:{destination}")
        return site

    def _serves(self, site: str, role: str, party_id: str) -> bool:
        if role:
            return self._routes.find(Party(role, party_id)) == site
        return site in self._routes.sites_of_id(party_id)


def _asking_parties(call: SchedulingCall, document: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Roles and ids of parties in whose name a call is made; without a role: any of that id."""
    for name in ASKING_HEADERS:
        if party_id := call.header(name):
            yield "", party_id
    # of the job that is to be made (fate_flow/entity/spec/dag/_job.py)
    dag = document.get("dag")
    conf = dag.get("conf") if isinstance(dag, dict) else None
    if isinstance(conf, dict) and (initiator := conf.get("initiator_party_id")):
        yield "", str(initiator)
    if not call.path.startswith(PARTNER) and "party_id" in document:
        # a party that reports to its scheduler
        yield str(document.get("role") or ""), str(document["party_id"])


def _wrong(what: str) -> GatewayError:
    return GatewayError(
        ErrorCode.WRONG_PARTY,
        f"a scheduling call is not forwarded: {what}.",
        "See `parties` of both sites, and that `party_id` in FATE Flow's configuration is one of them.",
    )
