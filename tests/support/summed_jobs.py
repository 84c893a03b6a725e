"""FATE's homo-NN with its secure aggregation, with sums in the gateways and without.

    python -m tests.support.summed_jobs [--clients 64 --hidden 64] [--rows fate,sites]

Clients of two sites and an arbiter at a third, each a process, over gateways that are processes, too; FATE's own
library, hooked as in any job. Each row is one job, of the same models, data and masks: FATE's key exchange runs, and
then the masks are drawn anew of seeds that are always the same, so what the arbiter has can be compared by its bits,
between rows: from one run of this program to another, the order in which a party adds its masks is another.
Processes of parties are forked after torch has been imported, so that 65 of them fit one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.sites import InProcesses, Sites, start_gateways

ARBITER = ("arbiter", "9000")
CLASSES, FEATURES = 10, 64
SAMPLES, TESTED = 256, 2000
"""Of each client, and of the common test."""
BATCH = 32
RATE = 0.1
SEED = 1
BYTES_OF_PARAMETER = 16
"""Of a masked update: two planes of float64."""
UPDATES_OF_SMALL_REGION = 3
BESIDE_UPDATE_BYTES = 320 << 10
"""Room for each update's pickle and footer, or for what an accumulator has beside the sum, in whole pages."""
RING_SLOTS, RING_SLOT_BYTES = 2, 256 << 10
"""Of the tests' gateways, for each of the two peers, beside the updates."""
LOOK_SECONDS = 0.1
"""Between two looks at the processes of parties."""
SILENCE_SECONDS = 900.0
"""Until a get gives up: 64 clients train on two cores."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """How a job is run.

    Attributes:
        name: of the row.
        sums: whether the job has the gateway add.
        order: of the arbiter's gateway.
        site_sums: whether sites add.
        updates_of_region: how many updates the arbiter's receive region has room for; None: for all.
    """

    name: str
    sums: bool = True
    order: str = "exact"
    site_sums: bool = True
    updates_of_region: int | None = None

    @property
    def gateways(self) -> tuple[object, ...]:
        """Rows that have this in common can have the same gateways."""
        return self.order, self.site_sums, self.updates_of_region


ROWS = {
    row.name: row
    for row in (
        # of a gateway that adds nothing the order does not matter: it may be that of the next row
        Row("fate", sums=False, order="rank"),
        Row("rank", order="rank"),
        Row("exact", site_sums=False),
        Row("sites"),
        Row("sites-3", updates_of_region=UPDATES_OF_SMALL_REGION),
        Row("exact-3", site_sums=False, updates_of_region=UPDATES_OF_SMALL_REGION),
        Row("fate-3", sums=False, updates_of_region=UPDATES_OF_SMALL_REGION),
    )
}


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What is trained.

    Attributes:
        clients: how many.
        rounds: each goes once through a client's samples.
        hidden: units of the model's hidden layer.
    """

    clients: int
    rounds: int
    hidden: int

    @property
    def parties(self) -> list[tuple[str, str]]:
        """Clients, by rank."""
        return [("guest", "1"), *(("host", str(2 + number)) for number in range(self.clients - 1))]

    @property
    def parameters(self) -> int:
        """Of the model."""
        return (FEATURES + 1) * self.hidden + (self.hidden + 1) * CLASSES

    @property
    def update_bytes(self) -> int:
        """Of a masked update."""
        return BYTES_OF_PARAMETER * self.parameters

    @property
    def layout(self) -> dict[str, list[str]]:
        """The parties of each site: one half of the clients at each of two, which are not of neighbouring ranks."""
        names = [":".join(party) for party in self.parties]
        return {"a": [":".join(ARBITER)], "b": names[::2], "c": names[1::2]}


def _samples(seed: Sequence[int], count: int) -> tuple[Any, Any]:
    """Points around the centres of classes."""
    centres = np.random.default_rng(SEED).standard_normal((CLASSES, FEATURES))
    made = np.random.default_rng(seed)
    labels = made.integers(0, CLASSES, count)
    return (centres[labels] + 2.5 * made.standard_normal((count, FEATURES))).astype(np.float32), labels


def _same_masks(secure_aggregation: Any) -> None:
    """FATE's masks, of seeds that depend on the two ranks and the aggregator alone."""
    from fate_utils.secure_aggregation_helper import RandomMix

    client = secure_aggregation.SecureAggregatorClient
    original = client.dh_exchange

    def dh_exchange(self: Any, ctx: Any, ranks: Sequence[int]) -> None:
        original(self, ctx, ranks)
        mine = ctx.local.rank
        seeds = {
            rank: hashlib.sha256(f"{self.prefix} {min(mine, rank)} {max(mine, rank)}".encode()).digest()
            for rank in ranks
            if rank != mine
        }
        self._mixer = RandomMix(seeds, mine)

    client.dh_exchange = dh_exchange


def _note_aggregates(secure_aggregation: Any, digests: list[str]) -> None:
    """Of each aggregate of models that FATE's server makes, a digest of its bits."""
    server = secure_aggregation.SecureAggregatorServer
    original = server.secure_aggregate

    def secure_aggregate(self: Any, ctx: Any, ranks: Any = None) -> Any:
        arrays = original(self, ctx, ranks)
        if self.prefix.endswith("_model"):
            digests.append(hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in arrays)).hexdigest())
        return arrays

    server.secure_aggregate = secure_aggregate


def _party(job: Job, row: Row, party: tuple[str, str], address: str, home: Path) -> None:
    """A party's process."""
    told: dict[str, Any] = {}
    try:
        with (home / f"{'-'.join(party)}.log").open("w") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        told = _run(job, row, party, address, home)
    except BaseException:
        told = {"failed": traceback.format_exc()}
    finally:
        told["resident_bytes"] = _own_bytes()
        file = home / f"{'-'.join(party)}.json"
        file.with_suffix(".new").write_text(json.dumps(told))
        file.with_suffix(".new").rename(file)
    if "failed" in told:
        sys.exit(1)


def _told(file: Path) -> dict[str, Any]:
    """What a party has said in the end."""
    if not file.exists():
        return {"failed": "it was ended, or was killed"}
    told: dict[str, Any] = json.loads(file.read_text())
    return told


def _own_bytes() -> int:
    """Memory that this process shares with no other."""
    fields = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * sum(int(field[1]) for field in fields if field[0] in ("Private_Clean:", "Private_Dirty:"))


def _run(job: Job, row: Row, party: tuple[str, str], address: str, home: Path) -> dict[str, Any]:
    import torch
    from fate.arch.computing.backends.standalone import CSession
    from fate.arch.context import Context
    from fate.arch.protocol.secure_aggregation import _secure_aggregation
    from fate.ml.nn.homo.fedavg import FedAVGArguments, FedAVGClient, FedAVGServer, TrainingArguments
    from torch import nn
    from torch.utils.data import TensorDataset

    from fedrdma_fate.fate.federation import FedRDMAFederation
    from fedrdma_fate.fate.settings import FederationOptions

    torch.set_num_threads(1)
    digests: list[str] = []
    everybody = [*job.parties, ARBITER]
    computing = CSession("-".join(party), data_dir=str(home / "data"), options={"task_cores": 1})
    options = FederationOptions(get_timeout=SILENCE_SECONDS, sums=row.sums)
    federation = FedRDMAFederation(row.name, computing, party, everybody, address, options)
    _same_masks(_secure_aggregation)
    _note_aggregates(_secure_aggregation, digests)
    context = Context(computing=computing, federation=federation)
    if party == ARBITER:
        started = time.monotonic()
        FedAVGServer(context).train()
        seconds = time.monotonic() - started
        context.destroy()
        return {"digests": digests, "seconds": seconds}
    number = job.parties.index(party)
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(FEATURES, job.hidden), nn.ReLU(), nn.Linear(job.hidden, CLASSES))
    features, labels = _samples((SEED, 1 + number), SAMPLES)
    trainer = FedAVGClient(
        context,
        model,
        TrainingArguments(
            output_dir=str(home / "data" / f"out-{number}"),
            num_train_epochs=job.rounds,
            per_device_train_batch_size=BATCH,
            seed=SEED,
            use_cpu=True,
            report_to=[],
        ),
        FedAVGArguments(),
        TensorDataset(torch.from_numpy(features), torch.from_numpy(labels)),
        optimizer=torch.optim.SGD(model.parameters(), RATE),
        loss_fn=nn.CrossEntropyLoss(),
    )
    trainer.train()
    tested, true = (torch.from_numpy(each) for each in _samples((SEED, 0), TESTED))
    with torch.no_grad():
        found = model(tested)
        loss, accuracy = nn.CrossEntropyLoss()(found, true), (found.argmax(1) == true).float().mean()
    parameters = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    context.destroy()
    return {"accuracy": float(accuracy), "loss": float(loss), "model": hashlib.sha256(parameters).hexdigest()}


@contextlib.contextmanager
def _gateways(job: Job, row: Row, home: Path) -> Iterator[Sites]:
    room = job.clients if row.updates_of_region is None else row.updates_of_region
    rings = 2 * (RING_SLOTS + 1) * RING_SLOT_BYTES
    # what a site sends is its parties' updates, and their sum
    send = (job.clients + 2) * job.update_bytes + (16 << 20)

    def of_site(name: str) -> dict[str, Any]:
        if name != "a":
            return {"memory": {"send_bytes": send, "receive_bytes": send}}
        # what the arbiter sends is one aggregate, of one float64 for each parameter, and whatever is small
        return {
            "memory": {"send_bytes": send, "receive_bytes": room * (job.update_bytes + BESIDE_UPDATE_BYTES) + rings}
        }

    with start_gateways(
        job.layout,
        home,
        runner=InProcesses(60.0),
        of_site=of_site,
        aggregate={"order": row.order, "site_sums": row.site_sums, "site_wait": SILENCE_SECONDS},
        timeouts={"idle": 60.0, "connect": 5.0, "drain": 5.0},
    ) as sites:
        yield sites


def run_row(job: Job, row: Row, sites: Sites, home: Path) -> dict[str, Any]:
    """One job over gateways that run; what came of it.

    Raises:
        AssertionError: a party failed, or clients have different models.
    """
    home.mkdir(parents=True)
    (home / "data").mkdir()
    forked = multiprocessing.get_context("fork")
    site_of = {name: site for site, names in job.layout.items() for name in names}
    started = time.monotonic()
    everybody = [ARBITER, *job.parties]
    processes = [
        forked.Process(
            target=_party, args=(job, row, party, sites[site_of[":".join(party)]].address, home), daemon=False
        )
        for party in everybody
    ]
    try:
        for process in processes:
            process.start()
        # where one has failed, the others would wait for it
        while any(process.is_alive() for process in processes) and not any(each.exitcode for each in processes):
            processes[0].join(LOOK_SECONDS)
            processes[-1].join(LOOK_SECONDS)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    seconds = time.monotonic() - started
    told = {party: _told(home / f"{'-'.join(party)}.json") for party in everybody}
    failed = {party: each["failed"] for party, each in told.items() if "failed" in each}
    assert not failed, "\n".join(f"{party}:\n{text}" for party, text in failed.items())
    came, summed = (
        [each for each in sites["a"].events(what) if each["session"] == row.name and "model_mixed" in each["name"]]
        for what in ("delivered", "summed")
    )
    spilled = sum(each["bytes"] for each in sites["a"].events("spilled") if each["key"].startswith(f"{row.name}/"))
    arbiter, clients = told[ARBITER], [told[party] for party in job.parties]
    assert len({each["model"] for each in clients}) == 1, "clients have different models"
    return {
        "row": row.name,
        "clients": job.clients,
        "parameters": job.parameters,
        "rounds": len(arbiter["digests"]),
        "accuracy": clients[0]["accuracy"],
        "loss": clients[0]["loss"],
        "aggregates": arbiter["digests"],
        "model": clients[0]["model"],
        "up_transfers": len(came),
        "up_bytes": sum(each["bytes"] for each in came),
        "added": sum(each["added"] for each in summed),
        "spilled_bytes": spilled,
        "seconds": seconds,
        "arbiter_seconds": arbiter["seconds"],
        "most_own_bytes": max(each["resident_bytes"] for each in told.values()),
    }


def run_rows(job: Job, rows: Sequence[Row], home: Path) -> list[dict[str, Any]]:
    """Jobs, one after the other."""
    # imported once, before any process is forked
    import fate.ml.nn.homo.fedavg  # noqa: F401
    from fate_utils.secure_aggregation_helper import RandomMix

    import fedrdma_fate.fate.federation  # noqa: F401

    # a party adds its masks in an order that its process draws with the first mixer: here, so that all rows have it
    RandomMix({1: bytes(32)}, 0)
    # what lies here is written by no collection of a child's, and stays shared
    gc.collect()
    gc.freeze()
    done = []
    for number, (_, alike) in enumerate(itertools.groupby(rows, lambda row: row.gateways)):
        those = list(alike)
        with _gateways(job, those[0], home / f"gateways-{number}") as sites:
            done += [run_row(job, row, sites, home / row.name) for row in those]
    return done


def main() -> None:
    """Run jobs, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=4096, help="units of the hidden layer, 75 parameters each")
    parser.add_argument("--rows", default="fate,rank,exact,sites", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="directory for logs, which must not be there yet")
    asked = parser.parse_args()
    job = Job(asked.clients, asked.rounds, asked.hidden)
    with tempfile.TemporaryDirectory() as directory:
        rows = run_rows(job, [ROWS[name] for name in asked.rows.split(",")], asked.keep or Path(directory))
    if asked.json:
        print(json.dumps({"rows": rows}))
        return
    print(f"{job.clients} clients, {job.parameters:,} parameters, {job.update_bytes / 1e6:.1f} MB an update")
    print("row       accuracy  loss          bits as in the first row  up             added  spilled  seconds")
    for row in rows:
        same = sum(a == b for a, b in zip(row["aggregates"], rows[0]["aggregates"], strict=True))
        print(
            f"{row['row']:8}  {100 * row['accuracy']:6.2f} %  {row['loss']:.9f}   {same} of {row['rounds']} rounds"
            f"          {row['up_transfers']:3} {row['up_bytes'] / 1e6:6.1f} MB  {row['added']:5}"
            f"  {row['spilled_bytes'] / 1e6:4.1f} MB  {row['seconds']:6.1f}"
        )
    print(f"a process of a party has {max(row['most_own_bytes'] for row in rows) / 1e6:.0f} MB of its own at most")


if __name__ == "__main__":
    main()
