"""On host 0: runs of the matrix of faults with a gateway on each of two hosts; a line of JSON for each cell.

verbs_matrix.py FIRST COUNT FAULT/MODE...

The seed of the first run of each cell, how many runs it has, and the cells.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.support.gateway_matrix import run_cell
from tests.support.matrix import MODES
from tests.support.verbs_matrix import FAULTS_OVER_VERBS, place_on_hosts


def main(first: str, count: str, *cells: str) -> None:
    seeds = range(int(first), int(first) + int(count))
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        try:
            with place_on_hosts(home) as place:
                for cell in cells:
                    fault, _, wanted = cell.partition("/")
                    mode = next(each for each in MODES if each == wanted)
                    result = run_cell(place, FAULTS_OVER_VERBS, fault, mode, "verbs", seeds)
                    print(json.dumps({"cell": result.line(len(seeds)), "wrong": result.wrong}), flush=True)
                    if result.wrong:
                        break
        finally:
            for log in sorted(home.glob("sites/*/log")):
                print(log, log.read_text()[-4000:], sep="\n", file=sys.stderr)


main(*sys.argv[1:])
