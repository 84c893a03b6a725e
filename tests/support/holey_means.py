"""What aggregation takes of updates with holes, over what it takes of the same without, in CPU seconds of one run.

    .venv/bin/python -m tests.support.holey_means                      # GPT-2's bytes; 2 GB of memory, masked 4 GB

All silos have the same numbers, and each lacks chunks of its own by chance: what is added does not depend on the
values. With and without take turns, and the least of each counts, so that a busy host changes little.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import numpy as np
from fate_utils.secure_aggregation_helper import MixAggregate

from fedrdma_fate.fate.aggregation.holes import Array, Holes, HoleyMean, MaskedMean, PlainMean

GPT2_BYTES = 995_000_000
"""Of an update of GPT-2 in double precision."""
ARRAYS = 100
"""About so many matrices it has."""
CHUNK_BYTES = 16_384
"""What is missing is missing in these."""
ITEM_BYTES = 8
"""Of a number in double precision."""


def holes_of(arrays: Sequence[Array], share: float, seed: int) -> Holes:
    """Chunks that are missing by chance."""
    chance, step = random.Random(seed), CHUNK_BYTES // ITEM_BYTES
    found = {
        number: tuple((at, min(at + step, array.size)) for at in range(0, array.size, step) if chance.random() < share)
        for number, array in enumerate(arrays)
    }
    return {number: ranges for number, ranges in found.items() if ranges}


def seconds_of(make: Callable[[], HoleyMean], arrays: list[Array], missing: Sequence[Holes], *, pairs: bool) -> float:
    """CPU seconds of one aggregation, of as many silos as there are holes of."""
    last = arrays[::2] if pairs else arrays
    given = list(zip(arrays[::2], arrays[1::2], strict=True)) if pairs else arrays
    began = time.process_time()
    mean = make()
    for each in missing:
        mean.add(given, 1.0, each)
    mean.finish(last)
    return time.process_time() - began


def measure(kind: str, update_bytes: int, silos: int, share: float, repeats: int) -> tuple[float, float]:
    """The least seconds without holes, and with."""
    pairs = kind == "masked"
    planes = 2 if pairs else 1
    made = np.random.default_rng(1)
    rows = max(update_bytes // ITEM_BYTES // ARRAYS // 1000, 1)
    arrays = [made.standard_normal((rows, 1000)) for _ in range(planes * ARRAYS)]
    make: Callable[[], HoleyMean] = (lambda: MaskedMean(MixAggregate)) if pairs else PlainMean
    holes = [holes_of(arrays, share, seed) for seed in range(silos)]
    whole: list[Holes] = [{}] * silos
    taken = [
        (seconds_of(make, arrays, whole, pairs=pairs), seconds_of(make, arrays, holes, pairs=pairs))
        for _ in range(repeats)
    ]
    without, beside = zip(*taken, strict=True)
    return min(without), min(beside)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each kind and share."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.holey_means", description=__doc__)
    parser.add_argument("--bytes", type=int, default=GPT2_BYTES, help="of an update, of a plane of a masked one")
    parser.add_argument("--silos", type=int, default=8)
    parser.add_argument("--missing", type=float, nargs="+", default=[0.01, 0.1], help="shares of the chunks")
    parser.add_argument("--kinds", nargs="+", choices=("plain", "masked"), default=["plain", "masked"])
    parser.add_argument("--repeats", type=int, default=2)
    chosen = parser.parse_args(arguments)
    print("| updates | missing | without holes | with | times |\n|---|---|---|---|---|")
    for kind in chosen.kinds:
        for share in chosen.missing:
            without, beside = measure(kind, chosen.bytes, chosen.silos, share, chosen.repeats)
            print(f"| {kind} | {share:g} | {without:.2f} s | {beside:.2f} s | {beside / without:.2f} |", flush=True)


if __name__ == "__main__":
    main()
