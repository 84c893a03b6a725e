"""Runs the job: prepares it, starts gateways and silos, follows them, and ends them all."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from examples.gpt2_advertisegen.events import EventReader
from examples.gpt2_advertisegen.gateways import Gateways, pool_bytes
from examples.gpt2_advertisegen.options import JobOptions, Preset
from examples.gpt2_advertisegen.plan import (
    CLIENTS,
    PARTIES,
    USAGE_STATUS,
    ModelFacts,
    PrepareRequest,
    RunFiles,
    SiloConfig,
    TrainingPlan,
    slug,
)
from examples.gpt2_advertisegen.processes import BadInputError, Child, Children, JobFailedError, describe_end
from examples.gpt2_advertisegen.progress import Progress
from examples.gpt2_advertisegen.summary import RunMeasurements, Summary, summarise
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import Party

ROOT = Path(__file__).resolve().parents[2]
"""The repository: what the processes of the run import from."""

_POLL_SECONDS = 0.2


class Job:
    """One run of the job."""

    def __init__(self, options: JobOptions, progress: Progress) -> None:
        """
        Raises:
            ConfigError: options contradict each other, or the output directory is not empty.
        """
        self._options = options
        self._hyper_parameters = options.hyper_parameters()
        self._progress = progress
        self._files = RunFiles(options.output.absolute())
        _claim(self._files.output)
        self._session = f"gpt2-advertisegen-{secrets.token_hex(4)}"

    def run(self) -> Summary:
        """Run from preparation to summary.

        Raises:
            BadInputError: the data or the model that the user gave cannot be used.
            JobFailedError: a process ended before its time; all others are ended then.
            MeasurementError: bytes that FATE pushed are missing from what the gateways delivered.
        """
        begin = time.monotonic()
        sockets = Path(tempfile.mkdtemp(prefix="fedrdma-"))
        gateways = Gateways(self._files, sockets, self._options.mode, self._options.transport)
        try:
            with Children() as children:
                model = self._prepare(children)
                if self._options.federation == "fedrdma":
                    self._progress.stage("starting three gateways")
                    pools = {party: pool_bytes(party, model.trainable, model.trainable_arrays) for party in PARTIES}
                    gateways.start(children, pools, self._environment(), ROOT)
                self._progress.stage("starting three silos")
                silos = {party: self._start_silo(children, party, model, gateways) for party in PARTIES}
                self._follow(children, silos, gateways)
                children.stop(gateways.children)
                measurements = RunMeasurements(
                    seconds=time.monotonic() - begin,
                    peak_memory_bytes=_peaks(silos, gateways),
                    peak_total_bytes=children.peak_total_bytes,
                )
        finally:
            gateways.remove_pools()
            shutil.rmtree(sockets, ignore_errors=True)
            shutil.rmtree(self._files.computing, ignore_errors=True)
            shutil.rmtree(self._files.cache, ignore_errors=True)
        return summarise(self._options, self._training_plan(), model, self._files, measurements)

    def _prepare(self, children: Children) -> ModelFacts:
        self._progress.stage("preparing data, tokenizer and model")
        options, preset = self._options, self._hyper_parameters
        request = PrepareRequest(
            output=str(self._files.output),
            data=str(options.data.absolute()),
            model=str(options.model.absolute()) if options.model else None,
            shape=preset.shape,
            tuning=options.tuning,
            lora_rank=options.lora_rank,
            max_length=preset.max_length,
            samples=preset.samples,
            held_out=preset.held_out,
            seed=options.seed,
        )
        self._files.request.write_bytes(msgspec.json.encode(request))
        command = [sys.executable, "-m", "examples.gpt2_advertisegen.prepare", str(self._files.request)]
        child = children.start("prepare", command, self._files.log("prepare"), self._environment(), ROOT)
        status = children.wait(child)
        if status == USAGE_STATUS:
            message = child.log.read_text(encoding="utf-8").strip().splitlines()[-1]
            shutil.rmtree(self._files.output)
            raise BadInputError(message)
        if status != 0:
            raise JobFailedError(describe_end(child))
        model = msgspec.json.decode(self._files.model_facts.read_bytes(), type=ModelFacts)
        children.forget(child)
        self._progress.model(model)
        return model

    def _start_silo(self, children: Children, party: Party, model: ModelFacts, gateways: Gateways) -> Child:
        options, files = self._options, self._files.silo(party)
        files.directory.mkdir(parents=True, exist_ok=True)
        config = SiloConfig(
            party=party,
            session=self._session,
            federation=options.federation,
            gateway=gateways.address(party) if options.federation == "fedrdma" else "",
            computing_directory=str(self._files.computing),
            directory=str(files.directory),
            training=self._training_plan(),
            model=model,
            threads=_threads_per_client(),
        )
        files.config.write_bytes(msgspec.json.encode(config))
        command = [sys.executable, "-m", "examples.gpt2_advertisegen.silo", str(files.config)]
        name = slug(party)
        return children.start(name, command, self._files.log(name), self._environment(), ROOT)

    def _follow(self, children: Children, silos: dict[Party, Child], gateways: Gateways) -> None:
        """Pass on what the silos report until all three are done."""
        events = {party: EventReader(self._files.silo(party).events) for party in PARTIES}
        journals = {party: EventReader(self._files.silo(party).journal) for party in PARTIES}
        running = True
        while running:
            running = any(silo.process.poll() is None for silo in silos.values())
            children.check(may_end=list(silos.values()))
            for party in PARTIES:
                for event in events[party].read_new():
                    self._progress.silo_event(party, event)
                for record in journals[party].read_new():
                    self._progress.message(party, record)
            if gateways.children:
                self._progress.transfers(gateways.transfers)
            children.measure(gateways.pool_memory())
            if running:
                time.sleep(_POLL_SECONDS)

    def _training_plan(self) -> TrainingPlan:
        options, preset = self._options, self._hyper_parameters
        return TrainingPlan(
            tuning=options.tuning,
            lora_rank=options.lora_rank,
            rounds=preset.rounds,
            batch_size=preset.batch_size,
            micro_batch=preset.micro_batch,
            learning_rate=_learning_rate(options, preset),
            max_length=preset.max_length,
            optimizer=options.optimizer,
            seed=options.seed,
            masks=options.masks,
        )

    def _environment(self) -> dict[str, str]:
        threads = str(_threads_per_client())
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "HF_HOME": str(self._files.cache),
            "CUDA_VISIBLE_DEVICES": "",
            # arrays of a few MB and more come from mmap and go back at once, instead of fragmenting the heap
            "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
            "MALLOC_ARENA_MAX": "2",
        }


def _claim(output: Path) -> None:
    """Make the output directory; what a user keeps there is never written over."""
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE, f"--output {output} is not empty.", "Name a directory that does not exist yet."
        )


def _threads_per_client() -> int:
    return max(1, len(os.sched_getaffinity(0)) // len(CLIENTS))


def _learning_rate(options: JobOptions, preset: Preset) -> float:
    return preset.lora_learning_rate if options.tuning == "lora" else preset.learning_rate


def _peaks(silos: dict[Party, Child], gateways: Gateways) -> dict[str, int]:
    named = {str(party): child for party, child in silos.items()}
    named |= {child.name: child for child in gateways.children}
    return {name: child.peak_rss_bytes for name, child in named.items()}
