"""A party that left its session, and joins it again, is told what it missed, whichever gateway was killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.kept_twin import KeptTwin
from tests.support.twin import PARTIES, run_virtually
from tests.support.twin_play import BODY, pull, work

Scenario = Callable[[KeptTwin], Coroutine[Any, Any, None]]
KeptPlay = Callable[[Scenario], None]
SIZES = [100, len(BODY)]


@pytest.fixture
def play(tmp_path: Path) -> KeptPlay:
    """Plays a scenario with a twin that is connected, and whose parties are in a session."""

    async def run(scenario: Scenario) -> None:
        twin = KeptTwin(tmp_path)
        try:
            await twin.connect()
            for site in PARTIES:
                join(twin, site)
            await work(twin)
            await scenario(twin)
        finally:
            twin.close()

    return lambda scenario: run_virtually(run(scenario))


def join(twin: KeptTwin, site: str) -> None:
    twin.halves[site].context.mailbox.join("s", PARTIES[site], PARTIES.values())


def leave(twin: KeptTwin, site: str) -> None:
    twin.halves[site].context.mailbox.leave("s", PARTIES[site])


async def killed(twin: KeptTwin, site: str) -> None:
    """It dies, and the next run goes on."""
    twin.kill(site)
    await twin.restart(site)


async def connected(twin: KeptTwin) -> None:
    await twin.connect()
    await work(twin)


def failure_of_push(twin: KeptTwin) -> ErrorCode | None:
    """What a's task hears at its next call."""
    try:
        twin.halves["a"].context.mailbox.sessions.raise_push_failure("s", PARTIES["a"])
    except FedRDMAError as error:
        return error.code
    return None


async def outcome_of_pull(twin: KeptTwin, waits: Any) -> ErrorCode:
    await work(twin)
    with pytest.raises(FedRDMAError) as told:
        await waits
    return told.value.code


def test_a_message_that_was_lost_with_its_memory_is_told_again_to_a_party_that_begins_anew(play: KeptPlay) -> None:
    async def scenario(twin: KeptTwin) -> None:
        key = twin.push("a", "m", BODY)
        await work(twin)
        twin.kill("b")
        twin.lose_memory("b")
        await twin.restart("b")
        await connected(twin)
        assert failure_of_push(twin) is ErrorCode.MESSAGE_LOST
        for _ in range(2):
            leave(twin, "b")
            join(twin, "b")
            assert await outcome_of_pull(twin, pull(twin, key)) is ErrorCode.MESSAGE_LOST
        # it is told once
        assert failure_of_push(twin) is None

    play(scenario)


@pytest.mark.parametrize("killed_site", list(PARTIES))
def test_what_failed_while_a_party_was_away_is_told_after_a_restart_of_either_gateway(
    play: KeptPlay, killed_site: str
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        leave(twin, "b")
        key = twin.push("a", "m", BODY)
        twin.halves["a"].peer.sending.give_up(ErrorCode.TRANSFER_ABORTED, "the test has given it up")
        await killed(twin, killed_site)
        await connected(twin)
        join(twin, "b")
        assert await outcome_of_pull(twin, pull(twin, key)) is ErrorCode.TRANSFER_ABORTED

    play(scenario)


def test_what_failed_in_an_earlier_use_of_the_session_is_forgotten_by_the_journal_too(play: KeptPlay) -> None:
    async def scenario(twin: KeptTwin) -> None:
        key = twin.push("a", "m", BODY)
        twin.halves["a"].peer.sending.give_up(ErrorCode.TRANSFER_ABORTED, "the test has given it up")
        await work(twin)
        leave(twin, "b")
        leave(twin, "a")
        join(twin, "a")
        await killed(twin, "a")
        join(twin, "b")
        waits = pull(twin, key)
        await connected(twin)
        assert not waits.done()
        twin.push("a", "m", BODY)
        await work(twin)
        assert await waits == BODY

    play(scenario)


@pytest.mark.parametrize("moment", ["before it left", "while it was away"])
@pytest.mark.parametrize("back_in", ["the first run", "the next run"])
@pytest.mark.parametrize("size", SIZES)
def test_what_was_dropped_for_a_party_that_had_left_is_asked_about_after_a_restart_too(
    play: KeptPlay, size: int, back_in: str, moment: str
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        if moment == "while it was away":
            leave(twin, "b")
        key = twin.push("a", "m", BODY[:size])
        await work(twin)
        if moment == "before it left":
            leave(twin, "b")
            await work(twin)
        if back_in == "the first run":
            # which dies before it has told anybody
            await twin.lose_control("a")
            await twin.lose_control("b")
            join(twin, "b")
        await killed(twin, "b")
        if back_in == "the next run":
            join(twin, "b")
        waits = pull(twin, key)
        await connected(twin)
        assert await outcome_of_pull(twin, waits) is ErrorCode.MESSAGE_LOST
        assert failure_of_push(twin) is ErrorCode.MESSAGE_LOST

    play(scenario)


def test_a_message_that_comes_in_the_place_of_one_that_was_dropped_is_not_asked_about(play: KeptPlay) -> None:
    async def scenario(twin: KeptTwin) -> None:
        key = twin.push("a", "m", BODY)
        await work(twin)
        for site in PARTIES:
            leave(twin, site)
        for site in PARTIES:
            join(twin, site)
        await work(twin)
        twin.push("a", "m", BODY)
        await work(twin)
        await killed(twin, "b")
        waits = pull(twin, key)
        await connected(twin)
        assert await waits == BODY
        assert failure_of_push(twin) is None

    play(scenario)
