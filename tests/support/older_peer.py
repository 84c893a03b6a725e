"""FATE's secure aggregation between gateways of today and of an older revision of this repository.

    python -m tests.support.older_peer REVISION [--rows arbiter,site]

The revision's tree is checked out into a temporary folder, and runs with what else is installed here. Four clients of
two sites and an arbiter at a third; gateways and parties of the sites that a row names have the older package, tasks
and all, the others today's. What each client has in the end is held against the mean of what all have sent.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT
from tests.support.sites import InProcesses, Site, Sites, start_gateways

LAYOUT = {
    "a": ["arbiter:9000"],
    "b": ["guest:1", "host:2"],
    "c": ["host:3", "host:4"],
}
CLIENTS = 4
ROUNDS = 3
ITEMS = 200_000
"""Of an update: 3.2 MB masked."""
MOST_ERROR = 1e-7
"""Of the mean: what masks of 10^7 cost of a float64, ten times over."""
STEP_SECONDS = 120.0
"""For a gateway to start on a busy host."""
JOB_SECONDS = 600.0

ROWS = {"today": "", "arbiter": "a", "site": "b", "sites": "bc", "parent": "b", "arbiter-of-tree": "a"}
"""Which sites are of the older revision."""
TREES = ("parent", "arbiter-of-tree")
"""Rows in which c names b as its parent."""


@dataclasses.dataclass(frozen=True)
class Older:
    """What an older revision runs with.

    Attributes:
        tree: checked out.
        environment: a virtual environment with its package, and everything else of this one.
    """

    tree: Path
    environment: Path


class OfRevisions(InProcesses):
    """Gateways of which some run from another tree."""

    def __init__(self, older: Older, sites: str) -> None:
        """
        Args:
            older: the other tree.
            sites: names of those that run from there.
        """
        super().__init__(STEP_SECONDS)
        self._tree, self._environment = older.tree, older.environment
        self._older = sites

    def command(self, site: Site) -> list[str]:
        """How `fedrdma` is called for a site."""
        return [*self.python_of(site.name), "-m", "fedrdma_fate.cli.main"]

    def python_of(self, site: str) -> list[str]:
        """An interpreter that imports the package of this site."""
        if site in self._older:
            # workers look at neither the folder that one is in nor PYTHONPATH
            return ["env", "-u", "PYTHONPATH", "-C", str(self._tree), str(self._environment / "bin" / "python")]
        return ["env", "-C", str(ROOT), f"PYTHONPATH={ROOT}", sys.executable]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of a row.

    Attributes:
        older: sites of the older revision.
        most_error: of an element of the mean at any client, in any round.
        updates: that came to the arbiter's gateway by themselves.
        sums: of sites that came there.
        added: updates that its gateway has added; None: that package says nothing of sums.
        session: of the job.
    """

    older: str
    most_error: float
    updates: int
    sums: int
    added: int
    session: str


@contextlib.contextmanager
def older(revision: str) -> Iterator[Older]:
    """This revision, for a while."""
    with tempfile.TemporaryDirectory(prefix="older-") as directory:
        found = Older(Path(directory) / "tree", Path(directory) / "environment")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(found.tree), revision], check=True)
        try:
            venv.create(found.environment, symlinks=True)
            (packages,) = (found.environment / "lib").glob("python*/site-packages")
            here = sysconfig.get_path("purelib")
            # a package of the tree comes before one that is installed here
            (packages / "older.pth").write_text(f"{found.tree}\nimport site; site.addsitedir({here!r})\n")
            yield found
        finally:
            subprocess.run([*git, "remove", "--force", str(found.tree)], check=True)


def run_row(row: str, revision: Older, home: Path) -> Outcome:
    """One job.

    Raises:
        AssertionError: a party failed, or has a mean that is none.
    """
    home.mkdir()
    runner = OfRevisions(revision, ROWS[row])

    def of_site(name: str) -> dict[str, Any]:
        return {"aggregate": {"parent": "b"}} if row in TREES and name == "c" else {}

    with start_gateways(
        LAYOUT,
        home,
        runner=runner,
        of_site=of_site,
        memory={"send_bytes": "48MiB", "receive_bytes": "48MiB"},
        timeouts={"idle": 60.0, "connect": 5.0, "drain": 5.0},
    ) as sites:
        parties = _run_parties(row, sites, runner, home)
        events = [
            each for each in sites["a"].events("delivered") if each["session"] == row and "mixed_client" in each["name"]
        ]
        sums = sum("sum of a site" in each["name"] for each in events)
        added = sum(each["added"] for each in sites["a"].events("summed") if each["session"] == row)
    for name, told in parties.items():
        is_older = any(name.replace("-", ":") in LAYOUT[site] for site in ROWS[row])
        assert told["package"].startswith(str(revision.tree if is_older else ROOT)), told
    errors = [error for told in parties.values() for error in told["errors"]]
    assert len(errors) == CLIENTS * ROUNDS, parties
    assert max(errors) < MOST_ERROR, errors
    return Outcome(ROWS[row], max(errors), len(events) - sums, sums, added, row)


def _run_parties(row: str, sites: Sites, runner: OfRevisions, home: Path) -> dict[str, dict[str, Any]]:
    """What each party says in the end."""
    program = Path(__file__).with_name("older_peer_parties.py")
    everybody = [name.split(":") for name in sorted(itertools.chain.from_iterable(LAYOUT.values()))]
    processes = []
    for site, names in LAYOUT.items():
        mine = [name.split(":") for name in names]
        asked = {"session": row, "address": sites[site].address, "everybody": everybody, "mine": mine}
        asked |= {"home": str(home), "rounds": ROUNDS, "items": ITEMS}
        with (home / f"parties-{site}.log").open("w") as log:
            # run by its path, the tests' folder would come first of all
            code = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
            process = subprocess.Popen(
                [*runner.python_of(site), "-c", code], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        processes.append(process)
    try:
        for process in processes:
            process.wait(JOB_SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    told = {path.stem: json.loads(path.read_text()) for path in home.glob("*-*.json")}
    failed = {party: each["failed"] for party, each in told.items() if "failed" in each}
    assert len(told) == len(everybody), f"of {len(everybody)} parties {sorted(told)} have ended"
    assert not failed, "\n".join(f"{party}:\n{text}" for party, text in failed.items())
    return told


def main() -> None:
    """Run jobs, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="as git takes it")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--keep", type=Path, help="directory for logs, which must not be there yet")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = asked.keep or Path(directory)
        home.mkdir(exist_ok=True)
        rows = asked.rows.split(",")
        print("row              older  updates  sums of sites  added   largest error")
        with older(asked.revision) as revision:
            for row in rows:
                done = run_row(row, revision, home / row)
                print(
                    f"{row:16} {done.older or '-':5}  {done.updates:7}  {done.sums:13}  {done.added:5}   "
                    f"{done.most_error:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
