"""Sessions end where nobody lives in them, and where somebody drops them; at all sites, with all that they held."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from typing import Any

import msgspec
import pytest

from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.tasks.session_ends import SessionEnds
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Party, Refused, SessionAsk, SessionEnd, SessionIdle
from tests.support.twin import PARTIES, Half, Twin
from tests.support.twin_play import BODY, Play, peer_of, pull, sent_by, work

PATIENCE = 100.0
TIMEOUTS = {"idle": 500_000.0, "peer_silence": 500_000.0, "session": PATIENCE}
BOTH = tuple(PARTIES.values())


@dataclasses.dataclass
class Site:
    """A gateway, and tasks of its party in the session `s`."""

    half: Half
    ends: SessionEnds

    @property
    def slots(self) -> int:
        """Slots in use, but for those that are granted ahead of time."""
        context = self.half.context
        return context.send_pool.stats().slots + context.receive_pool.stats().slots - self.half.credits_held()

    @property
    def is_over(self) -> bool:
        return self.half.context.mailbox.sessions.ended.reason("s") is not None

    def attach(self) -> None:
        """A task comes."""
        self.ends.check_open("s", BOTH)
        self.half.context.mailbox.join("s", self.half.party, BOTH)
        self.ends.arrive("s", self.half.party)

    def is_killed(self) -> None:
        """It goes, without leaving the session."""
        self.ends.depart("s", self.half.party)

    def note_push(self, key: MessageKey | None) -> None:
        assert key is not None
        self.half.context.mailbox.sessions.note_push((key,))


class Sites:
    """Both, connected."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.a, self.b = (
            Site(half, SessionEnds(half.context, {half.peer.config.site: half.peer})) for half in twin.halves.values()
        )

    async def begin(self) -> None:
        await self.twin.connect()
        await work(self.twin)

    async def wait(self, seconds: float) -> None:
        """Time passes, in small steps, while both do what they can."""
        for _ in range(20):
            await asyncio.sleep(seconds / 20)
            await work(self.twin, 3)


def play_sites(play: Play, scenario: Any) -> None:
    async def run(twin: Twin) -> None:
        sites = Sites(twin)
        try:
            await scenario(sites)
        finally:
            sites.a.ends.close()
            sites.b.ends.close()

    play(run, timeouts=TIMEOUTS)


def ended_with(error: pytest.ExceptionInfo[FedRDMAError]) -> bool:
    return error.value.code is ErrorCode.SESSION_ENDED


def test_a_session_whose_tasks_were_all_killed_gives_everything_back(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.b.attach()
        for size in (100, len(BODY)):
            sites.a.note_push(sites.twin.put("a", f"m{size}", BODY[:size]))
        await work(sites.twin)
        assert sites.b.slots
        sites.a.is_killed()
        sites.b.is_killed()
        await sites.wait(0.9 * PATIENCE)
        assert sites.b.slots
        await sites.wait(0.2 * PATIENCE)
        for site in (sites.a, sites.b):
            assert site.slots == 0
            assert site.half.context.mailbox.summary() == dict.fromkeys(site.half.context.mailbox.summary(), 0)
            assert list(site.ends.presence) == []
            with pytest.raises(FedRDMAError) as late:
                site.attach()
            assert ended_with(late)

    play_sites(play, scenario)


def test_a_session_that_lives_at_another_site_goes_on_and_ends_after_that(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.b.attach()
        sites.a.note_push(sites.twin.put("a", "m", BODY))
        await work(sites.twin)
        sites.b.is_killed()
        await sites.wait(3.5 * PATIENCE)
        assert sites.b.slots == 1, "the task of a lives, and another of b may come"
        sites.a.is_killed()
        await sites.wait(0.9 * PATIENCE)
        assert sites.b.slots == 1
        await sites.wait(0.2 * PATIENCE)
        assert sites.b.slots == 0
        assert sites.a.is_over
        assert sites.b.is_over

    play_sites(play, scenario)


def test_a_session_of_an_earlier_run_whose_tasks_never_come_back_ends(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        half = sites.b.half
        half.context.mailbox.sessions.join("s", half.party, BOTH)
        sites.b.ends.close()
        sites.b.ends = SessionEnds(half.context, {"a": half.peer})
        await sites.wait(1.1 * PATIENCE)
        assert sites.b.is_over
        assert not half.context.mailbox.sessions.known()

    play_sites(play, scenario)


def test_a_task_that_comes_back_in_time_finds_its_messages(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.b.attach()
        key = sites.twin.put("a", "m", BODY)
        await work(sites.twin)
        sites.b.is_killed()
        await sites.wait(0.9 * PATIENCE)
        sites.b.attach()
        await sites.wait(2 * PATIENCE)
        assert await pull(sites.twin, key) == BODY

    play_sites(play, scenario)


def test_a_session_that_all_have_left_is_forgotten_at_once_and_may_be_begun_anew(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.a.half.context.mailbox.leave("s", sites.a.half.party)
        sites.a.is_killed()
        assert list(sites.a.ends.presence) == []
        sites.a.attach()

    play_sites(play, scenario)


@pytest.mark.parametrize("moment", ["waits", "on its way", "not begun"])
def test_a_dropped_session_ends_at_both_sites_whatever_is_under_way(play: Play, moment: str) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.b.attach()
        if moment == "not begun":
            await sites.twin.lose_control("a")
            await sites.twin.lose_control("b")
        for name in ("m1", "m2"):
            sites.a.note_push(sites.twin.put("a", name, BODY))
            sites.a.note_push(sites.twin.put("a", f"small {name}", b"x"))
        wanted = pull(sites.twin, MessageKey("s", "never", "t", *BOTH))
        await work(sites.twin, {"waits": 30, "on its way": 1, "not begun": 0}[moment])
        dropped = sites.a.ends.drop("s")
        assert dropped.told == (() if moment == "not begun" else ("b",))
        assert dropped.untold == (("b",) if moment == "not begun" else ())
        if moment == "not begun":
            await sites.twin.connect()
        await work(sites.twin)
        with pytest.raises(FedRDMAError) as refused:
            await wanted
        assert ended_with(refused)
        assert "dropped at a" in refused.value.message
        for site in (sites.a, sites.b):
            assert site.slots == 0
            assert site.half.peer.sending.pending == 0
            assert not site.half.peer.receiving._announced
            sessions = site.half.context.mailbox.sessions
            assert sessions.closed_error("s", site.half.party).code is ErrorCode.SESSION_ENDED
            assert sessions.is_closed("s", site.half.party)

    play_sites(play, scenario)


def test_a_message_that_comes_for_a_session_that_has_ended_is_refused_and_leaves_nothing(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.b.attach()
        sites.b.ends.drop("s")
        # pushed before a has heard of it
        for name, size in (("m1", 100), ("m2", len(BODY))):
            sites.a.note_push(sites.twin.put("a", name, BODY[:size]))
        await sites.twin.carry("a")
        assert [frame.code for frame in sent_by(sites.twin, "b", Refused)] == [ErrorCode.SESSION_ENDED.value]
        await work(sites.twin)
        assert sites.a.is_over
        assert sites.a.slots == sites.b.slots == 0
        assert sites.b.half.context.mailbox.summary()["messages"] == 0

    play_sites(play, scenario)


def test_another_session_goes_on_when_one_is_dropped(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.b.attach()
        sites.a.note_push(sites.twin.put("a", "m", BODY))
        other = sites.twin.put("a", "m", BODY, session="other")
        sites.a.ends.drop("s")
        await work(sites.twin)
        assert await pull(sites.twin, other) == BODY

    play_sites(play, scenario)


def test_what_is_dropped_twice_or_never_was_is_refused(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        for session in ("never", "s", "s"):
            if session == "s" and not sites.a.is_over:
                sites.a.attach()
                sites.a.ends.drop("s")
            with pytest.raises(FedRDMAError) as refused:
                sites.a.ends.drop(session)
            assert ended_with(refused)

    play_sites(play, scenario)


def test_who_is_away_counts_as_having_no_task_once_it_has_been_away_for_so_long(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.a.attach()
        sites.b.attach()
        sites.b.is_killed()
        await sites.wait(0.5 * PATIENCE)
        await sites.twin.lose_control("a")
        await sites.twin.lose_control("b")
        await sites.wait(0.9 * PATIENCE)
        assert not sites.b.is_over
        await sites.wait(0.3 * PATIENCE)
        assert sites.b.is_over
        assert not sites.a.is_over, "it has a task"
        await sites.twin.connect()
        await work(sites.twin)
        assert sites.a.is_over, "and hears of it when it is back"

    play_sites(play, scenario)


def test_a_peer_that_never_answers_does_not_keep_a_session(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.b.attach()
        sites.b.is_killed()
        peer_of(sites.twin, "a").session_talk = None
        await sites.wait(3 * PATIENCE)
        assert not sites.b.is_over
        await sites.wait(2 * PATIENCE)
        assert sites.b.is_over

    play_sites(play, scenario)


def test_a_peer_that_says_almost_each_time_is_not_asked_without_end(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.b.attach()
        sites.b.is_killed()
        peer_of(sites.twin, "a").session_talk = None
        asked = 0
        await asyncio.sleep(PATIENCE)
        for _ in range(200):
            asked += len(sent_by(sites.twin, "b", SessionAsk))
            await sites.twin.carry("b")
            peer_of(sites.twin, "b")._on_frame(SessionIdle("s", PATIENCE - 0.01))
            await asyncio.sleep(PATIENCE / 200)
        assert 0 < asked <= 21

    play_sites(play, scenario)


def test_a_peer_of_an_older_version_is_neither_asked_nor_told(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.b.attach()
        peer = peer_of(sites.twin, "b")
        peer.hello = msgspec.structs.replace(peer.hello, sessions=False)
        sites.b.is_killed()
        await asyncio.sleep(1.01 * PATIENCE)
        assert sites.b.is_over
        assert sent_by(sites.twin, "b", SessionAsk | SessionEnd) == []

    play_sites(play, scenario)


def test_a_peer_that_is_not_in_a_session_ends_it_for_nobody(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        b = sites.b.half
        b.context.mailbox.join("others'", b.party, [b.party])
        sites.b.ends.arrive("others'", b.party)
        b.peer._on_frame(SessionEnd("others'", "because"))
        b.peer._on_frame(SessionAsk("others'"))
        assert not b.context.mailbox.sessions.is_closed("others'", b.party)
        assert sent_by(sites.twin, "b", SessionIdle) == [], "nor is it told of it"

    play_sites(play, scenario)


def test_a_task_that_comes_after_a_site_of_its_session_has_ended_it_is_told(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.b.half.peer._on_frame(SessionEnd("s", "nobody came"))
        sites.b.ends.check_open("s", (sites.b.half.party,))
        with pytest.raises(FedRDMAError) as late:
            sites.b.attach()
        assert ended_with(late)
        assert "nobody came (told by a)" in late.value.message

    play_sites(play, scenario)


def test_a_peer_that_sends_a_message_ahead_of_all_tasks_cannot_end_their_session(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        b = sites.b.half
        others = Message(MessageKey("s", "m", "t", Party("arbiter", "3"), b.party), "bytes", 1, body=b"x", origin="c")
        assert b.context.mailbox.deliver(others)
        sites.twin.put("a", "small", b"x")
        sites.twin.put("a", "large", BODY)
        await work(sites.twin)
        assert b.context.mailbox.summary()["messages"] == 3
        b.peer._on_frame(SessionEnd("s", "because"))
        assert not sites.b.is_over
        assert list(b.context.mailbox.all_messages()) == [others], "its own go"
        assert sites.b.slots == 0
        assert list(sites.b.ends.presence) == ["s"]
        # tasks that do not name it
        sites.b.ends.check_open("s", (b.party, others.key.source))

    play_sites(play, scenario)


def test_what_a_peer_sends_ahead_and_takes_back_leaves_nothing(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.twin.put("a", "m", BODY)
        await work(sites.twin)
        sites.b.half.peer._on_frame(SessionEnd("s", "dropped"))
        assert list(sites.b.ends.presence) == []
        assert sites.b.slots == 0

    play_sites(play, scenario)


def test_a_task_that_names_a_site_that_has_ended_a_session_ends_it_for_no_task_that_does_not(play: Play) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        b = sites.b.half
        b.context.mailbox.join("s", b.party, [b.party])
        sites.b.ends.arrive("s", b.party)
        b.peer._on_frame(SessionEnd("s", "because"))
        with pytest.raises(FedRDMAError) as late:
            sites.b.attach()
        assert ended_with(late)
        assert not sites.b.is_over

    play_sites(play, scenario)


def test_a_question_costs_no_more_where_a_session_has_pushed_and_pulled_much(play: Play) -> None:
    class Counted(OrderedDict[MessageKey, None]):
        walks = 0

        def __iter__(self) -> Any:
            Counted.walks += 1
            return super().__iter__()

    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.b.attach()
        b = sites.b.half
        state = b.context.mailbox.sessions._of("s")
        state.pushed, state.pulled = Counted(), Counted()
        for number in range(100):
            b.context.mailbox.sessions.remember_push(MessageKey("s", f"m{number}", "t", b.party, PARTIES["a"]))
        assert b.context.mailbox.sessions.others("s") >= {PARTIES["a"]}
        b.peer._on_frame(SessionAsk("s"))
        assert len(sent_by(sites.twin, "b", SessionIdle)) == 1
        assert Counted.walks == 0

    play_sites(play, scenario)


@pytest.mark.parametrize("seconds", [1e12, -1e12])
def test_an_answer_that_nobody_asked_for_changes_nothing(play: Play, seconds: float) -> None:
    async def scenario(sites: Sites) -> None:
        await sites.begin()
        sites.b.attach()
        for session in ("s", "t"):
            peer_of(sites.twin, "b")._on_frame(SessionIdle(session, seconds))
        await work(sites.twin)
        assert not sites.b.is_over
        assert list(sites.b.ends.presence) == ["s"]

    play_sites(play, scenario)
