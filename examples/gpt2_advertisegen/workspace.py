"""The directory of a run, and the steps that take place in it whether this host has all three silos or one."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from examples.gpt2_advertisegen.events import EventReader
from examples.gpt2_advertisegen.gateways import Gateways
from examples.gpt2_advertisegen.options import JobOptions
from examples.gpt2_advertisegen.plan import (
    USAGE_STATUS,
    ModelFacts,
    RunFiles,
    SiloConfig,
    TrainingPlan,
    prepare_request,
    slug,
    training_plan,
)
from examples.gpt2_advertisegen.processes import BadInputError, Child, Children, JobFailedError, describe_end
from examples.gpt2_advertisegen.progress import Progress
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import Party

ROOT = Path(__file__).resolve().parents[2]
"""The repository: what the processes of a run import from."""

_POLL_SECONDS = 0.2


class Workspace:
    """The output directory of a run.

    Attributes:
        files: what lies in it.
        environment: of every process of the run.
    """

    def __init__(self, options: JobOptions, session: str, progress: Progress, silos_here: int) -> None:
        """
        Args:
            options: the job.
            session: the federation session.
            progress: told what happens.
            silos_here: clients that share the cores of this machine.

        Raises:
            ConfigError: options contradict each other, or the output directory is not empty.
        """
        self._options = options
        self._hyper_parameters = options.hyper_parameters()
        self._session = session
        self._progress = progress
        self._threads = options.threads or max(1, len(os.sched_getaffinity(0)) // silos_here)
        self.files = RunFiles(options.output.absolute())
        _claim(self.files.output)
        self.environment = _environment(self._threads, self.files.cache)

    def prepare(self, children: Children) -> ModelFacts:
        """Write data, tokenizer and model, in a process of its own.

        Raises:
            BadInputError: the data or the model that the user gave cannot be used; the directory is removed.
            JobFailedError: the process failed.
        """
        self._progress.stage("preparing data, tokenizer and model")
        self.files.request.write_bytes(
            msgspec.json.encode(prepare_request(self._options, self._hyper_parameters, self.files.output))
        )
        command = [sys.executable, "-m", "examples.gpt2_advertisegen.prepare", str(self.files.request)]
        # its serial trainer, of the same tokenizer, takes ten times as long
        environment = {**self.environment, "TOKENIZERS_PARALLELISM": "true"}
        child = children.start("prepare", command, self.files.log("prepare"), environment, ROOT)
        status = children.wait(child)
        if status == USAGE_STATUS:
            message = child.log.read_text(encoding="utf-8").strip().splitlines()[-1]
            shutil.rmtree(self.files.output)
            raise BadInputError(message)
        if status != 0:
            raise JobFailedError(describe_end(child))
        model = msgspec.json.decode(self.files.model_facts.read_bytes(), type=ModelFacts)
        children.forget(child)
        self._progress.model(model)
        return model

    def start_silo(self, children: Children, party: Party, model: ModelFacts, gateway: str) -> Child:
        """Start a party's process; `gateway` is the address of its gateway, empty for `standalone`."""
        files = self.files.silo(party)
        files.directory.mkdir(parents=True, exist_ok=True)
        config = SiloConfig(
            party=party,
            session=self._session,
            federation=self._options.federation,
            gateway=gateway,
            computing_directory=str(self.files.computing),
            directory=str(files.directory),
            training=self.training_plan(),
            model=model,
            threads=self._threads,
        )
        files.config.write_bytes(msgspec.json.encode(config))
        command = [sys.executable, "-m", "examples.gpt2_advertisegen.silo", str(files.config)]
        name = slug(party)
        return children.start(name, command, self.files.log(name), self.environment, ROOT)

    def follow(self, children: Children, silos: Mapping[Party, Child], gateways: Gateways) -> None:
        """Pass on what the silos report until all of them are done.

        Raises:
            JobFailedError: a process ended before its time, or the gateway of another silo stays away.
        """
        events = {party: EventReader(self.files.silo(party).events) for party in silos}
        journals = {party: EventReader(self.files.silo(party).journal) for party in silos}
        running = True
        while running:
            running = any(silo.process.poll() is None for silo in silos.values())
            children.check(may_end=list(silos.values()))
            for party in silos:
                for event in events[party].read_new():
                    self._progress.silo_event(party, event)
                for record in journals[party].read_new():
                    self._progress.message(party, record)
            if gateways.children:
                gateways.check_peers()
                self._progress.transfers(gateways.transfers)
            children.measure(gateways.pool_memory())
            if running:
                time.sleep(_POLL_SECONDS)

    def training_plan(self) -> TrainingPlan:
        """The hyper-parameters, for the silos and the summary."""
        return training_plan(self._options, self._hyper_parameters)

    def remove_scratch(self) -> None:
        """Remove what nobody wants to read after the run."""
        shutil.rmtree(self.files.computing, ignore_errors=True)
        shutil.rmtree(self.files.cache, ignore_errors=True)


def _claim(output: Path) -> None:
    """Make the output directory; what a user keeps there is never written over."""
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE, f"--output {output} is not empty.", "Name a directory that does not exist yet."
        )


def _environment(threads: int, cache: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(cache),
        "CUDA_VISIBLE_DEVICES": "",
        # arrays of a few MB and more come from mmap and go back at once, instead of fragmenting the heap
        "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
        "MALLOC_ARENA_MAX": "2",
    }
