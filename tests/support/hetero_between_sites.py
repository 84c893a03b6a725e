"""SecureBoost and coordinated logistic regression as jobs of FATE Flow, between two sites and over standalone.

`python -m tests.support.hetero_between_sites DIRECTORY GUEST.csv HOST.csv [--way fedrdma] [--algorithm lr]` prints for
each job how many rows' scores differ from those over standalone at one FATE Flow, and by how much. The files are
those of FATE's examples, breast_hetero_guest.csv and breast_hetero_host.csv. DIRECTORY does not exist yet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from examples.gpt2_advertisegen.plan import CLIENTS, GUEST
from tests.support.fate_flow import FateFlow
from tests.support.gpt2_between_sites import WAYS, running
from tests.support.two_fate_flows import MEMORY

JOB = Path(__file__).resolve().parents[1] / "fate" / "jobs" / "hetero.py"
ALGORITHMS = ("secureboost", "lr")


class Row(msgspec.Struct, frozen=True):
    """One job.

    Attributes:
        way: what carried it.
        algorithm: what was trained.
        rows: that have a score.
        differ: scores that are not those over standalone.
        most: the largest difference of a score.
        most_in_model: the largest difference of two numbers of the guest's model, where both are of one form.
    """

    way: str
    algorithm: str
    rows: int
    differ: int
    most: float
    most_in_model: float | None


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("guest", type=Path)
    parser.add_argument("host", type=Path)
    parser.add_argument("--way", action="append", choices=WAYS[1:], help="default: all of them")
    parser.add_argument("--algorithm", action="append", choices=ALGORITHMS, help="default: both")
    arguments = parser.parse_args()
    files = {"guest": arguments.guest.resolve(), "host": arguments.host.resolve()}
    ways = ["standalone", *(arguments.way or WAYS[1:])]
    for row in rows(arguments.directory.resolve(), files, ways, arguments.algorithm or ALGORITHMS):
        print(json.dumps(msgspec.to_builtins(row)), flush=True)


def rows(directory: Path, files: Mapping[str, Path], ways: Sequence[str], algorithms: Sequence[str]) -> Iterator[Row]:
    """Run the jobs, one after the other.

    Args:
        directory: does not exist yet.
        files: of guest and host.
        ways: what is to carry them, standalone first.
        algorithms: one job each.
    """
    directory.mkdir(parents=True)
    standalone: dict[str, Any] = {}
    for way in ways:
        with running(directory / way, way, dict.fromkeys(("a", "b"), MEMORY)) as (_, flows):
            for client in CLIENTS:
                _client(flows[client], "--upload", str(files[client.role]), "--role", client.role)
            for algorithm in algorithms:
                found = json.loads(_client(flows[GUEST], "--algorithm", algorithm))
                beside = standalone.setdefault(algorithm, found)
                yield compared(way, algorithm, found, beside)


def _client(flow: FateFlow, *options: str) -> str:
    command = [str(flow.python), str(JOB), "--port", str(flow.port), *options]
    done = subprocess.run(command, env=flow.environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{options} has failed. {flow.logs()}")
    return done.stdout


def compared(way: str, algorithm: str, found: Mapping[str, Any], beside: Mapping[str, Any]) -> Row:
    """How what came of a job differs from what came of another.

    Raises:
        ValueError: they have not the same rows.
    """
    one, other = found["scores"], beside["scores"]
    if one.keys() != other.keys():
        raise ValueError(f"{len(one)} rows have scores, of which {len(one.keys() & other.keys())} are the other's")
    steps = [abs(one[name] - other[name]) for name in one]
    left, right = (list(numbers(each["model"])) for each in (found, beside))
    same_form = [name for name, _ in left] == [name for name, _ in right]
    in_model = [abs(mine - its) for (_, mine), (_, its) in zip(left, right, strict=False)]
    return Row(
        way=way,
        algorithm=algorithm,
        rows=len(one),
        differ=sum(step > 0 for step in steps),
        most=max(steps),
        most_in_model=max(in_model, default=0.0) if same_form else None,
    )


def numbers(document: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in a model's document that training makes, with their places; ids and times are texts."""
    if isinstance(document, Mapping):
        for key in sorted(document):
            yield from numbers(document[key], f"{name}.{key}")
    elif isinstance(document, list):
        for index, each in enumerate(document):
            yield from numbers(each, f"{name}[{index}]")
    elif isinstance(document, float):
        yield name, document


if __name__ == "__main__":
    main()
