"""What the passes of NumPy over a block take of which an addition in order `exact` consists, beside FATE's own two.

    OPENBLAS_NUM_THREADS=1 python -m tests.support.addition_passes    # as the worker's NumPy has it

A block is as long as the worker's, so that it stays in a core's cache. The best of many counts, so that a busy host
changes little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fedrdma_fate.aggregate.arithmetic import Exact
from fedrdma_fate.aggregate.place import BLOCK_ITEMS

REPEATS = 2000
"""Of each pass, of 5 to 30 microseconds each: some of them have a core for themselves."""


def passes() -> dict[str, Callable[[], object]]:
    """Each pass, over arrays of its own."""
    made = np.random.default_rng(1)
    values, wholes = made.uniform(-8, 8, BLOCK_ITEMS), np.rint(made.uniform(-1e7, 1e7, BLOCK_ITEMS))
    scaled, sums, kept = values * 2.0**52, np.zeros(BLOCK_ITEMS), np.empty(BLOCK_ITEMS)
    fates, out, integers, differ = (
        np.zeros((2, BLOCK_ITEMS)),
        np.zeros(BLOCK_ITEMS),
        np.zeros(BLOCK_ITEMS, np.int64),
        np.zeros(BLOCK_ITEMS, np.bool_),
    )
    integer_sums, exact, aside = np.zeros(BLOCK_ITEMS, np.int64), Exact(8), np.empty(BLOCK_ITEMS)

    def of_a_parameter(whole: Callable[[], object], fraction: Callable[[], object]) -> Callable[[], object]:
        return lambda: (whole(), fraction())

    def added(plane: np.ndarray, *, whole: bool) -> None:
        exact.add(sums, plane, aside, whole=whole)
        np.copyto(kept, aside)

    return {
        "dot": lambda: np.dot(values, values),
        "multiply": lambda: np.multiply(values, 2.0**52, out=out),
        "rint": lambda: np.rint(scaled, out=out),
        "cast to int64": lambda: np.copyto(integers, scaled, casting="unsafe"),
        "add of int64": lambda: np.add(integer_sums, integers, out=integer_sums),
        "add of float64": lambda: np.add(sums, wholes, out=out),
        "copy": lambda: np.copyto(out, values),
        "not_equal": lambda: np.not_equal(out, values, out=differ),
        "any": lambda: differ.any(),
        "exact, both planes": of_a_parameter(lambda: added(wholes, whole=True), lambda: added(values, whole=False)),
        "FATE, both planes": of_a_parameter(
            lambda: np.add(fates[0], wholes, out=fates[0]), lambda: np.add(fates[1], values, out=fates[1])
        ),
    }


def measure() -> dict[str, float]:
    """Nanoseconds an element of each pass, at best; of both planes, a parameter."""
    best = {}
    for name, do in passes().items():
        least = float("inf")
        for _ in range(REPEATS):
            started = time.perf_counter_ns()
            do()
            least = min(least, time.perf_counter_ns() - started)
        best[name] = least / BLOCK_ITEMS
    return best


if __name__ == "__main__":
    print(f"NumPy {np.__version__}, blocks of {BLOCK_ITEMS} float64, best of {REPEATS}, ns an element")
    for name, each in measure().items():
        print(f"{name:20} {each:.2f}")
