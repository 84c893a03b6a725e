"""FedComm's model by FATE's FedAVG with secure aggregation: a client's part, and when its rounds began and ended."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fate.ml.nn.homo.fedavg import FedAVGArguments, FedAVGClient, FedAVGServer, TrainingArguments
from fate_utils.secure_aggregation_helper import RandomMix
from torch import nn
from torch.utils.data import Dataset
from transformers import TrainerCallback

from examples.cifar10_vgg.pictures import Dataset as PictureSet
from examples.cifar10_vgg.pictures import Pictures
from examples.cifar10_vgg.training import (
    accuracy,
    augmented,
    be_repeatable,
    buffers_digest,
    normalised,
    parameters_digest,
    plan_for,
)
from examples.cifar10_vgg.vgg import build


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


class TimedClient(FedAVGClient):  # type: ignore[misc]  # FATE has no types
    """FATE's client, that notes when it had trained and when it had the average.

    Attributes:
        exchanged: of each round so far, by `time.monotonic`.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.exchanged: list[tuple[float, float]] = []
        super().__init__(*arguments, **more)

    def on_federation(self, *arguments: Any, **more: Any) -> None:
        """As FATE's."""
        trained = time.monotonic()
        super().on_federation(*arguments, **more)
        self.exchanged.append((trained, time.monotonic()))


class SeededMasks(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Masks of the secure aggregation that come from a seed: those of FATE's key exchange, which takes place all the
    same, change the last bits of a sum from run to run, and nothing can seed them.

    A client shares its mask with one other: those of several FATE adds in an order that is another in each process,
    which changes last bits as well. What travels is as long.
    """

    def __init__(self, seed: int, ranks: Sequence[int]) -> None:
        self._seed, self._ranks = seed, ranks
        self.client: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Behind FATE's own callbacks, which make the aggregator."""
        mine = self.client.ctx.local.rank
        secrets = {
            other: hashlib.sha256(f"{self._seed}/{min(other, mine)}/{max(other, mine)}".encode()).digest()
            for other in partners(self._ranks, mine)
        }
        self.client.aggregator._aggregator.model_aggregator._mixer = RandomMix(secrets, mine)


def partners(ranks: Sequence[int], mine: int) -> Sequence[int]:
    """Whom a client shares its seeded mask with: its neighbour in pairs; an odd last one with nobody."""
    at = ranks.index(mine) ^ 1
    return ranks[at : at + 1]


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """What came of a client's part.

    Attributes:
        accuracy: of its model, on the pictures that are kept for trying.
        parameters: SHA-256 of those of its model, which all clients have alike.
        running_means: SHA-256 of what its batch norm keeps, which is its own.
        exchanged: of each round, when it had trained and when it had the average, by `time.monotonic`.
        losses: of each round, the mean while it trained.
    """

    accuracy: float
    parameters: str
    running_means: str
    exchanged: tuple[tuple[float, float], ...]
    losses: tuple[float, ...]


def train_client(
    ctx: Any,
    data: PictureSet,
    name: str,
    rounds: int,
    seed: int,
    output: Path,
    *,
    seeded_masks: bool = False,
    aggregator: str = "secure_aggregate",
) -> Trained:
    """A client's part in the job that `ctx` belongs to.

    Args:
        ctx: FATE's context of a guest or a host.
        data: all pictures: it trains on its share of them.
        name: `vgg5` or `vgg8`.
        rounds: each goes once through its pictures.
        seed: of all that is drawn by chance; the masks' own only with `seeded_masks`.
        output: a directory of its own, for FATE's trainer.
        seeded_masks: two runs come to the same parameters, to the bit. Who knows the seed can take the masks off.
        aggregator: FATE's, `secure_aggregate` or `plaintext`.
    """
    be_repeatable()
    ranks = sorted([ctx.guest.rank, *ctx.hosts.ranks])
    number = ranks.index(ctx.local.rank)
    share, plan = data.train.share(number, len(ranks)), plan_for(data.train)
    # all begin with one model: what FATE averages first has been trained already
    model = build(name, seed)
    client = TimedClient(
        ctx,
        model,
        TrainingArguments(
            output_dir=str(output),
            num_train_epochs=rounds,
            per_device_train_batch_size=plan.batch,
            dataloader_drop_last=len(share) % plan.batch == 1,
            seed=seed,
            use_cpu=True,
            report_to=[],
        ),
        FedAVGArguments(aggregator=aggregator),
        Augmented(share, (seed, number)),
        optimizer=torch.optim.SGD(model.parameters(), plan.rate, plan.momentum),
        loss_fn=nn.CrossEntropyLoss(),
    )
    if seeded_masks and aggregator == "secure_aggregate":
        masks = SeededMasks(seed, ranks)
        masks.client = client
        client.add_callback(masks)
    client.train()
    losses = tuple(float(logged["loss"]) for logged in client.state.log_history if "loss" in logged)
    return Trained(
        accuracy(model, data.test), parameters_digest(model), buffers_digest(model), tuple(client.exchanged), losses
    )


def serve(ctx: Any) -> None:
    """The arbiter's part."""
    FedAVGServer(ctx).train()
