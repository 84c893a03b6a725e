"""Events that silos write and the job follows, and FATE's own timers among them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.gpt2_advertisegen.events import FATE_TIMINGS, EventReader, FateTimings, read_events, round_of_tag
from fedrdma_fate.obs.trace import Trace

LOCAL = ("guest", "9999")
PEERS = [("host", "10000"), ("arbiter", "10000")]


@pytest.fixture
def timers(tmp_path: Path) -> Iterator[tuple[logging.Logger, Path]]:
    """FATE's timer logger, with a handler that writes events to the path."""
    path = tmp_path / "events.jsonl"
    logger = logging.getLogger(FATE_TIMINGS)
    handler = FateTimings(Trace(path))
    handler.attach()
    yield logger, path
    logger.removeHandler(handler)


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    path.write_text('{"event": "a"}\n{"eve', encoding="utf-8")
    assert [event["event"] for event in reader.read_new()] == ["a"]
    with path.open("a", encoding="utf-8") as file:
        file.write('nt": "b"}\n')
    assert [event["event"] for event in reader.read_new()] == ["b"]
    assert list(reader.read_new()) == []


def test_a_file_that_is_not_there_yet_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "none.jsonl") == []


def test_a_put_and_a_get_of_fate_become_events_with_peers_and_times(timers: tuple[logging.Logger, Path]) -> None:
    logger, path = timers
    for state in ("start", "done"):
        logger.debug(f"[federation.remote.model.default.aggregation-3]{LOCAL}->{PEERS} {state}")
    for state in ("start", "done"):
        logger.debug(f"[federation.get.loss.default]{LOCAL}<-{PEERS[1:]} {state}")
    put, get = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert (put["event"], put["name"], put["tag"]) == ("put", "model", "default.aggregation-3")
    assert put["peers"] == ["host:10000", "arbiter:10000"]
    assert (get["event"], get["peers"]) == ("get", ["arbiter:10000"])
    assert put["begin"] <= put["end"] <= get["begin"] <= get["end"]


def test_a_get_that_is_nested_between_start_and_done_of_another_keeps_its_own_time(
    timers: tuple[logging.Logger, Path],
) -> None:
    logger, path = timers
    line = "[federation.get.{}.default]('guest', '9999')<-[('host', '10000')] {}"
    for name, state in (("outer", "start"), ("inner", "start"), ("inner", "done"), ("outer", "done")):
        logger.debug(line.format(name, state))
    inner, outer = read_events(path)
    assert (inner["name"], outer["name"]) == ("inner", "outer")
    assert outer["begin"] <= inner["begin"] <= inner["end"] <= outer["end"]


@pytest.mark.parametrize(
    "text",
    [
        "something else",
        "[federation.get.x.default]('guest', '9999')<-[('host', '10000')] done",
        "[federation.get.x.default]('guest', '9999')<-[('host', '10000')] begun",
    ],
)
def test_other_lines_and_a_done_without_its_start_are_no_events(timers: tuple[logging.Logger, Path], text: str) -> None:
    logger, path = timers
    logger.debug(text)
    assert read_events(path) == []


@pytest.mark.parametrize(
    ("tag", "number"),
    [("default.aggregation-0", 0), ("default.loss_aggregation-12", 12), ("default", None), ("aggregation-1.x", None)],
)
def test_the_round_is_read_from_the_tag(tag: str, number: int | None) -> None:
    assert round_of_tag(tag) == number
