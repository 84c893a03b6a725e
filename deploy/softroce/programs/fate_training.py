"""FedComm's model as a job of FATE: an arbiter and four clients, each on a host, by one federation. Host 0 prints JSON.

    scripts/testbed run --virtual-time --hosts 5 --rate 20mbit --rtt 2ms --buffer 126600 --mtu 1500 --loss 5% \\
        --memory 10GiB -- .venv/bin/python -m deploy.softroce.programs.fate_training fate-rabbitmq --train vgg8

The federation is `fate-rabbitmq`, FATE's own over RabbitMQ, or a MODE/TRANSPORT of this project. Training takes no
virtual time, so all that is told is communication. Without the testbed: as for `exchange`. With `--tolerance` so much
of each update may be missing, and it is told what was. Of several tolerances and aggregators each pair is a job of its
own, with gateways of its own, one after the other: in a guest most of a job is FATE that is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context

from deploy.softroce.programs.counters import Counters
from deploy.softroce.programs.exchange.fate_parties import joined, new_session
from deploy.softroce.programs.exchange.fate_rabbitmq import way_of_all
from deploy.softroce.programs.exchange.interface import Host, host_of_environment
from deploy.softroce.programs.exchange.rounds import counted
from deploy.softroce.programs.exchange.trained import dataset
from deploy.softroce.programs.gateways import gateway_document, running_gateway, text_of
from deploy.softroce.programs.meeting import Chair, Seat, chaired, seated
from examples.cifar10_vgg.fedavg import serve, train_client
from examples.cifar10_vgg.vgg import NAMES, build
from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.bench.rabbitmq import MANAGEMENT, Broker, running_rabbitmq
from fedrdma_fate.fate.aggregation.hook import logger as aggregation_log
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.wire.frames import Party

MASKED_BYTES = 16
"""Of a parameter, as FATE's secure aggregation sends it."""
BESIDE_BYTES = 64 * 2**20
"""For what goes beside models, in either region of a gateway."""
HELD_MODELS = 2
"""Of each client, in a region: one that comes, and one that is summed."""
AGGREGATORS = ("secure_aggregate", "plaintext")
"""FATE's."""
LOOK_AGAIN_SECONDS = 0.02
"""Between two looks at whether all data paths are up; nothing is timed by them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What is asked for.

    Attributes:
        federation: `fate-rabbitmq`, or MODE/TRANSPORT.
        train: `vgg5` or `vgg8`.
        rounds: each goes once through a client's pictures.
        data: directory with CIFAR-10; None: a stand-in.
        seed: of all that is drawn by chance, the masks too, so that two jobs' weights can be compared.
        tolerance: share of each update that may be missing (`loss_tolerance`).
        aggregator: FATE's.
    """

    federation: str
    train: str
    rounds: int
    data: Path | None
    seed: int
    tolerance: float = 0.0
    aggregator: str = AGGREGATORS[0]


def parties_of(silos: int) -> list[tuple[str, str]]:
    """One for each host: FATE wants one guest, and the server is the arbiter."""
    return [("arbiter", "0"), ("guest", "1"), *(("host", str(number)) for number in range(2, silos + 1))]


# --- federations ---


@contextlib.contextmanager
def by_rabbitmq(host: Host, job: Job, line: Chair | Seat) -> Iterator[Any]:
    """FATE's own, with one broker, at the server."""
    del job
    everyone = parties_of(host.silos)
    with contextlib.ExitStack() as stack:
        if isinstance(line, Chair):
            broker = stack.enter_context(running_rabbitmq(host.address, (MANAGEMENT,)))
            session = new_session()
            line.tell([session, dataclasses.asdict(broker)])
        else:
            session, told = line.hear()
            broker = Broker(**told)
        context = stack.enter_context(joined(host, way_of_all(session, broker, host, everyone)))
        _make_virtual_hosts(context, host, everyone, line)
        yield context
        # nobody is cut off by the broker's end
        all_are_here(line)


def _make_virtual_hosts(context: Any, host: Host, everyone: Sequence[tuple[str, str]], line: Chair | Seat) -> None:
    """Each pair's by one of both, before the other asks: FATE's two sides ask at the same moment, and where a virtual
    host still starts, queues are refused, which FATE does not look at; what is put is thrown away."""
    warm = context.sub_ctx("warm")
    for number in range(len(everyone)):
        if number == host.number:
            for other in everyone[number + 1 :]:
                _party(warm, other).put("made", number)
        all_are_here(line)
        if number < host.number:
            _party(warm, everyone[number]).get("made")


def _party(context: Any, party: tuple[str, str]) -> Any:
    role, party_id = party
    if role == "host":
        return next(one for one in context.hosts if one.party[1] == party_id)
    return context.arbiter if role == "arbiter" else context.guest


@contextlib.contextmanager
def by_gateways(host: Host, job: Job, line: Chair | Seat) -> Iterator[Any]:
    """This project's: a gateway at each host, nothing set by hand but the room for models."""
    mode, transport = job.federation.split("/")
    everyone = parties_of(host.silos)
    if isinstance(line, Chair):
        (port,) = free_ports(1)
        line.tell(port)
    else:
        port = int(line.hear())
    model_bytes = MASKED_BYTES * sum(one.numel() for one in build(job.train, job.seed).parameters())
    clients = 1 if host.number else host.silos
    with tempfile.TemporaryDirectory() as name:
        document = gateway_document(
            Path(name),
            [Party(*party) for party in everyone],
            port=port,
            mode=mode,
            transport="auto" if transport == "grpc" else transport,
            # as FATE adds, so that weights can be compared; by default sums are exact, and may differ in the last bit
            aggregate={"order": "rank"},
            memory={
                "send_bytes": HELD_MODELS * model_bytes + BESIDE_BYTES,
                "receive_bytes": HELD_MODELS * clients * model_bytes + BESIDE_BYTES * len(everyone),
            },
        )
        with running_gateway(document) as address:
            while _paths(Path(document["trace"])) < host.silos:
                time.sleep(LOOK_AGAIN_SECONDS)
            all_are_here(line)
            computing = CSession(f"job-{host.number}", data_dir=name, options={"task_cores": 1})
            federation = FedRDMAFederation(
                "job",
                computing,
                everyone[host.number],
                everyone,
                address,
                FederationOptions(loss_tolerance=job.tolerance),
            )
            try:
                yield Context(computing=computing, federation=federation)
                all_are_here(line)
                federation.destroy()
            finally:
                computing.destroy()
            all_are_here(line)


def _paths(trace: Path) -> int:
    """Peers that a data path is up to."""
    events = map(json.loads, text_of(trace).splitlines())
    return len({event.get("peer") for event in events if event["event"] == "link"})


def all_are_here(line: Chair | Seat) -> None:
    """Wait until all hosts have come so far."""
    if isinstance(line, Chair):
        line.hear()
        line.tell("go on")
    else:
        line.say("here")
        line.hear()


# --- the job ---


class HolesOfRounds(logging.Handler):
    """Takes down what the aggregation logs of each round in which something may be missing.

    Attributes:
        rounds: of each, in per cent, what is missing of the updates, and what of the aggregate stays as it was.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.rounds: list[tuple[float, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """One line a round."""
        if isinstance(record.args, tuple) and record.args:
            _, _, missing, *_, kept = record.args
            self.rounds.append((float(str(missing)), float(str(kept))))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """To the job's log."""
        told = aggregation_log
        level = told.level
        told.setLevel(logging.INFO)
        told.addHandler(self)
        try:
            yield
        finally:
            told.removeHandler(self)
            told.setLevel(level)


def take_part(host: Host, job: Job) -> dict[str, Any] | None:
    """A host's part; at the server, what came of it all."""
    open_federation = by_rabbitmq if job.federation == "fate-rabbitmq" else by_gateways
    with contextlib.ExitStack() as stack:
        line: Chair | Seat
        if host.number:
            line = stack.enter_context(seated(host.number, host.meeting))
        else:
            line = stack.enter_context(chaired(host.silos, host.meeting))
        context = stack.enter_context(open_federation(host, job, line))
        output = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = dataset(job.data, job.seed) if host.number else None
        all_are_here(line)
        begun, before = time.monotonic(), counted()
        if isinstance(line, Seat):
            assert data is not None
            trained = train_client(
                context,
                data,
                job.train,
                job.rounds,
                job.seed,
                output,
                seeded_masks=True,
                aggregator=job.aggregator,
            )
            line.say(dataclasses.asdict(trained))
            return None
        holes = HolesOfRounds()
        with holes.listening():
            serve(context)
        clients = line.hear()
        return {**summary(clients, begun, counted().since(before)), "missing_percent": holes.rounds}


def summary(clients: Sequence[dict[str, Any]], begun: float, wire: Counters) -> dict[str, Any]:
    """What came of the job.

    Args:
        clients: what each says, as of `Trained`.
        begun: when all were there, by `time.monotonic`.
        wire: what passed the server's interface from then on.

    Raises:
        SystemExit: the clients' parameters differ.
    """
    found = {one["parameters"] for one in clients}
    if len(found) != 1:
        raise SystemExit(f"clients ended with {len(found)} different models")
    rounds = list(zip(*(one["exchanged"] for one in clients), strict=True))
    return {
        "seconds": max(ended for _, ended in rounds[-1]) - begun,
        "round_seconds": [max(ended for _, ended in one) - min(trained for trained, _ in one) for one in rounds],
        "sent_bytes": wire.sent_bytes,
        "received_bytes": wire.received_bytes,
        "parameters": found.pop(),
        "accuracy": [one["accuracy"] for one in clients],
        "losses": [one["losses"] for one in clients],
    }


def jobs_of(chosen: argparse.Namespace) -> list[Job]:
    """One for each aggregator and tolerance, in the order in which they were asked for."""
    pairs = itertools.product(chosen.aggregator, chosen.tolerance)
    common = {name: value for name, value in vars(chosen).items() if name not in ("aggregator", "tolerance")}
    return [Job(**common, aggregator=aggregator, tolerance=tolerance) for aggregator, tolerance in pairs]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run this host's part."""
    logging.basicConfig(level=logging.ERROR)
    parser = argparse.ArgumentParser(prog="python -m deploy.softroce.programs.fate_training")
    parser.add_argument("federation", help="fate-rabbitmq, or MODE/TRANSPORT such as fedrdma-x/udp")
    parser.add_argument("--train", choices=NAMES, default="vgg8")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--data", type=Path, help="directory with CIFAR-10; a stand-in without")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--tolerance", type=float, nargs="+", default=[0.0], help="share of each update that may be missing"
    )
    parser.add_argument("--aggregator", choices=AGGREGATORS, nargs="+", default=[AGGREGATORS[0]])
    chosen = parser.parse_args(arguments)
    if any(chosen.tolerance) and chosen.federation == "fate-rabbitmq":
        parser.error("--tolerance: by gateways alone")
    host, jobs = host_of_environment(), jobs_of(chosen)
    for number, job in enumerate(jobs):
        # a meeting that is over leaves its socket, and nobody is to go there again
        place = host.meeting.with_suffix(f".{number}")
        told = take_part(dataclasses.replace(host, meeting=place), job)
        if told is not None:
            which = {"aggregator": job.aggregator, "tolerance": job.tolerance} if len(jobs) > 1 else {}
            print(json.dumps({**which, **told}), flush=True)


if __name__ == "__main__":
    main()
