"""AdvertiseGen's format: reading it, and giving every client its own share."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

Row = dict[str, str]

COLUMNS = ("content", "summary")


def read_rows(path: Path) -> list[Row]:
    """Read JSON lines with `content` and `summary`.

    Raises:
        ConfigError: CONFIG_UNREADABLE without such a file; CONFIG_BAD_VALUE naming the first line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            ErrorCode.CONFIG_UNREADABLE,
            f"cannot read the data file {path}: {error}.",
            "--data names a directory with train.json and dev.json, JSON lines in AdvertiseGen's format.",
        ) from error
    return [_parse_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _parse_row(path: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not all(isinstance(row.get(column), str) for column in COLUMNS):
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"{path}:{number} is no row: {line[:80]!r}.",
            'Write one object a line: {"content": "…", "summary": "…"}.',
        )
    return {column: row[column] for column in COLUMNS}


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write JSON lines, UTF-8."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def disjoint_shares(rows: Sequence[Row], clients: int, wanted: int | None, seed: int) -> list[list[Row]]:
    """One share of the rows for each client: disjoint, equally long, drawn by `seed`.

    Equal lengths matter: secure aggregation weights a client by its rows, and weights of exactly one half keep the
    masked sums exact.

    Args:
        rows: all rows.
        clients: number of shares.
        wanted: rows in each share, None for as many as there are.
        seed: another seed, another draw.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when there are not enough rows.
    """
    available = len(rows) // clients
    count = available if wanted is None else wanted
    if not 0 < count <= available:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"{count} rows for each of {clients} clients are wanted; the data has {available} for each.",
            "Lower --samples or --steps, or give more data with --data.",
        )
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    return [[rows[index] for index in order[client::clients][:count]] for client in range(clients)]
