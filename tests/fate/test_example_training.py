"""What the example adds to FATE's secure aggregation: seeded masks, and letting go of what is masked."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

pytestmark = pytest.mark.fate

Arrays = list[NDArray[np.float64]]


def draw_arrays(scale: float = 1.0) -> Arrays:
    source = np.random.default_rng(5)
    return [source.normal(size=size) * scale for size in ((30, 40), (7,), (3, 5, 2))]


def test_masking_array_by_array_gives_fate_s_masks_and_lets_go_of_every_array() -> None:
    from examples.gpt2_advertisegen.training import FrugalMixer, seeded_mixer

    theirs, ours = seeded_mixer(1, "model", 0), FrugalMixer(seeded_mixer(1, "model", 0))
    for _ in range(2):
        arrays = draw_arrays()
        expected = theirs.mix(draw_arrays(), 0.5)
        masked = ours.mix(arrays, 0.5)
        assert arrays == [None, None, None]
        for one, other in zip(masked, expected, strict=True):
            for left, right in zip(one, other, strict=True):
                np.testing.assert_array_equal(left, right)


def test_what_was_masked_is_let_go_of_when_fate_waits_and_the_next_round_has_its_own() -> None:
    from examples.gpt2_advertisegen.training import FrugalMixer, seeded_mixer

    mixer = FrugalMixer(seeded_mixer(1, "model", 0))
    mixer.drop_sent()
    sent = mixer.mix(draw_arrays(), 0.5)
    assert len(sent) == 3
    mixer.drop_sent()
    assert sent == []
    assert len(mixer.mix(draw_arrays(), 0.5)) == 3
    assert sent == []


def aggregate(seeds: tuple[int, int], arrays: Arrays) -> Arrays:
    from fate_utils.secure_aggregation_helper import MixAggregate

    from examples.gpt2_advertisegen.training import seeded_mixer

    server = MixAggregate()
    for rank, seed in enumerate(seeds):
        server.aggregate(seeded_mixer(seed, "model", rank).mix([array.copy() for array in arrays], 0.5))
    aggregated: Arrays = server.finalize(1.0)
    return aggregated


def test_seeded_masks_of_two_clients_cancel() -> None:
    for got, expected in zip(aggregate((3, 3), draw_arrays()), draw_arrays(), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_masks_of_different_seeds_do_not_cancel() -> None:
    got, expected = aggregate((3, 4), draw_arrays())[0], draw_arrays()[0]
    assert np.abs(got - expected).max() > 1


def test_the_same_seed_gives_the_same_bits_also_where_masks_cost_the_last_of_them() -> None:
    tiny = draw_arrays(scale=1e-9)
    for one, other in zip(aggregate((3, 3), tiny), aggregate((3, 3), tiny), strict=True):
        np.testing.assert_array_equal(one, other)
    changed = zip(aggregate((3, 3), tiny), aggregate((4, 4), tiny), strict=True)
    assert any((one != other).any() for one, other in changed)


def test_the_loss_is_masked_by_another_stream_than_the_model() -> None:
    from examples.gpt2_advertisegen.training import seeded_mixer

    model, loss = (seeded_mixer(3, purpose, 0).mix(draw_arrays(), 0.5)[0][0] for purpose in ("model", "loss"))
    assert (model != loss).all()
