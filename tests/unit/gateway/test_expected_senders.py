"""Who is expected to send at once is known from who is in the sessions of the tasks that are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedrdma_fate.wire.frames import Party
from tests.support.twin import PARTIES, Twin, run_virtually

HERE = PARTIES["b"]


class OfFour(Twin):
    """Site b has four peers."""

    more_peers: ClassVar[Mapping[str, Sequence[dict[str, Any]]]] = {
        "b": [{"site": f"s{number}", "parties": [f"1000{number}"]} for number in range(3)]
    }


def test_the_sites_of_all_parties_in_sessions_here_and_of_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        memory = {"receive_bytes": "8MiB", "ring_slots": 2, "ring_slot_bytes": "128KiB"}
        context = OfFour(tmp_path, memory=memory).halves["b"].context
        told = list[set[str]]()
        monkeypatch.setattr(context.sharing, "expect", lambda sites: told.append(set(sites)))
        silos = [Party("host", "10000"), Party("host", "10001")]
        context.mailbox.join("one", HERE, [HERE, *silos])
        # whom no site serves, nobody waits for
        context.mailbox.join("another", HERE, [HERE, PARTIES["a"], Party("host", "77777")])
        context.mailbox.leave("one", HERE)
        context.mailbox.join("a third", HERE, None)
        context.mailbox.end("a third", "over")
        context.mailbox.end("another", "over")
        assert told == [{"s0", "s1"}, {"s0", "s1", "a"}, {"a"}, set(), {"a"}, set()]

    run_virtually(scenario())
