"""A stand-in for CIFAR-10 that learns: gratings of ten orientations, from a seed, in the binary version's format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from examples.cifar10_vgg.pictures import (
    BATCH_PICTURES,
    CLASSES,
    SHAPE,
    STAND_IN_NAME,
    TEST_NAME,
    TRAIN_NAMES,
    Dataset,
    Pictures,
    to_records,
)

PERIODS = 4
"""Of a grating across a picture."""
NOISE = 0.3
"""Standard deviation beside a grating whose planes have amplitudes of up to 1: one picture alone is hard to tell."""
TRAIN_PICTURES = 1600
TEST_PICTURES = 200
"""So few that four silos train on them in seconds, and one sees them learn."""


def stand_in(seed: int, train: int = TRAIN_PICTURES, test: int = TEST_PICTURES) -> Dataset:
    """So many pictures, drawn from a seed. Their mirror images show other orientations."""
    return Dataset(
        _gratings(np.random.default_rng((seed, 0)), train), _gratings(np.random.default_rng((seed, 1)), test)
    )


def _gratings(chance: np.random.Generator, count: int) -> Pictures:
    labels = chance.integers(0, CLASSES, count).astype(np.uint8)
    angles = np.pi * labels / CLASSES
    rows, columns = np.mgrid[0 : SHAPE[1], 0 : SHAPE[2]] / SHAPE[1]
    across = np.cos(angles)[:, None, None] * columns + np.sin(angles)[:, None, None] * rows
    waves = np.sin(2 * np.pi * (PERIODS * across + chance.random((count, 1, 1))))
    colours = chance.uniform(-1, 1, (count, 3, 1, 1))
    seen = colours * waves[:, None] + chance.normal(0, NOISE, (count, *SHAPE))
    images = np.clip(np.rint(127.5 + 64 * seen), 0, 255).astype(np.uint8)
    return Pictures(images, labels, mirrored=False)


def write_stand_in(directory: Path, seed: int, train: int = TRAIN_PICTURES, test: int = TEST_PICTURES) -> None:
    """Six files of CIFAR-10's binary version, and one that says that they are a stand-in.

    Args:
        train: pictures in the five files for training, a multiple of 5, at most 50,000.
        test: in the sixth, at most 10,000.

    Raises:
        ValueError: a number is none of these.
    """
    files = len(TRAIN_NAMES)
    if train % files or not 0 < train <= files * BATCH_PICTURES or not 0 < test <= BATCH_PICTURES:
        raise ValueError(f"{train} and {test} pictures do not fit into CIFAR-10's files")
    made = stand_in(seed, train, test)
    directory.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(TRAIN_NAMES):
        (directory / f"{name}.bin").write_bytes(to_records(made.train.share(number, files)))
    (directory / f"{TEST_NAME}.bin").write_bytes(to_records(made.test))
    counts = {"seed": seed, "train": [train // files] * files, "test": test}
    (directory / STAND_IN_NAME).write_text(json.dumps(counts) + "\n", encoding="ascii")
