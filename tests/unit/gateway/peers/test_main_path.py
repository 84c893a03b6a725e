"""Two gateways' peers: the main path is left when it fails, and gone back to when it works again; time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedrdma_fate.engine.events import PathStalled
from fedrdma_fate.gateway.peers.main_path import LOOK_SECONDS, MOST_LOOKS, MOVE_SECONDS, _Leaving
from fedrdma_fate.gateway.peers.path_retries import FIRST_WAIT_SECONDS, STEADY_SECONDS
from fedrdma_fate.gateway.peers.paths import GIVE_UP_SECONDS
from fedrdma_fate.wire.frames import Connect, PathUse, Ping
from tests.support.endpoints import MemoryTransport, MemoryWire
from tests.support.twin import Twin
from tests.support.twin_play import BODY, Play, peer_of, pull, sent_by, work

UDP = {"transport": "udp", "mode": "fedrdma-x"}


def offer_udp(twin: Twin) -> dict[int, MemoryWire]:
    """Both offer `udp`, over wires of its own."""
    wires: dict[int, MemoryWire] = {}
    for transports in twin.transports.values():
        transports["udp"] = MemoryTransport("udp", wires)
    twin.halves = {site: twin._make(site) for site in twin.halves}
    return wires


def refuse(twin: Twin, refusing: bool, transport: str = "udp") -> None:
    """Whether it cannot be connected."""
    for transports in twin.transports.values():
        transports[transport].refusing = refusing  # type: ignore[attr-defined]


def main_of(twin: Twin) -> tuple[Any, Any]:
    """The main transports of both sites."""
    return peer_of(twin, "a").paths.main_transport, peer_of(twin, "b").paths.main_transport


async def spend(twin: Twin, seconds: float, step: float = 0.25) -> None:
    """Time passes, and both sides do what they can."""
    for _ in range(round(seconds / step)):
        await work(twin, 3)
        await asyncio.sleep(step)
    await work(twin, 3)


async def exchange(twin: Twin, name: str) -> None:
    """A message each way, which must come whole."""
    arrived = [pull(twin, twin.put("a", name, BODY)), pull(twin, twin.put("b", name, BODY))]
    await work(twin, 40)
    assert [await asyncio.wait_for(each, 1) for each in arrived] == [BODY, BODY]


async def fallen_back(twin: Twin) -> None:
    """`udp` does not pass at first."""
    offer_udp(twin)
    refuse(twin, True)
    await twin.connect()
    await spend(twin, 5)
    assert main_of(twin) == ("tcp", "tcp")


def test_a_better_path_that_works_again_is_the_main_one_again_on_both_sides(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await fallen_back(twin)
        refuse(twin, False)
        await spend(twin, FIRST_WAIT_SECONDS - 10)
        assert main_of(twin) == ("tcp", "tcp")
        await spend(twin, 10)
        assert main_of(twin) == ("udp", "udp")
        assert peer_of(twin, "a").paths.main.reason == peer_of(twin, "b").paths.main.reason == "UDP passes"
        await exchange(twin, "m")
        # what had been used meanwhile is closed
        await spend(twin, 10)
        for site in twin.halves:
            assert set(peer_of(twin, site).paths.paths) == {"udp"}

    play(scenario, **UDP)


def test_while_it_does_not_work_it_is_tried_less_and_less_often_and_the_status_says_when(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await fallen_back(twin)
        (told,) = peer_of(twin, "a").main_path.unused()
        assert told["transport"] == "udp"
        assert str(told["reason"]).startswith("could not be connected (")
        assert 0 < told["next_trial_seconds"] <= FIRST_WAIT_SECONDS
        await spend(twin, 600, 1.0)
        (told,) = peer_of(twin, "a").main_path.unused()
        # at 30, 90, 210 and 450 s
        assert told["trials"] == 4
        assert main_of(twin) == ("tcp", "tcp")
        await exchange(twin, "m")
        for site in twin.halves:
            assert set(peer_of(twin, site).paths.paths) == {"tcp"}
        assert peer_of(twin, "b").main_path.unused() == []

    play(scenario, **UDP)


def test_a_transfer_under_way_ends_on_the_path_it_is_on(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await fallen_back(twin)
        await spend(twin, MOVE_SECONDS)
        keys = [twin.put("a", "m", BODY), twin.put("b", "m", BODY)]
        arrived = [pull(twin, key) for key in keys]
        for site in twin.halves:
            await twin.turn(site)
        refuse(twin, False)
        # a is busy, and gets no turn to go on over tcp before the better path is up
        peer = peer_of(twin, "a")
        peer.main_path._retries._retries["udp"].due_at = 0.0
        peer.main_path._plan_trial()
        await asyncio.sleep(0.01)
        for _ in range(10):
            for site in twin.halves:
                peer_of(twin, site).paths.paths["udp"].link.turn() if "udp" in peer_of(twin, site).paths.paths else None
                await twin.carry(site)
        assert main_of(twin) == ("udp", "udp")
        before = {site: peer_of(twin, site).paths.paths["tcp"].link for site in twin.halves}
        assert any(link._link.progress() for link in before.values())
        await work(twin, 40)
        assert [await each for each in arrived] == [BODY, BODY]
        assert all(site_paths(twin, site)["tcp"].link is link for site, link in before.items())
        assert all(site_paths(twin, site)["tcp"].carried for site in twin.halves)
        await exchange(twin, "next")
        assert all(site_paths(twin, site)["udp"].carried for site in twin.halves)

    play(scenario, **UDP)


def test_what_has_not_ended_soon_on_a_path_that_is_left_goes_on_by_the_main_one_though_it_makes_progress() -> None:
    leaving, idle = _Leaving(), _Leaving()
    assert [leaving.is_over(is_busy=True) for _ in range(MOST_LOOKS)] == [False] * (MOST_LOOKS - 1) + [True]
    assert not idle.is_over(is_busy=False)
    assert not idle.is_over(is_busy=False)
    assert idle.is_over(is_busy=False)


def test_a_transfer_that_went_by_the_last_resort_goes_on_by_the_better_path_as_soon_as_that_is_up(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        offer_udp(twin)
        for transport in ("udp", "tcp"):
            refuse(twin, True, transport)
        await twin.connect()
        await spend(twin, 15)
        assert main_of(twin) == ("grpc", "grpc")
        arrived = [pull(twin, twin.put("a", "m", BODY)), pull(twin, twin.put("b", "m", BODY))]
        for site in twin.halves:
            await twin.turn(site)
            await twin.turn(site)
        stuck = {site: site_paths(twin, site)["grpc"].link for site in twin.halves}
        assert any(link.progress() for link in stuck.values())
        for link in stuck.values():
            link.turn_ = link.turn
            link.turn = lambda: None
        refuse(twin, False)
        await spend(twin, FIRST_WAIT_SECONDS)
        assert main_of(twin) == ("udp", "udp")
        for site, link in stuck.items():
            path = site_paths(twin, site).get("grpc")
            assert path is None or path.link is not link
        for link in stuck.values():
            link.turn = link.turn_
        await work(twin, 40)
        assert [await asyncio.wait_for(each, 1) for each in arrived] == [BODY, BODY]
        for site in twin.halves:
            assert peer_of(twin, site).sending.pending == 0

    play(scenario, **UDP)


def site_paths(twin: Twin, site: str) -> Any:
    """The data paths of a site."""
    return peer_of(twin, site).paths.paths


def test_a_path_that_is_left_and_stands_still_is_closed_and_what_was_on_it_comes_once_by_the_other(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await fallen_back(twin)
        await spend(twin, MOVE_SECONDS)
        refuse(twin, False)
        arrived = [pull(twin, twin.put("a", "m", BODY)), pull(twin, twin.put("b", "m", BODY))]
        await work(twin, 1)
        stuck = {site: site_paths(twin, site)["tcp"].link for site in twin.halves}
        for link in stuck.values():
            link.turn_ = link.turn
            link.turn = lambda: None
        await spend(twin, FIRST_WAIT_SECONDS + 5)
        assert main_of(twin) == ("udp", "udp")
        await spend(twin, (MOST_LOOKS + 1) * LOOK_SECONDS)
        assert all("tcp" not in site_paths(twin, site) for site in twin.halves)
        for link in stuck.values():
            link.turn = link.turn_
        await work(twin, 40)
        assert [await asyncio.wait_for(each, 1) for each in arrived] == [BODY, BODY]
        for site in twin.halves:
            assert set(site_paths(twin, site)) == {"udp"}
            assert twin.halves[site].context.mailbox.summary()["messages"] == 0
            assert peer_of(twin, site).sending.pending == 0

    play(scenario, **UDP)


def test_a_path_that_had_served_well_is_met_anew_at_once(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        wires = offer_udp(twin)
        await twin.connect()
        await exchange(twin, "m")
        await spend(twin, STEADY_SECONDS + 1)
        for wire in wires.values():
            wire.break_down("a blackout")
        await work(twin, 3)
        assert main_of(twin) == ("tcp", "tcp")
        await spend(twin, 3)
        assert main_of(twin) == ("udp", "udp")
        # it was only for a moment that tcp was used
        assert set(site_paths(twin, "a")) == set(site_paths(twin, "b")) == {"udp"}
        await exchange(twin, "n")

    play(scenario, **UDP)


def test_a_path_that_comes_and_goes_changes_the_main_path_ever_more_seldom(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        wires = offer_udp(twin)
        await twin.connect()
        changes, before = 0, ""
        for _ in range(1800):
            await work(twin, 2)
            await asyncio.sleep(1.0)
            now = str(main_of(twin)[0])
            changes, before = changes + (now != before), now
            # it lives for some seconds
            for path in [path for name, path in site_paths(twin, "a").items() if name == "udp" and path.up]:
                if asyncio.get_running_loop().time() - path.up_since > 5:
                    for wire in wires.values():
                        wire.break_down("gone again")
        # 30 + 60 + 120 + 240 + 480 + 600 s: up and down, each
        assert 8 <= changes <= 14
        await exchange(twin, "m")

    play(scenario, **UDP)


def test_a_main_path_that_is_lost_and_not_met_again_is_left_after_two_seconds(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        for transports in twin.transports.values():
            transports["shm"] = MemoryTransport("shm", {})
        wires: dict[int, MemoryWire] = {}
        for transports in twin.transports.values():
            transports["verbs"] = MemoryTransport("verbs", wires)
        twin.halves = {site: twin._make(site) for site in twin.halves}
        for half in twin.halves.values():
            half.context.host = half.site
        await twin.connect()
        await spend(twin, 1)
        assert main_of(twin) == ("verbs", "verbs")
        refuse(twin, True, "verbs")
        for wire in wires.values():
            wire.break_down("the device is gone")
        arrived = pull(twin, twin.put("a", "m", BODY))
        await spend(twin, GIVE_UP_SECONDS - 0.5, 0.1)
        assert main_of(twin) == ("verbs", "verbs")
        await spend(twin, 1.0, 0.1)
        assert main_of(twin) == ("tcp", "tcp")
        assert await asyncio.wait_for(arrived, 1) == BODY
        assert "verbs: was lost (" in peer_of(twin, "a").paths.main.reason

    play(scenario, transport="auto", mode="fedrdma-x")


def test_a_gateway_that_is_restarted_during_a_trial_is_met_by_the_best_path_again(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await fallen_back(twin)
        refuse(twin, False)
        peer = peer_of(twin, "a")
        peer.main_path._retries._retries["udp"].due_at = 0.0
        peer.main_path._plan_trial()
        await asyncio.sleep(0.01)
        assert peer.paths.is_aside("udp")
        await twin.restart("b")
        await twin.connect()
        await spend(twin, 3)
        assert main_of(twin) == ("udp", "udp")
        await exchange(twin, "m")

    play(scenario, **UDP)


def test_a_control_channel_that_is_lost_during_a_trial_leaves_nothing_behind_and_the_trial_comes_again(
    play: Play,
) -> None:
    async def scenario(twin: Twin) -> None:
        await fallen_back(twin)
        refuse(twin, False)
        peer = peer_of(twin, "a")
        peer.main_path._retries._retries["udp"].due_at = 0.0
        peer.main_path._plan_trial()
        await asyncio.sleep(0.01)
        await twin.lose_control("a")
        await twin.lose_control("b")
        assert not peer.paths.is_aside("udp")
        await twin.connect()
        await spend(twin, FIRST_WAIT_SECONDS + 5)
        assert main_of(twin) == ("udp", "udp")

    play(scenario, **UDP)


def test_a_trial_that_the_peer_never_answers_disturbs_nothing(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await fallen_back(twin)
        refuse(twin, False)
        silent = peer_of(twin, "b").paths
        answer = silent._answer
        silent._answer = lambda frame: None if frame.transport == "udp" else answer(frame)
        for name in "klmno":
            await spend(twin, 20)
            await exchange(twin, name)
        assert main_of(twin) == ("tcp", "tcp")
        (told,) = peer_of(twin, "a").main_path.unused()
        assert "did not answer" in str(told["reason"])
        assert told["trials"] <= 2

    play(scenario, **UDP)


@pytest.mark.parametrize("main", [True, False])
def test_a_peer_cannot_make_us_spin_by_what_it_says_of_paths(play: Play, main: bool) -> None:
    async def scenario(twin: Twin) -> None:
        offer_udp(twin)
        await twin.connect()
        await spend(twin, 2)
        peer = peer_of(twin, "a")
        changes, before = 0, ""
        for _ in range(600):
            for name, path in list(peer.paths.paths.items()):
                peer._on_frame(PathUse(name, path.attempt, main, "so it says"))
            await work(twin, 2)
            await asyncio.sleep(1.0)
            now = str(main_of(twin)[0])
            changes, before = changes + (now != before), now
        # down to the last resort, and up again after 30, 60, 120 and 240 s
        assert changes <= (1 if main else 12)

    play(scenario, **UDP)


def test_what_is_said_of_another_connection_or_of_no_path_means_nothing(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        offer_udp(twin)
        await twin.connect()
        await spend(twin, 2)
        peer = peer_of(twin, "a")
        attempt = peer.paths.paths["udp"].attempt
        for frame in (
            PathUse("udp", attempt - 1, False, "late"),
            PathUse("tcp", 1, False, ""),
            PathUse("x", 1, True, ""),
        ):
            peer._on_frame(frame)
        assert main_of(twin) == ("udp", "udp")
        assert sent_by(twin, "a", Connect) == []

    play(scenario, **UDP)


def test_a_short_path_is_not_tried_over_udp_by_auto(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        offer_udp(twin)
        await twin.connect()
        peer_of(twin, "a").main_path.on_round_trip(0.0004)
        await spend(twin, FIRST_WAIT_SECONDS * 2)
        assert main_of(twin) == ("tcp", "tcp")
        assert peer_of(twin, "a").main_path.unused() == []

    play(scenario, transport="auto", mode="fedrdma-x")


# --- a path that carries nothing ---


async def over_udp(twin: Twin) -> dict[int, MemoryWire]:
    """Both use `udp`."""
    wires = offer_udp(twin)
    await twin.connect()
    await spend(twin, 2)
    assert main_of(twin) == ("udp", "udp")
    return wires


@pytest.mark.parametrize("site", ["a", "b"])
def test_a_path_that_carries_nothing_is_left_by_both_whoever_finds_it_out_and_what_was_on_it_comes_once(
    play: Play, site: str
) -> None:
    async def scenario(twin: Twin) -> None:
        await over_udp(twin)
        arrived = [pull(twin, twin.put("a", "m", BODY)), pull(twin, twin.put("b", "m", BODY))]
        await work(twin, 1)
        path = site_paths(twin, site)["udp"]
        peer_of(twin, site)._on_link_event("udp", PathStalled(path.connection, "packets overtake", silent=False))
        await spend(twin, 2)
        assert main_of(twin) == ("tcp", "tcp")
        assert [await asyncio.wait_for(each, 1) for each in arrived] == [BODY, BODY]
        for half in twin.halves.values():
            assert half.context.mailbox.summary()["messages"] == 0
            assert "udp: was left (" in site_paths(twin, half.site)["tcp"].reason
            assert "packets overtake" in site_paths(twin, half.site)["tcp"].reason

    play(scenario, **UDP)


def test_a_path_that_is_left_for_carrying_nothing_is_tried_again_ever_later_however_long_it_was_up(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await over_udp(twin)
        waits = []
        for _ in range(3):
            await exchange(twin, f"m{len(waits)}")
            await spend(twin, STEADY_SECONDS * 5, 1.0)
            assert main_of(twin) == ("udp", "udp")
            peer, path = peer_of(twin, "a"), site_paths(twin, "a")["udp"]
            peer._on_link_event("udp", PathStalled(path.connection, "packets overtake", silent=False))
            (told,) = peer.main_path.unused()
            waits.append(told["next_trial_seconds"])
        assert waits == pytest.approx([30.0, 60.0, 120.0], abs=0.1)

    play(scenario, **UDP)


@pytest.mark.parametrize(
    ("answered_after", "left"), [(0.02, True), (1.5, False), (None, False)], ids=["soon", "late", "never"]
)
def test_a_path_by_which_nothing_comes_is_left_only_where_the_control_channel_answers_soon(
    play: Play, answered_after: float | None, left: bool
) -> None:
    async def scenario(twin: Twin) -> None:
        await over_udp(twin)
        peer, path = peer_of(twin, "a"), site_paths(twin, "a")["udp"]
        peer._on_link_event("udp", PathStalled(path.connection, "nothing comes by it", silent=True))
        assert main_of(twin)[0] == "udp"
        assert sent_by(twin, "a", Ping)
        if answered_after is not None:
            await asyncio.sleep(answered_after)
            # of a ping that went before the silence
            peer.main_path.on_round_trip(answered_after + 1)
            assert main_of(twin)[0] == "udp"
            peer._on_link_event("udp", PathStalled(path.connection, "nothing comes by it", silent=True))
            await asyncio.sleep(answered_after)
            # a little less, for the clock is a sum of floats
            peer.main_path.on_round_trip(0.9 * answered_after)
        assert (main_of(twin)[0] == "tcp") == left

    play(scenario, **UDP)


def test_what_an_earlier_connection_has_found_out_does_not_count_against_this_one(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await over_udp(twin)
        peer, path = peer_of(twin, "a"), site_paths(twin, "a")["udp"]
        peer._on_link_event("udp", PathStalled(path.connection - 1, "packets overtake", silent=False))
        assert main_of(twin)[0] == "udp"

    play(scenario, **UDP)
