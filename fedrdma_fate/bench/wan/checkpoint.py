"""What has been measured so far, kept in a file, so that an interrupted sweep goes on where it stopped."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


class MeasurementLog:
    """Measurements in a file, one JSON object a line, each written as soon as it is there."""

    def __init__(self, path: Path | None, conditions: Conditions) -> None:
        """Read what a file holds of these conditions; without a path nothing is kept.

        Raises:
            ConfigError: CONFIG_BAD_VALUE: it holds something else.
        """
        self._path = path
        self._conditions = dataclasses.asdict(conditions)
        self._known: dict[Key, WanMeasurement] = {}
        if path is not None and path.exists():
            self._read(path)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been measured."""
        return not self._known

    def find(self, setting: Setting, row: str) -> WanMeasurement | None:
        """What was measured before, of this row."""
        return self._known.get(_key({**_describe(setting, row), **self._conditions}))

    def add(self, setting: Setting, measurement: WanMeasurement) -> None:
        """Keep a measurement."""
        what = {**_describe(setting, measurement.name), **self._conditions}
        self._known[_key(what)] = measurement
        if self._path is not None:
            line = json.dumps({"what": what, "measured": dataclasses.asdict(measurement)})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        try:
            for entry in map(json.loads, whole.splitlines()):
                self._known[_key(entry["what"])] = _measurement(entry["measured"])
        except (ValueError, KeyError, TypeError) as error:
            remedy = "Name another directory with --output, or remove the file."
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"--output: {path} holds no measurements.", remedy) from error
        if whole != text:
            # a line that was cut off when the machine went down
            path.write_text(whole, encoding="utf-8")


def _describe(setting: Setting, row: str) -> dict[str, object]:
    return {**dataclasses.asdict(setting.link), "payload_bytes": setting.payload_bytes, "row": row}


def _key(what: Mapping[str, object]) -> Key:
    told = {name: value for name, value in what.items() if name not in _USUAL or value != _USUAL[name]}
    return json.dumps(told, sort_keys=True)


def _measurement(document: Mapping[str, Any]) -> WanMeasurement:
    first, later = Transfer(**document["first"]), tuple(Transfer(**one) for one in document["later"])
    return WanMeasurement(**{**document, "first": first, "later": later})
