"""Two gateways that work for long under faults: `python -m tests.soak --rounds 2000`. See docs/testing.md."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.measure import Growth, Sample, growth
from tests.soak.runner import FILL_SESSIONS, LAYOUT, SETTINGS, START_SECONDS, Outcome, Soak
from tests.support.certificates import TestAuthority
from tests.support.shared_memory import room_for_regions
from tests.support.sites import InProcesses, start_gateways


def main() -> int:
    """Run; 1 when something was wrong, or has grown."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--every", type=int, default=20, help="a fault strikes in each so many rounds (default: 20)")
    parser.add_argument(
        "--kills", type=float, default=0.5, help="of the rounds have kills; then each lives on (default: 0.5)"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so many (default: never)")
    parser.add_argument(
        "--warm-up", type=int, help="rounds after the last kill that are not judged yet (default: a fifth of the rest)"
    )
    parser.add_argument(
        "--fill",
        type=int,
        default=FILL_SESSIONS,
        help="short sessions after the last kill, by which all that is remembered of the past comes to its bounds "
        f"(default: {FILL_SESSIONS}; 0: none)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: 0)")
    parser.add_argument("--transport", default="tcp", help="of the gateways (default: tcp)")
    parser.add_argument("--keep", type=Path, help="keep the gateways' files here")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="test-of-fedrdma-") as memory,
        tempfile.TemporaryDirectory(prefix="soak") as scratch,
    ):
        outcome = _run(options, options.keep or Path(scratch), memory)
    grown = [each for site, samples in outcome.samples.items() for each in growth(site, samples, options.warm_up)]
    print(table(outcome, grown))
    if options.json:
        document = {
            "options": {name: str(value) for name, value in vars(options).items()},
            "outcome": {
                **vars(outcome),
                "samples": {site: list(map(dataclasses.asdict, each)) for site, each in outcome.samples.items()},
            },
            "growth": [{**dataclasses.asdict(each), "flat": each.flat} for each in grown],
        }
        options.json.write_text(json.dumps(document, indent=1))
    return int(bool(outcome.wrong) or not all(each.flat for each in grown))


def _run(options: argparse.Namespace, directory: Path, memory: str) -> Outcome:
    authority = TestAuthority(directory / "tls")
    settings = {**SETTINGS, "memory": {**SETTINGS["memory"], "directory": memory}, "transport": options.transport}
    with start_gateways(LAYOUT, directory, runner=InProcesses(START_SECONDS), authority=authority, **settings) as sites:
        soak = Soak(sites, authority, options.seed)
        soak.run(
            options.rounds,
            options.every,
            kill_until=int(options.rounds * options.kills),
            deadline=time.monotonic() + options.seconds,
            fill=options.fill,
            tell=lambda line: print(line, flush=True),
        )
        return soak.outcome


def table(outcome: Outcome, grown: list[Growth]) -> str:
    """For people."""
    fields = [field.name for field in dataclasses.fields(Sample)]
    lines = [
        f"{outcome.rounds} rounds, {outcome.messages} messages, {outcome.total_bytes / 1e6:.0f} MB checked in "
        f"{outcome.seconds:.0f} s; {sum(outcome.faults.values())} faults, {outcome.renewed} certificates renewed",
        "faults: " + ", ".join(f"{count} {kind}" for kind, count in outcome.faults.most_common()),
        "attempts whose tasks were told: " + ", ".join(f"{count} {code}" for code, count in outcome.repeated.items()),
    ]
    for site, samples in outcome.samples.items():
        lines.append(f"\n{site:>4} " + " ".join(f"{name.removesuffix('_kib'):>11}" for name in fields))
        step = max(1, len(samples) // 12)
        for sample in samples[::step]:
            lines.append("     " + " ".join(f"{getattr(sample, name):>11}" for name in fields))
    if grown:
        lines.append("\nsite what          rounds      early       late  growth")
    else:
        lines.append("\ngrowth is not judged: no gateway has lived long enough after its warm-up")
    for each in grown:
        verdict = "" if each.flat else "  TOO MUCH"
        lines.append(
            f"{each.site:4} {each.what:12} {each.rounds:7} {each.early:10.0f} {each.late:10.0f} {each.fraction:7.1%}"
            f"{verdict}"
        )
    lines += [f"WRONG: {each}" for each in outcome.wrong]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
