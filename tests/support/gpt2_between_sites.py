"""GPT-2 on AdvertiseGen as a job of FATE Flow: over standalone at one, over `fedrdma` and the OSX front between two.

`python -m tests.support.gpt2_between_sites DIRECTORY [--preset tiny] [--tuning lora] [--way fedrdma] [OPTION …]` runs
the example's client, which gets the options, with a FATE Flow and a gateway at each of two sites, all on this host. It
prints a row for each job: what it took, what of it was communication, its scheduling calls; and at the end, how weights
differ from those over standalone. Over the OSX front nothing of ours is at work in FATE's processes. DIRECTORY is made;
where it is there, a later run goes on in it, with the model and the data that are prepared and the jobs that have run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from examples.gpt2_advertisegen.accounting import RoundSeconds, operations, seconds_in_all
from examples.gpt2_advertisegen.events import FateTimers
from examples.gpt2_advertisegen.flow_job import TASK
from examples.gpt2_advertisegen.gateways import pool_bytes
from examples.gpt2_advertisegen.plan import ARBITER, CLIENTS, GUEST, HOST, PARTIES, ModelFacts, RunFiles
from fedrdma_fate.wire.frames import Party
from tests.support.fate_flow import FateFlow, running_fate_flow
from tests.support.repository import ROOT
from tests.support.sites import Site
from tests.support.traces import trace_events
from tests.support.two_fate_flows import MEMORY, two_sites

SCRIPT = ROOT / "examples" / "gpt2_advertisegen" / "flow.py"
AT_SITES = ROOT / "examples" / "gpt2_advertisegen" / "at_sites"

WAYS = ("standalone", "fedrdma", "osx")
TUNINGS = ("lora", "full")

SITE_OF = {GUEST: "a", HOST: "b", ARBITER: "b"}

WARM_BYTES = 1 << 30
"""Pools that together take more are filled as they are used, as two clients that train need the memory first."""

_TRAINED = "trained.jsonl"

_ANSWER_SECONDS = 30
"""For a FATE Flow that is asked what a job took."""

_LOG_LINE = re.compile(
    r"\[DEBUG\]\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\]\[\d+\]\[_profile\.[^]]*\]\[line:\d+\]: (?P<said>.*)"
)
"""Of FATE's own timers, as FATE Flow has a task's log written."""


class Calls(msgspec.Struct, frozen=True):
    """Scheduling calls of a job, each where it was made.

    Attributes:
        number: of those that were answered.
        between: how many of these went to the other site.
        refused: without an answer.
        total_bytes: bodies of calls and answers.
        p50: seconds until the answer.
        p99: seconds until the answer, by the nearest rank.
        longest: seconds.
        on_the_way_p50: of those between the sites, seconds beyond what FATE Flow took at the other one.
        on_the_way_p99: the same.
    """

    number: int
    between: int
    refused: int
    total_bytes: int
    p50: float
    p99: float
    longest: float
    on_the_way_p50: float
    on_the_way_p99: float


class Difference(msgspec.Struct, frozen=True):
    """Of two models' trained weights.

    Attributes:
        weights: how many there are.
        differ: how many are not the same bits.
        most_ulps: how many float32 lie between two that differ, the second one included.
        most: the largest difference.
        largest: the largest absolute value among those that differ: masks are of one size for all weights, so what they
            leave of rounding shows in the smallest alone.
    """

    weights: int
    differ: int
    most_ulps: int
    most: float
    largest: float


class Row(msgspec.Struct, frozen=True):
    """One job.

    Attributes:
        way: what carried it.
        tuning: what was trained.
        seconds: of the job, as FATE Flow has it.
        task_seconds: of the guest's part in the training task.
        communication: of each client, seconds in puts and gets from when the peer's put began.
        waiting: of each client, seconds in gets before that.
        moved_bytes: of messages, between the sites.
        calls: None where none go through a gateway.
        same_at_both: whether both clients ended with the same bits.
    """

    way: str
    tuning: str
    seconds: float
    task_seconds: float
    communication: dict[str, float]
    waiting: dict[str, float]
    moved_bytes: int
    calls: Calls | None
    same_at_both: bool


class Trained(msgspec.Struct, frozen=True):
    """A job that has run, as it is noted in the directory.

    Attributes:
        way: what carried it.
        tuning: what was trained.
        model: directory of the guest's.
    """

    way: str
    tuning: str
    model: str


class Beside(msgspec.Struct, frozen=True):
    """How the guest's weights of a job differ from those over standalone."""

    way: str
    tuning: str
    beside_standalone: Difference


Weights = Mapping[str, NDArray[np.float32]]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--way", action="append", choices=WAYS, help="default: all of them")
    parser.add_argument("--tuning", action="append", choices=TUNINGS, help="default: both")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--osx-message-bytes", type=int, help="FATE's slices with `osx`; default: all in one message")
    arguments, further = parser.parse_known_args()
    for row in rows(
        arguments.directory.resolve(),
        arguments.way or WAYS,
        arguments.tuning or TUNINGS,
        ["--preset", arguments.preset, *further],
        arguments.osx_message_bytes,
    ):
        print(json.dumps(msgspec.to_builtins(row)), flush=True)
    for found in beside_standalone(arguments.directory.resolve()):
        print(json.dumps(msgspec.to_builtins(found)), flush=True)


def rows(
    directory: Path,
    ways: Sequence[str],
    tunings: Sequence[str],
    options: Sequence[str],
    osx_message_bytes: int | None = None,
) -> Iterator[Row]:
    """Run the jobs, one after the other.

    Args:
        directory: for all that they write.
        ways: what is to carry them.
        tunings: one job each.
        options: of the example's commands.
        osx_message_bytes: the longest message over the OSX front; None: FATE cuts none.
    """
    directory.mkdir(parents=True, exist_ok=True)
    prepared = directory / "prepared"
    if not prepared.exists():
        _example(sys.executable, "prepare", "--directory", str(prepared), *options)
    facts = msgspec.json.decode(RunFiles(prepared).model_facts.read_bytes(), type=ModelFacts)
    for way in ways:
        with running(_new(directory, way), way, memory(facts), osx_message_bytes) as (sites, flows):
            for client in CLIENTS:
                flow = flows[client]
                at = ["--flow", f"127.0.0.1:{flow.port}", "--directory", str(prepared)]
                _example(flow.python, "bind", *at, "--role", client.role, flow=flow)
            for tuning in tunings:
                at = ["--flow", f"127.0.0.1:{flows[GUEST].port}", "--directory", str(prepared)]
                before = {name: len(_events(site)) for name, site in sites.items()}
                job = _example(flows[GUEST].python, "fit", *at, *options, "--tuning", tuning, flow=flows[GUEST])
                events = {name: _events(site)[before[name] :] for name, site in sites.items()}
                with (directory / _TRAINED).open("ab") as notes:
                    model = str(model_directory(flows[GUEST], job, GUEST))
                    notes.write(msgspec.json.encode(Trained(way, tuning, model)) + b"\n")
                yield _row(way, tuning, job, flows, events)


def beside_standalone(directory: Path) -> Iterator[Beside]:
    """Compare all jobs of a directory with those over standalone."""
    noted = directory / _TRAINED
    jobs = [msgspec.json.decode(line, type=Trained) for line in noted.read_bytes().splitlines()]
    standalone = {job.tuning: job.model for job in jobs if job.way == "standalone"}
    for job in jobs:
        if job.way != "standalone" and job.tuning in standalone:
            found = difference(trained_weights(Path(job.model)), trained_weights(Path(standalone[job.tuning])))
            yield Beside(job.way, job.tuning, found)


def _new(directory: Path, way: str) -> Path:
    """Where a run of this way writes; earlier ones have left theirs."""
    earlier = sum(1 for _ in directory.glob(f"{way}-*"))
    return directory / f"{way}-{earlier + 1}"


@contextlib.contextmanager
def running(
    directory: Path, way: str, sizes: Mapping[str, Mapping[str, Any]], osx_message_bytes: int | None = None
) -> Iterator[tuple[Mapping[str, Site], Mapping[Party, FateFlow]]]:
    """Gateways by name, and the FATE Flow of each party.

    Args:
        directory: does not exist yet.
        way: what is to carry jobs.
        sizes: the memory of each gateway.
        osx_message_bytes: the longest message over the OSX front; None: FATE cuts none.
    """
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(AT_SITES), os.environ.get("PYTHONPATH")))),
        # another number of threads may round otherwise, and there are two clients for the cores of this host
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        # with FATE's own timers
        "LOG_LEVEL": "10",
    }
    if way == "standalone":
        with running_fate_flow(directory, {}, engines={"federation": "standalone"}, environment=environment) as flow:
            yield {}, dict.fromkeys(PARTIES, flow)
    else:
        at = two_sites(
            directory,
            way,
            memory=sizes.__getitem__,
            environment=environment,
            osx_message_bytes=osx_message_bytes,
        )
        with at as (sites, flows):
            yield sites, {party: flows[SITE_OF[party]] for party in PARTIES}


def memory(facts: ModelFacts) -> dict[str, dict[str, Any]]:
    """Regions of both gateways that hold a round's messages of full tuning: b has the host and the arbiter."""
    guest, arbiter = (pool_bytes(party, facts.trainable, facts.trainable_arrays) for party in (GUEST, ARBITER))
    host = pool_bytes(HOST, facts.trainable, facts.trainable_arrays)
    sizes = {
        "a": (guest.send, guest.receive),
        "b": (host.send + arbiter.send, host.receive + arbiter.receive),
    }
    least = {name: int(text.removesuffix("MiB")) << 20 for name, text in MEMORY.items()}
    large = sum(map(sum, sizes.values())) > WARM_BYTES
    return {
        name: {
            **MEMORY,
            "send_bytes": max(send, least["send_bytes"]),
            "receive_bytes": max(receive, least["receive_bytes"]),
            "warm": not large,
        }
        for name, (send, receive) in sizes.items()
    }


def _example(python: Path | str, *arguments: str, flow: FateFlow | None = None) -> str:
    """Run the example's client; what it prints to standard output."""
    environment = flow.environment if flow else {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(python), str(SCRIPT), *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} has failed. {flow.logs() if flow else ''}")
    return done.stdout.strip()


def _row(
    way: str,
    tuning: str,
    job: str,
    flows: Mapping[Party, FateFlow],
    events: Mapping[str, list[dict[str, Any]]],
) -> Row:
    done = {party: operations(fate_timings(flows[party], job, party)) for party in PARTIES}
    split: dict[str, RoundSeconds] = {str(client): seconds_in_all(client, done) for client in CLIENTS}
    at_guest, at_host = (trained_weights(model_directory(flows[client], job, client)) for client in CLIENTS)
    guest = {"job_id": job, "role": GUEST.role, "party_id": GUEST.party_id}
    return Row(
        way=way,
        tuning=tuning,
        seconds=_elapsed(flows[GUEST], "job/query", guest),
        task_seconds=_elapsed(flows[GUEST], "job/task/query", {**guest, "task_name": TASK}),
        communication={name: seconds.communication for name, seconds in split.items()},
        waiting={name: seconds.waiting for name, seconds in split.items()},
        moved_bytes=sum(
            event["bytes"]
            for of_site in events.values()
            for event in of_site
            if event["event"] == "delivered" and event["kept"] and event["transport"] != "local"
        ),
        calls=_calls(events) if events else None,
        same_at_both=difference(at_guest, at_host).differ == 0,
    )


def _events(site: Site) -> list[dict[str, Any]]:
    return list(trace_events(site.home / "trace.jsonl"))


def _calls(events: Mapping[str, list[dict[str, Any]]]) -> Calls:
    asked = [
        (name, event) for name, of_site in events.items() for event in of_site if event.get("direction") == "asked"
    ]
    answered = [(name, event) for name, event in asked if event["event"] == "flow_call"]
    seconds = sorted(event["seconds"] for _, event in answered)
    way = sorted(on_the_way(events))
    return Calls(
        number=len(answered),
        between=sum(event["peer"] != name for name, event in answered),
        refused=sum(event["event"] == "flow_call_refused" for _, event in asked),
        total_bytes=sum(event["bytes"] + event["answer_bytes"] for _, event in answered),
        p50=nearest_rank(seconds, 0.5),
        p99=nearest_rank(seconds, 0.99),
        longest=seconds[-1],
        on_the_way_p50=nearest_rank(way, 0.5),
        on_the_way_p99=nearest_rank(way, 0.99),
    )


def on_the_way(events: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[float]:
    """Of each call between two sites, the seconds until its answer beyond those at the other one; by two traces.

    A trace knows no calls by name: those of one path and size are taken in the order of their answers.
    """
    served: dict[tuple[object, ...], list[float]] = {}
    calls = [(name, event) for name, of_site in events.items() for event in of_site if event["event"] == "flow_call"]
    for name, event in calls:
        if event["direction"] == "served":
            served.setdefault((event["peer"], name, event["path"], event["bytes"]), []).append(event["seconds"])
    for name, event in calls:
        there = served.get((name, event["peer"], event["path"], event["bytes"]))
        if event["direction"] == "asked" and there:
            yield event["seconds"] - there.pop(0)


def nearest_rank(ordered: Sequence[float], part: float) -> float:
    """The smallest value that this part of all values does not exceed."""
    return ordered[math.ceil(part * len(ordered)) - 1]


def _elapsed(flow: FateFlow, path: str, query: Mapping[str, str]) -> float:
    """Seconds of a job or task."""
    url = f"http://127.0.0.1:{flow.port}/v2/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
        return float(json.load(answer)["data"][0]["elapsed"]) / 1000


def fate_timings(flow: FateFlow, job: str, party: Party) -> list[dict[str, Any]]:
    """Puts and gets of the training task, as FATE's own timers have them in its log."""
    path = flow.home / "logs" / job / party.role / party.party_id / TASK / "root" / "DEBUG"
    return list(read_timings(path.read_text(encoding="utf-8", errors="replace").splitlines()))


def read_timings(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Those in the lines of a task's log."""
    timers = FateTimers()
    for line in lines:
        match = _LOG_LINE.match(line)
        if match is not None:
            at = datetime.datetime.strptime(match["at"], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            done = timers.line(match["said"], at)
            if done is not None:
                yield done


def model_directory(flow: FateFlow, job: str, client: Party) -> Path:
    """Where a client's task has left its model."""
    output = flow.home / "jobs" / job / client.role / client.party_id / TASK / "0" / "output"
    return output / "output_model" / "model_directory"


def trained_weights(directory: Path) -> Weights:
    """Those in a directory that FATE-LLM has written."""
    adapter = directory / "adapter_model.safetensors"
    if adapter.is_file():
        return dict(safetensors.numpy.load_file(adapter))
    import torch

    state = torch.load(directory / "adapter_model.bin", map_location="cpu", weights_only=True)
    return {name: tensor.detach().numpy() for name, tensor in state.items()}


def difference(one: Weights, other: Weights) -> Difference:
    """Compare, weight by weight.

    Raises:
        ValueError: they have not the same names and shapes.
    """
    if {name: array.shape for name, array in one.items()} != {name: array.shape for name, array in other.items()}:
        raise ValueError(f"{sorted(one)} are not {sorted(other)}")
    steps = [np.abs(_ordinal(one[name]) - _ordinal(other[name])) for name in one]
    return Difference(
        weights=sum(each.size for each in steps),
        differ=sum(int(np.count_nonzero(each)) for each in steps),
        most_ulps=max(int(each.max()) for each in steps),
        most=max(float(np.abs(one[name].astype(np.float64) - other[name]).max()) for name in one),
        largest=max(float(np.abs(one[name][one[name] != other[name]]).max(initial=0.0)) for name in one),
    )


def _ordinal(array: NDArray[np.float32]) -> NDArray[np.int64]:
    """The place of each among all float32, in their order; both zeros have the same."""
    bits = np.ascontiguousarray(array, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


if __name__ == "__main__":
    main()
