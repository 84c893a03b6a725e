"""A disk that is full while many messages are under way: of spilled messages, traces and what is known of the paths.

What fits nowhere is refused, with a code at both ends; everything else comes when there is room, and the gateways live.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.small_tmpfs import in_small_tmpfs

SETTING = """
import hashlib, json, re, time
from fedrdma_fate.gateway import spilling
from fedrdma_fate.obs import trace
from fedrdma_fate.wire.errors import FedRDMAError
from tests.support.sites import InThread, eventually, party, start_gateways

spilling.RETRY_SECONDS = spilling.SMALL_RETRY_SECONDS = trace.TRY_AGAIN_SECONDS = 0.2
LARGE, SMALL = 512 << 10, 4096
memory = {"send_bytes": "16MiB", "receive_bytes": "2MiB", "ring_slots": 0}
runner = InThread()

def body_of(name, length):
    return hashlib.sha256(name.encode()).digest() * (length // 32)

def push(a, name, length):
    if length <= 65536:
        a.put_inline(name, "t", [party("host:2")], "bytes", body_of(name, length))
        return
    lease = a.lease(length)
    lease.buffer[:] = body_of(name, length)
    lease.commit(name, "t", [party("host:2")], "object")

def pulled(b, name, length):
    return bytes(b.get(name, "t", party("guest:1"), timeout=60).buffer) == body_of(name, length)

def running():
    # everything but the regions lies in there
    return start_gateways({"a": ["guest:1"], "b": ["host:2"]}, shared, runner=runner, memory=memory)

def log_of():
    return (elsewhere / "log").read_text()

import logging
logging.basicConfig(filename=elsewhere / "log", level=logging.INFO)
"""

COMES_LATER = """
with running() as sites, sites["a"].client() as a, sites["b"].client() as b:
    push(a, "first", LARGE)
    assert pulled(b, "first", LARGE)
    names = [(f"large{n}", LARGE) for n in range(20)] + [(f"small{n}", SMALL) for n in range(2000)]
    fill(leave=200_000)
    for name, length in names:
        push(a, name, length)
    eventually(lambda: "[FR403]" in log_of(), 30)
    eventually(lambda: "events are lost" in log_of(), 30)
    # both live: they answer, and what is here can be had
    for number in (0, 1, 1999):
        assert pulled(b, *names[20 + number])
    assert pulled(b, *names[0])
    assert [site.status()["peers"][0]["connected"] for site in sites.values()] == [True, True]
    (shared / "filler").unlink()
    left = [each for number, each in enumerate(names) if number not in (0, 20, 21, 2019)]
    # those that came last first: that takes room on the disk
    print("came", sum(pulled(b, *each) for each in reversed(left)), "of", len(left))
    eventually(lambda: runner.gateways["b"]._assembly.context.unspilled.total_bytes == 0)
    eventually(lambda: sites["b"].status()["mailbox"]["messages"] == 0)
for site in "ab":
    events = [json.loads(line) for line in (shared / site / "trace.jsonl").read_text().splitlines()]
    lost = sum(event.get("events", 0) for event in events if event["event"] == "lost")
    print(site, "goes on", lost > 0, any(event["event"] == "sent" if site == "a" else event["event"] == "get"
          for event in events[-50:]))
print("bounded", len(log_of()) < 1 << 20, log_of().count("Traceback"))
"""

IS_REFUSED = """
from fedrdma_fate.gateway.messages import unspilled
unspilled.MOST_BYTES = 1 << 20
with running() as sites, sites["a"].client() as a, sites["b"].client() as b:
    hold = [f"hold{n}" for n in range(4)]
    fill()
    for name in hold:
        push(a, name, LARGE - 8192)
    eventually(lambda: sites["b"].pool("receive")["leased_bytes"] > 3 * LARGE, 30)
    codes = set()

    def push_at_last(name):
        # the call that hears of an earlier message is not made itself
        while True:
            try:
                return push(a, name, SMALL)
            except FedRDMAError as error:
                assert "disk" in error.message, error.message
                codes.add(error.code.value)

    for number in range(1000):
        push_at_last(f"small{number}")
    eventually(lambda: "refused s/small" in log_of(), 30)
    eventually(lambda: not sites["a"].status()["peers"][0]["pending_messages"], 30)
    heap = runner.gateways["b"]._assembly.context.unspilled.total_bytes
    outcomes = {}
    for number in range(1000):
        try:
            outcome = "came" if pulled(b, f"small{number}", SMALL) else "damaged"
        except FedRDMAError as error:
            outcome = error.code.value
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(sorted(outcomes), sum(outcomes.values()), codes, heap < 3 << 20)
    # and the next one comes
    assert all(pulled(b, name, LARGE - 8192) for name in hold)
    push_at_last("next")
    print("next", pulled(b, "next", SMALL))
"""


def test_what_a_full_disk_holds_up_comes_when_there_is_room_and_the_gateways_live(tmp_path: Path) -> None:
    printed = in_small_tmpfs(tmp_path, SETTING + COMES_LATER, size="24m")
    assert printed == ["came 2016 of 2016", "a goes on True True", "b goes on True True", "bounded True 0"]


def test_small_messages_that_fit_nowhere_are_refused_with_a_code_at_both_ends(tmp_path: Path) -> None:
    printed = in_small_tmpfs(tmp_path, SETTING + IS_REFUSED, size="24m")
    assert printed == ["['FR403', 'came'] 1000 {'FR403'} True", "next True"]
