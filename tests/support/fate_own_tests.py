"""FATE's own party scripts and launchers, over FATE's standalone federation and over gateways, in one table.

`python -m tests.support.fate_own_tests --fate DIRECTORY [--only WORD ...] [--results FILE]`, where the directory has
FATE's source, release 2.2.0. Of what is run, FATE's package itself has the scripts of `fate/ml/nn` alone, and no data:
without `--fate` those are run, on data drawn with the same columns. Scripts that need what is not here are listed with
the reason. With `--results` each result is kept as it is found, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import importlib.util
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.fate_own_party import VARIABLE, Surroundings
from tests.support.gateways import PartyTuple, Silos, running_gateways
from tests.support.repository import ROOT

SECONDS = 300.0
"""For a script over one federation; the longest of these takes a third of it on two cores that nobody else uses."""

LONG_SECONDS = 600.0
"""For those that train many trees, or compute on shared secrets; what takes longer still is told so."""

GRACE_SECONDS = 5.0
"""For the other parties, once one has failed: what they still say tells why."""

GET_PART = 0.2
"""Of a script's time, for a get of ours: a party whose peer has ended says so before that time is over."""

POLL_SECONDS = 0.05
"""Between two looks at the parties: little beside the seconds in which a time is told."""

FEDERATIONS = ("standalone", "gateways")

ML = "python/fate/ml"
LAUNCHERS = "examples/launchers"
DATA = "examples/data"

NO_LABEL, LABEL = ("id",), ("id", "y")
DRAWN = {
    "breast_hetero_guest.csv": (LABEL, 10),
    "breast_hetero_host.csv": (NO_LABEL, 20),
    "breast_homo_guest.csv": (LABEL, 30),
    "breast_homo_host.csv": (LABEL, 30),
    "breast_homo_test.csv": (LABEL, 30),
}
"""What the installed scripts read: leading columns, and how many more."""

DRAWN_ROWS = 569
"""As many as FATE's breast data has; the scripts name the number."""

HOSTS_OF_MANY = "FATE/FATE-2.0/scripts"
"""Below the home directory: where a script looks for two files that FATE does not have; both are the host's breast
data here."""

Parties = Mapping[str, PartyTuple]
"""By what a script calls them on its command line; by nothing where it takes no argument."""

TWO: Parties = {"guest": ("guest", "10000"), "host": ("host", "9999")}
THREE: Parties = {**TWO, "arbiter": ("arbiter", "10000")}
TWO_HOSTS: Parties = {"guest": ("guest", "10000"), "host_0": ("host", "9999"), "host_1": ("host", "9998")}
ALONE: Parties = {"": ("guest", "10000")}
LAUNCHED: Parties = {"guest": ("guest", "9999"), "host": ("host", "10000")}


@dataclasses.dataclass(frozen=True)
class Script:
    """One of FATE's own.

    Attributes:
        path: in FATE's source.
        parties: who runs it.
        arguments: of a launcher.
        seconds: for it over one federation, where not `SECONDS`.
        wants: a module that FATE does not require; the script fetches data with it, too.
    """

    path: str
    parties: Parties
    arguments: tuple[str, ...] = ()
    seconds: float = SECONDS
    wants: str = ""

    @property
    def name(self) -> str:
        """As it is called in the table."""
        return self.path.removeprefix("python/")

    @property
    def launched(self) -> bool:
        """Whether FATE's launcher starts its parties."""
        return self.path.startswith(LAUNCHERS)

    def lacks(self, root: Path) -> str:
        """Why it cannot be run, or nothing."""
        if self.wants and importlib.util.find_spec(self.wants) is None:
            return f"{self.wants} is not installed, and its data would be fetched"
        return "" if (root / self.path).exists() else "not in FATE's package"


def _breast(guest: str = "breast_hetero_guest.csv", host: str = "breast_hetero_host.csv") -> tuple[str, ...]:
    return ("--guest_data", f"../data/{guest}", "--host_data", f"../data/{host}")


_BOOST = f"{ML}/ensemble/algo/secureboost/test"
_TREE = f"{ML}/ensemble/learner/decision_tree"
_NN = f"{ML}/nn/test"

SCRIPTS = (
    Script(f"{ML}/aggregator/test/test_aggregator.py", THREE),
    Script(f"{ML}/aggregator/test/test_fate_utils.py", THREE),
    Script(f"{ML}/glm/homo/lr/test/test_fed_lr.py", THREE),
    Script(f"{ML}/glm/homo/lr/test/test_local.py", ALONE),
    Script(f"{_NN}/test_agglayer.py", TWO),
    Script(f"{_NN}/test_homo_nn_binary.py", THREE),
    Script(f"{_NN}/test_hetero_nn_algo.py", TWO),
    Script(f"{_NN}/test_hetero_nn_algo_no_guest.py", TWO),
    Script(f"{_NN}/test_hetero_nn_algo_val.py", TWO),
    Script(f"{_NN}/test_hetero_nn_sshe.py", TWO),
    Script(f"{_NN}/test_sshe_nn_layer.py", TWO),
    Script(f"{_NN}/test_fedpass_tabular.py", TWO),
    Script(f"{_NN}/test_fedpass_lenet.py", TWO, wants="torchvision"),
    Script(f"{_NN}/test_fedpass_alexnet.py", TWO, wants="torchvision"),
    Script(f"{_BOOST}/test_goss.py", ALONE),
    Script(f"{_BOOST}/test_hetero_sbt_binary.py", TWO),
    Script(f"{_BOOST}/test_hetero_sbt_binary_with_goss.py", TWO),
    Script(f"{_BOOST}/test_hetero_sbt_binary_multi_host.py", TWO_HOSTS),
    Script(f"{_BOOST}/test_hetero_sbt_multi.py", TWO, seconds=LONG_SECONDS),
    Script(f"{_BOOST}/test_hetero_sbt_regression.py", TWO, seconds=LONG_SECONDS),
    # the guest's part of it is a comment, so that the host waits
    Script(f"{_TREE}/test/test_decision_tree.py", TWO, seconds=45.0),
    Script(f"{_TREE}/test/test_local_decision_tree.py", TWO, seconds=LONG_SECONDS),
    Script(f"{_TREE}/tree_core/test/test_loss.py", ALONE),
    Script(f"{LAUNCHERS}/secureboost_launcher.py", LAUNCHED),
    Script(f"{LAUNCHERS}/pearson_launcher.py", LAUNCHED, _breast()),
    Script(f"{LAUNCHERS}/sshe_lr_launcher.py", LAUNCHED, _breast(), seconds=LONG_SECONDS),
    Script(
        f"{LAUNCHERS}/sshe_linr_launcher.py",
        LAUNCHED,
        _breast("motor_hetero_guest.csv", "motor_hetero_host.csv"),
        seconds=LONG_SECONDS,
    ),
    Script(f"{LAUNCHERS}/sshe_nn_launcher.py", LAUNCHED, seconds=LONG_SECONDS),
    Script(f"{LAUNCHERS}/smpc_launcher.py", LAUNCHED, ("--proc", "fate.ml.mpc:MPCModule")),
    Script(f"{LAUNCHERS}/fedpass_nn_launcher.py", LAUNCHED, wants="torchvision"),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a script over one federation.

    Attributes:
        outcome: `ended`, or what happened.
        seconds: from the start of the first party to the end of the last.
        messages: that the gateways took; 0 over the standalone federation.
        printed: by party, without lines that have times.
    """

    outcome: str
    seconds: float
    messages: int = 0
    printed: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether all parties ended well."""
        return self.outcome == "ended"


def make_tree(root: Path, fate: Path | None) -> None:
    """Scripts and data in a directory of their own, as deep as in FATE's source: they find their data by `..`.

    Raises:
        SystemExit: there is no FATE.
    """
    for script in SCRIPTS:
        source = fate / script.path if fate else _installed() / script.name
        if source.exists():
            (root / script.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, root / script.path)
    data = root / DATA
    if fate is None:
        data.mkdir(parents=True)
        for name, (leading, columns) in DRAWN.items():
            _draw(data / name, leading, columns)
    elif not (fate / DATA).is_dir():
        raise SystemExit(f"{fate} has no {DATA}: it is no source of FATE")
    else:
        data.parent.mkdir(parents=True, exist_ok=True)
        data.symlink_to((fate / DATA).resolve())
    many = root / "home" / HOSTS_OF_MANY
    many.mkdir(parents=True)
    for number in range(2):
        shutil.copy(data / "breast_hetero_host.csv", many / f"hetero_breast_host_{number}.csv")


def _installed() -> Path:
    """Where the package `fate` lies."""
    found = importlib.util.find_spec("fate")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("FATE is not installed")
    return Path(next(iter(found.submodule_search_locations))).parent


def _draw(path: Path, leading: Sequence[str], columns: int) -> None:
    chance = random.Random(7)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*leading, *(f"x{number}" for number in range(columns))])
        for number in range(DRAWN_ROWS):
            values = [round(chance.gauss(0, 1), 6) for _ in range(columns)]
            label = [int(values[0] + values[1] > 0)] if "y" in leading else []
            rows.writerow([number, *label, *values])


def run_script(script: Script, root: Path, directory: Path, silos: Silos | None, most_seconds: float) -> Result:
    """Run it over the gateways, or over FATE's standalone federation where there are none.

    Args:
        script: to be run.
        root: what `make_tree` made.
        directory: for what the parties print, log and keep; made here.
        silos: gateways of all its parties.
        most_seconds: then its parties are killed.
    """
    directory.mkdir(parents=True)
    session = f"own-{secrets.token_hex(4)}"
    gateways = silos.addresses if silos else {}
    surroundings = Surroundings(session, str(directory / "data"), gateways, GET_PART * most_seconds)
    environment = {
        **os.environ,
        VARIABLE: json.dumps(dataclasses.asdict(surroundings)),
        "HOME": str(root / "home"),
        "PYTHONPATH": str(ROOT),
    }
    commands = _commands(script, surroundings)
    outcome, seconds = run_parties(commands, (root / script.path).parent, environment, directory, most_seconds)
    printed = {} if script.launched else {name: _printed(directory / f"{name}.out") for name in commands}
    messages = sum(count for key, count in silos.pushed().items() if key[0] == session) if silos else 0
    return Result(outcome, round(seconds, 1), messages, printed)


def _commands(script: Script, surroundings: Surroundings) -> dict[str, list[str]]:
    file = Path(script.path).name
    if not script.launched:
        base = [sys.executable, "-m", "tests.support.fate_own_party", file]
        return {name or "alone": [*base, *([name] if name else [])] for name in script.parties}
    command = [sys.executable, file, "--parties", *(":".join(party) for party in script.parties.values())]
    command += ["--log_level", "INFO", f"--data_dir={surroundings.data}", *script.arguments]
    command += [f"--federation_session_id={surroundings.session}"]
    if surroundings.gateways:
        gateways = ",".join(f"{party}={address}" for party, address in surroundings.gateways.items())
        command += ["--federation_engine=fedrdma", f"--fedrdma_gateways={gateways}"]
        command += [f"--fedrdma_get_timeout={surroundings.get_seconds}"]
    return {"launcher": command}


def run_parties(
    commands: Mapping[str, Sequence[str]],
    where: Path,
    environment: Mapping[str, str],
    directory: Path,
    most_seconds: float,
) -> tuple[str, float]:
    """Run the parties of a script, and end those that are left; what became of them, and after how many seconds.

    Args:
        commands: by the name of the party.
        where: they are run in.
        environment: of theirs.
        directory: for what they print, `NAME.out`, and what they log, `NAME.log`.
        most_seconds: for the last of them to end.
    """
    start = time.monotonic()
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            out = stack.enter_context((directory / f"{name}.out").open("wb"))
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            # a group of its own: with the workers that FATE forks it can be killed whole
            processes[name] = stack.enter_context(
                subprocess.Popen(
                    command, cwd=where, env=dict(environment), stdout=out, stderr=log, start_new_session=True
                )
            )
            stack.callback(_kill_group, processes[name].pid)
        deadline, failing = start + most_seconds, False
        while any(process.poll() is None for process in processes.values()) and time.monotonic() < deadline:
            if not failing and any(process.poll() for process in processes.values()):
                failing, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - start
        failed = [name for name, process in processes.items() if process.poll()]
        waiting = [name for name, process in processes.items() if process.poll() is None]
    if failed:
        return f"{failed[0]} failed: {_last_words(directory, failed[0])}", seconds
    if waiting:
        return f"{' and '.join(waiting)} still ran after {most_seconds:.0f} s", seconds
    return "ended", seconds


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _last_words(directory: Path, name: str) -> str:
    """The last line of a party's log that names an error."""
    text = "".join((directory / f"{name}.{kind}").read_text(errors="replace") for kind in ("out", "log"))
    lines = [line.strip(" │|") for line in text.splitlines()]
    errors = [line for line in lines if "Error" in line.partition(":")[0] and " " not in line.partition(":")[0]]
    return (errors or [line for line in lines if line] or ["nothing was said"])[-1][:160]


def _printed(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if "runtime" not in line)


HEADING = ("script", "standalone", "time", "gateways", "time", "messages", "printed")


def row(script: Script, results: Mapping[str, Result], lacks: str) -> list[str]:
    """Its line of the table."""
    if lacks:
        return [script.name, f"not run: {lacks}", *[""] * (len(HEADING) - 2)]
    standalone, ours = (results[name] for name in FEDERATIONS)
    cells = [script.name]
    for result in (standalone, ours):
        cells += [result.outcome.replace("|", "/"), f"{result.seconds:.0f} s"]
    return [*cells, str(ours.messages), _compared(standalone, ours)]


def _compared(standalone: Result, ours: Result) -> str:
    if not (standalone.ended and ours.ended and any(standalone.printed.values())):
        return ""
    return "same" if standalone.printed == ours.printed else "other"


def chosen(words: Sequence[str]) -> list[Script]:
    """Those whose name has one of the words; all without words.

    Raises:
        SystemExit: a word fits none.
    """
    for word in words:
        if not any(word in script.name for script in SCRIPTS):
            raise SystemExit(f"no script of FATE's has {word} in its name")
    return [script for script in SCRIPTS if not words or any(word in script.name for word in words)]


class Kept:
    """Results in a file, so that a run that was cut short goes on."""

    def __init__(self, path: Path | None) -> None:
        """
        Args:
            path: none: nothing is kept.
        """
        self._path = path
        self.results: dict[str, dict[str, dict[str, Any]]] = (
            json.loads(path.read_text()) if path is not None and path.exists() else {}
        )

    def of(self, script: Script, federation: str) -> Result | None:
        """What was found earlier."""
        found = self.results.get(script.name, {}).get(federation)
        return None if found is None else Result(**found)

    def keep(self, script: Script, federation: str, result: Result) -> None:
        """Write it down."""
        self.results.setdefault(script.name, {})[federation] = dataclasses.asdict(result)
        if self._path is not None:
            self._path.write_text(json.dumps(self.results, indent=1))


@contextlib.contextmanager
def gateways_of(scripts: Sequence[Script], directory: Path) -> Iterator[Silos]:
    """A gateway for each party of the scripts."""
    parties = {party: None for script in scripts for party in script.parties.values()}
    with running_gateways(directory, list(parties)) as silos:
        yield silos


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fate", type=Path, help="FATE's source, release 2.2.0")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="scripts with it in their name")
    parser.add_argument("--seconds", type=float, help="for a script over one federation, in place of its own limit")
    parser.add_argument("--results", type=Path, help="JSON file with what was found; what is there is not run again")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, not as a table")
    parser.add_argument("--logs", type=Path, help="a directory that does not exist yet, for what the parties print")
    given = parser.parse_args()
    scripts, kept = chosen(given.only), Kept(given.results)
    with contextlib.ExitStack() as stack:
        directory = given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root = directory / "fate"
        make_tree(root, given.fate)
        runnable = [script for script in scripts if not script.lacks(root)]
        todo = [script for script in runnable if any(kept.of(script, name) is None for name in FEDERATIONS)]
        silos = stack.enter_context(gateways_of(todo, directory / "gateways")) if todo else None
        if not given.json:
            print("| " + " | ".join(HEADING) + " |\n|" + "---|" * len(HEADING), flush=True)
        for script in scripts:
            lacks = script.lacks(root)
            results = {}
            for name in () if lacks else FEDERATIONS:
                result = kept.of(script, name)
                if result is None:
                    most = script.seconds if given.seconds is None else given.seconds
                    place = directory / name / script.path
                    result = run_script(script, root, place, silos if name == "gateways" else None, most)
                    kept.keep(script, name, result)
                results[name] = result
            if not given.json:
                print("| " + " | ".join(row(script, results, lacks)) + " |", flush=True)
    if given.json:
        print(json.dumps(kept.results, indent=1))


if __name__ == "__main__":
    main()
