"""Says of a configuration that does not fit: which key, what was found there, and what would be right."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterator, Mapping

import msgspec

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_WHERE = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`")


def bad_value(key: str, value: object, what: str, remedy: str = "") -> ConfigError:
    """The error for a key whose value will not do."""
    return ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"key {key!r} has the value {value!r}{what}.", remedy)


def explain(
    error: msgspec.ValidationError,
    document: Mapping[str, object],
    root: type[msgspec.Struct],
    if_missing: Mapping[str, str],
) -> ConfigError:
    """Turn what msgspec says into an error for people.

    Args:
        error: msgspec's.
        document: what was checked.
        root: what it was checked against.
        if_missing: what to do about a required key that is not there.
    """
    text = str(error)
    match = _WHERE.search(text)
    where = match[1] if match else ""
    what = text[: match.start()] if match else text
    if unknown := re.match(r"Object contains unknown field `(.*)`", what):
        return _unknown_key(_below(where, unknown[1]), _value_at(document, _below(where, unknown[1])), root)
    if missing := re.match(r"Object missing required field `(.*)`", what):
        key = _below(where, missing[1])
        return ConfigError(
            ErrorCode.CONFIG_BAD_VALUE, f"key {key!r} is missing.", if_missing.get(missing[1], "Add it.")
        )
    remedy = f"One of {', '.join(choices)}." if (choices := _choices(root, where)) else ""
    if not remedy and what.startswith("Expected `str`"):
        remedy = "Put it in quotes."
    return bad_value(where, _value_at(document, where), f": {what}", remedy)


def _unknown_key(key: str, value: object, root: type[msgspec.Struct]) -> ConfigError:
    where, _, name = key.rpartition(".")
    known = sorted(_section_at(root, where).__struct_fields__)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return ConfigError(
        ErrorCode.CONFIG_UNKNOWN_KEY, f"unknown key {key!r} (value {value!r}).", f"{hint}Known: {', '.join(known)}."
    )


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _steps(where: str) -> Iterator[str]:
    """The keys and indices of a path such as `peers[0].mode`."""
    return (step for step in re.split(r"[.\[\]]+", where) if step)


def _section_at(root: type[msgspec.Struct], where: str) -> type[msgspec.Struct]:
    """The section that a path leads to or through, the innermost one."""
    section = root
    for step in _steps(where):
        hint = typing.get_type_hints(section).get(step)
        for candidate in (hint, *typing.get_args(hint)):
            if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
                section = candidate
    return section


def _choices(root: type[msgspec.Struct], where: str) -> list[str]:
    """The literals that a key may have, where it is a choice."""
    parent, _, name = where.rpartition(".")
    hint = typing.get_type_hints(_section_at(root, parent)).get(name)
    options = typing.get_args(hint)
    nested = [choice for option in options for choice in typing.get_args(option)]
    return [choice for choice in (*options, *nested) if isinstance(choice, str)]


def _value_at(document: object, where: str) -> object:
    """What was found under a path; the nearest thing above it where the path ends early."""
    for step in _steps(where):
        if isinstance(document, Mapping) and step in document:
            document = document[step]
        elif isinstance(document, list | tuple) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return document
    return document
