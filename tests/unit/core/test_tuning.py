"""Chunk sizes and Link-Enable: section 4.3 and Tables 2 and 3 of the paper."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.plan import LARGEST_CHUNK_BYTES, LARGEST_COUNT, ChunkPlan
from fedrdma_fate.core.tuning import LinkEnable, LinkTraits, choose_chunk_bytes, plan_transfer
from fedrdma_fate.wire.frames import Mode

MIB = 1024 * 1024
FAST = LinkTraits(rate_bps=10e9, mtu_bytes=4096)
SLOW = LinkTraits(rate_bps=1e9, mtu_bytes=4096)


def lora_bytes(rank: int) -> int:
    """LoRA on c_attn of GPT-2 in float64, with the job's own overhead."""
    return 3072 * rank * 12 * 8 + 3 * 1024


@pytest.mark.parametrize(
    ("rank", "paper_count", "paper_link_enable"),
    [
        (4, 1, False),
        (8, 2, True),
        (16, 4, True),
        (32, 5, True),
        (64, 7, True),
        (128, 12, True),
        (256, 21, True),
        (512, 39, True),
        (1024, 75, True),
    ],
)
@pytest.mark.parametrize("mode", ["fedrdma", "fedrdma-e"])
def test_table_3_is_met_to_one_chunk_counting_the_header_write(
    rank: int, paper_count: int, paper_link_enable: bool, mode: Mode
) -> None:
    plan = plan_transfer(mode, lora_bytes(rank), None, "auto", FAST)
    assert abs(plan.count + 1 - paper_count) <= 1
    assert (plan.enable_bytes > 0) == paper_link_enable


@pytest.mark.parametrize("rate_bps", [1e9, 2e9, 3e9])
def test_table_2_below_4_gbps_sends_the_payload_whole_without_link_enable(rate_bps: float) -> None:
    plan = plan_transfer("fedrdma-e", 10**9, None, "auto", LinkTraits(rate_bps))
    assert (plan.count, plan.enable_bytes) == (1, 0)


@pytest.mark.parametrize("rate_bps", [4e9, 10e9, 100e9, None])
def test_table_2_from_4_gbps_and_where_the_rate_is_unknown_chunks_are_4_mib_with_link_enable(
    rate_bps: float | None,
) -> None:
    plan = plan_transfer("fedrdma-e", 10**9, None, "auto", LinkTraits(rate_bps))
    assert plan.chunk_bytes == 4 * MIB
    assert plan.enable_bytes > 0


def test_a_configured_chunk_size_wins_except_in_mode_grpc() -> None:
    assert choose_chunk_bytes("fedrdma", 2 * MIB, 10**9, SLOW) == 2 * MIB
    assert choose_chunk_bytes("grpc", 2 * MIB, 10**9, SLOW) == MIB


def test_a_chunk_never_exceeds_what_one_rdma_write_can_carry() -> None:
    assert choose_chunk_bytes("fedrdma-e", None, 5 * 2**30, SLOW) == LARGEST_CHUNK_BYTES
    assert choose_chunk_bytes("fedrdma-e", 2**40, 2**40, SLOW) == LARGEST_CHUNK_BYTES


@pytest.mark.parametrize("mode", ["grpc", "fedrdma", "fedrdma-e"])
def test_a_tiny_chunk_size_grows_with_the_payload_so_that_the_plan_stays_valid(mode: Mode) -> None:
    plan = plan_transfer(mode, 2**42, 100, "always", FAST)
    assert LARGEST_COUNT // 8 < plan.count <= LARGEST_COUNT


def test_a_small_last_chunk_serves_as_the_link_enable_chunk() -> None:
    total = 8 * MIB + 3000
    plan = plan_transfer("fedrdma", total, None, "auto", FAST)
    assert plan == ChunkPlan(total, 4 * MIB, 3000)
    assert list(plan) == list(ChunkPlan(total, 4 * MIB)), "naming it must not cut anew"


def test_a_large_last_chunk_is_not_sent_first_on_a_cold_link() -> None:
    plan = plan_transfer("fedrdma", 8 * MIB + 200_000, None, "auto", FAST)
    assert plan.enable_bytes == FAST.mtu_bytes


@pytest.mark.parametrize(
    ("policy", "total_bytes", "link", "enabled"),
    [
        pytest.param("never", 10**9, FAST, False, id="never"),
        pytest.param("always", 10**6, SLOW, True, id="always, where auto would not"),
        pytest.param("auto", 2 * MIB - 1, FAST, False, id="auto, below 2 MiB"),
        pytest.param("auto", 2 * MIB, FAST, True, id="auto, from 2 MiB"),
        pytest.param("always", 4096, FAST, False, id="always, but the payload is one packet"),
        pytest.param("always", 4097, FAST, True, id="always, just above one packet"),
    ],
)
def test_link_enable_policy(policy: LinkEnable, total_bytes: int, link: LinkTraits, enabled: bool) -> None:
    assert (plan_transfer("fedrdma-e", total_bytes, None, policy, link).enable_bytes > 0) == enabled


def test_chunks_within_the_mtu_need_no_link_enable() -> None:
    assert plan_transfer("fedrdma", 10_000, 1000, "always", FAST).enable_bytes == 0


def test_grpc_has_no_link_enable() -> None:
    assert plan_transfer("grpc", 10**9, None, "always", FAST).enable_bytes == 0


@pytest.mark.parametrize("mode", ["grpc", "fedrdma", "fedrdma-e"])
def test_an_empty_payload_has_a_plan(mode: Mode) -> None:
    assert plan_transfer(mode, 0, None, "always", SLOW).count == 0
