"""Sealed payloads over real verbs: what is on the wire, and what becomes of writes in the peer's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.testbed import program, run_on_hosts

PAYLOAD_BYTES = 5 * 2**20
MODES = ["fedrdma", "fedrdma-e", "fedrdma-x"]


def pulled(mode: str, seal: str, *damaged: str) -> dict[str, Any]:
    """What the receiving host saw."""
    results = run_on_hosts(program("sealed_pair.py", mode, seal, *damaged), rtt="5ms", rate="1gbit", timeout=120)
    assert [result.exit_status for result in results] == [0, 0], results
    return dict(json.loads(results[1].stdout.splitlines()[-1]))


# one that is damaged on its way, below, is looked at in every mode
@pytest.mark.nic
@pytest.mark.parametrize(
    "mode", ["fedrdma-e", *(pytest.param(mode, marks=pytest.mark.sweep) for mode in MODES if mode != "fedrdma-e")]
)
def test_no_byte_of_a_payload_is_on_the_wire(mode: str) -> None:
    seen = pulled(mode, "on")
    assert seen["right"]
    assert seen["bytes"] > PAYLOAD_BYTES // 2, "most packets were looked at"
    assert seen["marked"] == 0
    assert not seen["refused"]


@pytest.mark.nic
def test_with_integrity_it_can_be_read_there() -> None:
    seen = pulled("fedrdma-x", "integrity")
    assert seen["right"]
    assert seen["marked"] > PAYLOAD_BYTES // 5000, "else nobody would know that the test above can fail"


@pytest.mark.nic
@pytest.mark.parametrize("mode", MODES)
def test_what_is_written_into_a_slot_in_the_peers_name_is_refused_and_the_message_comes_whole(mode: str) -> None:
    seen = pulled(mode, "on", "damaged")
    assert seen["right"]
    assert seen["bytes"] > PAYLOAD_BYTES // 2, "most packets were looked at"
    assert seen["marked"] == 0
    assert len(seen["refused"]) == 1
    assert seen["links"] == 1, "the data path, and what else is on it, goes on"
