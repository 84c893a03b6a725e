"""What has been measured so far, kept in a file, so that an interrupted sweep goes on where it stopped."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

from fedrdma_fate.bench.wan.results import Transfer, WanMeasurement
from fedrdma_fate.bench.wan.settings import Setting
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_USUAL = {field.name: field.default for field in dataclasses.fields(WanLink)}
"""Of a link, what goes without saying: links may get more peculiarities, and what was measured without them stands."""

Key = str
"""What was measured, as JSON, for parts of a link are objects themselves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Conditions:
    """Of a measurement, beside the setting and the row.

    Attributes:
        repeats: transfers after the first.
        seed: of the losses.
        kernel: of the testbed, as named.
    """

    repeats: int
    seed: int
    kernel: str


class Measured(Protocol):
    """A measurement of a row; a dataclass."""

    @property
    def name(self) -> str:
        """Of the row."""
        ...


Where = TypeVar("Where", contravariant=True)
"""Where something is measured, and what."""
What = TypeVar("What", bound=Measured)
"""What comes of it."""


class KeptMeasurements(Generic[Where, What]):
    """Measurements in a file, one JSON object a line, each written as soon as it is there."""

    def __init__(
        self,
        path: Path | None,
        conditions: Mapping[str, object],
        describe: Callable[[Where, str], Mapping[str, object]],
        read: Callable[[Mapping[str, Any]], What],
    ) -> None:
        """Read what a file holds; without a path nothing is kept.

        Args:
            conditions: of all measurements, beside where they are made and their rows.
            describe: a place and a row, in what JSON can express.
            read: makes a measurement of what its `dataclasses.asdict` was as JSON.

        Raises:
            ConfigError: CONFIG_BAD_VALUE: it holds something else.
        """
        self._path = path
        self._conditions = conditions
        self._describe = describe
        self._read_one = read
        self._known: dict[Key, What] = {}
        if path is not None and path.exists():
            self._read(path)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been measured."""
        return not self._known

    def find(self, where: Where, row: str) -> What | None:
        """What was measured before, of this row."""
        return self._known.get(_key({**self._describe(where, row), **self._conditions}))

    def add(self, where: Where, measurement: What) -> None:
        """Keep a measurement."""
        what = {**self._describe(where, measurement.name), **self._conditions}
        self._known[_key(what)] = measurement
        if self._path is not None:
            line = json.dumps({"what": what, "measured": dataclasses.asdict(cast(Any, measurement))})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        try:
            for entry in map(json.loads, whole.splitlines()):
                self._known[_key(entry["what"])] = self._read_one(entry["measured"])
        except (ValueError, KeyError, TypeError) as error:
            remedy = "Name another directory with --output, or remove the file."
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--output: {path} holds no measurements.", remedy) from error
        if whole != text:
            # a line that was cut off when the machine went down
            path.write_text(whole, encoding="utf-8")


class MeasurementLog(KeptMeasurements[Setting, WanMeasurement]):
    """Measurements over WAN links."""

    def __init__(self, path: Path | None, conditions: Conditions) -> None:
        """Read what a file holds; without a path nothing is kept.

        Raises:
            ConfigError: CONFIG_BAD_VALUE: it holds something else.
        """
        super().__init__(path, dataclasses.asdict(conditions), _describe, _measurement)


def _describe(setting: Setting, row: str) -> dict[str, object]:
    return {**dataclasses.asdict(setting.link), "payload_bytes": setting.payload_bytes, "row": row}


def _key(what: Mapping[str, object]) -> Key:
    told = {name: value for name, value in what.items() if name not in _USUAL or value != _USUAL[name]}
    return json.dumps(told, sort_keys=True)


def _measurement(document: Mapping[str, Any]) -> WanMeasurement:
    first, later = Transfer(**document["first"]), tuple(Transfer(**one) for one in document["later"])
    return WanMeasurement(**{**document, "first": first, "later": later})
