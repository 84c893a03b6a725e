"""Over real verbs, with keys that can be guessed and windows without bounds: nobody writes beside what was granted."""

from __future__ import annotations

import json

import pytest

from tests.support.testbed import program, run_on_hosts

pytestmark = pytest.mark.nic


def test_no_key_opens_anything_but_its_slot_to_its_peer_and_none_outlives_its_grant() -> None:
    thief, victim = run_on_hosts(program("stolen_keys.py"), timeout=150)
    for host in (thief, victim):
        assert host.exit_status == 0, host.stderr[-4000:]
    seen = json.loads(victim.stdout)
    assert {name: came["untouched"] for name, came in seen.items()} == dict.fromkeys(seen, True)
    reliable = [name for name in seen if "unreliable" not in name]
    assert len(reliable) == 6
    for name in seen:
        culprit = "thief" if "another" in name or "guesses" in name else "honest"
        # what is refused on a reliable queue pair ends the link; on an unreliable one nobody is told
        assert ("the peer broke the protocol" in seen[name][culprit]) == (name in reliable), (name, seen[name])
    assert [name for name, came in seen.items() if came.get("legal")] == [
        "another peer's key",
        "another peer's key, unreliable",
        "guesses, unreliable",
        "behind the slot, unreliable",
    ]
    assert "does not keep writes inside memory windows" in victim.stderr
