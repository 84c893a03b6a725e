"""What a user sees while the job runs: a live display at a terminal, a line per round elsewhere."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.gpt2_advertisegen.events import round_of_tag
from examples.gpt2_advertisegen.plan import CLIENTS, PARTIES, ModelFacts
from fedrdma_fate.bench.report import format_bytes, format_seconds
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, Party

AskTransfers = Callable[[], Sequence[Mapping[str, Any]]]

_SHOWN_MESSAGES = 8


class Progress(Protocol):
    """Told what happens, in the order in which the job process learns of it."""

    def stage(self, text: str) -> None:
        """The job goes on to this."""
        ...

    def model(self, model: ModelFacts) -> None:
        """The model is prepared."""
        ...

    def silo_event(self, party: Party, event: Mapping[str, Any]) -> None:
        """A silo reported a round, a step or a loss."""
        ...

    def message(self, party: Party, record: Mapping[str, Any]) -> None:
        """A silo put or got a message."""
        ...

    def transfers(self, ask: AskTransfers) -> None:
        """Transfers may be under way; `ask` tells which."""
        ...


class Silent:
    """Shows nothing, for `--json`."""

    def stage(self, text: str) -> None: ...

    def model(self, model: ModelFacts) -> None: ...

    def silo_event(self, party: Party, event: Mapping[str, Any]) -> None: ...

    def message(self, party: Party, record: Mapping[str, Any]) -> None: ...

    def transfers(self, ask: AskTransfers) -> None: ...


@dataclasses.dataclass(slots=True)
class _PartyState:
    """What is known of one party."""

    doing: str = "starting"
    round: int = 0
    step: int = 0
    steps: int = 0
    loss: float | None = None
    held_out: float | None = None
    sent: int = 0
    received: int = 0


class Lines:
    """One line per stage and per client's round: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def stage(self, text: str) -> None:
        """See `Progress`."""
        self._console.print(f"{text} …", highlight=False)

    def model(self, model: ModelFacts) -> None:
        """See `Progress`."""
        self._console.print(describe_model(model), highlight=False)

    def silo_event(self, party: Party, event: Mapping[str, Any]) -> None:
        """See `Progress`."""
        if event["event"] == "round-end":
            self._console.print(f"round {event['round'] + 1}: {party} loss {event['loss']:.4f}", highlight=False)

    def message(self, party: Party, record: Mapping[str, Any]) -> None:
        """See `Progress`."""

    def transfers(self, ask: AskTransfers) -> None:
        """See `Progress`."""


class LiveDisplay:
    """A table of the parties, transfers under way, and the last messages; kept up to date at a terminal."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._rounds = rounds
        self._parties = {party: _PartyState() for party in PARTIES}
        self._messages: deque[str] = deque(maxlen=_SHOWN_MESSAGES)
        self._transfers: Sequence[Mapping[str, Any]] = ()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=5, transient=True)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def stage(self, text: str) -> None:
        """See `Progress`."""
        self._console.print(f"{text} …", highlight=False)

    def model(self, model: ModelFacts) -> None:
        """See `Progress`."""
        self._console.print(describe_model(model), highlight=False)

    def silo_event(self, party: Party, event: Mapping[str, Any]) -> None:
        """See `Progress`."""
        state = self._parties[party]
        match event["event"]:
            case "round-begin":
                state.doing, state.round, state.step, state.steps = "training", event["round"], 0, event["steps"]
            case "step":
                state.step += 1
                state.doing = "training" if state.step < state.steps else "aggregating"
            case "round-end":
                state.loss, state.doing = event["loss"], "evaluating"
            case "evaluated":
                state.held_out = event["loss"]
            case "finished":
                state.doing = "done"

    def message(self, party: Party, record: Mapping[str, Any]) -> None:
        """See `Progress`."""
        state = self._parties[party]
        size, arrow = record["bytes"], "→" if record["op"] == "put" else "←"
        if record["op"] == "put":
            state.sent += size * len(record["peers"])
        else:
            state.received += size
        number = round_of_tag(record["tag"])
        if party not in CLIENTS and number is not None and state.doing != "done":
            state.round, state.doing = number, "aggregating"
        if size > INLINE_LIMIT_BYTES:
            took = format_seconds(record["seconds"])
            peers = ", ".join(record["peers"])
            self._messages.append(f"{party} {arrow} {peers}  {record['name']}  {format_bytes(size)} in {took}")

    def transfers(self, ask: AskTransfers) -> None:
        """See `Progress`."""
        self._transfers = ask()

    def _render(self) -> RenderableType:
        return Group(self._party_table(), *self._transfer_lines(), *(Text(line, "dim") for line in self._messages))

    def _party_table(self) -> Table:
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for header in ("Party", "Round", "Step", "Loss", "Held-out", "Sent", "Received", ""):
            table.add_column(header)
        for party, state in self._parties.items():
            client = party in CLIENTS
            table.add_row(
                str(party),
                f"{state.round + 1}/{self._rounds}",
                f"{state.step}/{state.steps}" if client else "",
                f"{state.loss:.4f}" if state.loss is not None else "",
                f"{state.held_out:.4f}" if state.held_out is not None else "",
                format_bytes(state.sent),
                format_bytes(state.received),
                state.doing,
            )
        return table

    def _transfer_lines(self) -> list[Text]:
        lines = []
        for transfer in self._transfers:
            done, total = transfer["done_bytes"], transfer["total_bytes"]
            left = transfer["seconds_left"]
            rest = f", {format_seconds(left)} left" if left is not None else ""
            percent = 100 * done / total if total else 100.0
            text = f"{transfer['message']}  {percent:.0f} % of {format_bytes(total)}{rest}"
            lines.append(Text(text, "cyan", no_wrap=True, overflow="ellipsis"))
        return lines


def describe_model(model: ModelFacts) -> str:
    """One sentence on the model and where its weights come from."""
    weights = "your weights" if model.pretrained else "random weights (no --model was given)"
    return (
        f"GPT-2 with {model.parameters:,} parameters, {weights}; {model.trainable:,} are trained and federated; "
        f"{model.train_rows} training rows per client"
    )
