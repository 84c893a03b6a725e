"""What a user sees while the job runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from examples.gpt2_advertisegen.plan import ARBITER, GUEST, HOST, ModelFacts
from examples.gpt2_advertisegen.progress import Lines, LiveDisplay, Progress, Silent, describe_model

MODEL = ModelFacts("/m", False, 1000, 10, 2, "<|endoftext|>", 16, 4)
TRANSFER = {"message": "s/mixed", "done_bytes": 50, "total_bytes": 200, "seconds_left": 1.5}


def terminal() -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, force_terminal=True, width=160, height=40, _environ={}), screen


def play(progress: Progress) -> None:
    """A round of the guest, and a message to the arbiter."""
    progress.stage("starting three silos")
    progress.model(MODEL)
    progress.silo_event(GUEST, {"event": "round-begin", "round": 0, "steps": 2})
    progress.silo_event(GUEST, {"event": "step"})
    progress.silo_event(GUEST, {"event": "step"})
    record = {"name": "mixed", "tag": "default.aggregation-0", "bytes": 1_000_000, "seconds": 0.5}
    progress.message(GUEST, {"op": "put", "peers": ["arbiter:10000"], **record})
    progress.message(ARBITER, {"op": "get", "peers": ["guest:9999"], **record})
    progress.transfers(lambda: [TRANSFER])
    progress.silo_event(GUEST, {"event": "round-end", "round": 0, "loss": 4.25})
    progress.silo_event(GUEST, {"event": "evaluated", "round": 0, "loss": 3.75})


def test_a_terminal_shows_parties_losses_messages_and_transfers_under_way() -> None:
    console, screen = terminal()
    with LiveDisplay(console, rounds=3) as display:
        play(display)
    text = screen.getvalue()
    for shown in ("1/3", "2/2", "4.2500", "3.7500", "1.00 MB", "mixed", "25 % of 200 B", "1.50 s left"):
        assert shown in text


def test_a_finished_arbiter_stays_finished_when_its_last_message_is_read_late() -> None:
    console, screen = terminal()
    with LiveDisplay(console, rounds=1) as display:
        display.silo_event(ARBITER, {"event": "finished"})
        late = {"op": "put", "name": "x", "tag": "default.aggregation-0", "bytes": 1, "seconds": 0, "peers": ["h:1"]}
        display.message(ARBITER, late)
    assert "done" in screen.getvalue()
    assert "aggregating" not in screen.getvalue()


def test_a_pipe_gets_a_line_per_stage_and_round_and_no_control_characters() -> None:
    screen = io.StringIO()
    lines = Lines(Console(file=screen, width=200))
    play(lines)
    lines.silo_event(HOST, {"event": "round-end", "round": 1, "loss": 2.0})
    text = screen.getvalue()
    assert "\x1b" not in text
    assert text.splitlines()[0] == "starting three silos …"
    assert text.splitlines()[-2:] == ["round 1: guest:9999 loss 4.2500", "round 2: host:10000 loss 2.0000"]


def test_without_display_gateways_are_not_even_asked(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> list[dict[str, object]]:
        raise AssertionError("asked")

    for progress in (Silent(), Lines(Console(file=io.StringIO()))):
        progress.transfers(fail)
    play(Silent())
    assert capsys.readouterr().out == ""


def test_random_weights_are_said_plainly_and_real_ones_too() -> None:
    assert "random weights (no --model was given)" in describe_model(MODEL)
    real = ModelFacts("/m", True, 1000, 10, 2, "x", 16, 4)
    assert "random" not in describe_model(real)
