"""What makes a round harder, as FedComm does it: a busy core at each silo, and other TCP flows on the network."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator

from fedrdma_fate.bench.wan.rows import find_program
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

STRESS = ("cpu", "net", "both")
FLOWS = ("silos", "server")
"""Where flows go: between silos, as in FedComm's code, or from each silo into the server, as its text says."""
STRESS_NG = "stress-ng"
_UNPACK = "scripts.lib.stress_ng"
"""Of a checkout: unpacks it into the environment of this Python."""
_LEAST_SILOS = 2
"""Between which a flow can go."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stress:
    """What is done beside the rounds.

    Attributes:
        cpu: each silo has one core, which `stress-ng --cpu 1` has as well.
        flows: TCP flows on the network, one of `FLOWS`; None: none.
    """

    cpu: bool
    flows: str | None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the program at all hosts."""
        return () if self.flows is None else ("--flows", self.flows)

    def to_document(self) -> dict[str, object]:
        """For `--json` and for what was measured before."""
        return {"stress": dataclasses.asdict(self)}

    def __str__(self) -> str:
        cores = ["with a busy core at each silo"] if self.cpu else []
        whither = {None: [], "silos": ["with flows between silos"], "server": ["with flows into the server"]}
        return ", ".join([*cores, *whither[self.flows]])


def parse_stress(kind: str | None, flows: str, least_silos: int, *, loopback: bool) -> Stress | None:
    """What is asked for; None: nothing.

    Args:
        kind: one of `STRESS`, or None.
        flows: one of `FLOWS`.
        least_silos: of all settings.
        loopback: whether it is measured in real time.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: it cannot be had here, or says nothing; names the option and what to do.
    """
    if kind is None:
        return None
    asked = Stress(kind in ("cpu", "both"), flows if kind in ("net", "both") else None)
    if asked.cpu and not loopback:
        raise _refused(
            kind, "in virtual time computing takes none, so a busy core delays nobody: give --loopback, too."
        )
    if asked.flows == "silos" and least_silos < _LEAST_SILOS:
        raise _refused(kind, "a flow goes between two silos: give --silos 2 and more, or --flows server.")
    if asked.cpu and find_program(STRESS_NG) is None:
        how = f".venv/bin/python -m {_UNPACK} in a clone, or apt-get install {STRESS_NG}."
        raise _refused(kind, f"needs {STRESS_NG}: {how}")
    return asked


def _refused(kind: str, why: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--stress {kind}: {why}")


def core_of(silo: int) -> int:
    """The core of a silo, 1 and more: those that this process may use, one after the other."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[(silo - 1) % len(cores)]


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started meanwhile by this thread has this core alone, and all that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def busy_core(core: int, limit_seconds: float) -> Iterator[None]:
    """`stress-ng --cpu 1` on a core meanwhile; it ends by itself at the limit, whatever becomes of this process.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: it cannot be started.
    """
    program = find_program(STRESS_NG)
    if program is None:
        raise _refused("cpu", f"{STRESS_NG} is gone.")
    with on_core(core):
        process = subprocess.Popen(
            [program, "--cpu", "1", "--timeout", f"{limit_seconds:.0f}s", "--quiet"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # its own children are found by it
            start_new_session=True,
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
