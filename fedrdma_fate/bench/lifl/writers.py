"""Many writers of 62 characters, each with some of them and a hand of its own, and how many rounds a model needs.

Made here, in the place of FEMNIST: characters are points in a space of few dimensions, a hand moves and stretches all
that its writer writes. All systems compute the same federated averages, so what is found holds for each of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedrdma_fate.bench.unifl.model import Array, Samples, accuracy, first_model, trained

CLASSES = 62
"""Digits, and letters of both cases, as FEMNIST has."""
WRITERS = 2800
"""The paper's."""
PIXELS = 64
"""Of an image. Ours."""
LAYERS = (PIXELS, 128, CLASSES)
"""Neurons: 16,318 parameters. Ours."""
GOAL = 0.7
"""Accuracy that is to be reached, the paper's."""
MOST_ROUNDS = 600
"""Then it is given up."""

_SAMPLES = (20, 60)
"""Least and most images of a writer. Ours."""
_CONCENTRATION = 0.3
"""Of the Dirichlet distribution of a writer's characters: most write a few. Ours."""
_HAND = 0.8
"""Deviation of what a hand adds to each pixel, of its stretch a fifth of that. Ours."""
_NOISE = 1.6
"""Deviation of what chance adds to each pixel; a character's own is 1. Ours."""
_TEST_WRITERS = 100
"""Others than those who train."""


def rounds_to_goal(clients: int, seed: int, tell: Callable[[str], object] = lambda _: None) -> tuple[int, float]:
    """Train by federated averaging, one epoch a client, until the goal is reached.

    Args:
        clients: by chance, in each round.
        seed: of characters, writers, and who trains.
        tell: told the accuracy now and then.

    Returns:
        rounds, and the accuracy then; MOST_ROUNDS where it was not reached.
    """
    characters = np.random.default_rng((seed, 1)).standard_normal((CLASSES, PIXELS))
    written = [_samples(characters, seed, WRITERS + number) for number in range(_TEST_WRITERS)]
    test = Samples(np.concatenate([each.images for each in written]), np.concatenate([each.labels for each in written]))
    chance = np.random.default_rng((seed, 2))
    model = first_model(seed, LAYERS)
    found = 0.0
    for number in range(1, MOST_ROUNDS + 1):
        chosen = chance.choice(WRITERS, clients, replace=False).tolist()
        model = _average(model, [(_samples(characters, seed, writer), (seed, number, writer)) for writer in chosen])
        found = accuracy(model, test)
        if not number % 10:
            tell(f"training, {clients} clients a round: {100 * found:.0f} % after {number} rounds")
        if found >= GOAL:
            return number, found
    return MOST_ROUNDS, found


def _samples(characters: Array, seed: int, writer: int) -> Samples:
    """What one has written: the same whenever it is asked for."""
    chance = np.random.default_rng((seed, 3, writer))
    count = int(chance.integers(*_SAMPLES, endpoint=True))
    labels = chance.choice(CLASSES, count, p=chance.dirichlet(np.full(CLASSES, _CONCENTRATION)))
    hand = chance.standard_normal(PIXELS) * _HAND
    stretch = 1 + chance.standard_normal(PIXELS) * _HAND / 5
    images = characters[labels] * stretch + hand + chance.standard_normal((count, PIXELS)) * _NOISE
    return Samples(images, labels)


def _average(model: list[Array], clients: list[tuple[Samples, tuple[int, ...]]]) -> list[Array]:
    """Of what each makes of the model, by how many images it has."""
    weights = np.asarray([len(samples.labels) for samples, _ in clients], np.float64)
    weights /= weights.sum()
    total = [np.zeros_like(each) for each in model]
    for weight, (samples, seed) in zip(weights, clients, strict=True):
        for target, update in zip(total, trained(model, samples, seed, epochs=1), strict=True):
            target += weight * update
    return total
