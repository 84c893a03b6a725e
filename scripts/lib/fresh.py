"""`scripts/fresh`: the project's two commands on a machine that has nothing yet, as root and as an ordinary user."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.lib import fresh_root
from scripts.lib.console import CommandError, fail, say, step
from scripts.lib.fresh_root import NoRootError
from scripts.lib.indexes import read_pip_config

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fresh"
BASE = BUILD / "base.tar"

NO_ROOT = 3
"""Exit status where no bare root can be made: nothing was tried then."""
SHM_BYTES = 64_000_000
"""Of /dev/shm: what containers have."""
MOST_TOLD = 40
"""Lines shown of what one command said was missing; all of them are in its log."""
MOST_REMEDIES = 4
"""An ordinary user is told what to have installed; told more often than this, it does not help."""
_PR_SET_PDEATHSIG = 1

_PATH = "/usr/local/bin:/usr/bin:/bin"
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TOLD = re.compile(r"(error: |note: |warning: |FAILED |ERROR |SKIPPED \[|\s+Run as root:|\[FR\d+\])")
_REMEDY = re.compile(r"^\s*Run as root:\s+(\S.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """Somebody on the fresh machine.

    Attributes:
        kind: as the command line has it.
        name: of the account.
        home: where it is at home; the clone lies below, in a directory with a space.
        path: where it finds programs.
    """

    kind: str
    name: str
    home: str
    path: str

    @property
    def place(self) -> str:
        """What holds the clone, and `shared` beside it."""
        return f"{self.home}/my work"

    @property
    def clone(self) -> str:
        """The clone of the project."""
        return f"{self.place}/fedrdma-fate"


USERS = {
    "root": User("root", "root", "/root", f"/usr/local/sbin:{_PATH}:/usr/sbin:/sbin"),
    "ordinary": User("ordinary", "tester", "/home/tester", _PATH),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Try:
    """One command of one user."""

    user: User
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """For the table, and the name of its log."""
        return f"{self.user.kind}-{Path(self.command[0]).name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of a try.

    Attributes:
        status: its exit status.
        seconds: how long it took.
        told: what it said was missing or failed.
        installed: Debian packages that are there since.
        log: all that it printed.
    """

    tried: Try
    status: int
    seconds: float
    told: tuple[str, ...]
    installed: tuple[str, ...]
    log: Path


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fresh",
        description="Try scripts/demo and scripts/test on a bare machine, since one that was worked on hides what is "
        "missing: a minimal Debian 12 with git and Python and nothing else, made from this machine's own mirror, with "
        "64 MB of /dev/shm, and the committed state of this tree cloned into a path with a space. They run as root, "
        "then as an ordinary user, who is told before what to have installed. Needs root. What is mounted ends with "
        "the run, however it ends; logs stay in build/fresh.",
        epilog=f"What follows -- goes to scripts/test:  scripts/fresh --only test -- --fast    Exit status: 0 all "
        f"well, 1 something failed, {NO_ROOT} no bare root can be made here.",
    )
    parser.add_argument("--only", choices=("demo", "test"), help="only this command")
    parser.add_argument("--user", choices=tuple(USERS), help="only as this user")
    parser.add_argument("--root", type=Path, metavar="DIR", help="make the root in this directory; one that was kept "
                        "there is used again as it is, with the committed state of now")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="do not remove the root at the end")
    parser.add_argument("--reuse", action="store_true", help="start from the bare Debian that an earlier run made")
    parser.add_argument("test_arguments", nargs="*", metavar="-- ARGUMENT", help="arguments for scripts/test")
    return parser.parse_args(arguments)


def plan(only: str | None, user: str | None, test_arguments: Sequence[str]) -> list[Try]:
    """What to try, in order: root first, as whoever administers a machine is there before its users."""
    commands = {"demo": ("scripts/demo",), "test": ("scripts/test", *test_arguments)}
    chosen_users = [USERS[user]] if user else list(USERS.values())
    chosen = [commands[only]] if only else list(commands.values())
    return [Try(each, command) for each in chosen_users for command in chosen]


def told(log: str) -> list[str]:
    """Lines of a log that say what is missing or failed, each once."""
    lines = (_COLOURS.sub("", line).rstrip() for line in log.splitlines())
    return list(dict.fromkeys(line.strip() for line in lines if _TOLD.match(line)))


def remedies(log: str) -> list[str]:
    """Commands that a log asks to be run as root."""
    return list(dict.fromkeys(_REMEDY.findall(_COLOURS.sub("", log))))


def table(results: Sequence[Result]) -> str:
    """What came of every try."""
    rows = [("user", "command", "result", "took", "log")]
    for each in results:
        outcome = "well" if each.status == 0 else f"failed ({each.status})"
        log = str(each.log.relative_to(ROOT) if each.log.is_relative_to(ROOT) else each.log)
        rows.append((each.tried.user.kind, " ".join(each.tried.command), outcome, f"{each.seconds:.0f} s", log))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def findings(result: Result) -> str:
    """What a try installed, and what it said was missing or failed."""
    lines = [f"{result.tried.user.kind}, {result.tried.command[0]}:"]
    if result.installed:
        lines.append(f"  Debian packages installed: {', '.join(result.installed)}")
    lines += [f"  {line}" for line in result.told[:MOST_TOLD]]
    if len(result.told) > MOST_TOLD:
        lines.append(f"  and {len(result.told) - MOST_TOLD} more lines, see the log")
    return "\n".join(lines) if len(lines) > 1 else f"{lines[0]} nothing was missing"


class Machine:
    """A bare root, and the users on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._pip = read_pip_config(fresh_root.PYTHON)
        shared = (ROOT.parent / "shared").resolve()
        self._shared = shared if shared.is_dir() else None

    def prepare(self, users: Sequence[User]) -> None:
        """Tell it of the network, and clone for each user.

        Raises:
            CommandError: git or the accounts failed.
        """
        fresh_root.configure(self.root, self._pip, os.environ)
        for user in users:
            if not (self.root / user.home.lstrip("/")).is_dir():
                _run("chroot", str(self.root), "useradd", "-m", "-s", "/bin/bash", user.name)
            self._clone(user)

    def _clone(self, user: User) -> None:
        clone = self.root / user.clone.lstrip("/")
        if not (clone / ".git").is_dir():
            clone.parent.mkdir(parents=True, exist_ok=True)
            _run("git", "init", "--quiet", str(clone))
        git = ("git", "-c", "safe.directory=*", "-C", str(clone))
        _run(*git, "fetch", "--quiet", str(ROOT), "HEAD")
        _run(*git, "checkout", "--quiet", "--force", "--detach", "FETCH_HEAD")
        self._own(user, user.place)

    def _own(self, user: User, *places: str) -> None:
        _run("chroot", str(self.root), "chown", "-R", "-h", f"{user.name}:", *places)

    def attempt(self, tried: Try) -> Result:
        """Run one command, show and keep what it prints."""
        log = BUILD / f"{tried.name}.log"
        # fetched once for all users, and linked, not copied, into both environments
        cache = "/var/cache/fedrdma-uv"
        (self.root / cache.lstrip("/")).mkdir(exist_ok=True)
        self._own(tried.user, cache)
        before, started = self._packages(), time.monotonic()
        status = self._enter(tried.user, tried.command, log, directory=tried.user.clone, cache=cache)
        said = log.read_text(errors="replace")
        installed = tuple(sorted(self._packages() - before))
        return Result(tried, status, time.monotonic() - started, tuple(told(said)), installed, log)

    def install_as_told(self, user: User) -> Result:
        """Have scripts/setup tell an ordinary user what to install, and install it, as an administrator would."""
        tried = Try(user, ("scripts/setup",))
        results = []
        for _ in range(MOST_REMEDIES):
            result = self.attempt(tried)
            results.append(result)
            commands = remedies(result.log.read_text(errors="replace"))
            if not commands:
                break
            for command in commands:
                say(f"\n==> as root, as the ordinary user was told: {command}")
                self._enter(USERS["root"], ("sh", "-c", command), BUILD / "root-as-told.log", directory="/")
        every = [line for each in results for line in each.told]
        seconds = sum(each.seconds for each in results)
        return dataclasses.replace(results[-1], told=tuple(dict.fromkeys(every)), seconds=seconds)

    def _enter(self, user: User, command: Sequence[str], log: Path, *, directory: str, cache: str = "") -> int:
        environment = {
            "HOME": user.home,
            "USER": user.name,
            "PATH": user.path,
            "TERM": "dumb",
            **fresh_root.passed_on(os.environ),
        }
        if cache:
            environment["UV_CACHE_DIR"] = cache
        shown = {link: str(link) for link in fresh_root.local_links(self._pip)}
        if self._shared is not None:
            shown[self._shared] = f"{user.place}/shared"
        entered = fresh_root.enter_command(
            self.root, user.name, directory, command, shm_bytes=SHM_BYTES, shown=shown, environment=environment
        )
        return _stream(entered, log)

    def _packages(self) -> frozenset[str]:
        listed = _run("chroot", str(self.root), "dpkg-query", "-W", "-f", "${Package}\\n")
        return frozenset(listed.split())


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise CommandError(f"{' '.join(command[:4])} … failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _stream(command: Sequence[str], log: Path) -> int:
    """Run a command that ends with this process; its output goes to ours and to a file."""
    with log.open("wb") as kept:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        )
        assert process.stdout is not None
        try:
            while block := os.read(process.stdout.fileno(), 65536):
                kept.write(block)
                kept.flush()
                sys.stdout.buffer.write(block)
                sys.stdout.buffer.flush()
            return process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def root_at(directory: Path | None, *, keep: bool, reuse: bool) -> Iterator[Path]:
    """A root to try in, removed at the end unless it is to be kept.

    Raises:
        NoRootError: it cannot be made, or something else is there.
    """
    root = directory.absolute() if directory else Path(tempfile.mkdtemp(prefix="fedrdma-fresh-", dir="/var/tmp"))
    bare = not fresh_root.is_ours(root)
    if bare and root.is_dir() and any(root.iterdir()):
        raise NoRootError(f"{root} is not empty, and no root that an earlier run kept.", "Name another:  --root DIR")
    try:
        if bare:
            if not (reuse and BASE.exists()):
                fresh_root.make_base(BASE)
            with step(f"unpacking it into {root}"):
                fresh_root.unpack(BASE, root)
        yield root
    finally:
        if keep:
            say(f"kept: {root}")
        else:
            fresh_root.remove(root)
            if directory is None and root.is_dir():
                shutil.rmtree(root)


def run(options: argparse.Namespace) -> int:
    """Make the root, try everything, print what came of it; the exit status.

    Raises:
        CommandError: no root can be made, or it cannot be prepared.
    """
    fresh_root.check_machine()
    BUILD.mkdir(parents=True, exist_ok=True)
    if _run("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"):
        say("warning: this tree has changes that are not committed; what is tried is the last commit")
    tries = plan(options.only, options.user, options.test_arguments)
    users = list(dict.fromkeys(each.user for each in tries))
    results: list[Result] = []
    with root_at(options.root, keep=options.keep, reuse=options.reuse) as root:
        machine = Machine(root)
        with step("accounts and clones"):
            machine.prepare(users)
        ordinary = USERS["ordinary"]
        try:
            if users == [ordinary]:
                say("\n==> what an ordinary user is told on a bare machine")
                results.append(machine.install_as_told(ordinary))
            for each in tries:
                say(f"\n==> {each.user.kind}: {' '.join(each.command)}")
                results.append(machine.attempt(each))
        finally:
            say("")
            for result in results:
                say(f"{findings(result)}\n")
            say(table(results))
    return 0 if all(result.status == 0 for result in results) else 1


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    # what is to be removed is removed too when the run is ended from outside
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return run(options)
    except NoRootError as error:
        fail(error)
        return NO_ROOT
    except CommandError as error:
        return fail(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
