"""All cells of the matrix of faults, seed after seed, for hours: what has run is kept, and not run once more.

`python -m tests.support.matrix_sweep FILE --seeds 2000`; see docs/fault-tests.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedrdma_fate.wire.frames import Mode
from tests.support.kept_lines import keep_whole_lines
from tests.support.matrix import HARMLESS, cells, run_once
from tests.support.matrix_table import CellResult, table

BLOCK_SEEDS = 20
"""Of one cell, run in a row: about half a second, which is lost when a sweep is stopped."""

Block = tuple[int, int, str, Mode, str]
"""First seed, how many, and the cell."""


def blocks(first: int, count: int) -> Iterator[Block]:
    """All that there is to run, all cells of the first seeds before any of the next ones.

    Args:
        first: a seed.
        count: of seeds from there.
    """
    for begin in range(first, first + count, BLOCK_SEEDS):
        seeds = min(BLOCK_SEEDS, first + count - begin)
        yield from ((begin, seeds, *cell) for cell in cells())


def run_block(block: Block) -> dict[str, Any]:
    """Run a block, and say what came of it: the block, its line for the table, and each thing that is wrong."""
    first, count, fault, mode, path = block
    result = CellResult(fault, mode, path)
    for seed in range(first, first + count):
        try:
            outcome = run_once(fault, mode, path, seed)
        except Exception as error:  # whatever it is, the other runs go on
            result.wrong.append(f"error: {error!r} (seed {seed})")
            continue
        result.add(outcome, seed, outcome.why if fault in HARMLESS else [])
    return {
        "block": list(block),
        "cell": result.line(count),
        "wrong": result.wrong,
    }


def _prepare() -> None:
    logging.getLogger("fedrdma_fate").setLevel(logging.CRITICAL + 1)
    # a run leaves little that is not freed by counting: to look for more each few hundred objects costs a tenth of it
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def main() -> int:
    """Run what has not been run; 1 when anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.matrix_sweep", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON lines of what has run; a sweep goes on where this one ends")
    parser.add_argument("--seeds", type=int, default=2000, help="runs of each cell (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of them (default: 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at once (default: one a core)")
    options = parser.parse_args()
    results = keep_whole_lines(options.file)
    done = {json.dumps(result["block"]) for result in results}
    todo = [block for block in blocks(options.first, options.seeds) if json.dumps(list(block)) not in done]
    with multiprocessing.Pool(options.processes, _prepare) as pool, options.file.open("a", buffering=1) as file:
        for count, result in enumerate(pool.imap(run_block, todo), start=1):
            file.write(json.dumps(result) + "\n")
            results.append(result)
            if sys.stderr.isatty():
                print(f"\r{count} of {len(todo)} blocks", end="", file=sys.stderr)
    for result in results:
        for sentence in result["wrong"]:
            print(*result["block"][2:], sentence, sep="; ")
    print(table(result["cell"] for result in results))
    return int(any(result["wrong"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
