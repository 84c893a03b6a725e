"""Fuzzes with inputs that atheris chooses by what code they reach: `python -m tests.fuzz.guided --target objects`.

atheris is an optional tool, which nothing else here needs.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.mutation import MOST_BYTES
from tests.fuzz.runner import BUILD, CORPUS, HANG_SECONDS, MOST_GROWTH

MOST_RSS_MIB = 2048
"""Of the whole process: torch and FATE alone take some hundred."""


def main() -> int:
    """Run libFuzzer on a target; it prints what it does, ends at the first finding, and does not return.

    Only code of the project is instrumented: what is reached in msgspec, pickle or torch does not guide it.
    """
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["fedrdma_fate"]):
        from tests.fuzz.registry import TARGETS
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("--target", choices=sorted(TARGETS), required=True)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (default: 1000000)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default: 1)")
    options = parser.parse_args()
    target = TARGETS[options.target]()

    def read(data: bytes) -> None:
        try:
            target.read(data)
        except target.refusals:
            return

    found, kept = BUILD / target.name, CORPUS / target.name
    corpus = found / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(each)
    arguments = [
        f"-runs={options.inputs}",
        f"-seed={options.seed}",
        f"-max_len={MOST_BYTES}",
        f"-timeout={HANG_SECONDS:.0f}",
        f"-malloc_limit_mb={MOST_GROWTH >> 20}",
        f"-rss_limit_mb={MOST_RSS_MIB}",
        f"-artifact_prefix={found}/",
        str(corpus),
        *([str(kept)] if kept.is_dir() else []),
    ]
    atheris.Setup([sys.argv[0], *arguments], read)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
