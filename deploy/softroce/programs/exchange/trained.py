"""What hosts exchange when a model is trained: FedComm's job, averaged over the silos by the protocol's server."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from pathlib import Path
from typing import Any

from deploy.softroce.programs.exchange.interface import Models, Options
from examples.cifar10_vgg.pictures import Dataset, read_dataset
from examples.cifar10_vgg.stand_in import stand_in
from examples.cifar10_vgg.training import (
    accuracy,
    average,
    be_repeatable,
    from_bytes,
    plan_for,
    tensor_bytes,
    to_bytes,
    train_epoch,
)
from examples.cifar10_vgg.vgg import NAMES, build
from fedrdma_fate.wire.errors import ConfigError


class TrainedModels:
    """A silo's model, which it trains, or the server's, which is the average of theirs.

    The whole state travels and is averaged, batch norm's running means too, as FedComm does. Silos that nothing came
    from are left out of an average.
    """

    def __init__(self, name: str, host: int, silos: int, data: Dataset, seed: int) -> None:
        """
        Args:
            name: `vgg5` or `vgg8`.
            host: 0 is the server.
            seed: of all that is drawn by chance; each host's first model is another.
        """
        be_repeatable()
        self._host, self._silos, self._seed = host, silos, seed
        self._model = build(name, seed * (silos + 1) + host)
        self._pictures = data.train.share(host - 1, silos) if host else data.test
        self._plan = plan_for(data.train)
        self._parts = tensor_bytes(self._model)
        self._own = to_bytes(self._model)
        self._came: dict[int, bytes] = {}
        self._seconds = 0.0

    @property
    def size(self) -> int:
        return len(self._own)

    @property
    def parts(self) -> tuple[int, ...]:
        return self._parts

    def prepare(self, number: int) -> None:
        """Nothing."""

    def own(self, number: int) -> bytes:
        del number
        return self._own

    def held(self, sender: int) -> bytes:
        """Its own: a silo's last, or what the server sends in this round."""
        del sender
        return self._own

    def take(self, got: bytes | bytearray | memoryview, sender: int, number: int, *, whole: bool = True) -> None:
        """Keep it.

        Raises:
            SystemExit: it has another length than a model.
        """
        del whole
        if len(got) != self.size:
            raise SystemExit(f"what host {sender} sent in round {number + 1} has {len(got)} bytes, not {self.size}")
        self._came[sender] = bytes(got)

    def compute(self, number: int) -> None:
        """Train on the silo's pictures, once, from what came of the server."""
        began = time.process_time()
        from_bytes(self._model, self._came.pop(0, self._own))
        train_epoch(self._model, self._pictures, self._plan, (self._seed, number, self._host))
        self._own = to_bytes(self._model)
        self._seconds += time.process_time() - began

    def finish(self, number: int) -> dict[str, Any]:
        """Average what came, in the order of the silos, and try it on the test's pictures."""
        del number
        began = time.process_time()
        if self._came:
            self._own = average(self._model, [self._came[silo] for silo in sorted(self._came)])
            from_bytes(self._model, self._own)
        self._came.clear()
        found = {"accuracy": accuracy(self._model, self._pictures), "digest": hashlib.sha256(self._own).hexdigest()}
        self._seconds += time.process_time() - began
        return found

    def cpu_seconds(self) -> float:
        """What all rounds took so far."""
        return self._seconds


def train_options(options: Options, host: int, silos: int) -> Options:
    """With the models of one protocol, where a model is trained.

    Raises:
        SystemExit: the pictures cannot be used, or a model has another length than was asked for.
    """
    if options.train is None:
        return options
    if options.train not in NAMES:
        raise SystemExit(f"there is no model {options.train!r}: {', '.join(NAMES)}")
    try:
        data = dataset(options.data, options.seed)
    except ConfigError as error:
        raise SystemExit(str(error)) from error
    models: Models = TrainedModels(options.train, host, silos, data, options.seed)
    if models.size != options.size:
        raise SystemExit(f"{options.train} has {models.size} bytes, not {options.size}")
    return dataclasses.replace(options, models=models)


def dataset(directory: Path | None, seed: int) -> Dataset:
    """What is in a directory, or a stand-in.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: as of `read_dataset`.
    """
    return stand_in(seed) if directory is None else read_dataset(directory)
