"""Payloads have FATE's shapes, and their digest sees every way to get them wrong."""

from __future__ import annotations

import numpy as np
import pytest

from fedrdma_fate.bench.payload import PayloadArrays, digest, named_payload, plain_bytes
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

PAGE_BYTES = 4096


def test_full_gpt2_is_148_arrays_of_995_mb() -> None:
    spec = named_payload("gpt2-full")
    assert len(spec.shapes) == 148
    assert spec.dtype == "float64"
    assert spec.total_bytes == 995_518_464


def test_full_gpt2_has_the_shapes_of_the_real_model() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    assert named_payload("gpt2-full").shapes == tuple(tuple(one.shape) for one in model.parameters())


@pytest.mark.parametrize("rank", [1, 8, 1024])
def test_lora_is_two_arrays_a_layer_of_3072_values_a_rank(rank: int) -> None:
    spec = named_payload(f"lora-{rank}")
    assert spec.shapes == ((rank, 768), (2304, rank)) * 12
    assert spec.total_bytes == 12 * 3072 * rank * 8


@pytest.mark.parametrize("name", ["", "gpt2", "gpt2-full ", "lora", "lora-", "lora-0", "lora--8", "lora-8x", "LORA-8"])
def test_an_unknown_payload_is_an_error_that_names_it_and_what_would_do(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        named_payload(name)
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert repr(name) in caught.value.message
    assert "lora-8" in caught.value.remedy


@pytest.mark.parametrize("count", [1, 7, PAGE_BYTES, 3 * PAGE_BYTES + 1])
def test_plain_bytes_are_exactly_as_many_as_asked_for(count: int) -> None:
    payload = PayloadArrays(plain_bytes(count))
    assert payload.flat.nbytes == sum(array.nbytes for array in payload.arrays) == count


def test_arrays_are_views_of_one_buffer_that_fill_it() -> None:
    payload = PayloadArrays(named_payload("lora-2"))
    assert all(np.shares_memory(array, payload.flat) for array in payload.arrays)
    assert b"".join(array.tobytes() for array in payload.arrays) == payload.flat.tobytes()


@pytest.mark.parametrize("name", ["lora-2", "bytes"])
def test_every_page_differs_between_iterations(name: str) -> None:
    payload = PayloadArrays(plain_bytes(10 * PAGE_BYTES + 5) if name == "bytes" else named_payload(name))
    payload.stamp(1)
    first = payload.flat.copy()
    payload.stamp(2)
    changed = first != payload.flat
    assert all(changed[at : at + PAGE_BYTES].any() for at in range(0, changed.size, PAGE_BYTES))


def test_what_was_sent_in_another_iteration_has_another_digest() -> None:
    payload = PayloadArrays(named_payload("lora-1"))
    digests = [payload.stamp(iteration) for iteration in range(5)]
    assert len(set(digests)) == 5
    assert payload.stamp(0) == digests[0]


def test_a_copy_has_the_same_digest() -> None:
    payload = PayloadArrays(named_payload("lora-1"))
    sent = payload.stamp(0)
    assert digest([array.copy() for array in payload.arrays]) == sent


def test_the_digest_sees_a_changed_byte_a_swap_a_lost_array_another_shape_and_another_type() -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.arange(6.0, 12.0).reshape(2, 3)]
    damaged = [arrays[0].copy(), arrays[1]]
    damaged[0].view(np.uint8)[0, 0] ^= 1
    wrong = [
        damaged,
        arrays[::-1],
        arrays[:1],
        [arrays[0].reshape(3, 2), arrays[1]],
        [arrays[0].view(np.int64), arrays[1]],
    ]
    assert digest(arrays) not in {digest(other) for other in wrong}
