"""Rounds in the setting of UniFL's evaluation, in virtual time, on a small scale."""

from __future__ import annotations

import json

import pytest

from tests.support.sim.unifl import ROWS, Setting, World, main, rounds

SMALL = Setting(silos=3, chosen=2, payload_bytes=64 * 1472)
ONE = Setting(1, 1, (50e6, 50e6), (0.02, 0.02), payload_bytes=512 * 1472)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_brings_all_of_a_payload_where_nothing_is_lost(row: str) -> None:
    for least, played in rounds(SMALL, row, 1, seed=1):
        assert least <= played.seconds < float("inf")
        assert len(played.ended) == 2
        assert played.missing_bytes == 0


def test_every_row_has_the_same_links_and_the_same_silos_in_a_round() -> None:
    by_row = [[least for least, _ in rounds(SMALL, row, 3, seed=5)] for row in ("tcp-reno", "ltp")]
    assert by_row[0] == by_row[1]


def test_tcp_sends_again_what_is_lost_and_ltp_does_not() -> None:
    lossy = Setting(1, 1, (50e6, 50e6), (0.02, 0.02), loss=0.05, payload_bytes=256 * 1472)
    ((_, tcp),) = rounds(lossy, "tcp-cubic", 1, seed=1)
    ((_, ltp),) = rounds(lossy, "ltp", 1, seed=1)
    assert tcp.resent_bytes > 0 == tcp.missing_bytes
    assert ltp.missing_bytes > 0 == ltp.resent_bytes
    assert ltp.seconds < tcp.seconds


def test_bbr_fills_a_link_that_loses_a_hundredth_and_reno_does_not() -> None:
    lossy = Setting(1, 1, (50e6, 50e6), (0.02, 0.02), loss=0.01, payload_bytes=1024 * 1472)
    *_, (least, bbr) = rounds(lossy, "tcp-bbr", 2, seed=1)
    *_, (_, reno) = rounds(lossy, "tcp-reno", 2, seed=1)
    assert bbr.seconds < 1.5 * least
    assert reno.seconds > 2 * least


def test_whose_losses_are_masked_loses_much_where_links_are_shared() -> None:
    crowded = Setting(4, 4, (50e6, 50e6), (0.02, 0.02), 50e6, 1e5, payload_bytes=512 * 1472)
    ((_, masked),) = rounds(crowded, "masked", 1, seed=1)
    assert masked.missing_bytes > 0.1 * 4 * 512 * 1472


@pytest.mark.parametrize("row", ["fedrdma-x", "masked"])
def test_one_that_sends_by_another_row_is_told_beside_the_rest(row: str) -> None:
    crowded = Setting(3, 3, (50e6, 50e6), (0.02, 0.02), 50e6, 1e5, loss=0.01, payload_bytes=512 * 1472)
    for _, played in rounds(crowded, row, 2, 1, "tcp-cubic"):
        first, *others = played.ended
        # what heeds no loss is there before CUBIC
        assert None not in (first, *others)
        assert first < min(others)
        assert len(others) == 2
        assert played.seconds == max(others)


@pytest.mark.parametrize(("setting", "others"), [(SMALL, "tcp-cubic"), (ONE, "fedrdma-x")])
def test_one_beside_others_is_asked_for_with_all_silos_and_models_of_others(setting: Setting, others: str) -> None:
    with pytest.raises(ValueError, match="all silos, and beside one a model"):
        next(rounds(setting, "ltp", 1, 1, others))


def test_the_least_is_the_receiver_s_link_or_the_slowest_silo_s() -> None:
    world = World(Setting(2, 2, (1e9, 1e9), (0.02, 0.02), payload_bytes=1472), 1)
    assert world.least_seconds([0]) == pytest.approx(0.01 + 1572 * 8 / 1e9)
    assert world.least_seconds([0, 1]) == pytest.approx(0.01 + 2 * 1572 * 8 / 1e9)


def test_the_program_prints_a_line_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--silos", "2", "--chosen", "1", "--size", "14720", "--rounds", "2", "--loss", "0.01"]
    assert main(["tcp-cubic", *told]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2
    assert all(line["seconds"] >= line["least_seconds"] for line in lines)
