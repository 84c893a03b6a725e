"""What is trained while protocols are measured, and what came of it, round by round."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedrdma_fate.bench.plots import Series, line_plot
from fedrdma_fate.bench.protocols.models import Model
from fedrdma_fate.bench.report import DataTable, Plot
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from fedrdma_fate.bench.protocols.results import ProtocolMeasurement

STATE_BYTES = {"vgg5": 2_330_688, "vgg8": 5_355_224}
"""Parameters and what batch norm keeps, as they lie in memory. FedComm's message is the pickle of it."""
TORCH_BYTES = 512 * 2**20
"""Of memory that torch, pictures and a batch's activations take in a host's process."""
DIGEST_DIGITS = 8
"""Of a digest in the table; the document has all 64."""
_CHECK = "examples.cifar10_vgg"
"""Of a checkout: says whether pictures can be used."""
_USAGE_STATUS = 2
"""Of that program, for what the user has to mend."""


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """What all silos train.

    Attributes:
        name: `vgg5` or `vgg8`.
        data: directory with CIFAR-10; None: a stand-in.
        seed: of all that is drawn by chance.
    """

    name: str
    data: Path | None
    seed: int

    @property
    def model(self) -> Model:
        """What is exchanged."""
        return Model(self.name, STATE_BYTES[self.name])

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the program at all hosts."""
        data = () if self.data is None else ("--data", str(self.data))
        return ("--train", self.name, "--seed", str(self.seed), *data)

    def to_document(self) -> dict[str, object]:
        """For `--json` and for what was measured before."""
        return {"train": self.name, "data": "stand-in" if self.data is None else str(self.data), "seed": self.seed}


def check_pictures(checkout: Path, data: Path) -> None:
    """Read all pictures once, before hosts are started.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: they cannot be used; says why.
    """
    done = subprocess.run(
        [sys.executable, "-m", _CHECK, "check", str(data)],
        cwd=checkout,
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == 0:
        return
    said = done.stderr.strip().splitlines()
    problem = said[0] if done.returncode == _USAGE_STATUS and said else f"{data} cannot be read as pictures."
    raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--data: {problem}")


def differing_weights(measurements: Sequence[ProtocolMeasurement], loses: Mapping[str, bool]) -> dict[str, str]:
    """Of rows that lose nothing, those whose weights are not those of the first such row, to the bit; and where.

    Args:
        loses: by name of a row, whether bytes may be missing.
    """
    whole = [one for one in measurements if not (loses[one.name] or one.missing_bytes)]
    found = {}
    for one in whole[1:]:
        pairs = enumerate(zip(whole[0].rounds, one.rounds, strict=False), start=1)
        number = next((number for number, (mine, theirs) in pairs if mine.digest != theirs.digest), None)
        if number is not None:
            found[one.name] = f"after round {number} its weights are not those of {whole[0].name}, to the bit"
    return found


def training_table(title: str, measurements: Sequence[ProtocolMeasurement]) -> DataTable:
    """Accuracy after each round, with the beginning of the weights' digest."""
    rounds = max(len(one.rounds) for one in measurements)
    columns = ("", *(f"after round {number}" for number in range(1, rounds + 1)))
    rows = [(one.name, *(_cell(each.accuracy, each.digest) for each in one.rounds)) for one in measurements]
    return DataTable(f"{title}; accuracy on the test's pictures, and digest of the weights", columns, rows)


def training_plot(name: str, title: str, measurements: Sequence[ProtocolMeasurement]) -> Plot:
    """Accuracy by round, a line for each row.

    Args:
        name: of the file, without its ending.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    rounds = range(1, max(len(one.rounds) for one in measurements) + 1)
    series = [Series(one.name, [each.accuracy for each in one.rounds]) for one in measurements]
    image = line_plot(title, "rounds", "accuracy", list(rounds), series)
    return Plot(name, f"Accuracy of the average after each round. {title}.", image)


def _cell(accuracy: float | None, digest: str | None) -> str:
    return "none" if accuracy is None or digest is None else f"{accuracy:.1%} {digest[:DIGEST_DIGITS]}"
