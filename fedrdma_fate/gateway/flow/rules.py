"""Where a scheduling call goes, and whether it may: by its path, its parties, and the site that asks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from fedrdma_fate.gateway.flow.call import (
    ASKING_HEADERS,
    PARTNER,
    SCHEDULER,
    SchedulingCall,
    check_headers,
    check_path,
    document_of,
    refused,
)
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MOST_NAME_CHARACTERS, Party

_CREATE = f"{SCHEDULER}job/create"
"""Has the scheduler that is called make a job; it is at the site of the initiator."""

_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\\\x00-\x1f]*")
"""What FATE Flow makes names of directories of: no more than one part of a path."""


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
        return self.check_one_of(call, (asking,))[1]

    def check_one_of(self, call: SchedulingCall, asking: Sequence[str]) -> tuple[str, str]:
        """Which of several sites asks, as the parties of a call tell, and the site that it is for.

        Raises:
            GatewayError: as `check`, of the last of them.
        """
        check_path(call.path)
        check_headers(call.headers, self.further_headers)
        document = document_of(call.body)
        _check_names(document)
        destination = call.header("dest-party-id")
        if not destination:
            raise refused("it has no header dest-party-id")
        for each in asking[:-1]:
            # a long body is read once for all of them
            with contextlib.suppress(GatewayError):
                return each, self._checked(call, document, destination, each)
        return asking[-1], self._checked(call, document, destination, asking[-1])

    def _checked(self, call: SchedulingCall, document: dict[str, object], destination: str, asking: str) -> str:
        for role, party_id in _asking_parties(call, document):
            if not self._serves(asking, role, party_id):
                raise _wrong(f"{asking} asks in the name of the party {party_id!r}, which is none of its own")
        if call.path.startswith(PARTNER):
            return self._site_of_partner(destination, document)
        sites = self._routes.sites_of_id(destination)
        if len(sites) != 1:
            served = "no site serves" if not sites else f"{', '.join(sorted(sites))} all serve"
            raise _wrong(f"{served} the party {destination!r}")
        (site,) = sites
        if call.path == _CREATE and site != asking:
            raise refused(f"{asking} has a job scheduled by {site}, which would call its parties in its own name")
        return site

    def _site_of_partner(self, destination: str, document: dict[str, object]) -> str:
        role, party_id = document.get("role"), document.get("party_id")
        if not isinstance(role, str) or not role or party_id != destination:
            raise _wrong(
                f"the header dest-party-id is {destination!r}, and the body is for the role {role!r} of {party_id!r}"
            )
        site = self._routes.find(Party(role, destination))
        if site is None:
            raise _wrong(f"no site serves the role {role!r} of {destination!r}")
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
    if "dag" in document:
        # of the job that is to be made (fate_flow/entity/spec/dag/_job.py); without one it would be made in the name of
        # the site that is asked
        yield "", _text(_section(_section(document, "dag"), "conf"), "initiator_party_id")
    if not call.path.startswith(PARTNER) and "party_id" in document:
        # a party that reports to its scheduler
        yield _text(document, "role") if document.get("role") else "", _text(document, "party_id")


def _check_names(document: Mapping[str, object]) -> None:
    """See that what FATE Flow makes names of directories and files of are such (fate_flow/utils/job_utils.py)."""
    names = [document[key] for key in ("job_id", "role", "party_id", "task_id") if key in document]
    if "dag" in document:
        dag = _section(document, "dag")
        names += _section(dag, "tasks")
        inheritance = _section(_section(dag, "conf"), "inheritance")
        tasks = inheritance.get("task_list")
        names += tasks if isinstance(tasks, list) else ()
        names += [inheritance[key] for key in ("job_id",) if key in inheritance]
    for name in names:
        if not isinstance(name, str) or len(name) > MOST_NAME_CHARACTERS or not _NAME.fullmatch(name):
            raise refused("a job, task, role or party in its body has what is no name")


def _section(document: Mapping[str, object], key: str) -> Mapping[str, object]:
    """An object within a document; empty where there is none. FATE Flow takes a list of pairs for one too."""
    section = document.get(key)
    if section is not None and not isinstance(section, dict):
        raise refused(f"its {key!r} is no JSON object")
    return section or {}


def _text(document: Mapping[str, object], key: str) -> str:
    text = document.get(key)
    if not isinstance(text, str) or not text:
        raise refused(f"its {key!r} is missing, or no text")
    return text


def _wrong(what: str) -> GatewayError:
    return GatewayError(
        ErrorCode.WRONG_PARTY,
        f"a scheduling call is not forwarded: {what}.",
        "See `parties` of both sites, and that `party_id` in FATE Flow's configuration is one of them.",
    )
