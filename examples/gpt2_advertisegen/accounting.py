"""Bytes and seconds of the federation: who pushed what to whom, what was delivered, and what it took."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from examples.gpt2_advertisegen.events import round_of_tag
from fedrdma_fate.wire.frames import Party

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One message to one destination."""

    source: str
    destination: str
    name: str
    tag: str
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """A put or get as FATE timed it; times in unix seconds."""

    op: str
    name: str
    tag: str
    peers: tuple[str, ...]
    begin: float
    end: float


def pushed_messages(journals: Mapping[Party, Iterable[Record]]) -> Counter[Message]:
    """What FATE pushed, from the journals of all tasks; once per destination."""
    return Counter(
        Message(str(party), peer, record["name"], record["tag"], record["bytes"])
        for party, journal in journals.items()
        for record in journal
        if record["op"] == "put"
        for peer in record["peers"]
    )


def delivered_messages(traces: Iterable[Record]) -> Counter[Message]:
    """What the gateways delivered, from their traces; a repeated delivery that was dropped does not count."""
    return Counter(
        Message(event["source"], event["destination"], event["name"], event["tag"], event["bytes"])
        for event in traces
        if event["event"] == "delivered" and event["kept"]
    )


def delivered_by_path(traces: Iterable[Record]) -> dict[str, int]:
    """Bytes that the gateways delivered, by `mode/transport`; messages in control frames are `inline`."""
    sums: Counter[str] = Counter()
    for event in traces:
        if event["event"] == "delivered" and event["kept"]:
            path = "inline" if event["mode"] == "inline" else f"{event['mode']}/{event['transport']}"
            sums[path] += event["bytes"]
    return dict(sums)


def total_bytes(messages: Counter[Message]) -> int:
    """Bytes of all messages."""
    return sum(message.size * count for message, count in messages.items())


def bytes_from(messages: Counter[Message], party: Party) -> int:
    """Bytes that a party sent."""
    return sum(message.size * count for message, count in messages.items() if message.source == str(party))


def bytes_to(messages: Counter[Message], party: Party) -> int:
    """Bytes that a party received."""
    return sum(message.size * count for message, count in messages.items() if message.destination == str(party))


def bytes_by_round(journal: Iterable[Record], op: str, rounds: int) -> list[int]:
    """Bytes put or got in each round, once per peer; what comes before the first round is left out."""
    sums = [0] * rounds
    for record in journal:
        number = round_of_tag(record["tag"])
        if record["op"] == op and number is not None and number < rounds:
            sums[number] += record["bytes"] * len(record["peers"])
    return sums


def operations(events: Iterable[Record]) -> list[Operation]:
    """The puts and gets among a silo's events."""
    return [
        Operation(event["event"], event["name"], event["tag"], tuple(event["peers"]), event["begin"], event["end"])
        for event in events
        if event["event"] in ("put", "get")
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class RoundSeconds:
    """Seconds of one party, in one round or several, spent on messages or waiting for others to send them."""

    communication: float
    waiting: float

    def __add__(self, other: RoundSeconds) -> RoundSeconds:
        return RoundSeconds(self.communication + other.communication, self.waiting + other.waiting)


def seconds_by_round(party: Party, by_party: Mapping[Party, Sequence[Operation]], rounds: int) -> list[RoundSeconds]:
    """Split a party's puts and gets into communication and waiting.

    A get that starts before the peer's put waits until that put begins: the peer still computes. From then on both
    are busy with the message. This compares clocks of several processes, so they must share a host.
    """
    split = [RoundSeconds(0.0, 0.0)] * rounds
    for operation, seconds in _split(party, by_party):
        number = round_of_tag(operation.tag)
        if number is not None and number < rounds:
            split[number] += seconds
    return split


def seconds_in_all(party: Party, by_party: Mapping[Party, Sequence[Operation]]) -> RoundSeconds:
    """The same for all of a party's puts and gets, those before the first round included."""
    return sum((seconds for _, seconds in _split(party, by_party)), RoundSeconds(0.0, 0.0))


def _split(party: Party, by_party: Mapping[Party, Sequence[Operation]]) -> Iterator[tuple[Operation, RoundSeconds]]:
    put_begins = {
        (str(source), peer, operation.name, operation.tag): operation.begin
        for source, done in by_party.items()
        for operation in done
        if operation.op == "put"
        for peer in operation.peers
    }
    for operation in by_party[party]:
        came = operation.begin
        if operation.op == "get":
            keys = [(peer, str(party), operation.name, operation.tag) for peer in operation.peers]
            came = min(max([came, *(put_begins.get(key, came) for key in keys)]), operation.end)
        yield operation, RoundSeconds(operation.end - came, came - operation.begin)
