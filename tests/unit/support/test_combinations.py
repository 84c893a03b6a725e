"""What a run has of all combinations."""

from __future__ import annotations

import itertools

from tests.support.combinations import in_turns

MODES, WHATS, SEALS = ("e", "x", "grpc", "fedrdma"), ("chunk", "header"), ("on", "off")


def test_a_sweep_has_each_combination_once() -> None:
    made = [parameters.values for parameters in in_turns(MODES, WHATS, SEALS)]
    assert sorted(made) == sorted(itertools.product(MODES, WHATS, SEALS))


def test_a_run_has_each_pair_of_values_of_three_parameters_in_half_as_many() -> None:
    run = [parameters.values for parameters in in_turns(MODES, WHATS, SEALS) if not parameters.marks]
    assert len(run) == len(MODES) * len(WHATS)
    for first, second in itertools.combinations(range(3), 2):
        choices = (MODES, WHATS, SEALS)
        pairs = set(itertools.product(choices[first], choices[second]))
        assert {(values[first], values[second]) for values in run} == pairs


def test_a_run_has_each_value_of_two_parameters() -> None:
    run = [parameters.values for parameters in in_turns(MODES, SEALS) if not parameters.marks]
    assert [values[0] for values in run] == list(MODES)
    assert {values[1] for values in run} == set(SEALS)
