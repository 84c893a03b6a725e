"""The trace: one line an event, whoever writes it, and never a reason for a transfer to fail."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from fedrdma_fate.obs import trace as trace_module
from fedrdma_fate.obs.trace import TRY_AGAIN_SECONDS, Trace
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import Party


def _events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_one_json_line_with_time_name_and_fields(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl", clock=lambda: 12.5)
    trace.emit("put", session="s", bytes=7, destinations=["host:10000"])
    assert _events(tmp_path / "trace.jsonl") == [
        {"time": 12.5, "event": "put", "session": "s", "bytes": 7, "destinations": ["host:10000"]}
    ]


def test_an_event_can_be_read_as_soon_as_it_was_emitted(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl")
    trace.emit("first")
    assert [event["event"] for event in _events(tmp_path / "trace.jsonl")] == ["first"]
    trace.emit("second")
    assert [event["event"] for event in _events(tmp_path / "trace.jsonl")] == ["first", "second"]


def test_a_field_cannot_pose_as_the_time(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl", clock=lambda: 1.0)
    trace.emit("put", time=99.0, bytes=1)
    assert _events(tmp_path / "trace.jsonl") == [{"time": 1.0, "event": "put", "bytes": 1}]


def test_newlines_in_a_field_do_not_make_a_second_line(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl")
    trace.emit("put", name='a\n{"event": "forged"}')
    assert [event["name"] for event in _events(tmp_path / "trace.jsonl")] == ['a\n{"event": "forged"}']


def test_values_json_does_not_know_are_written_as_text(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl")
    trace.emit("link", path=Path("/dev/shm"), party=Party("host", "10000"))
    (event,) = _events(tmp_path / "trace.jsonl")
    assert event["path"] == "/dev/shm"
    assert event["party"] == {"role": "host", "party_id": "10000"}


def test_an_existing_trace_is_continued(tmp_path: Path) -> None:
    for name in ("first run", "second run"):
        trace = Trace(tmp_path / "trace.jsonl")
        trace.emit(name)
        trace.close()
    assert [event["event"] for event in _events(tmp_path / "trace.jsonl")] == ["first run", "second run"]


def test_a_run_that_was_killed_in_a_line_does_not_spoil_the_next_one_s_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"time":1,"event":"whole"}\n{"time":2,"ev')
    trace = Trace(path)
    trace.emit("first")
    trace.emit("second")
    whole, torn, *later = path.read_text().splitlines()
    assert (whole, torn) == ('{"time":1,"event":"whole"}', '{"time":2,"ev')
    assert [json.loads(line)["event"] for line in later] == ["first", "second"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl")

    def emit_many(writer: int) -> None:
        for count in range(200):
            trace.emit("put", writer=writer, count=count, padding="x" * 300)

    threads = [threading.Thread(target=emit_many, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = {(event["writer"], event["count"]) for event in _events(tmp_path / "trace.jsonl")}
    assert seen == {(writer, count) for writer in range(4) for count in range(200)}


def test_without_a_path_nothing_is_written() -> None:
    trace = Trace(None)
    trace.emit("put", bytes=1)
    assert not trace.enabled
    trace.close()


def test_events_after_close_are_dropped(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl")
    trace.close()
    trace.close()
    trace.emit("late")
    assert _events(tmp_path / "trace.jsonl") == []


def test_a_path_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-directory") as caught:
        Trace(tmp_path / "no-such-directory" / "trace.jsonl")
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE


def test_a_full_disk_is_told_by_one_log_line_however_long_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    trace = Trace(Path("/dev/full"), monotonic=lambda: now[0])
    with caplog.at_level(logging.DEBUG):
        for _ in range(100):
            trace.emit("put")
            now[0] += TRY_AGAIN_SECONDS / 2
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "/dev/full" in record.getMessage()
    assert "No space left" in record.getMessage()


@pytest.mark.parametrize("others_wrote", [False, True])
def test_a_trace_goes_on_when_there_is_room_and_says_how_many_events_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, others_wrote: bool
) -> None:
    now, file = [0.0], tmp_path / "trace.jsonl"
    trace = Trace(file, clock=lambda: 1.0, monotonic=lambda: now[0])
    trace.emit("before")
    real_write = os.write

    def half(fileno: int, line: bytes) -> int:
        written = real_write(fileno, line[:10])
        if others_wrote:
            with file.open("ab") as other:
                other.write(b'{"event":"of another process"}\n')
        return written

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        trace.emit("cut")
    for _ in range(7):
        trace.emit("meanwhile")
    now[0] = TRY_AGAIN_SECONDS
    trace.emit("after")
    assert "only 10 of" in caplog.text
    assert "8 events are missing" in caplog.text
    told = file.read_text().splitlines()
    expected = [{"time": 1.0, "event": "lost", "events": 8}, {"time": 1.0, "event": "after"}]
    assert [json.loads(line) for line in told[-2:]] == expected
    # half a line is cut off, where nobody has written behind it
    assert [json.loads(line)["event"] for line in told[:1]] == ["before"]
    assert len([line for line in told if line]) == (4 if others_wrote else 3)


def numbers(path: Path) -> list[object]:
    return [event["number"] for event in _events(path)]


def test_a_trace_that_becomes_too_long_is_begun_anew_and_its_last_part_is_kept(tmp_path: Path) -> None:
    path, earlier = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.1"
    trace = Trace(path, most_bytes=1000, clock=lambda: 1.0)
    for number in range(100):
        trace.emit("put", number=number)
    for part in (path, earlier):
        assert 0 < part.stat().st_size <= 1000
    kept = [*numbers(earlier), *numbers(path)]
    assert kept == list(range(100 - len(kept), 100))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["trace.jsonl", "trace.jsonl.1"]


def test_a_line_longer_than_a_trace_may_be_is_written_all_the_same(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl", most_bytes=10)
    for number in range(3):
        trace.emit("put", number=number)
    assert numbers(tmp_path / "trace.jsonl") == [2]


def test_two_that_share_a_trace_rotate_it_once_and_lose_nothing(tmp_path: Path) -> None:
    path, earlier = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.1"
    first, second = (Trace(path, most_bytes=1000, clock=lambda: 1.0) for _ in range(2))
    for number in range(0, 30, 2):
        first.emit("put", number=number)
        second.emit("put", number=number + 1)
    assert sorted(map(str, [*numbers(earlier), *numbers(path)])) == sorted(map(str, range(30)))


def test_a_trace_that_somebody_renamed_is_opened_anew_when_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = Trace(path)
    trace.emit("put", number=1)
    path.rename(tmp_path / "old")
    trace.emit("put", number=2)
    trace.reopen()
    trace.emit("put", number=3)
    assert numbers(tmp_path / "old") == [1, 2]
    assert numbers(path) == [3]


def test_a_trace_that_cannot_be_opened_anew_or_renamed_goes_on_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.jsonl"
    trace = Trace(path, most_bytes=150)
    trace.emit("put", number=1)
    path.rename(tmp_path / "old")
    path.mkdir()
    trace.reopen()
    trace.emit("put", number=2)
    assert numbers(tmp_path / "old") == [1, 2]
    assert "cannot be opened anew, and goes on as it was" in caplog.text
    path.rmdir()
    (tmp_path / "old").rename(path)
    (tmp_path / "trace.jsonl.1").mkdir()
    for number in range(3, 9):
        trace.emit("put", number=number)
    assert numbers(path) == list(range(1, 9))
    assert caplog.text.count("cannot be begun anew, and becomes longer") == 1


def test_without_a_descriptor_for_a_new_one_the_earlier_trace_goes_on_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    path = tmp_path / "trace.jsonl"
    trace = Trace(path, most_bytes=100, monotonic=lambda: now)
    opened = trace_module._open_ours

    def refuse(_: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(trace_module, "_open_ours", refuse)
    for number in range(9):
        trace.emit("put", number=number)
    assert numbers(tmp_path / "trace.jsonl.1") == list(range(9))
    assert caplog.text.count("Too many open files") == 1
    monkeypatch.setattr(trace_module, "_open_ours", opened)
    now += TRY_AGAIN_SECONDS
    trace.emit("put", number=9)
    assert numbers(path) == [9]


def test_a_trace_on_a_full_disk_that_is_opened_anew_elsewhere_goes_on_at_once(tmp_path: Path) -> None:
    link = tmp_path / "trace.jsonl"
    link.symlink_to("/dev/full")
    trace = Trace(link)
    trace.emit("put", number=1)
    link.unlink()
    trace.reopen()
    trace.emit("put", number=2)
    assert [event["event"] for event in _events(link)] == ["lost", "put"]


def test_a_field_that_cannot_be_encoded_costs_only_its_own_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn:
        def __str__(self) -> str:
            raise RuntimeError("no text for this")

    trace = Trace(tmp_path / "trace.jsonl")
    trace.emit("bad", value=Stubborn())
    trace.emit("good")
    assert [event["event"] for event in _events(tmp_path / "trace.jsonl")] == ["good"]
    assert "no text for this" in caplog.text


@pytest.mark.parametrize("link", [True, False])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another user")
def test_what_another_user_has_put_in_the_place_of_a_trace_is_not_written_to(tmp_path: Path, link: bool) -> None:
    own, trace = tmp_path / "own", tmp_path / "trace.jsonl"
    own.write_text("kept")
    if link:
        trace.symlink_to(own)
    else:
        trace.write_text("kept")
    os.lchown(trace, 65534, -1)
    with pytest.raises(ConfigError) as refused:
        Trace(trace)
    assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert trace.read_text() == "kept"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.jsonl")
    with pytest.raises(ConfigError):
        Trace(tmp_path / "trace.jsonl")


def test_a_link_of_our_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").symlink_to(tmp_path / "elsewhere")
    Trace(tmp_path / "trace.jsonl").emit("first")
    assert [event["event"] for event in _events(tmp_path / "elsewhere")] == ["first"]
