"""Host 0 writes where it may not, in one way after the other; host 1 prints what came of each.

stolen_keys.py
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable

from deploy.softroce.programs.control import Control, control_connection, this_host
from deploy.softroce.programs.links import connect, shared_region
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Endpoint, RemoteSlot, Slot
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport
from fedrdma_fate.wire.errors import TransportError

REGION_BYTES = 4 << 20
SLOT_AT, SLOT_BYTES = 1 << 20, 1 << 20
WRITTEN, UNTOUCHED = b"w" * 4096, 0xEE
SETTLE_SECONDS = 0.5
GUESSED_BITS = 9
"""Of a key of Soft-RoCE 8 bits are random; one more tries its neighbours as well."""

Misdeed = Callable[["Attack", RemoteSlot], None]


@dataclasses.dataclass
class Attack:
    """What an attack has to hand: both links, and whichever of them it uses."""

    transport: VerbsTransport
    region: SharedRegion
    control: Control
    honest: Endpoint
    thief: Endpoint

    def write(self, endpoint: Endpoint, target: RemoteSlot) -> None:
        """By a reliable queue pair."""
        endpoint.post_write(1, Slot(self.region, 0, len(WRITTEN)), target, 0)

    def chunk(self, endpoint: Endpoint, target: RemoteSlot, number: int = 0) -> None:
        """By an unreliable one."""
        endpoint.post_chunk(1, Slot(self.region, 0, len(WRITTEN)), target, 0, number, number)


def guess(attack: Attack, target: RemoteSlot) -> None:
    """Every key that differs from the right one in its last bits, many at once."""
    for bits in range(1 << GUESSED_BITS):
        attack.chunk(attack.thief, dataclasses.replace(target, key=target.key ^ bits), bits)
        if bits % 64 == 0:
            settle(attack.thief, 0.01)


def beside(target: RemoteSlot, offset: int) -> RemoteSlot:
    """The slot as it would lie elsewhere in the region, under the same key."""
    return dataclasses.replace(target, address=target.address + offset)


MISDEEDS: dict[str, tuple[str, Misdeed]] = {
    "another peer's key": ("", lambda attack, target: attack.write(attack.thief, target)),
    "another peer's key, unreliable": ("", lambda attack, target: attack.chunk(attack.thief, target)),
    "guesses, unreliable": ("", guess),
    "behind the slot": ("", lambda attack, target: attack.write(attack.honest, beside(target, SLOT_BYTES))),
    "before the slot": ("", lambda attack, target: attack.write(attack.honest, beside(target, -4096))),
    "over the slot's end": ("", lambda attack, target: attack.write(attack.honest, beside(target, SLOT_BYTES - 1))),
    "behind the slot, unreliable": (
        "",
        lambda attack, target: attack.chunk(attack.honest, beside(target, SLOT_BYTES)),
    ),
    "withdrawn": ("withdraw", lambda attack, target: attack.write(attack.honest, target)),
    "withdrawn, unreliable": ("withdraw", lambda attack, target: attack.chunk(attack.honest, target)),
    "its link closed": ("close", lambda attack, target: attack.write(attack.honest, target)),
    "its link closed, unreliable": ("close", lambda attack, target: attack.chunk(attack.honest, target)),
}
"""What host 1 does first with the honest link, and what host 0 does then."""


def settle(endpoint: Endpoint, seconds: float) -> str:
    """Drive it for so long; why it broke, if it did."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            endpoint.progress()
            time.sleep(0.005)
    except TransportError as error:
        return error.message
    return ""


def legal(attack: Attack, target: RemoteSlot) -> bool:
    """Whether the honest link carries what it may, where it is still there."""
    if this_host() == 0:
        attack.write(attack.honest, target)
    reason = settle(attack.honest, SETTLE_SECONDS)
    attack.control.exchange("written")
    return not reason and bytes(attack.region.view[SLOT_AT : SLOT_AT + len(WRITTEN)]) == WRITTEN


def attacked(transport: VerbsTransport, region: SharedRegion, control: Control, name: str) -> dict[str, object]:
    """One misdeed, on links of its own."""
    before, misdeed = MISDEEDS[name]
    honest, thief = connect(transport, control, "honest"), connect(transport, control, "thief")
    attack = Attack(transport, region, control, honest, thief)
    region.view[:] = bytes([UNTOUCHED]) * region.length
    region.view[: len(WRITTEN)] = WRITTEN
    exposed = honest.expose(1, Slot(region, SLOT_AT, SLOT_BYTES))
    target = RemoteSlot(**control.exchange(dataclasses.asdict(exposed)))
    if before == "withdraw" and this_host():
        honest.withdraw(1)
    if before == "close":
        # the same peer comes back, and still has the key
        control.exchange("closing")
        honest.close()
        attack.honest = connect(transport, control, "honest")
    control.exchange("ready")
    if this_host() == 0:
        misdeed(attack, target)
    reasons = [settle(endpoint, SETTLE_SECONDS) for endpoint in (attack.honest, thief)]
    control.exchange("done")
    untouched = bytes(region.view[len(WRITTEN) :]) == bytes([UNTOUCHED]) * (region.length - len(WRITTEN))
    seen: dict[str, object] = {"untouched": untouched, "honest": reasons[0], "thief": reasons[1]}
    if not before and not any(control.exchange(reasons[0])) and not reasons[0]:
        seen["legal"] = legal(attack, target)
    control.exchange("closing")
    attack.honest.close()
    thief.close()
    control.exchange("closed")
    return seen


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    with shared_region(REGION_BYTES) as region, control_connection() as control:
        transport = VerbsTransport(VerbsSettings(), [region])
        seen = {name: attacked(transport, region, control, name) for name in MISDEEDS}
        control.exchange("all done")
        transport.close()
    print(json.dumps(seen))


main()
