"""The command line of the example."""

from __future__ import annotations

import contextlib
import datetime
import sys
import typing
from pathlib import Path

import click
import msgspec
from rich.console import Console

from examples.gpt2_advertisegen.cli_options import CONTEXT, choice, failures_told, job_options, make_console
from examples.gpt2_advertisegen.job import Job
from examples.gpt2_advertisegen.options import FederationName, JobOptions
from examples.gpt2_advertisegen.plan import RunFiles
from examples.gpt2_advertisegen.progress import Lines, LiveDisplay, Progress, Silent
from examples.gpt2_advertisegen.report import headline, memory_table, round_table, write_run_report
from examples.gpt2_advertisegen.summary import Summary
from fedrdma_fate.bench.report import format_seconds, terminal_table


@click.command(context_settings=CONTEXT)
@job_options
@click.option(
    "--federation",
    type=choice(FederationName),
    default="fedrdma",
    help="Our backend, or FATE's standalone federation to compare with.",
)
def main(*, as_json: bool, output: Path | None, **chosen: typing.Any) -> None:
    """Fine-tune GPT-2 with FATE-LLM across three silos on this host: guest 9999, host 10000, arbiter 10000.

    Every federated byte travels between three gateways of this project. The presets: `paper` has the paper's
    hyper-parameters (124M parameters, batch 32, learning rate 5e-6, 5 epochs), `laptop` a small model whose loss
    falls within two minutes on two cores, `tiny` is for tests.
    """
    label = chosen["mode"] if chosen["federation"] == "fedrdma" else chosen["federation"]
    started = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    options = JobOptions(output=output or Path("runs") / f"{started}-{label}", **chosen)
    console = make_console(stderr=as_json)
    with failures_told(console, RunFiles(options.output).logs):
        summary = _run(options, console, quiet=as_json)
        pages = write_run_report(RunFiles(options.output).report, summary)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode() + "\n")
    else:
        _show(console, summary, pages, options)


def _run(options: JobOptions, console: Console, *, quiet: bool) -> Summary:
    with contextlib.ExitStack() as stack:
        progress: Progress
        if quiet:
            progress = Silent()
        elif console.is_terminal:
            progress = stack.enter_context(LiveDisplay(console, options.hyper_parameters().rounds))
        else:
            progress = Lines(console)
        return Job(options, progress).run()


def _show(console: Console, summary: Summary, pages: list[Path], options: JobOptions) -> None:
    console.print(terminal_table(round_table(summary)))
    console.print(terminal_table(memory_table(summary)))
    for sentence in headline(summary):
        console.print(sentence, highlight=False)
    console.print(f"\nDone in {format_seconds(summary.seconds)}.", style="bold", highlight=False)
    console.print(f"Report:  {pages[0]}", soft_wrap=True, highlight=False)
    console.print(f"Summary: {RunFiles(options.output).summary}", soft_wrap=True, highlight=False)
