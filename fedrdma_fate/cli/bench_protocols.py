"""`fedrdma bench protocols`: which protocol for a federation, in the testbed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from fedrdma_fate.bench.incast.runner import Hosts
from fedrdma_fate.bench.protocols.brokers import provide_rabbitmq
from fedrdma_fate.bench.protocols.loopback import Loopback
from fedrdma_fate.bench.protocols.results import read_measurement, to_plot, to_table
from fedrdma_fate.bench.protocols.rows import (
    ProtocolRow,
    by_running,
    lacks_rabbitmq,
    select_protocol_rows,
    usual_protocol_rows,
)
from fedrdma_fate.bench.protocols.runner import Log, ProtocolRun, ProtocolSweep, run_protocols
from fedrdma_fate.bench.protocols.running import parse_running
from fedrdma_fate.bench.protocols.settings import LIMITED, ProtocolSetting, parse_protocol_settings
from fedrdma_fate.bench.protocols.stress import FLOWS, STRESS, parse_stress
from fedrdma_fate.bench.protocols.training import (
    STATE_BYTES,
    Training,
    check_pictures,
    training_plot,
    training_table,
)
from fedrdma_fate.bench.report import DataTable, Plot, terminal_table, write_report
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.settings import parse_peculiarities
from fedrdma_fate.bench.wan.testbed import Testbed, find_checkout
from fedrdma_fate.cli.bench_shared import (
    INTERRUPTED_STATUS,
    checkout_option,
    console,
    end_with,
    ended_in_order,
    is_given,
    json_option,
    kernel_option,
    limit_option,
    open_log,
    progress,
    resumed_output_option,
)
from fedrdma_fate.cli.failure import told_plainly

LOG_NAME = "bench-protocols.measured.jsonl"
_OF_THE_NETWORK = ("network", "rate", "rtt", "buffer", "loss", "limited", "mtu", "nic_rate", "seed", "kernel")
"""Options that say nothing of loopback."""
_BY_RUNNING = {"--osx": "fate-osx", "--pulsar": "fate-pulsar"}
"""Rows by a broker that runs already, by the option that names it."""


@click.command()
@click.option("--silos", default="4", show_default=True, help="Beside the server, 1 to 64.")
@click.option("--model", default="vgg5", show_default=True, help="vgg5, vgg8, lora-RANK, or a size; each way.")
@click.option("--network", help="3g, 4g, wifi: FedComm's rate and queue, instead of --rate and --buffer.")
@click.option("--rate", default="20mbit", show_default=True, help="Of the limited links.")
@click.option("--rtt", default="2ms", show_default=True, help="Round-trip time.")
@click.option(
    "--buffer", default="126600", show_default=True, help="What a link's buffer holds before it drops, or bdp."
)
@click.option("--loss", default="0", show_default=True, help="Packets lost each way, such as 5%.")
@click.option(
    "--limited",
    default="all",
    show_default=True,
    type=click.Choice(LIMITED),
    help="Whose link is: what silos send alone, or the server's and theirs.",
)
@click.option("--mtu", type=click.IntRange(576, 65535), help="Bytes of an IP packet.  [default: 1500]")
@click.option("--nic-rate", help="At which the hosts' cards send; ten times --rate by default.")
@click.option("--loopback", is_flag=True, help="Plain processes, in real time: what a row costs CPU and memory.")
@click.option(
    "--stress",
    type=click.Choice(STRESS),
    help="A busy core at each silo, with --loopback; other TCP flows on the network; or both.",
)
@click.option(
    "--flows",
    default=FLOWS[0],
    show_default=True,
    type=click.Choice(FLOWS),
    help="Of --stress net: between silos 1 and 2, 3 and 4, or from each into the server.",
)
@click.option("--train", type=click.Choice(list(STATE_BYTES)), help="Train FedComm's model, and exchange that.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Directory with CIFAR-10 to train on, binary or Python version; a small stand-in without.",
)
@click.option("--osx", help="HOST:PORT of an OSX broker that runs: row fate-osx, with --loopback.")
@click.option("--pulsar", help="HOST:PORT[:HTTP-PORT] of a Pulsar that runs: row fate-pulsar, with --loopback.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 1000), help="One after the other.")
@click.option("--rows", default="all", show_default=True, help="Names of rows, with commas between.")
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(0, 2**32), help="Of the losses, and of training."
)
@kernel_option
@limit_option(1800.0)
@checkout_option
@json_option
@resumed_output_option("a plot and a report")
def protocols(
    silos: str,
    model: str,
    network: str | None,
    rate: str,
    rtt: str,
    buffer: str,
    loss: str,
    limited: str,
    mtu: int | None,
    nic_rate: str | None,
    loopback: bool,
    stress: str | None,
    flows: str,
    train: str | None,
    data: Path | None,
    osx: str | None,
    pulsar: str | None,
    rounds: int,
    rows: str,
    seed: int,
    kernel: str,
    limit: float,
    checkout: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Time rounds of a federation by protocol, in virtual time: TCP one silo after the other and all at once, UDP,
    gRPC, brokers, and this project's modes; with --loopback, CPU and memory in real time. Silos, model, network, rate,
    RTT, buffer and loss may be lists with commas: all combinations are measured."""
    with told_plainly(), ended_in_order():
        if network is not None and (is_given("rate") or is_given("buffer")):
            raise click.UsageError("Give --network, or --rate and --buffer.")
        given = [name for name in _OF_THE_NETWORK if is_given(name) and not (name == "seed" and train is not None)]
        if loopback and given:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise click.UsageError(f"--loopback has no network: without {options}.")
        if train is not None and is_given("model"):
            raise click.UsageError("Give --model, or --train.")
        if train is None and data is not None:
            raise click.UsageError("--data is what is trained on: give --train, too.")
        training = None if train is None else Training(train, None if data is None else data.absolute(), seed)
        if is_given("flows") and stress not in ("net", "both"):
            raise click.UsageError("--flows are those of --stress net: give that, too.")
        named = {option: text for option, text in (("--osx", osx), ("--pulsar", pulsar)) if text is not None}
        if named and not loopback:
            raise click.UsageError(f"{' and '.join(named)}: a broker of this machine is reached with --loopback alone.")
        brokers = {option: parse_running(option, text) for option, text in named.items()}
        common = parse_peculiarities(mtu=mtu, nic_rate=nic_rate)
        settings = parse_protocol_settings(silos, model, network, rate, rtt, buffer, loss, limited, common)
        harder = parse_stress(stress, flows, min(one.silos for one in settings), loopback=loopback)
        settings = [dataclasses.replace(setting, loopback=loopback, stress=harder) for setting in settings]
        if training is not None:
            settings = [dataclasses.replace(one, model=training.model, training=training) for one in settings]
        chosen = by_running(_chosen_rows(rows, loopback, named), brokers)
        repository = find_checkout(checkout)
        if training is not None and training.data is not None:
            check_pictures(repository, training.data)

        def make_testbed(setting: ProtocolSetting) -> Testbed:
            return Testbed(repository, setting.network, seed, kernel, limit, more=setting.host_options)

        def make_hosts(setting: ProtocolSetting) -> Hosts:
            if not loopback:
                return make_testbed(setting)
            return Loopback(repository, setting.silos, limit, busy_cores=harder is not None and harder.cpu)

        if not loopback:
            make_testbed(settings[0]).check()
        provide_brokers(chosen, repository)
        notes = notes_of(settings, chosen)
        if rows == "all" and loopback and len(named) < len(_BY_RUNNING):
            lacking = [f"{row} ({option} HOST:PORT)" for option, row in _BY_RUNNING.items() if option not in named]
            notes.append(f"left out for want of a broker that runs: {', '.join(lacking)}")
        for note in notes:
            click.echo(f"fedrdma: {note}", err=True)
        log = protocols_log(output, {"rounds": rounds, "seed": seed, "kernel": kernel})
        with progress() as tell:
            sweep = run_protocols(settings, chosen, make_hosts, rounds, log, tell)
        _show(sweep, as_json)
        if output is not None and sweep.measured:
            _write(sweep, notes, output)
    if sweep.interrupted:
        asked = len(settings) * len(chosen)
        click.echo(f"fedrdma: interrupted; {len(sweep.failures)} of {asked} are not measured", err=True)
        sys.exit(INTERRUPTED_STATUS)
    end_with(sweep.failures)


def _chosen_rows(rows: str, loopback: bool, options: Collection[str]) -> list[ProtocolRow]:
    if rows == "all":
        return usual_protocol_rows(loopback=loopback, options=options)
    return select_protocol_rows([name.strip() for name in rows.split(",")])


def provide_brokers(rows: Sequence[ProtocolRow], checkout: Path) -> None:
    """Unpack RabbitMQ for the first who asks for one of its rows; without it they are left out."""
    if not lacks_rabbitmq(rows):
        return
    click.echo("fedrdma: unpacking RabbitMQ and Erlang from Debian's packages, once (32 MB to fetch)", err=True)
    if (reason := provide_rabbitmq(checkout)) is not None:
        click.echo(f"fedrdma: no RabbitMQ: {reason}", err=True)


def notes_of(settings: Sequence[ProtocolSetting], rows: Sequence[ProtocolRow]) -> list[str]:
    """What is to be said of how rows carry the models, each once."""
    told = {
        f"{row.name}, {setting.model.name}: {note}": None
        for setting in settings
        for row in rows
        if (note := row.note(setting)) is not None
    }
    return list(told)


def protocols_log(output: Path | None, conditions: dict[str, object]) -> Log:
    """See `open_log`."""
    return open_log(
        output, LOG_NAME, lambda path: KeptMeasurements(path, conditions, describe_setting, read_measurement)
    )


def describe_setting(setting: ProtocolSetting, row: str) -> dict[str, object]:
    """All that a measurement of a row depends on, beside the conditions of the log."""
    told: dict[str, object] = {"loopback": True} if setting.loopback else {}
    if setting.training is not None:
        told |= setting.training.to_document()
    if setting.stress is not None:
        told |= setting.stress.to_document()
    told |= {"silos": setting.silos, "model_bytes": setting.model.size, "limited": setting.limited, "row": row}
    return {**dataclasses.asdict(setting.link), **told}


def _show(sweep: ProtocolSweep, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(sweep.to_document(), indent=2))
        return
    for run in sweep.measured:
        for table in _tables(run):
            console().print(terminal_table(table))


def _tables(run: ProtocolRun) -> list[DataTable]:
    tables = [to_table(run.setting, run.measurements)]
    if run.setting.training is not None:
        tables.append(training_table(f"{run.setting}", run.measurements))
    return tables


def _plots(number: int, run: ProtocolRun) -> list[Plot]:
    plots = [to_plot(f"bench-protocols-{number}", run.setting, run.measurements)]
    if run.setting.training is not None:
        plots.append(training_plot(f"bench-protocols-training-{number}", f"{run.setting}", run.measurements))
    return plots


def _write(sweep: ProtocolSweep, notes: Sequence[str], output: Path) -> None:
    path = output / "bench-protocols.json"
    path.write_text(json.dumps(sweep.to_document(), indent=2) + "\n", encoding="utf-8")
    clock = "real" if sweep.measured[0].setting.loopback else "virtual"
    paragraphs = [f"Communication of a round in {clock} time, the silos' computing taken off; medians of the rounds."]
    paragraphs += notes
    paragraphs += [f"{name} was not measured: {reason}" for name, reason in sweep.failures.items()]
    tables = [table for run in sweep.measured for table in _tables(run)]
    plots = [plot for number, run in enumerate(sweep.measured, start=1) for plot in _plots(number, run)]
    page = output / "bench-protocols.html"
    for written in [path, *write_report(page, "fedrdma bench protocols", paragraphs, tables, plots)]:
        click.echo(f"wrote {written}", err=True)
