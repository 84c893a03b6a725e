"""Faults in the middle of a transfer between gateways on two hosts: known soon, gone on with from what had arrived."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.testbed import program, run_on_hosts

IDLE_SECONDS = 15.0
CHUNK_BYTES = 256 << 10

pytestmark = pytest.mark.nic


def struck_by(fault: str, mode: str = "fedrdma-e", *secured: str) -> dict[str, Any]:
    """What the program saw."""
    command = program("gateway_faults.py", fault, mode, *secured)
    # slow enough for the fault to hit the middle
    driver, _ = run_on_hosts(["true"], on={0: command}, rate="200mbit", nic_rate="200mbit", rtt="2ms", timeout=120)
    assert driver.exit_status == 0, driver.stderr[-6000:]
    seen: dict[str, Any] = json.loads(driver.stdout)
    return seen


def whole_and_once(seen: dict[str, Any]) -> None:
    """The payload came right and once, and the path is as good as before."""
    assert seen["right"]
    assert seen["delivered"] == 1
    assert [sent["transport"] for sent in seen["sent"]] == ["verbs"]
    assert seen["later"] == [True, True]


@pytest.mark.parametrize(
    ("fault", "known_within"),
    [
        ("pair-of-sender", 1.0),
        # sealed, below
        pytest.param("pair-of-receiver", 5.0, marks=pytest.mark.sweep),
        ("device-of-sender", 1.0),
        ("device-of-receiver", 5.0),
        ("link-of-receiver", IDLE_SECONDS),
    ],
)
def test_a_transfer_goes_on_with_what_had_not_arrived_when_the_path_is_back(fault: str, known_within: float) -> None:
    seen = struck_by(fault)
    whole_and_once(seen)
    assert seen["knew_after"] < known_within, seen["reason"]
    (sent,) = seen["sent"]
    assert seen["kept_bytes"] >= seen["done_bytes"] > 8 * CHUNK_BYTES
    # none, where the fault fell between a chunk's arrival and the word of it
    assert sent["resent_bytes"] <= 2 * CHUNK_BYTES, "what had arrived was sent again"
    # beside the chunks: what was in flight when it broke, and the header, perhaps twice
    assert sent["writes"] <= sent["chunks"] + 4


@pytest.mark.parametrize(
    ("fault", "known_within"),
    [
        ("chunk-pair-of-receiver", 5.0),
        # sealed, below
        pytest.param("chunk-pair-of-sender", 1.0, marks=pytest.mark.sweep),
        pytest.param("device-of-receiver", 5.0, marks=pytest.mark.sweep),
        ("link-of-receiver", IDLE_SECONDS),
    ],
)
def test_chunks_on_unreliable_queue_pairs_go_on_too_when_the_path_is_back(fault: str, known_within: float) -> None:
    seen = struck_by(fault, "fedrdma-x")
    whole_and_once(seen)
    assert seen["knew_after"] < known_within, seen["reason"]
    (sent,) = seen["sent"]
    assert seen["kept_bytes"] >= seen["done_bytes"] > 8 * CHUNK_BYTES
    # unreliable: what nobody took in was sent again until that was known
    assert sent["mode"] == "fedrdma-x"


@pytest.mark.parametrize(
    ("fault", "mode", "known_within"),
    [
        ("chunk-pair-of-sender", "fedrdma-x", 1.0),
        ("device-of-receiver", "fedrdma-x", 5.0),
        ("pair-of-receiver", "fedrdma-e", 5.0),
    ],
)
def test_a_sealed_transfer_goes_on_with_what_had_not_arrived(fault: str, mode: str, known_within: float) -> None:
    seen = struck_by(fault, mode, "secured")
    whole_and_once(seen)
    assert seen["knew_after"] < known_within, seen["reason"]
    assert seen["done_bytes"] > 8 * CHUNK_BYTES, "it was in the middle"
    (sent,) = seen["sent"]
    # of its second attempt, under another key: its chunks, those of the table, and the header, perhaps twice
    # and what a busy host has taken for lost
    repairs = -(-sent["resent_bytes"] // CHUNK_BYTES)
    assert sent["writes"] - repairs <= sent["chunks"] - seen["done_bytes"] // CHUNK_BYTES + 4, "it all went again"


def test_a_receiver_that_was_killed_and_restarted_gets_the_payload_anew() -> None:
    seen = struck_by("killed-receiver")
    whole_and_once(seen)
    assert seen["knew_after"] < IDLE_SECONDS, seen["reason"]
    (sent,) = seen["sent"]
    # its memory died with it: this is a transfer of its own, from the first chunk to the last
    assert sent["writes"] >= sent["chunks"]
    assert sent["resent_bytes"] == 0
