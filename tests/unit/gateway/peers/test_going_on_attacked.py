"""What comes sealed goes on, and no byte counts that is not right, whatever was written there or died meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrdma_fate.gateway.peers.kept_transfers import KEY_AT
from fedrdma_fate.wire.frames import Mode
from tests.unit.gateway.peers.test_going_on import (
    BODY,
    CHUNK_BYTES,
    HEADERS_BYTES,
    MODES,
    SEALED,
    TABLE_BYTES,
    Play,
    _kills_both_again_and_again,
    _note_what_has_come,
    _run,
)

MOST_AGAIN = HEADERS_BYTES + CHUNK_BYTES + 3 * TABLE_BYTES
PAYLOAD_AT = 4096


class ForgesAWrite:
    """The path is lost; when the transfer goes on, somebody writes over a byte that had been there before."""

    async def __call__(self, play: Play) -> None:
        play.twin.break_paths()
        before = play.landed_bytes
        while play.landed_bytes < before + 2 * CHUNK_BYTES:
            await play.step()
        b = play.twin.halves["b"]
        (granted,) = [each for link in b.links() for each in link._link._incoming._granted.values() if each.offer]
        ((start, _),) = granted.adopted
        granted.slot.view[PAYLOAD_AT + start + 100] ^= 1


@pytest.mark.parametrize("mode", MODES)
def test_a_write_over_what_was_open_costs_that_chunk(tmp_path: Path, mode: Mode) -> None:
    _, landed = _run(tmp_path, mode, ForgesAWrite(), SEALED)
    assert CHUNK_BYTES <= landed - len(BODY) <= MOST_AGAIN + CHUNK_BYTES


class ChangesTheKey:
    """The receiver is killed; the key of the attempt, in its slot, is another when it is back."""

    async def __call__(self, play: Play) -> None:
        await _note_what_has_come(play)
        play.twin.kill("b")
        (coming,) = play.twin.coming("b")
        play.twin.damage("b", coming.offset + KEY_AT + 5)
        await play.twin.restart("b")
        await play.twin.connect("a")


@pytest.mark.parametrize("mode", MODES)
def test_another_key_in_the_slot_than_the_journal_knows_opens_nothing(tmp_path: Path, mode: Mode) -> None:
    arrived, landed = _run(tmp_path, mode, ChangesTheKey(), SEALED)
    assert landed >= arrived + len(BODY)


@pytest.mark.parametrize("mode", MODES)
def test_bytes_that_are_wrong_when_the_receiver_is_back_come_again_and_no_others(tmp_path: Path, mode: Mode) -> None:
    class Damages:
        async def __call__(self, play: Play) -> None:
            await _note_what_has_come(play)
            play.twin.kill("b")
            (coming,) = play.twin.coming("b")
            # from the first byte on in `fedrdma`, from the last back in the others
            at = 500 if mode == "fedrdma" else len(BODY) - 500
            play.twin.damage("b", coming.offset + PAYLOAD_AT + at)
            await play.twin.restart("b")
            await play.twin.connect("a")

    _, landed = _run(tmp_path, mode, Damages(), SEALED)
    assert CHUNK_BYTES <= landed - len(BODY) <= MOST_AGAIN + CHUNK_BYTES


@pytest.mark.parametrize("mode", MODES)
def test_a_sealed_message_comes_whole_however_often_both_gateways_are_killed_and_goes_on_each_time(
    tmp_path: Path, mode: Mode
) -> None:
    _, landed = _run(tmp_path, mode, _kills_both_again_and_again, SEALED)
    assert landed <= len(BODY) + HEADERS_BYTES + 5 * 3 * CHUNK_BYTES + 5 * TABLE_BYTES


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("writes", range(1, 5))
@pytest.mark.parametrize("mode", ["fedrdma-e", "fedrdma-x"])
def test_a_receiver_that_is_killed_while_a_transfer_goes_on_after_it_was_killed_loses_nothing(
    tmp_path: Path, mode: Mode, writes: int, sealed: bool
) -> None:
    async def kills_twice(play: Play) -> None:
        await _note_what_has_come(play)
        play.twin.kill("b")
        await play.twin.restart("b")
        await play.twin.connect("a")
        play.twin.kill_behind("b", writes)
        for _ in range(60):
            await play.step()
            if play.twin.is_dead("b"):
                break
        if play.twin.is_dead("b"):
            await play.twin.restart("b")
            await play.twin.connect("a")

    _, landed = _run(tmp_path, mode, kills_twice, SEALED if sealed else None)
    assert landed <= 2 * len(BODY) + MOST_AGAIN


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_it_goes_on_where_it_is_cut_otherwise_after_both_were_killed(tmp_path: Path, mode: Mode, sealed: bool) -> None:
    async def cuts_otherwise(play: Play) -> None:
        await _note_what_has_come(play)
        for site in "ab":
            play.twin.kill(site)
        # shorter sealed chunks have more tags, for which there is no room; a longer one has none to be staged in
        play.twin._settings["chunk"] = 5_000 if sealed and mode != "fedrdma" else 3_000
        for site in "ab":
            await play.twin.restart(site)
        await play.twin.connect("a")

    _, landed = _run(tmp_path, mode, cuts_otherwise, SEALED if sealed else None)
    assert landed - len(BODY) <= MOST_AGAIN + 3 * CHUNK_BYTES + 34 * 64


@pytest.mark.parametrize("mode", MODES)
def test_where_the_sender_has_other_bytes_now_those_come(tmp_path: Path, mode: Mode) -> None:
    async def writes_on(play: Play) -> None:
        """Into the slot, after it was committed, as no task should."""
        await _note_what_has_come(play)
        play.twin.kill("b")
        send = play.twin._sites["a"].send.view
        at = bytes(send).index(BODY[:1000])
        send[at : at + len(BODY)] = bytes(send[at : at + len(BODY)])[::-1]
        await play.twin.restart("b")
        await play.twin.connect("a")
        pull = await play.finish(_key_of(play))
        assert pull == BODY[::-1]
        raise _DoneError

    def _key_of(play: Play) -> object:
        (transfer,) = play.twin.halves["a"].peer.sending._transfers.values()
        return transfer.outgoing.key

    with pytest.raises(_DoneError):
        _run(tmp_path, mode, writes_on, SEALED)


class _DoneError(Exception):
    """The test has seen enough."""
