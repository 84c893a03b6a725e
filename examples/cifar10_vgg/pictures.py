"""CIFAR-10 from the files that its authors publish: the binary version, or the Python version without unpickling it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.cifar10_vgg.batch_pickle import PickleError, read_batch
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

CLASSES = 10
SHAPE = (3, 32, 32)
"""Planes of red, green and blue, rows, columns."""
PICTURE_BYTES = 3 * 32 * 32
RECORD_BYTES = 1 + PICTURE_BYTES
"""Of the binary version: a label, then the picture."""
BATCH_PICTURES = 10_000
"""In each of CIFAR-10's files."""
TRAIN_NAMES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_NAME = "test_batch"
STAND_IN_NAME = "stand-in.json"
"""Beside the files of a stand-in; says how many pictures each has. Without, each has CIFAR-10's 10,000."""
_STAND_IN_MOST_BYTES = 1000
"""Of that file."""
_PYTHON_MOST_BYTES = 40_000_000
"""Of a file of the Python version, which has 31 MB."""

Bytes = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures with what they show.

    Attributes:
        images: 8-bit, (count, 3, 32, 32).
        labels: 0 to 9, (count,).
        mirrored: a picture's mirror image shows the same thing, so that training may use either.
    """

    images: Bytes
    labels: Bytes
    mirrored: bool = True

    def __len__(self) -> int:
        return len(self.labels)

    def share(self, silo: int, silos: int) -> Pictures:
        """What one of so many silos has, in the order of the files: FedComm's cut.

        Args:
            silo: 0 to `silos` - 1.
        """
        count = len(self) // silos
        part = slice(silo * count, (silo + 1) * count)
        return dataclasses.replace(self, images=self.images[part], labels=self.labels[part])


@dataclasses.dataclass(frozen=True, slots=True)
class Dataset:
    """What silos train on together, and what the server tests with."""

    train: Pictures
    test: Pictures


def read_dataset(directory: Path) -> Dataset:
    """CIFAR-10, or a stand-in, from a directory with six files of either version.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: a file is missing, too short or too long, has a label above 9, or is a pickle of
            something else; names it.
    """
    if not directory.is_dir():
        raise _bad(f"{directory} is no directory.")
    counts, mirrored = _counts(directory)
    is_binary = _find(directory / f"{TEST_NAME}.bin") is not None
    parts = []
    for name, count in zip((*TRAIN_NAMES, TEST_NAME), counts, strict=True):
        path = directory / (f"{name}.bin" if is_binary else name)
        parts.append(_read_binary(path, count) if is_binary else _read_python(path, count))
    *train, (images, labels) = parts
    train_images, train_labels = (np.concatenate([one[at] for one in train]) for at in range(2))
    return Dataset(Pictures(train_images, train_labels, mirrored), Pictures(images, labels, mirrored))


def to_records(pictures: Pictures) -> bytes:
    """As a file of the binary version."""
    records = np.empty((len(pictures), RECORD_BYTES), np.uint8)
    records[:, 0] = pictures.labels
    records[:, 1:] = pictures.images.reshape(len(pictures), PICTURE_BYTES)
    return records.tobytes()


def _read_binary(path: Path, count: int) -> tuple[Bytes, Bytes]:
    records = np.frombuffer(_content(path, count * RECORD_BYTES), np.uint8)
    if len(records) != count * RECORD_BYTES:
        what = f"{len(records):,} bytes or more" if len(records) > count * RECORD_BYTES else f"{len(records):,} bytes"
        raise _bad(f"{path} has {what}, not the {count * RECORD_BYTES:,} of {count:,} pictures.")
    records = records.reshape(count, RECORD_BYTES)
    return _checked(path, records[:, 1:].reshape(count, *SHAPE), records[:, 0])


def _read_python(path: Path, count: int) -> tuple[Bytes, Bytes]:
    content = _content(path, _PYTHON_MOST_BYTES)
    if len(content) > _PYTHON_MOST_BYTES:
        raise _bad(f"{path} has more than {_PYTHON_MOST_BYTES:,} bytes.")
    try:
        data, labels = read_batch(content)
    except PickleError as error:
        raise _bad(f"{path} is no batch of CIFAR-10's Python version: {error}.") from error
    if len(data) != count * PICTURE_BYTES or len(labels) != count:
        raise _bad(f"{path} has {len(data):,} bytes and {len(labels):,} labels, not those of {count:,} pictures.")
    if any(not 0 <= label < CLASSES for label in labels):
        raise _bad(f"{path} has a label that is not 0 to 9.")
    return np.frombuffer(data, np.uint8).reshape(count, *SHAPE), np.array(labels, np.uint8)


def _checked(path: Path, images: Bytes, labels: Bytes) -> tuple[Bytes, Bytes]:
    if (wrong := np.flatnonzero(labels >= CLASSES)).size:
        raise _bad(f"{path} has the label {labels[wrong[0]]} at picture {wrong[0]}: there are 0 to 9.")
    return images, labels


def _content(path: Path, most: int) -> bytes:
    """A byte more than so many, where there are more."""
    if (found := _find(path)) is None:
        raise _bad(f"{path} is missing.")
    try:
        with found.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise _bad(f"{path} cannot be read: {error.strerror}.") from error


def _find(path: Path) -> Path | None:
    """A regular file: a pipe would be waited for."""
    return path if path.is_file() else None


def _counts(directory: Path) -> tuple[Sequence[int], bool]:
    """Pictures of each file, the test's last; and whether their mirror images show the same."""
    path = directory / STAND_IN_NAME
    if _find(path) is None:
        return [BATCH_PICTURES] * (len(TRAIN_NAMES) + 1), True
    try:
        told: Any = json.loads(_content(path, _STAND_IN_MOST_BYTES))
        counts = [*told["train"], told["test"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _bad(f"{path} does not say how many pictures there are.") from error
    good = all(type(one) is int and 0 < one <= BATCH_PICTURES for one in counts)
    if not good or len(counts) != len(TRAIN_NAMES) + 1:
        raise _bad(f"{path} does not say how many pictures there are.")
    return counts, False


def _bad(problem: str) -> ConfigError:
    hint = "Give a directory with CIFAR-10's binary or Python version, as its authors publish it, unpacked."
    return ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"pictures: {problem}", hint)
