"""The command line of the example."""

from __future__ import annotations

import contextlib
import datetime
import signal
import sys
import typing
from pathlib import Path
from types import FrameType

import click
import msgspec
from rich.console import Console

from examples.gpt2_advertisegen.job import Job
from examples.gpt2_advertisegen.options import (
    SAMPLE_DATA,
    FederationName,
    JobOptions,
    Masks,
    Optimizer,
    PresetName,
    Tuning,
)
from examples.gpt2_advertisegen.plan import RunFiles
from examples.gpt2_advertisegen.processes import BadInputError, JobFailedError
from examples.gpt2_advertisegen.progress import Lines, LiveDisplay, Progress, Silent
from examples.gpt2_advertisegen.report import headline, memory_table, round_table, write_run_report
from examples.gpt2_advertisegen.summary import MeasurementError, Summary
from fedrdma_fate.bench.report import format_seconds, terminal_table
from fedrdma_fate.gateway.config import TransportName
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import Mode

_FAILED = 1
_USAGE = 2
_INTERRUPTED = 130


def _choice(literal: object) -> click.Choice[str]:
    return click.Choice(typing.get_args(literal))


_POSITIVE = click.IntRange(min=1)
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110})
@click.option("--tuning", type=_choice(Tuning), default="full", help="All parameters, or LoRA on c_attn.")
@click.option("--lora-rank", type=_POSITIVE, default=8, help="Rank of the LoRA matrices.")
@click.option("--mode", type=_choice(Mode), default="fedrdma-e", help="How payloads travel between the gateways.")
@click.option("--transport", type=_choice(TransportName), default="auto", help="Data path between the gateways.")
@click.option(
    "--federation",
    type=_choice(FederationName),
    default="fedrdma",
    help="Our backend, or FATE's standalone federation to compare with.",
)
@click.option("--model", type=_DIRECTORY, help="Directory with real GPT-2 weights and tokenizer. Without: random ones.")
@click.option("--data", type=_DIRECTORY, default=SAMPLE_DATA, help="Directory with train.json and dev.json.")
@click.option("--preset", type=_choice(PresetName), default="paper", help="Hyper-parameters to start from.")
@click.option("--rounds", "--epochs", type=_POSITIVE, help="Federated rounds; each is one epoch.")
@click.option("--steps", type=_POSITIVE, help="Optimizer steps per round; sets the training rows per client.")
@click.option("--samples", type=_POSITIVE, help="Training rows per client.")
@click.option("--batch-size", type=_POSITIVE, help="Rows per optimizer step.")
@click.option("--micro-batch", type=_POSITIVE, help="Rows per forward pass; less takes less memory.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), help="Constant learning rate.")
@click.option("--max-length", type=click.IntRange(min=8), help="Tokens per row; longer rows are cut.")
@click.option("--optimizer", type=_choice(Optimizer), default="adamw", help="AdamW keeps 8 bytes per parameter.")
@click.option("--seed", type=click.IntRange(min=0, max=2**32 - 1), default=42, help="Of everything that is drawn.")
@click.option(
    "--masks",
    type=_choice(Masks),
    default="seeded",
    help="Masks of the secure aggregation: from the seed, so that runs can be compared bit by bit, or drawn by FATE.",
)
@click.option("--output", type=click.Path(path_type=Path), help="New directory for the run.  [default: runs/TIME-MODE]")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of tables.")
def main(*, as_json: bool, output: Path | None, **chosen: typing.Any) -> None:
    """Fine-tune GPT-2 with FATE-LLM across three silos on this host: guest 9999, host 10000, arbiter 10000.

    Every federated byte travels between three gateways of this project. The presets: `paper` has the paper's
    hyper-parameters (124M parameters, batch 32, learning rate 5e-6, 5 epochs), `laptop` a small model whose loss
    falls within two minutes on two cores, `tiny` is for tests.
    """
    label = chosen["mode"] if chosen["federation"] == "fedrdma" else chosen["federation"]
    started = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    options = JobOptions(output=output or Path("runs") / f"{started}-{label}", **chosen)
    console = Console(stderr=as_json)
    signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        summary = _run(options, console, quiet=as_json)
        pages = write_run_report(RunFiles(options.output).report, summary)
    except (FedRDMAError, BadInputError) as error:
        _fail(console, str(error), _USAGE)
    except (JobFailedError, MeasurementError) as error:
        _fail(console, str(error), _FAILED)
    except KeyboardInterrupt:
        _fail(
            console, f"Interrupted; all processes of the run are ended. Logs: {options.output / 'logs'}", _INTERRUPTED
        )
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


def _fail(console: Console, message: str, status: int) -> typing.NoReturn:
    console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
