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

from fate.arch.launchers.multiprocess_launcher import launch

from examples.cifar10_vgg.fedavg import serve, train_client
from examples.cifar10_vgg.pictures import read_dataset
from examples.cifar10_vgg.stand_in import stand_in
from examples.cifar10_vgg.vgg import NAMES


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


def run(ctx: Any) -> None:
    """One party's part."""
    job = _arguments()
    if ctx.is_on_arbiter:
        serve(ctx)
        return
    data = stand_in(job.seed) if job.pictures is None else read_dataset(job.pictures)
    number = sorted([ctx.guest.rank, *ctx.hosts.ranks]).index(ctx.local.rank)
    trained = train_client(ctx, data, job.train, job.rounds, job.seed, job.results / f"client-{number}")
    told = {
        "accuracy": trained.accuracy,
        "parameters": trained.parameters,
        "running_means": trained.running_means,
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
