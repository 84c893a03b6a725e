"""The example's options and presets, and the memory they ask of the gateways."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples.gpt2_advertisegen.gateways import pool_bytes, region_bytes
from examples.gpt2_advertisegen.options import JobOptions, ModelShape
from examples.gpt2_advertisegen.plan import ARBITER, CLIENTS, GUEST, PARTIES
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import Party

GPT2_PARAMETERS, GPT2_ARRAYS = 124_439_808, 148


def options(**chosen: object) -> JobOptions:
    return JobOptions(Path("out"), **chosen)  # type: ignore[arg-type]


def test_the_defaults_are_the_paper_s_hyper_parameters() -> None:
    preset = options().hyper_parameters()
    assert (preset.batch_size, preset.learning_rate, preset.rounds) == (32, 5e-6, 5)
    assert preset.shape == ModelShape(layers=12, heads=12, width=768, positions=1024, vocabulary=50257)


def test_an_option_replaces_the_preset_s_value() -> None:
    preset = options(preset="tiny", rounds=7, learning_rate=0.5).hyper_parameters()
    assert (preset.rounds, preset.learning_rate, preset.lora_learning_rate) == (7, 0.5, 0.5)


def test_steps_set_the_rows_of_a_round() -> None:
    assert options(preset="tiny", steps=3, batch_size=8).hyper_parameters().samples == 24


def test_a_batch_smaller_than_the_preset_s_micro_batch_is_its_own_micro_batch() -> None:
    assert options(preset="laptop", batch_size=2).hyper_parameters().micro_batch == 2


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"steps": 2, "samples": 5}, "--steps 2 and --samples 5"),
        ({"batch_size": 10, "micro_batch": 4}, "--batch-size 10"),
        ({"preset": "tiny", "max_length": 65}, "--max-length 65"),
    ],
)
def test_options_that_contradict_each_other_are_refused(chosen: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        options(**chosen).hyper_parameters()
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE


def test_a_longer_row_is_left_to_the_user_s_own_model() -> None:
    assert options(preset="tiny", max_length=65, model=Path()).hyper_parameters().max_length == 65


def test_pools_hold_a_round_of_full_gpt2_and_little_more() -> None:
    masked, aggregate = 16 * GPT2_PARAMETERS, 8 * GPT2_PARAMETERS
    little = 48 * 2**20
    client = pool_bytes(GUEST, GPT2_PARAMETERS, GPT2_ARRAYS)
    arbiter = pool_bytes(ARBITER, GPT2_PARAMETERS, GPT2_ARRAYS)
    assert masked < client.send < masked + little
    assert aggregate < client.receive < aggregate + little
    assert aggregate < arbiter.send < aggregate + little
    assert len(CLIENTS) * masked < arbiter.receive < len(CLIENTS) * masked + little


@pytest.mark.parametrize("parameters", [1, 43_904, 3_716_608, GPT2_PARAMETERS])
@pytest.mark.parametrize("party", PARTIES)
def test_pools_pass_the_gateway_s_own_checks(party: Party, parameters: int) -> None:
    pools = pool_bytes(party, parameters, 26)
    ring = {"ring_slots": 2, "ring_slot_bytes": 4 * 2**20}
    peers = [{"site": name, "parties": [f"{name}:1"]} for name in ("a", "b")]
    memory = {"send_bytes": pools.send, "receive_bytes": pools.receive, **ring}
    document = {"site": "x", "parties": ["x:1"], "security": "off", "memory": memory, "peers": peers}
    assert parse_config(document).memory.receive_bytes == pools.receive
    assert pools.send % 4096 == pools.receive % 4096 == 0


def test_two_masked_payloads_and_the_rings_fit_the_arbiter_s_pool_in_the_mode_that_takes_most() -> None:
    payload = 16 * GPT2_PARAMETERS + 20_000
    slot = SlotLayout(ChunkPlan(payload, 4 * 2**20), "fedrdma").slot_bytes
    rings = 2 * 2 * 4 * 2**20
    assert 2 * slot + rings <= pool_bytes(ARBITER, GPT2_PARAMETERS, GPT2_ARRAYS).receive


def test_the_memory_of_pools_is_that_of_the_regions_that_gateways_have_open_each_counted_once() -> None:
    region = SharedRegion.create("send", 5 * 2**20)
    other = os.dup(region.fileno)
    mine = region_bytes([os.getpid(), os.getpid()])
    assert mine[os.fstat(other).st_ino] == 5 * 2**20
    region.close()
    os.close(other)
    assert region_bytes([2**22 + 1]) == {}
