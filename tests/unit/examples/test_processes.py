"""Processes of a run: how an end is told, and that none is left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from examples.gpt2_advertisegen.processes import Child, Children, JobFailedError, describe_end

SLEEP = "import time; print('ready', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
FORKING = "import os; os.fork(); " + SLEEP


def start(children: Children, tmp_path: Path, code: str, name: str = "child") -> Child:
    return children.start(name, [sys.executable, "-c", code], tmp_path / f"{name}.log", {"MARK": "x"}, tmp_path)


def wait_for_output(child: Child, lines: int = 1) -> None:
    deadline = time.monotonic() + 20
    while child.log.read_text(encoding="utf-8").count("\n") < lines:
        assert time.monotonic() < deadline, "the process printed nothing"
        time.sleep(0.01)


def test_a_failing_process_is_named_with_its_log_and_last_lines(tmp_path: Path) -> None:
    with Children() as children:
        child = start(children, tmp_path, "print('\\n'.join(map(str, range(50)))); raise SystemExit(3)")
        assert children.wait(child) == 3
        with pytest.raises(JobFailedError) as caught:
            children.check(may_end=[child])
    message = str(caught.value)
    assert "child ended with exit status 3" in message
    assert str(tmp_path / "child.log") in message
    assert "| 49" in message
    assert "| 29" not in message


def test_a_killed_process_says_by_which_signal(tmp_path: Path) -> None:
    with Children() as children:
        child = start(children, tmp_path, "import os; os.kill(os.getpid(), 9)")
        children.wait(child)
        assert "was killed by SIGKILL" in describe_end(child)


def test_a_process_that_ends_well_is_a_failure_unless_it_may_end(tmp_path: Path) -> None:
    with Children() as children:
        child = start(children, tmp_path, "pass")
        children.wait(child)
        children.check(may_end=[child])
        with pytest.raises(JobFailedError, match="exit status 0"):
            children.check()


def test_leaving_the_block_ends_what_runs_and_what_it_forked(tmp_path: Path) -> None:
    with Children() as children:
        child = start(children, tmp_path, FORKING)
        wait_for_output(child, lines=2)
        family = [psutil.Process(child.process.pid), *psutil.Process(child.process.pid).children()]
        assert len(family) == 2
    assert not psutil.wait_procs(family, timeout=60)[1]


def test_a_process_that_ignores_the_polite_request_is_ended_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.gpt2_advertisegen.processes._GRACE_SECONDS", 0.2)
    with Children() as children:
        child = start(children, tmp_path, STUBBORN)
        wait_for_output(child)
    assert child.process.returncode == -signal.SIGKILL


def test_an_interrupt_in_the_block_ends_the_processes_too(tmp_path: Path) -> None:
    started: list[Child] = []

    def interrupted() -> None:
        with Children() as children:
            started.append(start(children, tmp_path, SLEEP))
            wait_for_output(started[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].process.poll() is not None


def test_the_peak_of_a_process_is_kept_after_it_has_freed_its_memory(tmp_path: Path) -> None:
    with Children() as children:
        grown = "x = bytearray(80_000_000); x[:] = b'1' * len(x); del x; print('freed', flush=True); "
        child = start(children, tmp_path, grown + SLEEP)
        wait_for_output(child, lines=2)
        children.measure()
        assert child.peak_rss_bytes > 80_000_000
        assert children.peak_total_bytes > 0


def test_a_child_gets_the_environment_it_was_given_beside_ours(tmp_path: Path) -> None:
    with Children() as children:
        child = start(children, tmp_path, "import os; print(os.environ['MARK'], os.environ['PATH'])")
        children.wait(child)
    assert child.log.read_text(encoding="utf-8").strip() == f"x {os.environ['PATH']}"
