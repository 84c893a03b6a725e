"""Fuzzes for long: `python -m tests.fuzz --target frames --inputs 10000000`. See docs/contributors.md."""

from __future__ import annotations

import argparse
import logging
import math
import os
import resource
import sys
from pathlib import Path

from tests.fuzz.registry import TARGETS
from tests.fuzz.runner import BUILD, LastInput, fuzz, read_one, save

SPARE_BYTES = 4 * 1024**3
"""Of address space that a run may take beyond what it has: an input that asks for more must not take the machine."""


def main() -> int:
    """Run; 1 when there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=sorted(TARGETS), required=True)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (default: 1000000)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so many (default: never)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: 0)")
    parser.add_argument("--input", type=Path, help="read this file alone")
    options = parser.parse_args()
    path = BUILD / f"{options.target}.last"
    LastInput(path)
    child = os.fork()
    if not child:
        status = 2
        try:
            status = _run(options, LastInput(path))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        target = TARGETS[options.target]()
        where = save(target, LastInput.left_in(path), BUILD)
        target.close()
        print(f"FOUND: the process died of signal {-status}; the input is {where}")
        return 1
    return status


def _run(options: argparse.Namespace, last: LastInput) -> int:
    logging.disable()
    target = TARGETS[options.target]()
    try:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + SPARE_BYTES, taken + SPARE_BYTES))
        if options.input is not None:
            found = read_one(target, options.input.read_bytes())
            print(f"FOUND: {found}" if found else "nothing was found")
            return bool(found)
        outcome = fuzz(target, options.inputs, options.seed, last, options.seconds)
    finally:
        target.close()
    rate = outcome.inputs / max(outcome.seconds, 1e-9)
    print(
        f"{target.name}: {outcome.inputs:,} inputs, seed {options.seed}, {outcome.taken:,} taken, "
        f"{outcome.seconds:.1f} s, {rate:,.0f} inputs/s, {len(outcome.findings)} findings"
    )
    for found, data in outcome.findings.items():
        print(f"FOUND: {found}; the input is {save(target, data, BUILD)}")
    return bool(outcome.findings)


if __name__ == "__main__":
    sys.exit(main())
