"""`fedrdma bench paper fedcomm`: FedComm's figures by number, ours beside the paper's."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from fedrdma_fate.bench.incast.runner import Hosts
from fedrdma_fate.bench.paper.evaluation import Evaluation
from fedrdma_fate.bench.paper.fedcomm import FIGURES, LOOPBACK, LOSS_NETWORK, Figure, Found, Place, evaluate
from fedrdma_fate.bench.protocols.loopback import Loopback
from fedrdma_fate.bench.protocols.rows import ProtocolRow, select_protocol_rows
from fedrdma_fate.bench.protocols.runner import Log, run_protocols
from fedrdma_fate.bench.protocols.settings import NETWORK_BPS, ProtocolSetting, parse_protocol_settings
from fedrdma_fate.bench.protocols.stress import parse_stress
from fedrdma_fate.bench.protocols.training import Training, check_pictures
from fedrdma_fate.bench.sweep import Tell
from fedrdma_fate.bench.wan.settings import Peculiarities
from fedrdma_fate.bench.wan.testbed import Testbed, find_checkout
from fedrdma_fate.cli.bench_paper import print_evaluation, write_evaluation
from fedrdma_fate.cli.bench_protocols import protocols_log, provide_brokers
from fedrdma_fate.cli.bench_shared import (
    INTERRUPTED_STATUS,
    checkout_option,
    end_with,
    ended_in_order,
    json_option,
    kernel_option,
    limit_option,
    make_directory,
    progress,
    resumed_output_option,
)
from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.wire.errors import ConfigError, ErrorCode


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What is the same for all figures.

    Attributes:
        networks: of FedComm's.
        models: of its two.
        silos: beside the server.
        ours: rows beside the paper's.
        rounds: None: the figure's.
        seed: of losses and training.
        data: directory with CIFAR-10; None: a stand-in.
    """

    networks: Sequence[str]
    models: Sequence[str]
    silos: int
    ours: Sequence[str]
    rounds: int | None
    seed: int
    data: Path | None

    def rows_of(self, figure: Figure) -> list[str]:
        """The paper's, then ours."""
        return list(dict.fromkeys([*figure.rows, *self.ours]))

    def rounds_of(self, figure: Figure) -> int:
        """As asked, or as in the paper."""
        return self.rounds or figure.rounds

    def places(self, figure: Figure) -> list[Place]:
        """All settings of a figure, calm ones first.

        Raises:
            ConfigError: CONFIG_BAD_VALUE: its stress cannot be had here, or none of its networks or of its models was
                asked for.
        """
        networks = [one for one in self.networks if figure.networks is None or one in figure.networks]
        models = [one for one in self.models if one in figure.models]
        if not (networks or figure.on_loopback) or not models:
            what = f"models {', '.join(figure.models)}"
            if figure.networks is not None:
                what = f"network {', '.join(figure.networks)}, {what}"
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE, f"figure {figure.number} has {what}, none of which was asked for."
            )
        harder = parse_stress(figure.stress, "silos", self.silos, loopback=figure.on_loopback)
        columns: list[tuple[str, str, str]]
        if figure.on_loopback:
            columns = [(LOOPBACK, LOSS_NETWORK, "0")]
        elif figure.losses:
            network = LOSS_NETWORK if LOSS_NETWORK in networks else networks[0]
            columns = [(loss, network, loss) for loss in figure.losses]
        else:
            columns = [(network, network, "0") for network in networks]
        made = []
        for stress in [None] if harder is None else [None, harder]:
            for column, network, loss in columns:
                for model in models:
                    (one,) = parse_protocol_settings(
                        str(self.silos), model, network, "1mbit", "2ms", "bdp", loss, "all", Peculiarities()
                    )
                    one = dataclasses.replace(one, loopback=figure.on_loopback, stress=stress)
                    if figure.trains:
                        training = Training(model, self.data, self.seed)
                        one = dataclasses.replace(one, model=training.model, training=training)
                    made.append(Place(column, model, stress is not None, one))
        return made


@click.command()
@click.argument("figures", nargs=-1, metavar="[FIGURE]...")
@click.option("--network", default="3g,4g,wifi", show_default=True, help="Of FedComm's, with commas between.")
@click.option("--model", default="vgg5,vgg8", show_default=True, help="With commas between.")
@click.option("--silos", default=4, show_default=True, type=click.IntRange(1, 64), help="Beside the server.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="Of each row; by default the figure's.")
@click.option("--ours", default="fedrdma-x/udp", show_default=True, help="Rows beside the paper's; none for none.")
@click.option("--data", type=click.Path(path_type=Path), help="Directory with CIFAR-10; a small stand-in without.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of losses and training.")
@kernel_option
@limit_option(1800.0)
@checkout_option
@json_option
@resumed_output_option("plots and reports")
def fedcomm(
    figures: Sequence[str],
    network: str,
    model: str,
    silos: int,
    rounds: int | None,
    ours: str,
    data: Path | None,
    seed: int,
    kernel: str,
    limit: float,
    checkout: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """FedComm's Figures 3 to 11, all of them or those of these numbers: its protocols and ours, beside what its text
    states. Takes hours; with --output it goes on where it was interrupted."""
    with told_plainly(), ended_in_order():
        chosen = [FIGURES[number] for number in _numbers(figures)]
        rows = () if ours == "none" else tuple(one.strip() for one in ours.split(","))
        asked = Asked(
            _among(network, tuple(NETWORK_BPS), "--network"),
            _among(model, ("vgg5", "vgg8"), "--model"),
            silos,
            rows,
            rounds,
            seed,
            None if data is None else data.absolute(),
        )
        # all of them before anything is measured
        planned = [(figure, asked.places(figure), select_protocol_rows(asked.rows_of(figure))) for figure in chosen]
        repository = find_checkout(checkout)
        if asked.data is not None:
            check_pictures(repository, asked.data)

        def make_testbed(setting: ProtocolSetting) -> Testbed:
            return Testbed(repository, setting.network, seed, kernel, limit, more=setting.host_options)

        def make_hosts(setting: ProtocolSetting) -> Hosts:
            busy = setting.stress is not None and setting.stress.cpu
            return Loopback(repository, silos, limit, busy) if setting.loopback else make_testbed(setting)

        networked = [place.setting for _, places, _ in planned for place in places if not place.setting.loopback]
        if networked:
            make_testbed(networked[0]).check()
        provide_brokers([row for _, _, each in planned for row in each], repository)
        logs = {
            count: protocols_log(output, {"rounds": count, "seed": seed, "kernel": kernel})
            for count in {asked.rounds_of(figure) for figure in chosen}
        }
        made: list[Evaluation] = []
        interrupted = False
        for figure, places, each in planned:
            count = asked.rounds_of(figure)
            with progress() as tell:
                evaluation, interrupted = _measure(figure, places, each, count, make_hosts, logs[count], tell)
            made.append(evaluation)
            if not as_json:
                print_evaluation(evaluation)
            if output is not None:
                make_directory(output)
                write_evaluation(evaluation, json.dumps(evaluation.to_document(), indent=2), output)
            if interrupted:
                break
        if as_json:
            click.echo(json.dumps({"figures": [one.to_document() for one in made]}, indent=2))
    if interrupted:
        click.echo("fedrdma: interrupted; what was measured before is shown", err=True)
        sys.exit(INTERRUPTED_STATUS)
    end_with({f"{one.name}: {what}": why for one in made for what, why in one.failures.items()})


def _measure(
    figure: Figure,
    places: Sequence[Place],
    rows: Sequence[ProtocolRow],
    rounds: int,
    make_hosts: Callable[[ProtocolSetting], Hosts],
    log: Log,
    tell: Tell,
) -> tuple[Evaluation, bool]:
    """One figure, and whether it was interrupted."""
    sweep = run_protocols([place.setting for place in places], rows, make_hosts, rounds, log, tell)
    found = Found(places, log.find)
    documents = [run.to_document() for run in sweep.runs]
    names = [row.name for row in rows]
    return evaluate(figure, names, found, sweep.failures, rounds, documents), sweep.interrupted


def _numbers(figures: Sequence[str]) -> list[int]:
    if not figures:
        return list(FIGURES)
    for figure in figures:
        if not figure.isdecimal() or int(figure) not in FIGURES:
            known = f"{min(FIGURES)} to {max(FIGURES)}"
            raise click.BadParameter(f"there is no figure {figure!r}: {known}.", param_hint="FIGURE")
    return list(dict.fromkeys(int(figure) for figure in figures))


def _among(text: str, known: Sequence[str], option: str) -> list[str]:
    names = list(dict.fromkeys(one.strip() for one in text.split(",")))
    for name in names:
        if name not in known:
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"{option}: {name!r} is none of {', '.join(known)}.")
    return names
