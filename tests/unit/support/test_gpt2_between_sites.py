"""What the job between two sites is measured by: FATE's log, percentiles, and weights compared bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from examples.gpt2_advertisegen.plan import ModelFacts
from tests.support.gpt2_between_sites import (
    Trained,
    beside_standalone,
    difference,
    memory,
    nearest_rank,
    on_the_way,
    read_timings,
)
from tests.support.hetero_between_sites import compared

STEP = np.float32(2**-23)


def line(said: str, at: str = "2026-11-28 09:55:22,981") -> str:
    return f"[DEBUG][{at}][10834][_profile._start][line:243]: {said}"


def test_a_put_in_the_log_of_a_task_has_its_time() -> None:
    what = "[federation.remote.model.train.aggregation-0]('guest', '9999')->[('arbiter', '10000')]"
    lines = [
        line(f"{what} start"),
        "[INFO][2026-11-28 09:55:23,000][10834][trainer.train][line:1]: something else",
        line(f"{what} done", at="2026-11-28 09:55:24,481"),
    ]
    (put,) = read_timings(lines)
    assert (put["event"], put["name"], put["peers"]) == ("put", "model", ["arbiter:10000"])
    assert put["end"] - put["begin"] == pytest.approx(1.5)


def test_one_that_is_not_done_is_none() -> None:
    assert list(read_timings([line("[federation.get.model.x]('a', '1')<-[('b', '2')] start")])) == []


def test_percentiles_are_values_that_were_seen() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert (nearest_rank(hundred, 0.5), nearest_rank(hundred, 0.99)) == (50.0, 99.0)
    assert nearest_rank([3.0], 0.99) == 3.0


def test_the_same_bits_do_not_differ_and_neighbours_by_one() -> None:
    one = np.array([1.0, -1.0, 0.0, 5.0], np.float32)
    other = np.array([1.0 + STEP, -1.0 - STEP, -0.0, 5.0], np.float32)
    assert difference({"w": one}, {"w": one}).differ == 0
    found = difference({"w": one}, {"w": other})
    assert (found.weights, found.differ, found.most_ulps) == (4, 2, 1)
    assert found.most == pytest.approx(float(STEP))


def test_ulps_are_counted_across_zero() -> None:
    tiny = np.float32(2**-149)
    found = difference({"w": np.array([tiny])}, {"w": np.array([-tiny])})
    assert found.most_ulps == 2


def test_weights_of_another_shape_are_not_compared() -> None:
    with pytest.raises(ValueError, match="are not"):
        difference({"w": np.zeros(2, np.float32)}, {"w": np.zeros(3, np.float32)})


def test_regions_hold_the_masked_weights_of_full_tuning() -> None:
    parameters = 124_000_000
    facts = ModelFacts("m", False, parameters, parameters, 148, "p", 16, 4)
    sizes = memory(facts)
    assert sizes["a"]["send_bytes"] > 16 * parameters < sizes["b"]["receive_bytes"]
    assert sizes["a"]["receive_bytes"] > 8 * parameters
    assert not sizes["a"]["warm"]
    assert memory(ModelFacts("m", False, 100, 100, 10, "p", 16, 4))["a"]["warm"]


def flow_call(direction: str, peer: str, seconds: float, path: str = "/v2/partner/task/start") -> dict[str, Any]:
    return {"event": "flow_call", "direction": direction, "peer": peer, "path": path, "bytes": 9, "seconds": seconds}


def test_what_a_call_takes_on_its_way_is_beyond_what_the_other_site_s_server_takes() -> None:
    of_a = [flow_call("asked", "b", 1.5), flow_call("asked", "b", 0.75), flow_call("asked", "a", 9.0)]
    of_b = [flow_call("served", "a", 1.25), flow_call("served", "a", 0.25), flow_call("asked", "a", 2.0, "/other")]
    assert list(on_the_way({"a": of_a, "b": of_b})) == [0.25, 0.5]


def trained(directory: Path, way: str, tuning: str, weight: float) -> None:
    model = directory / f"{way}-{tuning}"
    model.mkdir()
    safetensors.numpy.save_file({"w": np.array([1.0, weight], np.float32)}, model / "adapter_model.safetensors")
    with (directory / "trained.jsonl").open("ab") as notes:
        notes.write(msgspec.json.encode(Trained(way, tuning, str(model))) + b"\n")


def test_each_job_is_compared_with_standalone_s_of_its_tuning_whichever_ran_first(tmp_path: Path) -> None:
    trained(tmp_path, "fedrdma", "lora", 2.0)
    trained(tmp_path, "fedrdma", "full", 2.0)
    trained(tmp_path, "standalone", "lora", 2.0)
    trained(tmp_path, "osx", "lora", 2.0 + 2 * STEP)
    found = [(each.way, each.tuning, each.beside_standalone.differ) for each in beside_standalone(tmp_path)]
    assert found == [("fedrdma", "lora", 0), ("osx", "lora", 1)]


def test_scores_and_numbers_of_two_models_are_compared() -> None:
    one = {"scores": {"1": 0.5, "2": 0.25}, "model": {"coef": [1.0, 2.0], "epochs": 5}}
    other = {"scores": {"1": 0.5, "2": 0.375}, "model": {"coef": [1.0, 2.5], "epochs": 5}}
    row = compared("fedrdma", "lr", one, other)
    assert (row.rows, row.differ, row.most, row.most_in_model) == (2, 1, 0.125, 0.5)


def test_models_of_another_form_are_told_and_scores_of_other_rows_refused() -> None:
    one = {"scores": {"1": 0.5}, "model": {"coef": [1.0]}}
    assert compared("osx", "lr", one, {**one, "model": {"coef": [1.0, 2.0]}}).most_in_model is None
    with pytest.raises(ValueError, match="rows have scores"):
        compared("osx", "lr", one, {**one, "scores": {"3": 0.5}})
