"""What the user asked for, and the presets behind it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from fedrdma_fate.gateway.config.schema import TransportName
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import Mode

Tuning = Literal["lora", "full"]
FederationName = Literal["fedrdma", "standalone"]
Masks = Literal["seeded", "random"]
Optimizer = Literal["adamw", "adafactor", "sgd"]
PresetName = Literal["paper", "laptop", "tiny"]

SAMPLE_DATA = Path(__file__).resolve().parent / "data"


@dataclasses.dataclass(frozen=True, slots=True)
class ModelShape:
    """Size of a GPT-2 that is built from its configuration; the defaults are the 124M-parameter model.

    Attributes:
        layers: transformer blocks.
        heads: attention heads per block.
        width: embedding width.
        positions: longest sequence, tokens.
        vocabulary: rows of the embedding; the tokenizer has at most as many tokens.
    """

    layers: int = 12
    heads: int = 12
    width: int = 768
    positions: int = 1024
    vocabulary: int = 50257


@dataclasses.dataclass(frozen=True, slots=True)
class Preset:
    """One set of hyper-parameters.

    Attributes:
        shape: the model to build when no real weights are given.
        rounds: federated rounds; one epoch each.
        batch_size: sequences per optimizer step.
        micro_batch: sequences per forward pass; `batch_size` is reached by gradient accumulation.
        learning_rate: for full tuning.
        lora_learning_rate: for LoRA.
        max_length: tokens of prompt and response together; longer rows are cut.
        samples: training rows per client, None for all.
        held_out: evaluation rows per client, None for all.
    """

    shape: ModelShape
    rounds: int
    batch_size: int
    micro_batch: int
    learning_rate: float
    lora_learning_rate: float
    max_length: int
    samples: int | None
    held_out: int | None


PRESETS: dict[PresetName, Preset] = {
    "paper": Preset(
        shape=ModelShape(),
        rounds=5,
        batch_size=32,
        micro_batch=4,
        learning_rate=5e-6,
        lora_learning_rate=5e-6,
        max_length=256,
        samples=None,
        held_out=64,
    ),
    "laptop": Preset(
        shape=ModelShape(layers=4, heads=4, width=256, positions=128, vocabulary=2048),
        rounds=4,
        batch_size=8,
        micro_batch=8,
        learning_rate=1e-3,
        lora_learning_rate=1e-2,
        max_length=80,
        samples=128,
        held_out=16,
    ),
    "tiny": Preset(
        shape=ModelShape(layers=2, heads=2, width=32, positions=64, vocabulary=512),
        rounds=2,
        batch_size=4,
        micro_batch=4,
        learning_rate=5e-3,
        lora_learning_rate=2e-2,
        max_length=48,
        samples=16,
        held_out=4,
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class JobOptions:
    """The job as asked for on the command line; None takes the preset's value.

    Attributes:
        output: directory for everything the job writes; must be empty or not exist.
        tuning: `full`, or `lora` on the attention projections.
        lora_rank: rank of the LoRA matrices.
        mode: how payloads travel.
        transport: data path between the gateways.
        federation: `fedrdma`, or FATE's own `standalone` to compare with.
        model: directory with real GPT-2 weights and tokenizer; None builds random weights.
        data: directory with train.json and dev.json in AdvertiseGen's format.
        preset: hyper-parameters to start from.
        rounds: federated rounds.
        steps: optimizer steps per round; sets the training rows per client.
        samples: training rows per client.
        batch_size: sequences per optimizer step.
        micro_batch: sequences per forward pass.
        learning_rate: constant learning rate.
        max_length: tokens per row.
        optimizer: AdamW keeps 8 bytes of state per parameter, Adafactor a few, SGD none.
        seed: of data shares, initial weights, dropout, shuffling and seeded masks.
        masks: where the masks of the secure aggregation come from.
        threads: threads of each client's tensor operations; None shares out the cores of this machine.
    """

    output: Path
    tuning: Tuning = "full"
    lora_rank: int = 8
    mode: Mode = "fedrdma-e"
    transport: TransportName = "auto"
    federation: FederationName = "fedrdma"
    model: Path | None = None
    data: Path = SAMPLE_DATA
    preset: PresetName = "paper"
    rounds: int | None = None
    steps: int | None = None
    samples: int | None = None
    batch_size: int | None = None
    micro_batch: int | None = None
    learning_rate: float | None = None
    max_length: int | None = None
    optimizer: Optimizer = "adamw"
    seed: int = 42
    masks: Masks = "seeded"
    threads: int | None = None

    def hyper_parameters(self) -> Preset:
        """The preset with the user's own values in place.

        Raises:
            ConfigError: CONFIG_BAD_VALUE when two options contradict each other.
        """
        if self.steps is not None and self.samples is not None:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"--steps {self.steps} and --samples {self.samples} both set the training rows.",
                "Give one of them.",
            )
        preset = PRESETS[self.preset]
        batch_size = self.batch_size or preset.batch_size
        micro_batch = self.micro_batch or min(preset.micro_batch, batch_size)
        if batch_size % micro_batch:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"--batch-size {batch_size} is not a multiple of --micro-batch {micro_batch}.",
                "A batch is made of whole micro batches.",
            )
        samples = self.steps * batch_size if self.steps is not None else self.samples or preset.samples
        max_length = self.max_length or preset.max_length
        if self.model is None and max_length > preset.shape.positions:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"--max-length {max_length} is more than the {preset.shape.positions} positions of the model.",
                "Lower it, or take a larger preset.",
            )
        return dataclasses.replace(
            preset,
            rounds=self.rounds or preset.rounds,
            batch_size=batch_size,
            micro_batch=micro_batch,
            learning_rate=self.learning_rate or preset.learning_rate,
            lora_learning_rate=self.learning_rate or preset.lora_learning_rate,
            max_length=max_length,
            samples=samples,
        )
