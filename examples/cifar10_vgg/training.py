"""What a silo does in a round, what the server finds of a model, and a model as bytes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from examples.cifar10_vgg.pictures import Pictures

MARGIN = 4
"""Pixels that a picture is moved by at most: a crop of the picture with so many black ones around it."""
_MEANS = (0.4914, 0.4822, 0.4465)
_DEVIATIONS = (0.2023, 0.1994, 0.2010)
"""Of CIFAR-10's planes, as FedComm takes them."""
_TEST_BATCH = 500
"""Pictures at once where nothing is learned: a matter of memory alone."""

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a silo trains; each round begins with a new optimiser, as FedComm's devices do.

    Attributes:
        batch: pictures at once.
        rate: of SGD.
        momentum: of SGD.
    """

    batch: int
    rate: float
    momentum: float


FEDCOMM = TrainingPlan(batch=100, rate=0.01, momentum=0.9)
STAND_IN = TrainingPlan(batch=20, rate=0.01, momentum=0.9)
"""For a silo with 400 pictures, which has twenty steps a round."""


def plan_for(pictures: Pictures) -> TrainingPlan:
    """FedComm's, but for a stand-in of a few pictures."""
    return FEDCOMM if pictures.mirrored else STAND_IN


def be_repeatable() -> None:
    """So that the same pictures and weights give the same weights, to the bit, in every process of a machine."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def train_epoch(model: nn.Module, pictures: Pictures, plan: TrainingPlan, seed: Sequence[int]) -> None:
    """Go once through the pictures, in an order and with crops (and mirror images) that the seed says."""
    optimizer = torch.optim.SGD(model.parameters(), plan.rate, plan.momentum)
    loss_of = nn.CrossEntropyLoss()
    model.train()
    for images, labels in batches(pictures, plan.batch, np.random.default_rng(seed)):
        optimizer.zero_grad()
        loss_of(model(torch.from_numpy(images)), torch.from_numpy(labels)).backward()
        optimizer.step()


def batches(
    pictures: Pictures, size: int, chance: np.random.Generator
) -> Iterator[tuple[Floats, npt.NDArray[np.int64]]]:
    """Whole batches, and what is left over at the end where it is more than one picture: batch norm needs two."""
    order = chance.permutation(len(pictures))
    for at in range(0, len(order), size):
        chosen = order[at : at + size]
        if len(chosen) > 1:
            images = augmented(pictures.images[chosen], chance, mirrored=pictures.mirrored)
            yield normalised(images), pictures.labels[chosen].astype(np.int64)


def augmented(images: npt.NDArray[np.uint8], chance: np.random.Generator, *, mirrored: bool) -> npt.NDArray[np.uint8]:
    """Each picture moved by chance, with black where it was not, and by chance mirrored."""
    count, _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    rows, columns = chance.integers(0, 2 * MARGIN + 1, (2, count))
    cut: npt.NDArray[np.uint8] = np.stack(
        [
            one[:, row : row + height, column : column + width]
            for one, row, column in zip(padded, rows, columns, strict=True)
        ]
    )
    if mirrored:
        turned = chance.random(count) < 0.5
        cut[turned] = cut[turned, :, :, ::-1]
    return cut


def normalised(images: npt.NDArray[np.uint8]) -> Floats:
    """Planes with CIFAR-10's mean 0 and deviation 1."""
    means, deviations = (np.array(each, np.float32).reshape(1, 3, 1, 1) for each in (_MEANS, _DEVIATIONS))
    scaled: Floats = (images.astype(np.float32) / np.float32(255) - means) / deviations
    return scaled


def accuracy(model: nn.Module, pictures: Pictures) -> float:
    """The share of pictures that it tells rightly, by the running means of batch norm."""
    model.eval()
    right = 0
    with torch.no_grad():
        for at in range(0, len(pictures), _TEST_BATCH):
            part = slice(at, at + _TEST_BATCH)
            said = model(torch.from_numpy(normalised(pictures.images[part]))).argmax(1).numpy()
            right += int((said == pictures.labels[part]).sum())
    return right / len(pictures)


def parameters_digest(model: nn.Module) -> str:
    """SHA-256 of the parameters' bytes, in their order: without the running means."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def buffers_digest(model: nn.Module) -> str:
    """SHA-256 of what batch norm keeps: running means, variances and counts."""
    digest = hashlib.sha256()
    for buffer in model.buffers():
        digest.update(buffer.numpy().tobytes())
    return digest.hexdigest()


# --- a whole model as bytes: parameters and what batch norm keeps ---


def tensor_bytes(model: nn.Module) -> tuple[int, ...]:
    """Lengths of the model's tensors, in the order in which they travel."""
    return tuple(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def to_bytes(model: nn.Module) -> bytes:
    """All tensors, one after the other, as they lie in memory."""
    return b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())


def from_bytes(model: nn.Module, content: bytes) -> None:
    """Give a model what `to_bytes` made of another, whatever became of it on the way.

    Raises:
        ValueError: it has another length.
    """
    if len(content) != sum(tensor_bytes(model)):
        raise ValueError(f"{len(content)} bytes are no such model")
    at = 0
    with torch.no_grad():
        for tensor in model.state_dict().values():
            there = tensor.numpy()
            there[...] = np.frombuffer(content, there.dtype, there.size, at).reshape(there.shape)
            at += there.nbytes


def average(model: nn.Module, contents: Sequence[bytes]) -> bytes:
    """FedComm's plain average of whole models, batch norm's running means too: the sum in the order of the list, in
    single precision, over their number; of whole numbers the average without its fraction.

    Args:
        model: says which tensors there are; is not changed.
        contents: as of `to_bytes`, one at least.

    Raises:
        ValueError: one has another length.
    """
    if any(len(content) != sum(tensor_bytes(model)) for content in contents):
        raise ValueError("one is no such model")
    averaged, at = [], 0
    # what lost datagrams left behind is any number at all
    with np.errstate(all="ignore"):
        for tensor in model.state_dict().values():
            like = tensor.numpy()
            parts = [np.frombuffer(content, like.dtype, like.size, at) for content in contents]
            total = parts[0].copy()
            for part in parts[1:]:
                total += part
            averaged.append((total / total.dtype.type(len(contents))).astype(total.dtype).tobytes())
            at += like.nbytes
    return b"".join(averaged)
