"""The first complaint is logged, repeated ones are counted, and nobody can fill the log or the memory."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from fedrdma_fate.obs.complaints import MOST_CHARACTERS, MOST_KINDS, MOST_SUBJECTS, OTHERS, Complaints, cut

logger = logging.getLogger("fedrdma_fate.test_complaints")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == logger.name]


def test_the_first_of_a_kind_is_logged_at_once_and_the_rest_counted(caplog: pytest.LogCaptureFixture) -> None:
    counted: Counter[tuple[str, str]] = Counter()
    complaints = Complaints(Clock(), lambda kind, about: counted.update([(kind, about)]), window=60.0)
    logged = [complaints.add(logger, "refused frame", "bank-b", "refused %s", "x") for _ in range(1000)]
    assert logged == [True] + [False] * 999
    assert lines(caplog) == ["refused x"]
    assert counted == {("refused frame", "bank-b"): 1000}


def test_after_the_window_one_line_says_how_often_it_was_repeated(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    complaints = Complaints(clock, window=60.0)
    for _ in range(8):
        complaints.add(logger, "refused frame", "bank-b", "refused")
    complaints.sum_up()
    assert lines(caplog) == ["refused"]
    clock.now += 60.0
    complaints.sum_up()
    complaints.sum_up()
    assert lines(caplog) == ["refused", "refused frame of bank-b: repeated 7 times"]


def test_a_complaint_after_the_window_is_logged_anew_after_the_sum_of_the_old(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    complaints = Complaints(clock, window=60.0)
    complaints.add(logger, "refused frame", "bank-b", "first")
    complaints.add(logger, "refused frame", "bank-b", "second")
    clock.now += 61.0
    complaints.add(logger, "refused frame", "bank-b", "third")
    assert lines(caplog) == ["first", "refused frame of bank-b: repeated 1 times", "third"]


def test_what_happened_once_has_no_sum(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(Clock())
    complaints.add(logger, "refused frame", "bank-b", "once")
    complaints.sum_up(all_of_them=True)
    assert lines(caplog) == ["once"]


def test_another_kind_and_another_subject_have_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(Clock())
    complaints.add(logger, "refused frame", "bank-b", "one")
    complaints.add(logger, "refused frame", "bank-c", "two")
    complaints.add(logger, "refused user", "bank-b", "three")
    assert lines(caplog) == ["one", "two", "three"]


def test_subjects_without_end_share_one_place_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    counted: Counter[tuple[str, str]] = Counter()
    complaints = Complaints(Clock(), lambda kind, about: counted.update([(kind, about)]))
    for number in range(MOST_SUBJECTS + 1000):
        complaints.add(logger, "refused user", str(number), "refused %s", number)
    assert len(lines(caplog)) == MOST_SUBJECTS + 1
    assert counted["refused user", OTHERS] == 1000
    assert len(counted) == MOST_SUBJECTS + 1


def test_kinds_are_bounded_too() -> None:
    counted: Counter[str] = Counter()
    complaints = Complaints(Clock(), lambda kind, _about: counted.update([kind]))
    for number in range(MOST_KINDS + 100):
        complaints.add(logger, f"kind {number}", "b", "text")
    assert len(counted) == MOST_KINDS + 1
    assert counted[OTHERS] == 100


def test_what_a_peer_says_is_cut_and_starts_no_line(caplog: pytest.LogCaptureFixture) -> None:
    Complaints(Clock()).add(logger, "goodbye", "bank-b", "it says %s", "evil\n" + "x" * 4_000_000)
    (line,) = lines(caplog)
    assert line.startswith("it says evil\\nxxx")
    assert "\n" not in line
    assert len(line) < 2 * MOST_CHARACTERS


@pytest.mark.parametrize("text", ["", "short", "ü" * MOST_CHARACTERS])
def test_short_text_stays_as_it_is(text: str) -> None:
    assert cut(text) == text


def test_text_that_escaping_makes_longer_is_cut_as_well() -> None:
    assert len(cut("\x00" * MOST_CHARACTERS)) < MOST_CHARACTERS + 40


def test_what_tells_something_of_its_own_has_several_lines_in_a_window(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(Clock())
    for number in range(9):
        complaints.add(logger, "not received", "bank-b", "message %s", number, lines=3)
    complaints.sum_up(all_of_them=True)
    assert lines(caplog) == ["message 0", "message 1", "message 2", "not received of bank-b: repeated 6 times"]


def test_what_is_no_warning_is_not_counted_as_a_complaint(caplog: pytest.LogCaptureFixture) -> None:
    counted: Counter[str] = Counter()
    complaints = Complaints(Clock(), lambda kind, _about: counted.update([kind]))
    with caplog.at_level(logging.INFO):
        complaints.add(logger, "connected", "bank-b", "connected", level=logging.INFO)
    assert lines(caplog) == ["connected"]
    assert not counted


def test_the_level_is_that_of_the_complaint(caplog: pytest.LogCaptureFixture) -> None:
    Complaints(Clock()).add(logger, "refused frame", "b", "bad", level=logging.ERROR)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
