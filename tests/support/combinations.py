"""Combinations of which a run has some, and a sweep all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def in_turns(*values: Sequence[object]) -> list[Any]:
    """Every combination of parameters; outside of sweeps the last one has its values by turns.

    Of three parameters each pair of values is in every run then, of two each value.
    """
    return [
        pytest.param(
            *(choices[at] for choices, at in zip(values, places, strict=True)),
            marks=() if sum(places[:-1]) % len(values[-1]) == places[-1] else pytest.mark.sweep,
        )
        for places in itertools.product(*(range(len(choices)) for choices in values))
    ]
