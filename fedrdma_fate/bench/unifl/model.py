"""A small classifier in NumPy, the digits that come with scikit-learn, and silos with unequal shares of them.

CIFAR-10, which UniFL trained on, comes with nothing that FATE installs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrdma_fate.wire.errors import ErrorCode, FateError

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.intp]

LAYERS = (64, 256, 128, 10)
"""Neurons: 50,826 parameters."""

TEST_SHARE = 0.2
"""Of the images that no silo trains on: 359. Ours."""

CONCENTRATION = 0.3
"""Of the Dirichlet distribution by which each class is dealt to the silos: most have a few classes only."""

LEARNING_RATE = 0.1
"""Of a step, which does not change: large enough for 80 rounds to come to rest. Ours."""

BATCH = 32
"""Images of a step; most silos have fewer. Ours."""

EPOCHS = 4
"""Of a silo in a round, over its own samples. Ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """Images as rows of pixels between 0 and 1, and which digit each is."""

    images: Array
    labels: Labels


@dataclasses.dataclass(frozen=True, slots=True)
class Federation:
    """What the silos train on, each for itself, and what the model is tested on."""

    silos: tuple[Samples, ...]
    test: Samples


def dealt(silos: int, seed: int) -> Federation:
    """The digits, dealt to silos in unequal shares of each class; each has at least one image.

    Raises:
        FateError: FATE_VERSION when scikit-learn is not installed, which comes with FATE.
    """
    everything = _digits()
    chance = np.random.default_rng((seed, 1))
    order = chance.permutation(len(everything.labels))
    tested = order[: int(TEST_SHARE * len(order))]
    trained = order[len(tested) :]
    hands: list[list[int]] = [[] for _ in range(silos)]
    for digit in range(LAYERS[-1]):
        of_class = trained[everything.labels[trained] == digit]
        shares = chance.dirichlet(np.full(silos, CONCENTRATION))
        cuts = (np.cumsum(shares)[:-1] * len(of_class)).astype(int)
        for hand, part in zip(hands, np.split(of_class, cuts), strict=True):
            hand += part.tolist()
    for hand in hands:
        if not hand:
            hand.append(max(hands, key=len).pop())
    return Federation(tuple(_some(everything, np.asarray(hand, np.intp)) for hand in hands), _some(everything, tested))


def _digits() -> Samples:
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise FateError(
            ErrorCode.FATE_VERSION, "scikit-learn, which comes with FATE, is not installed.", "Install fate==2.2.0."
        ) from error
    images, labels = load_digits(return_X_y=True)
    return Samples(np.asarray(images, np.float64) / 16, np.asarray(labels, np.intp))


def _some(samples: Samples, chosen: Any) -> Samples:
    return Samples(samples.images[chosen], samples.labels[chosen])


def first_model(seed: int, layers: Sequence[int] = LAYERS) -> list[Array]:
    """Weights and biases, layer by layer, as FATE's client sends them: an array each."""
    chance = np.random.default_rng((seed, 2))
    model: list[Array] = []
    for before, behind in itertools.pairwise(layers):
        model += [chance.standard_normal((before, behind)) * np.sqrt(2 / before), np.zeros(behind)]
    return model


def trained(model: list[Array], samples: Samples, seed: tuple[int, ...], epochs: int = EPOCHS) -> list[Array]:
    """What a silo makes of a model: some epochs of stochastic gradient descent on its samples."""
    chance = np.random.default_rng(seed)
    model = [each.copy() for each in model]
    for _ in range(epochs):
        order = chance.permutation(len(samples.labels))
        for start in range(0, len(order), BATCH):
            _step(model, _some(samples, order[start : start + BATCH]))
    return model


def _step(model: list[Array], batch: Samples) -> None:
    activations = _activations(model, batch.images)
    # of cross-entropy behind a softmax
    gradient = _softmax(activations[-1])
    gradient[np.arange(len(batch.labels)), batch.labels] -= 1
    gradient /= len(batch.labels)
    for layer in reversed(range(len(model) // 2)):
        weights, biases = model[2 * layer : 2 * layer + 2]
        before = activations[layer]
        passed = gradient @ weights.T
        weights -= LEARNING_RATE * (before.T @ gradient)
        biases -= LEARNING_RATE * gradient.sum(0)
        gradient = passed * (before > 0)


def _activations(model: list[Array], images: Array) -> list[Array]:
    found = [images]
    for layer in range(len(model) // 2):
        values = found[-1] @ model[2 * layer] + model[2 * layer + 1]
        found.append(values if 2 * layer + 2 == len(model) else np.maximum(values, 0))
    return found


def _softmax(values: Array) -> Array:
    raised = np.exp(values - values.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))


def accuracy(model: list[Array], samples: Samples) -> float:
    """Share of the samples of which the likeliest digit is the right one; NaN is no digit."""
    values = _activations(model, samples.images)[-1]
    right = (values.argmax(1) == samples.labels) & np.isfinite(values).all(1)
    return float(right.mean())
