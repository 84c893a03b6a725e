"""`scripts/docs`: docs/configuration.md from the types and docstrings of what can be configured.

Runs in .venv, unlike its neighbours: it imports the package.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fedrdma_fate.fate.settings import BackendSettings
from fedrdma_fate.gateway.config.schema import GatewayConfig
from fedrdma_fate.gateway.config.sizes import ByteCount, ChunkSetting

PAGE = Path("docs/configuration.md")

_HEAD = """\
# Configuration

One YAML file a gateway: `fedrdma gateway --config FILE`. A commented example with every key is
[conf/gateway.yaml](../conf/gateway.yaml). Configuration is strict: an unknown key ([FR101](errors/FR101.md)) or a wrong
value ([FR102](errors/FR102.md)) stops the gateway from starting, and the message says what would be right.

Sizes are bytes, or a number with a unit: `KiB`, `MiB`, `GiB` (powers of 1024), `KB`, `MB`, `GB` (powers of 1000).
Times are in seconds.

<!-- Written by scripts/docs from fedrdma_fate/gateway/config/schema.py and fedrdma_fate/fate/settings.py. -->
"""

_JOB_HEAD = """\
## Options of a job

What FATE's configuration may say about this backend: under `federation.fedrdma` in FATE Flow's configuration, as
`fedrdma_config` in a task configuration, or as options of FATE's launcher (`--federation_address` for the gateway,
`--fedrdma_mode` and so on for the others; `--help` lists them). Also strict.
"""

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def render_page() -> str:
    """The whole page."""
    top: tuple[str, str, type[msgspec.Struct]] = ("Top level", "", GatewayConfig)
    sections = [top, *_sections(GatewayConfig)]
    parts = [_render_section(title, prefix, section) for title, prefix, section in sections]
    return "\n".join([_HEAD, *parts, _JOB_HEAD, *_render_table("", BackendSettings)])


def attribute_docs(section: type[msgspec.Struct]) -> dict[str, str]:
    """What the `Attributes:` part of a class docstring, or of a base's, says of each field.

    Raises:
        ValueError: a field is not described there.
    """
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        _, _, listed = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("Attributes:\n")
        entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed, flags=re.MULTILINE)
        found |= {name: " ".join(text.split()) for name, text in entries if name in section.__struct_fields__}
    if set(found) != set(section.__struct_fields__):
        missing = sorted(set(section.__struct_fields__) - set(found))
        raise ValueError(f"{section.__name__} does not describe {', '.join(missing)}")
    return found


def _sections(parent: type[msgspec.Struct]) -> Iterator[tuple[str, str, type[msgspec.Struct]]]:
    for name, hint in _hints(parent).items():
        for argument in (hint, *typing.get_args(hint)):
            if isinstance(argument, type) and issubclass(argument, msgspec.Struct):
                many = "[]" if argument is not hint else ""
                yield f"`{name}`", f"{name}{many}.", argument


def _render_section(title: str, prefix: str, section: type[msgspec.Struct]) -> str:
    intro = (section.__doc__ or "").partition("\n")[0]
    return "\n".join([f"## {title}", "", intro, "", *_render_table(prefix, section)])


def _render_table(prefix: str, section: type[msgspec.Struct]) -> list[str]:
    lines = ["| key | value | default | what it is |", "|---|---|---|---|"]
    docs, hints = attribute_docs(section), _hints(section)
    for field in msgspec.structs.fields(section):
        value, default = describe_type(hints[field.name]), _describe_default(field)
        lines.append(f"| `{prefix}{field.name}` | {value} | {default} | {_sentence(docs[field.name])} |")
    return [*lines, ""]


def describe_type(hint: object) -> str:
    """What may stand for a value of this type in YAML.

    Raises:
        TypeError: no words are known for the type.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return describe_type(arguments[0]) + _bounds(arguments[1:])
    if origin is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe_type(argument) for argument in arguments)
    if origin is dict:
        return f"map of {describe_type(arguments[0])} to {describe_type(arguments[1])}"
    if origin is tuple:
        return f"list of {describe_type(arguments[0])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "section"
    words = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "`true` or `false`",
        Path: "path",
        types.NoneType: "`null`",
        ByteCount: "size",
        ChunkSetting: "size or `auto`",
    }
    if not isinstance(hint, type) or hint not in words:
        raise TypeError(f"scripts/lib/config_reference.py has no words for {hint!r}")
    return words[hint]


def _bounds(metadata: Sequence[object]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {limit:g}"
        for meta in metadata
        for name, sign in signs.items()
        if (limit := getattr(meta, name, None)) is not None
    ]
    return f" ({', '.join(limits)})" if limits else ""


def _describe_default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    if isinstance(value, msgspec.Struct):
        return "see below"
    if value == () or field.default_factory is not msgspec.NODEFAULT:
        return "none"
    return f"`{_in_yaml(value)}`"


def _in_yaml(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, ByteCount):
        exact = ((unit, name) for unit, name in _UNITS if value % unit == 0)
        unit, name = next(exact, (1, ""))
        return f"{value // unit}{name}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sentence(text: str) -> str:
    text = re.sub(r"\bNone\b", "null", text)
    return text[0].upper() + text[1:] if text.split()[0].isalpha() else text


def _hints(section: type[msgspec.Struct]) -> dict[str, object]:
    return typing.get_type_hints(section, include_extras=True)


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
    print(f"{PAGE} is written")
