"""The sessions at this gateway as a document, for people and programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from fedrdma_fate.client.protocol import Attach
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.tasks.session_ends import Dropped, SessionEnds
from fedrdma_fate.wire.frames import Party


@dataclasses.dataclass(slots=True)
class _Held:
    """What one party has here in one session: see `sessions_document`."""

    tasks: int = 0
    waiting_messages: int = 0
    waiting_bytes: int = 0
    spilled_bytes: int = 0
    outgoing_messages: int = 0
    outgoing_bytes: int = 0
    task_bytes: int = 0


def sessions_document(
    context: GatewayContext,
    ends: SessionEnds,
    peers: Mapping[str, Sending],
    held_by_tasks: Iterable[tuple[Attach, int, int]],
    may_know: Callable[[Party], bool],
) -> dict[str, object]:
    """Every session that has tasks, or anything else, here, with its parties of this site; sizes in bytes, times in
    seconds.

    Args:
        context: the gateway's.
        ends: which sessions have tasks here.
        peers: what sends to the other sites, by their names.
        held_by_tasks: of each task, bytes that it has leased to write to, and bytes that it has got and keeps.
        may_know: whether it may show what this party of the site has.

    Returns:
        `sessions`: a list; of each its id, age, for how long it has had no task here (0: it has), why it has ended
        (null: it has not), the sites it is shared with, and `parties`: of each the tasks alive, what waits to be
        pulled, what of that is on disk, what other sites do not have yet, and what its tasks hold.
    """
    held: dict[str, dict[Party, _Held]] = {session: {} for session in ends.presence}

    def of(session: str, party: Party) -> _Held:
        return held.setdefault(session, {}).setdefault(party, _Held())

    for session in ends.presence:
        for party in context.mailbox.sessions.joined(session):
            of(session, party)
        for party, count in ends.presence.tasks(session).items():
            of(session, party).tasks = count
    for message in context.mailbox.all_messages():
        place = of(message.key.session, message.key.destination)
        place.waiting_messages += 1
        place.waiting_bytes += message.total_bytes
        place.spilled_bytes += message.total_bytes if message.spilled is not None else 0
    for sending in peers.values():
        for key, total_bytes in sending.held():
            place = of(key.session, key.source)
            place.outgoing_messages += 1
            place.outgoing_bytes += total_bytes
    for attach, leased, received in held_by_tasks:
        of(attach.session, attach.party).task_bytes += leased + received
    return {"sessions": [shown for each in held if (shown := _session(context, ends, each, held[each], may_know))]}


def _session(
    context: GatewayContext,
    ends: SessionEnds,
    session: str,
    held: Mapping[Party, _Held],
    may_know: Callable[[Party], bool],
) -> dict[str, object] | None:
    parties = [{"party": str(party), **dataclasses.asdict(held[party])} for party in held if may_know(party)]
    if not parties:
        return None
    known = session in ends.presence
    return {
        "session": session,
        "age_seconds": ends.presence.age(session) if known else 0.0,
        "idle_seconds": ends.presence.idle_seconds(session),
        "ended": context.mailbox.sessions.ended.reason(session),
        "sites": sorted(ends.sites(session)),
        "parties": parties,
    }


def dropped_document(session: str, dropped: Dropped) -> dict[str, object]:
    """What was dropped of a session."""
    return {"session": session, **dataclasses.asdict(dropped)}
