"""CIFAR-10 from files: both versions, the stand-in, and files that are something else."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from examples.cifar10_vgg import batch_pickle
from examples.cifar10_vgg.__main__ import main
from examples.cifar10_vgg.batch_pickle import PickleError, read_batch
from examples.cifar10_vgg.pictures import RECORD_BYTES, STAND_IN_NAME, TEST_NAME, TRAIN_NAMES, read_dataset
from examples.cifar10_vgg.stand_in import stand_in, write_stand_in
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

COUNT = 4
"""Pictures in each file."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A stand-in in the binary version's format."""
    write_stand_in(tmp_path / "pictures", 3, 5 * COUNT, COUNT)
    return tmp_path / "pictures"


def batch(**changed: Any) -> dict[Any, Any]:
    """A batch as the Python version has it, once it is unpickled."""
    made = stand_in(3, COUNT, 1).train
    labels = [int(label) for label in made.labels]
    return {b"data": made.images.reshape(COUNT, -1), b"labels": labels, b"filenames": [b"a.png"] * COUNT, **changed}


def dumped(value: object) -> bytes:
    """By a pickler that, as Python 2 did, writes bytes as such without calling anything."""
    out = io.BytesIO()
    pickle.Pickler(out, protocol=3).dump(value)
    return out.getvalue()


def python_version(directory: Path, content: bytes) -> Path:
    for path in directory.glob("*.bin"):
        path.unlink()
    for name in (*TRAIN_NAMES, TEST_NAME):
        (directory / name).write_bytes(content)
    return directory


def refused(directory: Path) -> str:
    with pytest.raises(ConfigError) as error:
        read_dataset(directory)
    assert error.value.code is ErrorCode.CONFIG_BAD_VALUE
    return error.value.message


# --- what is read ---


def test_a_stand_in_is_read_as_it_was_made_and_the_same_seed_makes_the_same(directory: Path) -> None:
    found, made = read_dataset(directory), stand_in(3, 5 * COUNT, COUNT)
    for mine, theirs in ((found.train, made.train), (found.test, made.test)):
        np.testing.assert_array_equal(mine.images, theirs.images)
        np.testing.assert_array_equal(mine.labels, theirs.labels)
        assert not mine.mirrored
    assert (stand_in(4, 5 * COUNT, COUNT).train.images != made.train.images).any()
    assert (directory / "data_batch_1.bin").stat().st_size == COUNT * RECORD_BYTES


def test_the_python_version_has_the_same_pictures(directory: Path) -> None:
    found = read_dataset(python_version(directory, dumped(batch())))
    np.testing.assert_array_equal(found.test.images, stand_in(3, COUNT, 1).train.images)
    np.testing.assert_array_equal(found.test.labels, stand_in(3, COUNT, 1).train.labels)


def test_strings_that_python_2_wrote_are_bytes() -> None:
    # protocol 2: {'data': …} of str, as in the published files
    head = b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x07K\x02eU\x04dataq\x04"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06abcdeftb"
    )
    assert read_batch(head + array + b"u.") == (b"abcdef", [7, 2])


def test_silos_share_the_pictures_in_the_order_of_the_files() -> None:
    made = stand_in(1, 20, 1).train
    shares = [made.share(silo, 4) for silo in range(4)]
    assert [len(share) for share in shares] == [5] * 4
    np.testing.assert_array_equal(np.concatenate([share.labels for share in shares]), made.labels)


# --- what is not ---


def test_without_the_stand_in_s_note_files_have_ten_thousand_pictures(directory: Path) -> None:
    (directory / STAND_IN_NAME).unlink()
    assert "data_batch_1.bin has 12,292 bytes, not the 30,730,000 of 10,000 pictures" in refused(directory)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "data_batch_3.bin is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has 12,291 bytes, not the 12,292 of 4 pictures"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x" * 9), "has 12,293 bytes or more"),
        (lambda path: path.write_bytes(b"\x0a" + path.read_bytes()[1:]), "the label 10 at picture 0: there are 0 to 9"),
    ],
    ids=["missing", "short", "long", "label"],
)
def test_a_binary_file_that_is_not_right_is_named(directory: Path, spoil: Callable[[Path], Any], said: str) -> None:
    spoil(directory / "data_batch_3.bin")
    message = refused(directory)
    assert said in message
    assert "data_batch_3.bin" in message


def test_no_directory_and_a_note_that_makes_no_sense_are_named(directory: Path) -> None:
    assert "is no directory" in refused(directory / "none")
    for wrong in ("", "[]", '{"train": [1], "test": 1}', '{"train": [1, 1, 1, 1, 1], "test": true}', "{" * 2000):
        (directory / STAND_IN_NAME).write_text(wrong)
        assert "does not say how many pictures there are" in refused(directory)


class Hostile:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        import os

        return os.system, ("touch hostile-was-here",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (dumped(Hostile()), "asks for 'posix system', which no batch does"),
        (dumped({b"data": Hostile()}), "asks for 'posix system'"),
        (b"cbuiltins\neval\n(X\x01\x00\x00\x001tR.", "asks for 'builtins eval'"),
        (b"cnumpy\nndarray\n(K\x01tR.", "makes something that no batch has"),
        (b"\x80\x05\x96\x00\x00\x00\x00\x00\x00\x00\x70.", "cut short or no pickle"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "no dictionary"),
        (b"P1\n.", "has the opcode PERSID"),
        (dumped(batch())[:-1], "cut short or no pickle"),
        (dumped(batch())[:500], "cut short or no pickle"),
        (b"", "cut short or no pickle"),
        (b"\x80\x02.", "leaves something over"),
        (b"\x80\x02)}.", "leaves something over"),
        (b"}]Nsa.", "cut short or no pickle"),
        (dumped([1]), "no dictionary"),
        (dumped({}), "labels are no list"),
        (dumped(batch(data=1, labels=[1]) | {b"data": b"x"}), "data is no array"),
        (dumped({b"data": np.zeros((2, 3), np.int16), b"labels": [1, 2]}), "no array of bytes"),
        (dumped({b"data": np.zeros((2, 3), "u1", order="F"), b"labels": [1, 2]}), "no array of bytes"),
        (dumped(batch()).replace(b"M\x00\x0c", b"M\x01\x0c", 1), "another length than its shape says"),
        (b"\x80\x02" + b"N0" * 10, "has the opcode POP"),
    ],
)
def test_a_pickle_of_something_else_is_named_and_nothing_of_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PickleError, match=said):
        read_batch(content)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_of_too_many_steps_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_pickle, "MOST_STEPS", 100)
    with pytest.raises(PickleError, match="more than 100 steps"):
        read_batch(b"N" * 200 + b".")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({b"labels": [1, 2, 3, 10]}, "a label that is not 0 to 9"),
        ({b"labels": [1, 2, 3, -1]}, "a label that is not 0 to 9"),
        ({b"labels": [1, 2, 3]}, "not those of 4 pictures"),
        ({b"data": np.zeros((3, 3072), np.uint8)}, "not those of 4 pictures"),
        ({b"labels": [Hostile()]}, "no batch of CIFAR-10's Python version: it asks for"),
    ],
)
def test_a_file_of_the_python_version_that_is_not_right_is_named(
    directory: Path, changed: dict[bytes, Any], said: str
) -> None:
    message = refused(python_version(directory, dumped(batch() | changed)))
    assert said in message
    assert "data_batch_1 " in message


# --- the command ---


def test_the_command_makes_a_stand_in_and_says_what_is_wrong_with_pictures(tmp_path: Path) -> None:
    where = str(tmp_path / "made")
    assert CliRunner().invoke(main, ["stand-in", where, "--train", "10", "--test", "3"]).exit_code == 0
    assert json.loads((tmp_path / "made" / STAND_IN_NAME).read_text()) == {"seed": 1, "train": [2] * 5, "test": 3}
    assert CliRunner().invoke(main, ["check", where]).output == "10 pictures to train with, 3 to test with\n"
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert (done.exit_code, "data_batch_1 is missing" in done.output) == (2, True)
    refused_number = CliRunner().invoke(main, ["stand-in", where, "--train", "11"])
    assert (refused_number.exit_code, "11 and 200 pictures" in refused_number.output) == (2, True)
