"""What the processes of one job agree on: the parties, the files of a run, and what each silo is told."""

from __future__ import annotations

from pathlib import Path

import msgspec

from examples.gpt2_advertisegen.options import FederationName, JobOptions, Masks, ModelShape, Optimizer, Preset, Tuning
from fedrdma_fate.wire.frames import Party

GUEST = Party("guest", "9999")
HOST = Party("host", "10000")
ARBITER = Party("arbiter", "10000")
PARTIES = (GUEST, HOST, ARBITER)
CLIENTS = (GUEST, HOST)

USAGE_STATUS = 2
"""Exit status for what the user has to mend: the last line of the output says it all."""


def slug(party: Party) -> str:
    """The party's name in file names: `guest-9999`."""
    return f"{party.role}-{party.party_id}"


class PrepareRequest(msgspec.Struct, frozen=True):
    """What to prepare.

    Attributes:
        output: the run's directory.
        data: directory with train.json and dev.json.
        model: directory with real weights, or None.
        shape: the model to build when there are none.
        tuning: decides what is trainable.
        lora_rank: rank of the LoRA matrices.
        max_length: tokens per row.
        samples: training rows per client, None for all.
        held_out: evaluation rows per client at most, None for all.
        seed: of shares and weights.
    """

    output: str
    data: str
    model: str | None
    shape: ModelShape
    tuning: Tuning
    lora_rank: int
    max_length: int
    samples: int | None
    held_out: int | None
    seed: int


def prepare_request(options: JobOptions, preset: Preset, output: Path) -> PrepareRequest:
    """What to prepare for these options.

    Args:
        options: the job.
        preset: its hyper-parameters, the user's own values in place.
        output: the run's directory.
    """
    return PrepareRequest(
        output=str(output),
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


class ModelFacts(msgspec.Struct, frozen=True):
    """What is known of the model once it is prepared.

    Attributes:
        directory: as saved by `save_pretrained`, tokenizer included.
        pretrained: whether the weights came from the user.
        parameters: all parameters.
        trainable: parameters that training changes and the federation carries.
        trainable_arrays: how many arrays these are.
        pad_token: token that fills up short rows.
        train_rows: training rows of each client.
        held_out_rows: evaluation rows of each client.
    """

    directory: str
    pretrained: bool
    parameters: int
    trainable: int
    trainable_arrays: int
    pad_token: str
    train_rows: int
    held_out_rows: int


class TrainingPlan(msgspec.Struct, frozen=True):
    """Hyper-parameters of one job, equal for all silos; `Preset` and `JobOptions` explain each."""

    tuning: Tuning
    lora_rank: int
    rounds: int
    batch_size: int
    micro_batch: int
    learning_rate: float
    max_length: int
    optimizer: Optimizer
    seed: int
    masks: Masks


def training_plan(options: JobOptions, preset: Preset) -> TrainingPlan:
    """The hyper-parameters of these options; see `prepare_request`."""
    return TrainingPlan(
        tuning=options.tuning,
        lora_rank=options.lora_rank,
        rounds=preset.rounds,
        batch_size=preset.batch_size,
        micro_batch=preset.micro_batch,
        learning_rate=preset.lora_learning_rate if options.tuning == "lora" else preset.learning_rate,
        max_length=preset.max_length,
        optimizer=options.optimizer,
        seed=options.seed,
        masks=options.masks,
    )


class SiloConfig(msgspec.Struct, frozen=True):
    """Everything that one party's process is told.

    Attributes:
        party: who it is.
        session: the federation session.
        federation: which federation carries the messages.
        gateway: address of its site's gateway, empty for `standalone`.
        computing_directory: where FATE's standalone computing keeps its tables.
        directory: where the silo writes.
        training: hyper-parameters.
        model: the model; the arbiter has none.
        threads: threads for tensor operations.
    """

    party: Party
    session: str
    federation: FederationName
    gateway: str
    computing_directory: str
    directory: str
    training: TrainingPlan
    model: ModelFacts
    threads: int

    @property
    def is_client(self) -> bool:
        return self.party in CLIENTS

    @property
    def files(self) -> SiloFiles:
        return SiloFiles(Path(self.directory))


class SiloFiles:
    """Where a silo's files lie in its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "silo.json"
        self.train = directory / "train.json"
        self.held_out = directory / "dev.json"
        self.events = directory / "events.jsonl"
        self.journal = directory / "federation.jsonl"
        self.weights = directory / "trainable.safetensors"
        self.outcome = directory / "outcome.json"


class RunFiles:
    """Where the files of a run lie in its output directory."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.logs = output / "logs"
        self.model = output / "model"
        self.model_facts = output / "model.json"
        self.request = output / "request.json"
        self.gateways = output / "gateways"
        self.computing = output / "computing"
        self.cache = output / "cache"
        self.summary = output / "summary.json"
        self.report = output / "report.html"

    def silo(self, party: Party) -> SiloFiles:
        """The files of one party."""
        return SiloFiles(self.output / "silos" / slug(party))

    def trace(self, party: Party) -> Path:
        """The trace of a party's gateway."""
        return self.gateways / party.role / "trace.jsonl"

    def log(self, name: str) -> Path:
        """The log of one process."""
        return self.logs / f"{name}.log"


class SiloOutcome(msgspec.Struct, frozen=True):
    """What a silo says of itself when it is done.

    Attributes:
        model_sha256: over the trainable parameters, empty for the arbiter.
        peak_rss_bytes: peak resident memory, shared memory that it touched included.
    """

    model_sha256: str
    peak_rss_bytes: int
