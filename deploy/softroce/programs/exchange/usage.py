"""CPU time of a host's programs and of brokers, and the memory of brokers: in real time alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import psutil

from fedrdma_fate.bench.processes import cpu_seconds, family, peak_resident_bytes

BROKERS = ("beam.smp", "mosquitto")
"""Names of the programs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Since the start of a host, or between two looks.

    Attributes:
        own_seconds: of CPU, of the host's program and its children, but brokers.
        broker_seconds: of CPU, of the brokers among its children, and theirs.
        broker_peak_bytes: resident, at most, of all of them; each one's own peak, since it was started.
    """

    own_seconds: float
    broker_seconds: float
    broker_peak_bytes: int

    def since(self, before: Usage) -> Usage:
        """What came after an earlier look; the peak stays what it is."""
        return Usage(
            self.own_seconds - before.own_seconds, self.broker_seconds - before.broker_seconds, self.broker_peak_bytes
        )

    def without(self, seconds: float) -> Usage:
        """Less what the program did that is none of the protocol's; no less than nothing."""
        return dataclasses.replace(self, own_seconds=max(0.0, self.own_seconds - seconds))


def in_testbed() -> bool:
    """Whether this host is one of a testbed, with an interface of its own, and no time of its own."""
    return "TESTBED_NETDEV" in os.environ


def usage() -> Usage:
    """Of this host, now; in a testbed all is 0."""
    if in_testbed():
        return Usage(0.0, 0.0, 0)
    brokers = [pid for pid in family([os.getpid()]) if _name(pid) in BROKERS]
    theirs = cpu_seconds(brokers)
    peak = sum(map(peak_resident_bytes, family(brokers)))
    return Usage(cpu_seconds([os.getpid()]) - theirs, theirs, peak)


def summary(server: Usage, silos: Sequence[Usage], rounds: int) -> dict[str, Any]:
    """What a round cost, the mean of all."""
    everyone = [server, *silos]
    return {
        "server_cpu_seconds": server.own_seconds / rounds,
        "silos_cpu_seconds": sum(one.own_seconds for one in silos) / rounds,
        "broker_cpu_seconds": sum(one.broker_seconds for one in everyone) / rounds,
        "broker_peak_bytes": sum(one.broker_peak_bytes for one in everyone),
    }


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""
