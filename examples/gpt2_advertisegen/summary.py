"""What a run was and what it took, from the events, journals and traces that its processes wrote."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from examples.gpt2_advertisegen import accounting
from examples.gpt2_advertisegen.accounting import Message, Operation, Record
from examples.gpt2_advertisegen.events import read_events, round_of_tag
from examples.gpt2_advertisegen.options import FederationName, JobOptions
from examples.gpt2_advertisegen.plan import CLIENTS, PARTIES, ModelFacts, RunFiles, SiloOutcome, TrainingPlan
from fedrdma_fate.wire.frames import Mode, Party

_LISTED_MESSAGES = 5


class MeasurementError(Exception):
    """What was measured contradicts what the job claims."""


class LinkFact(msgspec.Struct, frozen=True):
    """A data path between two gateways, and why it was chosen."""

    site: str
    peer: str
    transport: str
    reason: str


class Summary(msgspec.Struct, frozen=True):
    """`summary.json`. Dictionaries are by party (`guest:9999`), lists by round; sizes in bytes, times in seconds.

    Attributes:
        federation: `fedrdma`, or FATE's `standalone`.
        mode: how payloads travelled; null with `standalone`.
        transport: as asked for; null with `standalone`.
        links: the data paths that were opened, and why.
        preset: hyper-parameters the run started from.
        training: the hyper-parameters.
        model: the model.
        losses: mean training loss of each client.
        held_out_losses: loss of the aggregated model on each client's held-out rows.
        model_sha256: over each client's trainable parameters at the end.
        bytes_pushed: what FATE pushed, once per destination.
        bytes_delivered: what the gateways delivered to each party; empty with `standalone`.
        bytes_outside_backend: what FATE pushed and no gateway delivered.
        round_bytes_pushed: as `bytes_pushed`, by round.
        round_bytes_got: what FATE got, by round.
        communication_seconds: puts, and gets from the moment when the peer's put began.
        waiting_seconds: gets before that moment, while the peer still computed.
        round_seconds: local steps and aggregation; evaluation is not part of it.
        communication_share: communication_seconds over round_seconds.
        peak_memory_bytes: peak resident memory by process, shared memory that it touched included.
        peak_total_bytes: highest sum over all processes at one time, shared memory counted once.
        seconds: the whole run.
    """

    federation: FederationName
    mode: Mode | None
    transport: str | None
    links: list[LinkFact]
    preset: str
    training: TrainingPlan
    model: ModelFacts
    losses: dict[str, list[float]]
    held_out_losses: dict[str, list[float]]
    model_sha256: dict[str, str]
    bytes_pushed: dict[str, int]
    bytes_delivered: dict[str, int]
    bytes_outside_backend: int
    round_bytes_pushed: dict[str, list[int]]
    round_bytes_got: dict[str, list[int]]
    communication_seconds: dict[str, list[float]]
    waiting_seconds: dict[str, list[float]]
    round_seconds: dict[str, list[float]]
    communication_share: dict[str, list[float]]
    peak_memory_bytes: dict[str, int]
    peak_total_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class RunMeasurements:
    """What the job process measured itself; see `Summary`."""

    seconds: float
    peak_memory_bytes: dict[str, int]
    peak_total_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class SiloRecords:
    """What one silo has written."""

    events: Sequence[Record]
    journal: Sequence[Record]
    outcome: SiloOutcome


def summarise(
    options: JobOptions, training: TrainingPlan, model: ModelFacts, files: RunFiles, measured: RunMeasurements
) -> Summary:
    """Read what the processes wrote, check it, and write `summary.json`.

    Raises:
        MeasurementError: bytes went another way, or the clients do not hold the same model.
    """
    ours = options.federation == "fedrdma"
    silos = {party: read_silo(files, party) for party in PARTIES}
    traces = {party: read_events(files.trace(party)) for party in PARTIES}
    pushed = accounting.pushed_messages({party: silo.journal for party, silo in silos.items()})
    delivered = accounting.delivered_messages(event for trace in traces.values() for event in trace)
    summary = Summary(
        federation=options.federation,
        mode=options.mode if ours else None,
        transport=options.transport if ours else None,
        links=links(traces),
        preset=options.preset,
        training=training,
        model=model,
        losses=_losses(silos, "round-end"),
        held_out_losses=_losses(silos, "evaluated"),
        model_sha256={str(party): silos[party].outcome.model_sha256 for party in CLIENTS},
        bytes_pushed={str(party): accounting.bytes_from(pushed, party) for party in PARTIES},
        bytes_delivered={str(party): accounting.bytes_to(delivered, party) for party in PARTIES} if ours else {},
        bytes_outside_backend=accounting.total_bytes(pushed - delivered),
        **_by_round(silos, training.rounds),
        peak_memory_bytes=_peaks(silos, measured),
        peak_total_bytes=measured.peak_total_bytes,
        seconds=measured.seconds,
    )
    files.summary.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2))
    check_same_model(summary.model_sha256)
    if ours:
        check_delivered(pushed, delivered)
    return summary


def read_silo(files: RunFiles, party: Party) -> SiloRecords:
    """Everything that a silo wrote about itself."""
    silo = files.silo(party)
    outcome = msgspec.json.decode(silo.outcome.read_bytes(), type=SiloOutcome)
    return SiloRecords(read_events(silo.events), read_events(silo.journal), outcome)


def check_same_model(digests: Mapping[str, str]) -> None:
    """All clients end with the aggregate, so their models are one.

    Raises:
        MeasurementError: they are not.
    """
    if len(set(digests.values())) != 1:
        listed = ", ".join(f"{party} {digest}" for party, digest in digests.items())
        raise MeasurementError(f"the clients do not hold the same aggregated model: {listed}")


def check_delivered(pushed: Counter[Message], delivered: Counter[Message]) -> None:
    """Every message that FATE pushed was delivered by a gateway, once, byte for byte as long; and nothing else was.

    Raises:
        MeasurementError: naming the first messages that differ.
    """
    for difference, what in (
        (pushed - delivered, "FATE pushed what no gateway delivered"),
        (delivered - pushed, "gateways delivered what FATE did not push"),
    ):
        if difference:
            listed = "; ".join(str(message) for message in list(difference)[:_LISTED_MESSAGES])
            total = accounting.total_bytes(difference)
            raise MeasurementError(f"{what}: {len(difference)} messages, {total} bytes: {listed}")


def links(traces: Mapping[Party, Sequence[Record]]) -> list[LinkFact]:
    """The data paths that the gateways opened, from their traces."""
    found = {
        (party.role, event["peer"], event["transport"], event["reason"])
        for party, trace in traces.items()
        for event in trace
        if event["event"] == "link"
    }
    return [LinkFact(*fact) for fact in sorted(found)]


def _losses(silos: Mapping[Party, SiloRecords], event_name: str) -> dict[str, list[float]]:
    return {str(party): losses_of(silos[party], event_name) for party in CLIENTS}


def losses_of(silo: SiloRecords, event_name: str) -> list[float]:
    """A silo's losses by round: `round-end` has those of training, `evaluated` those on held-out rows."""
    return [event["loss"] for event in silo.events if event["event"] == event_name]


def _by_round(silos: Mapping[Party, SiloRecords], rounds: int) -> dict[str, Any]:
    """The fields of `Summary` that hold a list by round for each party."""
    done = {party: accounting.operations(silo.events) for party, silo in silos.items()}
    spans = round_spans({party: silo.events for party, silo in silos.items()}, done, rounds)
    communication, waiting, share = {}, {}, {}
    for party in PARTIES:
        split = accounting.seconds_by_round(party, done, rounds)
        communication[str(party)] = [seconds.communication for seconds in split]
        waiting[str(party)] = [seconds.waiting for seconds in split]
        share[str(party)] = [
            seconds.communication / span if span else 0.0
            for seconds, span in zip(split, spans[str(party)], strict=True)
        ]
    return {
        "round_bytes_pushed": _round_bytes(silos, "put", rounds),
        "round_bytes_got": _round_bytes(silos, "get", rounds),
        "communication_seconds": communication,
        "waiting_seconds": waiting,
        "round_seconds": spans,
        "communication_share": share,
    }


def _round_bytes(silos: Mapping[Party, SiloRecords], op: str, rounds: int) -> dict[str, list[int]]:
    return {str(party): accounting.bytes_by_round(silo.journal, op, rounds) for party, silo in silos.items()}


def round_spans(
    events: Mapping[Party, Sequence[Record]], done: Mapping[Party, Sequence[Operation]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each round: from its first local step to its last message.

    The arbiter takes no steps: its round begins with that of the first client.
    """
    begins = {
        party: {event["round"]: event["time"] for event in events[party] if event["event"] == "round-begin"}
        for party in CLIENTS
    }
    spans: dict[str, list[float]] = {}
    for party in PARTIES:
        spans[str(party)] = []
        for number in range(rounds):
            own = begins.get(party) or {}
            begin = own.get(number) or min(begun.get(number, math.inf) for begun in begins.values())
            end = max((each.end for each in done[party] if round_of_tag(each.tag) == number), default=begin)
            spans[str(party)].append(end - begin)
    return spans


def _peaks(silos: Mapping[Party, SiloRecords], measured: RunMeasurements) -> dict[str, int]:
    """What the job saw of each process, or what the process says of itself where that is more."""
    peaks = dict(measured.peak_memory_bytes)
    for party, silo in silos.items():
        peaks[str(party)] = max(peaks.get(str(party), 0), silo.outcome.peak_rss_bytes)
    return peaks
