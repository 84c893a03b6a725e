"""`fedrdma bench paper`: the FedRDMA paper's evaluation, ours beside the paper's."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedrdma_fate.bench.baselines import select_baselines
from fedrdma_fate.bench.paper import figure1 as paper_figure1
from fedrdma_fate.bench.paper import figure7 as paper_figure7
from fedrdma_fate.bench.paper import figure8 as paper_figure8
from fedrdma_fate.bench.paper import table2 as paper_table2
from fedrdma_fate.bench.paper import table3 as paper_table3
from fedrdma_fate.bench.paper import table4 as paper_table4
from fedrdma_fate.bench.paper.evaluation import Evaluation
from fedrdma_fate.bench.paper.networks import NETWORKS, Experiment, network_named
from fedrdma_fate.bench.paper.published import RDMA_CARD_WATTS, RTT_TEXT, STANDARD_CARD_WATTS
from fedrdma_fate.bench.paper.rounds import COMPUTE_SECONDS
from fedrdma_fate.bench.payload import plain_bytes
from fedrdma_fate.bench.report import terminal_table, write_report
from fedrdma_fate.bench.runner import run_rows
from fedrdma_fate.bench.wan.rows import select_wan_rows
from fedrdma_fate.bench.wan.runner import Hosts, Tell
from fedrdma_fate.bench.wan.settings import parse_link, parse_payload_size
from fedrdma_fate.bench.wan.testbed import Testbed, find_checkout
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli.bench_shared import (
    checkout_option,
    console,
    end_with,
    ended_in_order,
    json_option,
    kernel_option,
    make_directory,
    progress,
)
from fedrdma_fate.cli.failure import told_plainly

_BUFFER = "4MB"
_PAPER_RATES = "1gbit,2gbit,3gbit,4gbit,5gbit,6gbit,8gbit,10gbit,100gbit"
_FIGURE_1_RATES = "10mbit,100mbit,1gbit,3gbit,10gbit"
_RANKS = "4,8,16,32,64,128,256,512,1024"


@click.group()
def paper() -> None:
    """Repeat the FedRDMA paper's measurements in the testbed, and FedComm's; show them beside the paper's."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """How an evaluation is shown."""

    as_json: bool
    output: Path | None


_SHOWN_OPTIONS = (
    json_option,
    click.option(
        "--output", type=click.Path(path_type=Path, file_okay=False), help="Directory for plots and a report."
    ),
)

_EXPERIMENT_OPTIONS = (
    click.option(
        "--network",
        default=NETWORKS[0].name,
        show_default=True,
        help="; ".join(f"{network.name}: {network.about}" for network in NETWORKS) + ".",
    ),
    click.option("--rtt", default=RTT_TEXT, show_default=True, help="Round-trip time."),
    kernel_option,
    click.option(
        "--limit", default=600.0, show_default=True, type=click.FloatRange(1), help="Wall seconds for one boot."
    ),
    checkout_option,
    *_SHOWN_OPTIONS,
)

_rate = click.option("--rate", default="10gbit", show_default=True, help="Of the link's bottleneck.")
_repeat = click.option(
    "--repeat", default=3, show_default=True, type=click.IntRange(1, 1000), help="Transfers after the first."
)
_compute = click.option(
    "--compute",
    default=round(COMPUTE_SECONDS, 1),
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds of computation in a round; the default follows from the paper's 45.9 s being 44.97 %.",
)


def _sample(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--size", default=default, show_default=True, help="Of the payload that is measured, and scaled."
    )


def _as_experiment(evaluate: Callable[..., Evaluation]) -> Callable[..., None]:
    """Give a command the testbed's options, and show what it evaluates."""

    @functools.wraps(evaluate)
    def run(
        network: str,
        rtt: str,
        kernel: str,
        limit: float,
        checkout: Path | None,
        as_json: bool,
        output: Path | None,
        **own: Any,
    ) -> None:
        def make(tell: Tell) -> Evaluation:
            repository = find_checkout(checkout)

            def hosts_on(link: WanLink, more: tuple[str, ...]) -> Hosts:
                return Testbed(repository, link, 1, kernel, limit, more)

            experiment = Experiment(hosts_on, network_named(network), tell)
            # before minutes of measurements: is there a kernel to boot
            Testbed(repository, parse_link("1gbit", rtt, _BUFFER, "0"), 1, kernel, limit).check()
            return evaluate(experiment, lambda rate: parse_link(rate, rtt, _BUFFER, "0"), **own)

        _show(make, Shown(as_json, output))

    for option in reversed(_EXPERIMENT_OPTIONS):
        run = option(run)
    return run


LinkOf = Callable[[str], WanLink]


@paper.command()
@click.option("--rates", default=_FIGURE_1_RATES, show_default=True, help="Bandwidths, with commas between.")
@_sample("64MiB")
@_repeat
@_compute
@_as_experiment
def figure1(experiment: Experiment, link_of: LinkOf, rates: str, size: str, repeat: int, compute: float) -> Evaluation:
    """Communication beside computation of a round of full GPT-2 tuning, by bandwidth."""
    return paper_figure1.figure1(experiment, _links(rates, link_of), parse_payload_size(size), repeat, compute)


@paper.command()
@_rate
@_sample("256MiB")
@_repeat
@_compute
@_as_experiment
def figure7(experiment: Experiment, link_of: LinkOf, rate: str, size: str, repeat: int, compute: float) -> Evaluation:
    """Communication and end-to-end time of a round of full GPT-2 tuning, by mode."""
    return paper_figure7.figure7(experiment, link_of(rate), parse_payload_size(size), repeat, compute)


@paper.command()
@_rate
@click.option("--ranks", default=_RANKS, show_default=True, help="LoRA ranks, with commas between.")
@click.option("--rows", default=",".join(paper_figure7.ROWS), show_default=True, help="Rows of bench wan.")
@_repeat
@_as_experiment
def figure8(experiment: Experiment, link_of: LinkOf, rate: str, ranks: str, rows: str, repeat: int) -> Evaluation:
    """Communication time of LoRA adapters, by rank and mode."""
    numbers = _numbers(ranks)
    names = [row.name for row in select_wan_rows([name.strip() for name in rows.split(",")])]
    return paper_figure8.figure8(experiment, link_of(rate), numbers, names, repeat)


@paper.command()
@click.option("--rates", default=_PAPER_RATES, show_default=True, help="Bandwidths, with commas between.")
@_sample("64MB")
@click.option("--x-size", default="256MB", show_default=True, help="Of fedrdma-x's payload; 0 leaves it out.")
@_repeat
@_as_experiment
def table2(experiment: Experiment, link_of: LinkOf, rates: str, size: str, x_size: str, repeat: int) -> Evaluation:
    """The largest and the best chunk for each bandwidth, Link-Enable, the time of 1 GB; and the modes' formula."""
    x_bytes = 0 if x_size == "0" else parse_payload_size(x_size)
    return paper_table2.table2(experiment, _links(rates, link_of), parse_payload_size(size), x_bytes, repeat)


def _with_shown_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SHOWN_OPTIONS):
        command = option(command)
    return command


@paper.command()
@_with_shown_options
def table3(as_json: bool, output: Path | None) -> None:
    """What travels for each LoRA rank, and in how many chunks; sends nothing."""
    _show(lambda _: paper_table3.table3(), Shown(as_json, output))


@paper.command()
@_rate
@_sample("256MiB")
@_repeat
@click.option("--loopback-size", default="64MiB", show_default=True, help="Of the payload between real processes.")
@click.option("--cpu-watts", default=paper_table4.CPU_WATTS, show_default=True, help="Of a busy core.")
@click.option("--card-watts", default=RDMA_CARD_WATTS, show_default=True, help="Of the RDMA card.")
@click.option("--standard-card-watts", default=STANDARD_CARD_WATTS, show_default=True, help="Of gRPC's card.")
@_as_experiment
def table4(
    experiment: Experiment,
    link_of: LinkOf,
    rate: str,
    size: str,
    repeat: int,
    loopback_size: str,
    cpu_watts: float,
    card_watts: float,
    standard_card_watts: float,
) -> Evaluation:
    """The cost of 1 GB: memory beyond the payload, time, CPU; energy as an estimate. Needs the extra fate."""
    loopback_bytes = parse_payload_size(loopback_size)
    return paper_table4.table4(
        experiment,
        link_of(rate),
        parse_payload_size(size),
        repeat,
        lambda names: run_rows(select_baselines(names), plain_bytes(loopback_bytes), repeat, experiment.tell),
        loopback_bytes,
        paper_table4.Power(cpu_watts, card_watts, standard_card_watts),
    )


def _links(rates: str, link_of: LinkOf) -> list[WanLink]:
    return [link_of(rate.strip()) for rate in rates.split(",")]


def _numbers(ranks: str) -> list[int]:
    numbers = [rank.strip() for rank in ranks.split(",")]
    for number in numbers:
        if not number.isdecimal() or int(number) == 0:
            raise click.BadParameter(f"{number!r} is not a LoRA rank such as 8.", param_hint="--ranks")
    return [int(number) for number in numbers]


def _show(make: Callable[[Tell], Evaluation], shown: Shown) -> None:
    with told_plainly(), ended_in_order():
        if shown.output is not None:
            make_directory(shown.output)
        with progress() as tell:
            evaluation = make(tell)
        document = json.dumps(evaluation.to_document(), indent=2)
        if shown.as_json:
            click.echo(document)
        else:
            print_evaluation(evaluation)
        if shown.output is not None:
            write_evaluation(evaluation, document, shown.output)
    end_with(evaluation.failures)


def print_evaluation(evaluation: Evaluation) -> None:
    """For people at a terminal."""
    screen = console()
    for table in evaluation.tables:
        screen.print(terminal_table(table))
    for note in evaluation.notes:
        click.echo(note)


def write_evaluation(evaluation: Evaluation, document: str, output: Path) -> None:
    """A document, a report and its plots, into a directory that is there."""
    path = output / f"paper-{evaluation.name}.json"
    path.write_text(f"{document}\n", encoding="utf-8")
    said = [*evaluation.notes, *(f"{what} was not measured: {why}" for what, why in evaluation.failures.items())]
    page = output / f"paper-{evaluation.name}.html"
    for written in [path, *write_report(page, evaluation.title, said, evaluation.tables, evaluation.draw())]:
        click.echo(f"wrote {written}", err=True)
