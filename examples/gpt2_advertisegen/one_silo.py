"""Runs one silo on this host, with its gateway beside it; the other two run on hosts of their own."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from examples.gpt2_advertisegen import accounting
from examples.gpt2_advertisegen.events import read_events
from examples.gpt2_advertisegen.gateways import Gateways, pool_bytes
from examples.gpt2_advertisegen.options import JobOptions
from examples.gpt2_advertisegen.plan import PARTIES, RunFiles
from examples.gpt2_advertisegen.processes import Children, JobFailedError
from examples.gpt2_advertisegen.progress import Progress
from examples.gpt2_advertisegen.summary import LinkFact, links, losses_of, read_silo
from examples.gpt2_advertisegen.workspace import ROOT, Workspace
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import Party


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a silo stands among the three.

    Attributes:
        party: who it is.
        controls: host:port of every party's gateway; the own one is listened on.
        session: name of the job, the same for all three.
        patience: seconds to wait for the other two, before the job and after it.
        certificates: directory with those of all three sites; None runs without protection.
    """

    party: Party
    controls: Mapping[Party, str]
    session: str
    patience: float
    certificates: Path | None = None

    @property
    def others(self) -> tuple[Party, ...]:
        return tuple(party for party in PARTIES if party != self.party)


class SiloSummary(msgspec.Struct, frozen=True):
    """`summary.json` of one silo; sizes in bytes, times in seconds.

    Attributes:
        party: whose.
        links: the data paths of its gateway, and why they were chosen.
        losses: mean training loss by round; none for the arbiter.
        held_out_losses: loss of the aggregated model on held-out rows by round; none for the arbiter.
        model_sha256: over the trainable parameters at the end; empty for the arbiter.
        bytes_pushed: what FATE pushed here, once per destination.
        bytes_delivered: what the gateway delivered here.
        bytes_by_path: of what it delivered, by `mode/transport`; a message that rides in a control frame is `inline`.
        seconds: the whole run, waiting for the others included.
    """

    party: str
    links: list[LinkFact]
    losses: list[float]
    held_out_losses: list[float]
    model_sha256: str
    bytes_pushed: int
    bytes_delivered: int
    bytes_by_path: dict[str, int]
    seconds: float


class SiloRun:
    """One silo's run of the job."""

    def __init__(self, options: JobOptions, place: Place, progress: Progress) -> None:
        """
        Raises:
            ConfigError: options contradict each other, or the output directory is not empty.
        """
        self._options = options
        self._place = place
        self._progress = progress
        self._workspace = Workspace(options, place.session, progress, silos_here=1)

    def run(self) -> SiloSummary:
        """Run from preparation to summary.

        Raises:
            BadInputError: the data or the model that the user gave cannot be used.
            JobFailedError: a process of this silo ended before its time, or another silo did not come or finish.
        """
        begin = time.monotonic()
        place, workspace = self._place, self._workspace
        sockets = Path(tempfile.mkdtemp(prefix="fedrdma-"))
        gateways = Gateways(
            workspace.files,
            sockets,
            self._options.mode,
            self._options.transport,
            place.controls,
            place.patience,
            place.certificates,
        )
        try:
            with Children() as children:
                model = workspace.prepare(children)
                self._progress.stage("starting the gateway, waiting for the other two")
                pools = {place.party: pool_bytes(place.party, model.trainable, model.trainable_arrays)}
                gateways.start(children, pools, workspace.environment, ROOT)
                self._progress.stage("starting the silo")
                silo = workspace.start_silo(children, place.party, model, gateways.address(place.party))
                workspace.follow(children, {place.party: silo}, gateways)
                self._progress.stage("done here, waiting for the other two")
                finish_together(gateways.address(place.party), place)
                children.stop(gateways.children)
        finally:
            gateways.remove_files()
            shutil.rmtree(sockets, ignore_errors=True)
            workspace.remove_scratch()
        summary = summarise_silo(workspace.files, place, time.monotonic() - begin)
        workspace.files.summary.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2))
        return summary


def finish_together(gateway: str, place: Place) -> None:
    """Return when all three silos are done: until then a gateway may have to send again what others lost.

    Raises:
        JobFailedError: another silo does not say that it is done.
    """
    try:
        with GatewayClient(gateway, f"{place.session}-end", place.party) as client:
            client.put_inline("done", "end", place.others, "bytes", b"")
            for other in place.others:
                client.get("done", "end", other, timeout=place.patience)
    except FedRDMAError as error:
        raise JobFailedError(f"{place.party} is done, but does not hear so from all others: {error}") from error


def summarise_silo(files: RunFiles, place: Place, seconds: float) -> SiloSummary:
    """What the processes of one silo wrote."""
    party = place.party
    silo, trace = read_silo(files, party), read_events(files.trace(party))
    pushed = accounting.pushed_messages({party: silo.journal})
    delivered = [event for event in trace if event.get("session") == place.session]
    return SiloSummary(
        party=str(party),
        links=links({party: trace}),
        losses=losses_of(silo, "round-end"),
        held_out_losses=losses_of(silo, "evaluated"),
        model_sha256=silo.outcome.model_sha256,
        bytes_pushed=accounting.total_bytes(pushed),
        bytes_delivered=accounting.total_bytes(accounting.delivered_messages(delivered)),
        bytes_by_path=accounting.delivered_by_path(delivered),
        seconds=seconds,
    )
