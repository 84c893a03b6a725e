"""Runs the job on one host: prepares it, starts gateways and silos, follows them, and ends them all."""

from __future__ import annotations

import datetime
import secrets
import shutil
import tempfile
import time
from pathlib import Path

from examples.gpt2_advertisegen.gateways import Gateways, loopback_controls, pool_bytes
from examples.gpt2_advertisegen.options import JobOptions
from examples.gpt2_advertisegen.plan import CLIENTS, PARTIES, ModelFacts
from examples.gpt2_advertisegen.processes import Child, Children
from examples.gpt2_advertisegen.progress import Progress
from examples.gpt2_advertisegen.summary import RunMeasurements, Summary, summarise
from examples.gpt2_advertisegen.workspace import ROOT, Workspace
from fedrdma_fate.security.trial_files import make_certificates
from fedrdma_fate.wire.frames import Party

_CERTIFICATES_VALID = datetime.timedelta(days=30)
"""Longer than any run takes."""


class Job:
    """One run of the job."""

    def __init__(self, options: JobOptions, progress: Progress) -> None:
        """
        Raises:
            ConfigError: options contradict each other, or the output directory is not empty.
        """
        self._options = options
        self._progress = progress
        session = f"gpt2-advertisegen-{secrets.token_hex(4)}"
        self._workspace = Workspace(options, session, progress, silos_here=len(CLIENTS))

    def run(self) -> Summary:
        """Run from preparation to summary.

        Raises:
            BadInputError: the data or the model that the user gave cannot be used.
            JobFailedError: a process ended before its time; all others are ended then.
            MeasurementError: bytes that FATE pushed are missing from what the gateways delivered.
        """
        begin = time.monotonic()
        options, workspace = self._options, self._workspace
        sockets = Path(tempfile.mkdtemp(prefix="fedrdma-"))
        certificates = workspace.files.output / "certificates"
        gateways = Gateways(
            workspace.files,
            sockets,
            options.mode,
            options.transport,
            loopback_controls(),
            certificates=certificates,
        )
        try:
            now = datetime.datetime.now(datetime.timezone.utc)
            make_certificates(certificates, [party.role for party in PARTIES], now, _CERTIFICATES_VALID)
            with Children() as children:
                model = workspace.prepare(children)
                silos = self._start(children, model, gateways)
                workspace.follow(children, silos, gateways)
                children.stop(gateways.children)
                measurements = RunMeasurements(
                    seconds=time.monotonic() - begin,
                    peak_memory_bytes=_peaks(silos, gateways),
                    peak_total_bytes=children.peak_total_bytes,
                )
        finally:
            gateways.remove_files()
            shutil.rmtree(sockets, ignore_errors=True)
            workspace.remove_scratch()
        return summarise(options, workspace.training_plan(), model, workspace.files, measurements)

    def _start(self, children: Children, model: ModelFacts, gateways: Gateways) -> dict[Party, Child]:
        ours = self._options.federation == "fedrdma"
        if ours:
            self._progress.stage("starting three gateways")
            pools = {party: pool_bytes(party, model.trainable, model.trainable_arrays) for party in PARTIES}
            gateways.start(children, pools, self._workspace.environment, ROOT)
        self._progress.stage("starting three silos")
        return {
            party: self._workspace.start_silo(children, party, model, gateways.address(party) if ours else "")
            for party in PARTIES
        }


def _peaks(silos: dict[Party, Child], gateways: Gateways) -> dict[str, int]:
    named = {str(party): child for party, child in silos.items()}
    named |= {child.name: child for child in gateways.children}
    return {name: child.peak_rss_bytes for name, child in named.items()}
