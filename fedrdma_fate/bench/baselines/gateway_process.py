"""One gateway, run as `fedrdma gateway` runs it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.processes import end_with_parent
from fedrdma_fate.client.client import ask_status
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

STOP_SECONDS = 20.0
"""A gateway that has not ended by then, after it was asked to, is killed."""

_LOG_TAIL_LINES = 5
"""Of its log that an error shows: the last one says why it ended, those before what it did."""


class GatewayProcess:
    """A gateway process and how to ask it.

    Attributes:
        site: name of its site.
        address: of its socket.
        pid: of the process.
    """

    def __init__(self, config: Mapping[str, Any], workspace: Path) -> None:
        """Start it; it is up when `status` answers.

        Args:
            config: its configuration; socket and trace file are added here.
            workspace: directory for these, and for its log.
        """
        self.site: str = config["site"]
        self.address = f"unix://{workspace / self.site}.sock"
        self._trace = workspace / f"{self.site}.trace.jsonl"
        self._log = workspace / f"{self.site}.log"
        path = workspace / f"{self.site}.yaml"
        listen = {**config["listen"], "socket": self.address}
        path.write_text(yaml.safe_dump({**config, "listen": listen, "trace": str(self._trace)}), encoding="utf-8")
        command = [sys.executable, "-m", "fedrdma_fate.cli.main", "gateway", "--config", str(path)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # for good: SIGTERM would leave its memory to a next run, and there is none
                preexec_fn=functools.partial(end_with_parent, os.getpid(), signal.SIGINT),
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    def status(self) -> dict[str, Any] | None:
        """Its status document, None while it does not answer yet.

        Raises:
            RowError: it has ended.
        """
        if self._process.poll() is not None:
            raise RowError(f"the {self.site}'s gateway ended with status {self._process.returncode}")
        try:
            return ask_status(self.address)
        except GatewayError as error:
            if error.code is not ErrorCode.GATEWAY_UNREACHABLE:
                raise
            return None

    def traced(self, event: str) -> list[dict[str, Any]]:
        """The lines of its trace for one kind of event."""
        lines = self._trace.read_text(encoding="utf-8").splitlines()
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def stop(self) -> None:
        """End it for good, by force if it does not end by itself."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
