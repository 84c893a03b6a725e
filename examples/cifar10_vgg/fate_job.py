"""A script for FATE's launcher: FedComm's model trained by FATE's FedAVG, over whatever federation is asked for.

    python -m examples.cifar10_vgg.fate_job --parties guest:9999 host:10000 host:10001 host:10002 arbiter:10000 \\
        --results runs/cifar10

FATE averages a model's parameters, here under its secure aggregation's masks, which change their last bits from run to
run. Batch norm's running means are no parameters, and stay each client's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fate.arch.launchers.multiprocess_launcher import launch
from fate.ml.nn.homo.fedavg import FedAVGArguments, FedAVGClient, FedAVGServer, TrainingArguments
from torch import nn
from torch.utils.data import Dataset

from examples.cifar10_vgg.pictures import Pictures, read_dataset
from examples.cifar10_vgg.stand_in import stand_in
from examples.cifar10_vgg.training import (
    accuracy,
    augmented,
    be_repeatable,
    buffers_digest,
    normalised,
    parameters_digest,
    plan_for,
)
from examples.cifar10_vgg.vgg import NAMES, build


@dataclasses.dataclass(frozen=True, slots=True)
class JobArguments:
    """Of the command line, beside those of FATE's launcher.

    Attributes:
        results: directory in which each client says what came of it.
        train: `vgg5` or `vgg8`.
        pictures: directory with CIFAR-10; a stand-in without.
        rounds: each goes once through a client's pictures.
        seed: of all that is drawn by chance but FATE's masks.
    """

    results: Path
    train: str
    pictures: Path | None
    rounds: int
    seed: int


class Augmented(Dataset):  # type: ignore[misc]  # torch is not checked
    """A client's pictures, each time moved by chance, and by chance mirrored."""

    def __init__(self, pictures: Pictures, seed: tuple[int, int]) -> None:
        self._pictures, self._chance = pictures, np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        one = self._pictures.images[at : at + 1]
        moved = augmented(one, self._chance, mirrored=self._pictures.mirrored)
        return torch.from_numpy(normalised(moved)[0]), int(self._pictures.labels[at])


def run(ctx: Any) -> None:
    """One party's part."""
    job = _arguments()
    if ctx.is_on_arbiter:
        FedAVGServer(ctx).train()
        return
    be_repeatable()
    data = stand_in(job.seed) if job.pictures is None else read_dataset(job.pictures)
    clients = [ctx.guest.rank, *ctx.hosts.ranks]
    number = sorted(clients).index(ctx.local.rank)
    share, plan = data.train.share(number, len(clients)), plan_for(data.train)
    # all begin with one model: what FATE averages first has been trained already
    model = build(job.train, job.seed)
    trainer = FedAVGClient(
        ctx,
        model,
        TrainingArguments(
            output_dir=str(job.results / f"client-{number}"),
            num_train_epochs=job.rounds,
            per_device_train_batch_size=plan.batch,
            dataloader_drop_last=len(share) % plan.batch == 1,
            seed=job.seed,
            use_cpu=True,
            report_to=[],
        ),
        FedAVGArguments(),
        Augmented(share, (job.seed, number)),
        optimizer=torch.optim.SGD(model.parameters(), plan.rate, plan.momentum),
        loss_fn=nn.CrossEntropyLoss(),
    )
    trainer.train()
    told = {
        "accuracy": accuracy(model, data.test),
        "parameters": parameters_digest(model),
        "running_means": buffers_digest(model),
    }
    job.results.mkdir(parents=True, exist_ok=True)
    (job.results / f"client-{number}.json").write_text(json.dumps(told) + "\n", encoding="ascii")


def _arguments() -> JobArguments:
    # no name of the launcher's begins with one of these, which it would take for its own
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--train", choices=NAMES, default="vgg5")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    known, _ = parser.parse_known_args()
    return JobArguments(**vars(known))


if __name__ == "__main__":
    # what is wrong is said before parties are started
    _arguments()
    sys.exit(launch(run))
