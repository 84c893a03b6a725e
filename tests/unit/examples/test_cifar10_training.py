"""FedComm's models, a silo's training, averages, and rounds by protocols with all of it."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from deploy.softroce.programs.exchange import rounds, trained  # noqa: E402
from deploy.softroce.programs.exchange.__main__ import take_part  # noqa: E402
from deploy.softroce.programs.exchange.datagrams import FEDCOMM, Assembly, pieces_of  # noqa: E402
from deploy.softroce.programs.exchange.interface import Host, Options  # noqa: E402
from deploy.softroce.programs.exchange.trained import TrainedModels, train_options  # noqa: E402
from examples.cifar10_vgg.stand_in import stand_in  # noqa: E402
from examples.cifar10_vgg.training import (  # noqa: E402
    STAND_IN,
    accuracy,
    augmented,
    average,
    from_bytes,
    tensor_bytes,
    to_bytes,
    train_epoch,
)
from examples.cifar10_vgg.vgg import build  # noqa: E402
from fedrdma_fate.bench.protocols.rows import all_protocol_rows  # noqa: E402
from fedrdma_fate.bench.protocols.training import STATE_BYTES  # noqa: E402

DATA = stand_in(1, 80, 20)
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@pytest.mark.parametrize(("name", "tensors", "parameters"), [("vgg5", 25, 582_346), ("vgg8", 46, 1_337_898)])
def test_models_are_fedcomm_s_to_the_parameter(name: str, tensors: int, parameters: int) -> None:
    model = build(name, 1)
    assert (len(tensor_bytes(model)), sum(one.numel() for one in model.parameters())) == (tensors, parameters)
    assert sum(tensor_bytes(model)) == len(to_bytes(model)) == STATE_BYTES[name]
    # no activation between the dense layers
    assert [type(layer).__name__ for layer in model][-3:] == ["Flatten", "Linear", "Linear"]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(KeyError):
        build("vgg6", 1)


def test_pictures_are_moved_by_four_pixels_at_most_and_mirrored_only_where_that_changes_nothing() -> None:
    one = np.zeros((64, 3, 32, 32), np.uint8)
    one[:, :, 16, 10] = 200
    for mirrored in (False, True):
        moved = augmented(one, np.random.default_rng(1), mirrored=mirrored)
        _, rows, columns = np.nonzero(moved[:, 0])
        assert set(rows) == set(range(12, 21))
        from_left = set(range(6, 15))
        assert set(columns) == from_left | (set(range(17, 26)) if mirrored else set())


def test_the_same_seed_trains_the_same_weights_to_the_bit_and_another_others() -> None:
    made = []
    for seed in (1, 1, 2):
        model = build("vgg5", 1)
        train_epoch(model, DATA.train.share(0, 2), STAND_IN, (seed, 0))
        made.append(to_bytes(model))
    assert made[0] == made[1] != made[2]


def test_a_model_is_what_its_bytes_say_and_other_lengths_are_refused() -> None:
    mine, theirs = build("vgg5", 1), build("vgg5", 2)
    from_bytes(mine, to_bytes(theirs))
    assert to_bytes(mine) == to_bytes(theirs)
    for call in (lambda wrong: from_bytes(mine, wrong), lambda wrong: average(mine, [to_bytes(mine), wrong])):
        with pytest.raises(ValueError, match="no such model"):
            call(to_bytes(mine)[:-1])


def test_fedcomm_s_average_has_the_running_means_too() -> None:
    models = [build("vgg5", seed) for seed in (1, 2)]
    for number, model in enumerate(models):
        train_epoch(model, DATA.train.share(number, 2), STAND_IN, (1, number))
    whole = build("vgg5", 3)
    from_bytes(whole, average(whole, [to_bytes(model) for model in models]))
    states = [model.state_dict() for model in models]
    for name, tensor in whole.state_dict().items():
        wanted = (states[0][name] + states[1][name]) / 2
        assert torch.equal(tensor, wanted.to(tensor.dtype)), name
    assert not torch.equal(states[0]["1.running_mean"], states[1]["1.running_mean"])


def test_an_average_of_what_lost_datagrams_left_is_tried_as_it_is() -> None:
    model = build("vgg5", 1)
    noise = np.random.default_rng(1).bytes(len(to_bytes(model)))
    from_bytes(model, average(model, [noise, to_bytes(model)]))
    assert 0 <= accuracy(model, DATA.test) <= 1


def test_what_is_missing_of_a_tensor_is_closed_up_in_it_alone() -> None:
    parts = (3000, 2048)
    assert pieces_of(parts) == [(0, 0, 2048), (0, 2048, 3000), (1, 3000, 5048)]
    assembly = Assembly(FEDCOMM, parts, b"")
    assert assembly.add(0, b"b" * 952)
    assert assembly.add(1, b"c" * 2048)
    # of no tensor, and more than one holds
    assert not assembly.add(2, b"x")
    assert not assembly.add(1, b"x")
    assert assembly.model == b"b" * 952 + bytes(2048) + b"c" * 2048


# --- rounds ---


PROBLEMS = {row.name: row.find_problem for row in all_protocol_rows()}


def exchange(place: Path, protocol: str, count: int) -> list[dict[str, Any]]:
    asked = Options(protocol, STATE_BYTES["vgg5"], count, 4e8, 4e8, computing_seconds=0.0, train="vgg5")
    everyone = [Host(number, ADDRESSES, place) for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        parts = [pool.submit(lambda host: list(take_part(host, asked)), host) for host in everyone]
        (told,), *_ = [part.result() for part in parts]
    return told


def test_by_every_reliable_protocol_weights_are_equal_to_the_bit_after_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(trained, "stand_in", lambda _: DATA)
    monkeypatch.delenv("TESTBED_NETDEV", raising=False)
    # brokers and libraries where they are
    others = [name for name in ("mqtt-1", "zmtp-dealer") if PROBLEMS[name](STATE_BYTES["vgg5"]) is None]
    protocols = ["tcp-serial", "tcp-reno", "grpc-stream", *others]
    told = {protocol: exchange(tmp_path / protocol, protocol, 2) for protocol in protocols}
    digests = {tuple(one["digest"] for one in made) for made in told.values()}
    assert len(digests) == 1
    (each,) = digests
    assert len(set(each)) == 2
    assert all(0 <= one["accuracy"] <= 1 for made in told.values() for one in made)


def test_what_a_silo_did_not_get_stays_as_it_had_it_and_who_sent_nothing_is_left_out() -> None:
    server, *silos = (TrainedModels("vgg5", host, 2, DATA, 1) for host in range(3))
    first = silos[0].own(0)
    assert silos[0].held(0) == first != server.own(0)
    server.take(silos[1].own(0), 2, 0)
    told = server.finish(0)
    assert server.own(1) == silos[1].own(0)
    assert told == {"accuracy": told["accuracy"], "digest": told["digest"]}
    # nothing came at all
    assert server.finish(1)["digest"] == told["digest"]
    with pytest.raises(SystemExit, match="what host 1 sent in round 1 has 3 bytes, not 2330688"):
        server.take(b"abc", 1, 0)


def test_a_model_of_another_name_or_length_and_pictures_that_are_not_there_end_the_host(tmp_path: Path) -> None:
    asked = Options("tcp-cubic", 7, 1, train="vgg5")
    with pytest.raises(SystemExit, match="vgg5 has 2330688 bytes, not 7"):
        train_options(asked, 0, 2)
    with pytest.raises(SystemExit, match="no model 'vgg6'"):
        train_options(dataclasses.replace(asked, train="vgg6"), 0, 2)
    with pytest.raises(SystemExit, match="is no directory"):
        train_options(dataclasses.replace(asked, data=tmp_path / "none"), 0, 2)
    assert train_options(dataclasses.replace(asked, train=None), 0, 2).models is None
