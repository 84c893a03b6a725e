"""One payload through two engines over verbs, from host 0 to host 1; prints what it took, and what theory says.

    scripts/testbed run --virtual-time --rate 1gbit --rtt 20ms -- \
        .venv/bin/python -m deploy.softroce.programs.engine_transfer --bytes 64MiB

With one chunk on its way at a time, theory says chunk / (RTT + chunk / rate).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import threading
from typing import Final, cast

from deploy.softroce.programs.control import Control, control_connection, this_host
from deploy.softroce.programs.counters import read_counters
from deploy.softroce.programs.links import open_draft, shared_region
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.engine.events import (
    DatagramsDropped,
    FrameToSend,
    GrantRequested,
    LinkEvent,
    PathConnected,
    PathLost,
    PayloadReceived,
    PayloadSent,
    ReceiveFailed,
    SendFailed,
    SlotsReturned,
    SlotsStillOpen,
    TransferAnnounced,
    TransferStats,
)
from fedrdma_fate.engine.link_thread import LinkThread
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Slot
from fedrdma_fate.quantities import parse_size
from fedrdma_fate.security.datagram_tags import DatagramKeys, new_datagram_key
from fedrdma_fate.transport.verbs.device_selection import NAME
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport
from fedrdma_fate.wire.frames import Grant, MessageKey, Mode, Party, decode_frame, encode_frame

ATTEMPT = 1
GRANT = 1
TRANSFER = 1
IDLE_SECONDS = 120.0
BLOCK_BYTES: Final = 1_000_003
"""Of the payload, which repeats it: no two chunks are equal."""


class Owner:
    """What a gateway is to its link: passes frames on, and hears how the transfer ended."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.up = threading.Event()
        self.granted = threading.Event()
        self.ended = threading.Event()
        self.other_gone = threading.Event()
        self.stats: TransferStats | None = None
        self.received_at: tuple[Slot, int] | None = None
        self.failure = ""

    def on_event(self, event: LinkEvent) -> None:
        """Frames go to the other host; the rest begins the transfer or ends it."""
        match event:
            case FrameToSend(frame):
                self._control.send(encode_frame(frame))
            case PathConnected():
                self.up.set()
            case PathLost(_, reason):
                # nobody connects it anew here
                self._fail(reason)
            case GrantRequested(request):
                self._fail(f"{request} for more than was granted ahead of time")
            case PayloadReceived(_, slot, payload_at):
                self.received_at = slot, payload_at
                self.ended.set()
            case PayloadSent(_, stats):
                self.stats = stats
                self.ended.set()
            case ReceiveFailed(_, _, code, reason) | SendFailed(_, code, reason):
                self._fail(f"{code.value}: {reason}")
            case TransferAnnounced() | SlotsReturned() | SlotsStillOpen() | DatagramsDropped():
                # the frame is enough, and nobody waits for slots
                pass

    def outcome(self) -> None:
        """Wait for the end.

        Raises:
            SystemExit: it is not a good one.
        """
        self.ended.wait()
        if self.failure:
            raise SystemExit(self.failure)

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.up.set()
        self.granted.set()
        self.ended.set()


def fill(view: memoryview) -> None:
    """Put the payload there, the same on both hosts."""
    block = hashlib.shake_128(b"engine transfer").digest(BLOCK_BYTES)
    for at in range(0, len(view), BLOCK_BYTES):
        part = min(BLOCK_BYTES, len(view) - at)
        view[at : at + part] = block[:part]


def is_payload(view: memoryview) -> bool:
    """Whether it is what `fill` puts there."""
    block = hashlib.shake_128(b"engine transfer").digest(BLOCK_BYTES)
    return all(view[at : at + BLOCK_BYTES] == block[: len(view) - at] for at in range(0, len(view), BLOCK_BYTES))


def run_link(control: Control, transport: VerbsTransport) -> tuple[LinkThread, Owner]:
    """An engine on a connected data path, that hears the other host's frames."""
    owner = Owner(control)
    link = LinkThread("peer", LinkSettings(NAME, idle_timeout=IDLE_SECONDS), owner.on_event)
    draft = open_draft(transport)
    key = new_datagram_key()
    offer = control.exchange({**draft.address, "datagram_key": key.hex()})
    keys = DatagramKeys(send=bytes.fromhex(offer.pop("datagram_key")), receive=key)

    def relay() -> None:
        while message := control.receive():
            frame = decode_frame(message)
            link.frame(frame)
            if isinstance(frame, Grant):
                owner.granted.set()
        owner.other_gone.set()

    link.connect(draft, offer, ATTEMPT, keys)
    owner.up.wait()
    # a grant of a path that is not up here yet would be dropped, so both are
    control.exchange("up")
    threading.Thread(target=relay, daemon=True).start()
    return link, owner


def send(link: LinkThread, owner: Owner, region: SharedRegion, mode: Mode, plan: ChunkPlan) -> dict[str, object]:
    """Host 0's part."""
    payload = Payload(Slot(region, 0, max(1, plan.total_bytes)), plan.total_bytes)
    fill(payload.slot.view[: plan.total_bytes])
    key = MessageKey("s", "payload", "0", Party("guest", "1"), Party("host", "2"))
    # ahead of time: the transfer starts without asking
    owner.granted.wait()
    before = read_counters()
    link.send(Outgoing(TRANSFER, key, "bytes", payload, plan, mode))
    owner.outcome()
    assert owner.stats is not None
    return {**report(mode, plan, owner.stats), "sent_bytes": read_counters().since(before).sent_bytes}


def receive(link: LinkThread, owner: Owner, region: SharedRegion, mode: Mode, plan: ChunkPlan) -> dict[str, object]:
    """Host 1's part."""
    link.grant(GRANT, Slot(region, 0, SlotLayout(plan, mode).slot_bytes))
    owner.outcome()
    assert owner.received_at is not None
    # the delivery is told by another way than the end of the data path, and may be overtaken by it
    owner.other_gone.wait()
    slot, payload_at = owner.received_at
    return {"right": is_payload(slot.view[payload_at : payload_at + plan.total_bytes])}


def report(mode: Mode, plan: ChunkPlan, stats: TransferStats) -> dict[str, object]:
    """What was seen, beside what theory says where the WAN has a rate."""
    measured = plan.total_bytes * 8 / stats.seconds / 1e6
    seen: dict[str, object] = {
        "mode": mode,
        "bytes": plan.total_bytes,
        "chunk_bytes": plan.chunk_bytes,
        "seconds": stats.seconds,
        "measured_mbit_per_second": round(measured, 2),
        "resent_bytes": stats.resent_bytes,
    }
    if rate := os.environ.get("TESTBED_RATE"):
        round_trip = float(os.environ["TESTBED_RTT"])
        predicted = plan.chunk_bytes * 8 / (round_trip + plan.chunk_bytes * 8 / float(rate)) / 1e6
        seen["predicted_mbit_per_second"] = round(predicted, 2)
        seen["deviation_percent"] = round((measured / predicted - 1) * 100, 2)
    return seen


def main() -> None:
    """Run this host's part, and print a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m deploy.softroce.programs.engine_transfer")
    parser.add_argument("--mode", choices=("fedrdma-e", "fedrdma", "grpc"), default="fedrdma-e")
    parser.add_argument("--bytes", type=parse_size, default=parse_size("64MiB"), help="of the payload (default 64MiB)")
    parser.add_argument("--chunk", type=parse_size, default=parse_size("4MiB"), help="bytes of a chunk (default 4MiB)")
    parser.add_argument(
        "--enable", type=int, default=0, metavar="BYTES", help="of a Link-Enable chunk that goes first (default: none)"
    )
    parser.add_argument("--queue-pairs", type=int, default=2, help="for writes (default 2)")
    options = parser.parse_args()
    mode, plan = cast(Mode, options.mode), ChunkPlan(options.bytes, options.chunk, options.enable)
    settings = VerbsSettings(queue_pairs=options.queue_pairs)
    with (
        control_connection() as control,
        shared_region(SlotLayout(plan, mode).slot_bytes) as region,
        contextlib.closing(VerbsTransport(settings, [region])) as transport,
    ):
        link, owner = run_link(control, transport)
        with contextlib.closing(link):
            seen = (receive if this_host() else send)(link, owner, region, mode, plan)
            print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
