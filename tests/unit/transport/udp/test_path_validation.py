"""Which address a link follows its peer to, step by step: time, datagrams and randomness are the test's."""

from __future__ import annotations

import pytest

from fedrdma_fate.transport.udp.packets import CHALLENGE_BYTES, PATH_HEAD, PING_HEAD
from fedrdma_fate.transport.udp.path_validation import (
    LEAST_SILENCE_SECONDS,
    PATH_KEY_BYTES,
    VALIDATION_SECONDS,
    PathTags,
    PathValidation,
)

CONNECTION = 0xABCDEF0123456789
NEW, OTHER = ("192.0.2.1", 4000), ("192.0.2.66", 5000)


@pytest.fixture
def tags() -> PathTags:
    return PathTags(bytes(range(PATH_KEY_BYTES)))


@pytest.fixture
def validation(tags: PathTags) -> PathValidation:
    count = iter(range(1, 256))
    return PathValidation(CONNECTION, tags, lambda length: bytes([next(count)]) * length)


def asked(validation: PathValidation, number: int, address: tuple[str, int] = NEW, now: float = 0.0) -> bytes:
    challenge = validation.on_ping_elsewhere(number, address, now)
    assert challenge is not None
    return challenge


def test_a_peer_that_answers_at_its_new_address_is_followed_when_the_old_one_has_been_silent(
    validation: PathValidation, tags: PathTags
) -> None:
    validation.on_ping(6)
    challenge = asked(validation, 7, now=1.0)
    assert len(challenge) == CHALLENGE_BYTES
    assert validation.is_pending(1.0)
    assert validation.on_response(tags.of_response(CONNECTION, challenge), NEW, 1.4)
    assert validation.take_new_address(1.4 + 0.39) is None, "as long as it took to answer"
    assert validation.take_new_address(1.4 + 0.41) == NEW
    assert validation.take_new_address(9.0) is None, "once"
    assert not validation.is_pending(9.0)


def test_on_a_short_path_the_old_address_gets_a_little_time(validation: PathValidation, tags: PathTags) -> None:
    challenge = asked(validation, 1, now=0.0)
    assert validation.on_response(tags.of_response(CONNECTION, challenge), NEW, 0.001)
    assert validation.take_new_address(LEAST_SILENCE_SECONDS) is None
    assert validation.take_new_address(LEAST_SILENCE_SECONDS + 0.002) == NEW


@pytest.mark.parametrize("number", [0, 6, 7])
def test_a_copy_of_a_ping_that_has_come_asks_nobody(validation: PathValidation, number: int) -> None:
    validation.on_ping(7)
    assert validation.on_ping_elsewhere(number, NEW, 0.0) is None
    assert not validation.is_pending(0.0)


def test_one_ping_asks_once_however_often_it_is_copied(validation: PathValidation) -> None:
    assert validation.on_ping_elsewhere(8, NEW, 0.0)
    assert validation.on_ping_elsewhere(8, NEW, 0.0) is None
    assert validation.on_ping_elsewhere(8, OTHER, 0.0) is None


def test_where_the_address_in_use_answers_too_nothing_has_changed(validation: PathValidation, tags: PathTags) -> None:
    response = tags.of_response(CONNECTION, asked(validation, 8))
    assert validation.on_response(response, NEW, 0.1)
    assert validation.on_response(response, None, 0.2)
    assert validation.take_new_address(10.0) is None
    assert not validation.on_response(response, NEW, 10.0), "nor later"


def test_where_a_newer_ping_comes_from_the_address_in_use_nothing_has_changed(
    validation: PathValidation, tags: PathTags
) -> None:
    response = tags.of_response(CONNECTION, asked(validation, 8))
    assert validation.on_response(response, NEW, 0.1)
    validation.on_ping(8)
    assert validation.is_pending(0.1), "of the same number: it is the copy that was asked, or the other way round"
    validation.on_ping(9)
    assert validation.take_new_address(10.0) is None


def test_the_answer_has_to_come_from_where_the_challenge_was_sent(validation: PathValidation, tags: PathTags) -> None:
    response = tags.of_response(CONNECTION, asked(validation, 8))
    assert not validation.on_response(response, OTHER, 0.1)
    assert validation.take_new_address(10.0) is None


@pytest.mark.parametrize("what", ["key", "connection", "challenge", "nothing"])
def test_an_answer_that_only_the_peer_could_not_have_given_is_none(
    validation: PathValidation, tags: PathTags, what: str
) -> None:
    challenge = asked(validation, 8)
    wrong = {
        "key": PathTags(bytes(PATH_KEY_BYTES)).of_response(CONNECTION, challenge),
        "connection": tags.of_response(CONNECTION ^ 1, challenge),
        "challenge": tags.of_response(CONNECTION, bytes(CHALLENGE_BYTES)),
        "nothing": bytes(16),
    }[what]
    assert not validation.on_response(wrong, NEW, 0.1)
    assert validation.take_new_address(10.0) is None


def test_answers_to_what_was_never_asked_are_none(validation: PathValidation, tags: PathTags) -> None:
    assert not validation.on_response(tags.of_response(CONNECTION, bytes(CHALLENGE_BYTES)), NEW, 0.0)
    assert not validation.on_response(tags.of_response(CONNECTION, b""), None, 0.0)


def test_newer_pings_ask_the_same_again_so_that_a_long_way_is_no_matter(
    validation: PathValidation, tags: PathTags
) -> None:
    first = asked(validation, 8, now=0.0)
    assert [asked(validation, number, now=number / 10) for number in (9, 10, 11)] == [first] * 3
    assert validation.on_response(tags.of_response(CONNECTION, first), NEW, 1.2)
    assert validation.on_ping_elsewhere(12, NEW, 1.3) is None, "it has answered"
    assert validation.take_new_address(2.5) == NEW


def test_the_newest_ping_says_which_address_is_asked(validation: PathValidation, tags: PathTags) -> None:
    first = asked(validation, 8, OTHER)
    second = asked(validation, 9, NEW)
    assert first != second
    assert not validation.on_response(tags.of_response(CONNECTION, first), OTHER, 0.1)
    assert validation.on_response(tags.of_response(CONNECTION, second), NEW, 0.1)
    assert validation.take_new_address(10.0) == NEW


def test_an_address_that_does_not_answer_is_forgotten(validation: PathValidation) -> None:
    asked(validation, 8)
    assert validation.is_pending(VALIDATION_SECONDS)
    assert not validation.is_pending(VALIDATION_SECONDS + 0.1)


def test_tags_hold_for_what_they_were_made_for(tags: PathTags) -> None:
    assert tags.is_of_ping(tags.of_ping(CONNECTION, 5), CONNECTION, 5)
    assert not tags.is_of_ping(tags.of_ping(CONNECTION, 5), CONNECTION, 6)
    assert not tags.is_of_ping(tags.of_ping(CONNECTION, 5), CONNECTION ^ 1, 5)
    assert not tags.is_of_ping(tags.of_response(CONNECTION, (5).to_bytes(4, "little")), CONNECTION, 5)


def test_no_datagram_of_it_is_longer_than_the_one_that_it_answers() -> None:
    assert PATH_HEAD.size <= PING_HEAD.size
