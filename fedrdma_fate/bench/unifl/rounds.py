"""Rounds in the setting of UniFL's evaluation, played by the simulator, which is a part of the repository alone."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.wire.errors import ErrorCode, TransportError

RESNET_152_BYTES = 60_192_808 * 4
"""Of its parameters in single precision, in the usual version; the paper states none."""

VGG_16_BYTES = 138_357_544 * 4
"""The same of this one."""

_PROGRAM = "tests.support.sim.unifl"
_NOT_STATED = "not stated"
_MODELS = ("tcp-reno", "tcp-cubic", "tcp-bbr", "ltp", "masked")

ROW_NAMES = ("fedrdma-x", "fedrdma-x-unshared", "fedrdma-x-bounded", *_MODELS)
"""Of what moves payloads: this project's, then models of others'."""


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One of the paper's.

    Attributes:
        title: what it shows.
        payload_bytes: that a silo sends in a round.
        losses: that are measured where none is asked for.
        rows: the same.
        arguments: of the simulator's program, where its own defaults are not the figure's.
        stated: by row and loss, what the paper's text says of it; all else is not stated.
        others: the row by which all but the first silo of a round send; None: by the same as the first.
    """

    title: str
    payload_bytes: int
    losses: Sequence[float]
    rows: Sequence[str]
    arguments: Sequence[str] = ()
    stated: Callable[[str, float], str] = lambda _row, _loss: _NOT_STATED
    others: str | None = None


def _stated_of_throughput(row: str, loss: float) -> str:
    if row == "fedrdma-x-bounded":
        return "up to 40 × tcp-cubic, near ltp" if loss >= 0.01 else "near ltp"
    return _NOT_STATED


def _stated_of_masking(row: str, _loss: float) -> str:
    return "over 10 % lost" if row == "masked" else _NOT_STATED


def _stated_of_one(row: str, _loss: float) -> str:
    return "has almost all, some lost" if row == "masked" else _NOT_STATED


_COMPARED = ("fedrdma-x", "fedrdma-x-unshared", "fedrdma-x-bounded", "tcp-cubic", "tcp-bbr", "ltp")
_LOSSES = (0.0, 0.001, 0.01)
_ONE = ("--silos", "1", "--chosen", "1", "--rates", "1e9", "1e9", "--round-trips", "0.04", "0.04")
_FIVE = ("--silos", "5", "--chosen", "5", "--rates", "1e9", "1e9", "--round-trips", "0.03", "0.05")

FIGURES = {
    "figure2": Figure("one sender, 1 Gbit/s, 40 ms", 64 << 20, _LOSSES, ("fedrdma-x", *_COMPARED[2:]), _ONE),
    "figure3": Figure(
        "one sender beside four by CUBIC, 30 to 50 ms, 1 Gbit/s",
        16 << 20,
        (0.001,),
        ("tcp-cubic", "tcp-bbr", "fedrdma-x", "fedrdma-x-bounded", "ltp", "masked"),
        _FIVE,
        _stated_of_one,
        "tcp-cubic",
    ),
    "figure4": Figure(
        "five senders whose losses are masked, 30 to 50 ms, 1 Gbit/s",
        16 << 20,
        (0.001,),
        ("fedrdma-x", "fedrdma-x-bounded", "tcp-cubic", "masked"),
        _FIVE,
        _stated_of_masking,
    ),
    "figure9": Figure(
        "ResNet-152, 8 of 64 workers a round", RESNET_152_BYTES, _LOSSES, _COMPARED, (), _stated_of_throughput
    ),
    "figure10": Figure("VGG-16, 8 of 64 workers a round", VGG_16_BYTES, _LOSSES, _COMPARED, (), _stated_of_throughput),
}
"""What is repeated of the paper's evaluation, by the name of the command."""


@dataclasses.dataclass(frozen=True, slots=True)
class RoundOfAll:
    """How one went.

    Attributes:
        seconds: until all payloads were there; None where they never were.
        least_seconds: that it can take.
        resent_bytes: of all payloads, sent again.
        missing_bytes: that never came.
        silo_seconds: when each silo's was there, by their numbers; None for one that never was.
    """

    seconds: float | None
    least_seconds: float
    resent_bytes: int
    missing_bytes: int
    silo_seconds: Sequence[float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A row at a loss.

    Attributes:
        row: its name.
        loss: of the packets.
        payload_bytes: that a silo sent in a round.
        rounds: one after the other, on the same connections.
    """

    row: str
    loss: float
    payload_bytes: int
    rounds: Sequence[RoundOfAll]

    @property
    def times_least(self) -> float | None:
        """Seconds over the least possible, the median of the rounds; None where one has not ended."""
        ratios = [each.seconds / each.least_seconds for each in self.rounds if each.seconds is not None]
        return statistics.median(ratios) if len(ratios) == len(self.rounds) else None

    @property
    def throughput_bps(self) -> float:
        """Payload that was there, of all silos, bits a second, over all rounds that have ended."""
        ended = [each for each in self.rounds if each.seconds is not None]
        seconds = sum(each.seconds or 0.0 for each in ended)
        came = sum(len(each.silo_seconds) * self.payload_bytes - each.missing_bytes for each in ended)
        return came * 8 / seconds if seconds else 0.0

    def mbit_of(self, silos: slice) -> float | None:
        """Of what each of these had to send, Mbit/s until it was there, the median of silos and rounds; None where one
        never was."""
        seconds = [each for one in self.rounds for each in one.silo_seconds[silos]]
        ended = [each for each in seconds if each is not None]
        if not ended or len(ended) < len(seconds):
            return None
        return self.payload_bytes * 8 / statistics.median(ended) / 1e6

    def share(self, part: Callable[[RoundOfAll], int]) -> float:
        """Of all payloads."""
        sent = sum(len(each.silo_seconds) for each in self.rounds) * self.payload_bytes
        return sum(part(each) for each in self.rounds) / sent if sent else 0.0


def play(
    checkout: Path, figure: Figure, row: str, loss: float, rounds: int, seed: int, payload_bytes: int, limit: float
) -> Measured:
    """Play a row at a loss.

    Args:
        checkout: the repository.
        figure: whose setting it is.
        row: its name.
        loss: share of the packets.
        rounds: one after the other.
        seed: of everything that is drawn.
        payload_bytes: that a silo sends in a round.
        limit: seconds of real time.

    Raises:
        TransportError: TESTBED_UNAVAILABLE: the repository has no simulator, or it failed or took too long.
    """
    others = () if figure.others is None else ("--others", figure.others)
    told = (*others, "--loss", str(loss), "--rounds", str(rounds), "--seed", str(seed), "--size", str(payload_bytes))
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROGRAM, row, *figure.arguments, *told],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(
            f"{row} did not end within {limit:g} s", "Ask for fewer --rounds, or a smaller --size."
        ) from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or ["nothing was said"]
        raise _failed(f"the simulator failed at {row}: {last[0]}", "Run it in a whole clone.") from error
    played = [RoundOfAll(**json.loads(line)) for line in done.stdout.splitlines()]
    return Measured(row, loss, payload_bytes, played)


def _failed(reason: str, remedy: str) -> TransportError:
    return TransportError(ErrorCode.TESTBED_UNAVAILABLE, f"{reason}.", remedy)


def to_document(name: str, seed: int, measured: Sequence[Measured]) -> dict[str, Any]:
    """For programs."""
    return {
        "figure": name,
        "seed": seed,
        "rows": [
            {
                "name": each.row,
                "is_model": each.row in _MODELS,
                "loss": each.loss,
                "payload_bytes": each.payload_bytes,
                "others": FIGURES[name].others,
                "times_least": each.times_least,
                "throughput_bits_per_second": each.throughput_bps,
                "stated": FIGURES[name].stated(each.row, each.loss),
                "rounds": [dataclasses.asdict(one) for one in each.rounds],
            }
            for each in measured
        ],
    }


def to_table(name: str, measured: Sequence[Measured]) -> DataTable:
    """For people."""
    figure = FIGURES[name]
    among = () if figure.others is None else ("the first", f"each other, {figure.others}")
    columns = ("row", "loss", *among, "throughput", "round", "least", "× least", "sent again", "missing", "paper")
    rows = []
    for each in measured:
        seconds = [one.seconds for one in each.rounds if one.seconds is not None]
        ratio = each.times_least
        rows.append(
            (
                f"{each.row} (model)" if each.row in _MODELS else each.row,
                f"{100 * each.loss:g} %",
                *(_mbit(each.mbit_of(silos)) for silos in (slice(1), slice(1, None)) if among),
                f"{each.throughput_bps / 1e6:.1f} Mbit/s",
                f"{statistics.median(seconds):.3f} s" if seconds else "not ended",
                f"{statistics.median(one.least_seconds for one in each.rounds):.3f} s" if each.rounds else "",
                "not ended" if ratio is None else f"{ratio:.2f}",
                f"{100 * each.share(lambda one: one.resent_bytes):.1f} %",
                f"{100 * each.share(lambda one: one.missing_bytes):.2f} %",
                figure.stated(each.row, each.loss),
            )
        )
    return DataTable(f"UniFL, {name}: {figure.title}", columns, rows)


def _mbit(rate: float | None) -> str:
    return "not ended" if rate is None else f"{rate:.1f} Mbit/s"
