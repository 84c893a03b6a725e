"""Command-line options and endings that the example's two commands share."""

from __future__ import annotations

import contextlib
import signal
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from examples.gpt2_advertisegen.options import SAMPLE_DATA, Masks, Optimizer, PresetName, Tuning
from examples.gpt2_advertisegen.processes import BadInputError, JobFailedError
from examples.gpt2_advertisegen.summary import MeasurementError
from fedrdma_fate.gateway.config.schema import TransportName
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import Mode

_FAILED = 1
_USAGE = 2
_INTERRUPTED = 130
_WIDTH_OF_A_FILE = 120
"""Characters: as many as the tables need."""

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110}

Command = Callable[..., typing.Any]


def choice(literal: object) -> click.Choice[str]:
    """A choice among the values of a Literal."""
    return click.Choice(typing.get_args(literal))


_POSITIVE = click.IntRange(min=1)
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)

_TRAINING_OPTIONS = (
    click.option("--tuning", type=choice(Tuning), default="full", help="All parameters, or LoRA on c_attn."),
    click.option("--lora-rank", type=_POSITIVE, default=8, help="Rank of the LoRA matrices."),
    click.option(
        "--model", type=_DIRECTORY, help="Directory with real GPT-2 weights and tokenizer. Without: random ones."
    ),
    click.option("--data", type=_DIRECTORY, default=SAMPLE_DATA, help="Directory with train.json and dev.json."),
    click.option("--preset", type=choice(PresetName), default="paper", help="Hyper-parameters to start from."),
    click.option("--rounds", "--epochs", type=_POSITIVE, help="Federated rounds; each is one epoch."),
    click.option("--steps", type=_POSITIVE, help="Optimizer steps per round; sets the training rows per client."),
    click.option("--samples", type=_POSITIVE, help="Training rows per client."),
    click.option("--batch-size", type=_POSITIVE, help="Rows per optimizer step."),
    click.option("--micro-batch", type=_POSITIVE, help="Rows per forward pass; less takes less memory."),
    click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), help="Constant learning rate."),
    click.option("--max-length", type=click.IntRange(min=8), help="Tokens per row; longer rows are cut."),
    click.option("--optimizer", type=choice(Optimizer), default="adamw", help="AdamW keeps 8 bytes per parameter."),
    click.option("--seed", type=click.IntRange(min=0, max=2**32 - 1), default=42, help="Of everything that is drawn."),
)
"""What is trained, and on what: the same for jobs of this host and of FATE Flow."""

_RUN_OPTIONS = (
    click.option("--mode", type=choice(Mode), default="fedrdma-e", help="How payloads travel between the gateways."),
    click.option("--transport", type=choice(TransportName), default="auto", help="Data path between the gateways."),
    click.option(
        "--masks",
        type=choice(Masks),
        default="seeded",
        help="Masks of the secure aggregation: from the seed, so that runs can be compared bit by bit, or from FATE.",
    ),
    click.option(
        "--threads",
        type=_POSITIVE,
        help="Threads of each client's tensor operations; another number may round otherwise.  "
        "[default: its share of the cores]",
    ),
    click.option(
        "--output", type=click.Path(path_type=Path), help="New directory for the run.  [default: runs/TIME-MODE]"
    ),
    click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of tables."),
)


def job_options(command: Command) -> Command:
    """Adds the options that describe the job; on several hosts all silos must be given the same."""
    return _with(command, *_TRAINING_OPTIONS, *_RUN_OPTIONS)


def training_options(command: Command) -> Command:
    """Adds those that FATE Flow's jobs have, too."""
    return _with(command, *_TRAINING_OPTIONS)


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def make_console(*, stderr: bool) -> Console:
    """For what people read: as wide as the terminal, or as the tables need in a file or a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _WIDTH_OF_A_FILE)


@contextlib.contextmanager
def failures_told(console: Console, logs: Path) -> Iterator[None]:
    """Around a run: says in one message why it failed and exits; a terminated run ends as an interrupted one does.

    Args:
        console: for the message.
        logs: where the logs of the run lie.
    """
    signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    except (FedRDMAError, BadInputError) as error:
        _fail(console, str(error), _USAGE)
    except (JobFailedError, MeasurementError) as error:
        _fail(console, str(error), _FAILED)
    except KeyboardInterrupt:
        _fail(console, f"Interrupted; all processes of the run are ended. Logs: {logs}", _INTERRUPTED)


def _fail(console: Console, message: str, status: int) -> typing.NoReturn:
    console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
