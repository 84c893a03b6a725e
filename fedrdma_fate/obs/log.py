"""Log output for the commands. Modules log through `logging`, with fields in `extra`; nothing is set up at import.

Inside FATE's processes FATE's own logging applies, so only the command line calls `configure`.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TextIO, get_args

from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FedRDMAError

LogFormat = Literal["human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

ROOT_LOGGER = "fedrdma_fate"

if TYPE_CHECKING:
    _TextStreamHandler = logging.StreamHandler[TextIO]
else:
    # no generic class before Python 3.11
    _TextStreamHandler = logging.StreamHandler

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: LogLevel, style: LogFormat, stream: TextIO) -> None:
    """Send this package's log records to a stream, in place of what an earlier call set up.

    Raises:
        ConfigError: CONFIG_BAD_VALUE for an unknown level or format.
    """
    _check("log level", level, get_args(LogLevel))
    _check("log format", style, get_args(LogFormat))
    handler = _StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if style == "json" else HumanFormatter())
    logger = logging.getLogger(ROOT_LOGGER)
    for earlier in [present for present in logger.handlers if isinstance(present, _StreamHandler)]:
        logger.removeHandler(earlier)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


class _StreamHandler(_TextStreamHandler):
    """Told apart from handlers that others add to our logger."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update((name, value) for name, value in _fields(record) if name not in entry)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # what JSON leaves as it is, and a terminal may obey
        line = json.dumps(entry, default=str, ensure_ascii=False)
        return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


class HumanFormatter(logging.Formatter):
    """`time LEVEL logger: message key=value …`, and the traceback below where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_timestamp(record), record.levelname, f"{record.name}:", _one_line(record.getMessage())]
        parts += [f"{name}={_quoted(str(value))}" for name, value in _fields(record)]
        line = " ".join(parts)
        return f"{line}\n{escaped(self.formatException(record.exc_info))}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    yield from ((name, value) for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES)
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FedRDMAError):
        yield "code", error.code.value


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def escaped(text: str) -> str:
    """As it may be shown on a terminal: lines stay, and of other control characters their escapes are shown."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def _one_line(text: str) -> str:
    """Without control characters: text of a peer must not be able to fake a log line."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _quoted(value: str) -> str:
    plain = value.isprintable() and not any(char in value for char in ' "=')
    return value if value and plain else json.dumps(value, ensure_ascii=not value.isprintable())


def _check(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE, f"{what} {value!r} is unknown.", f"It is one of {', '.join(known)}."
        )
