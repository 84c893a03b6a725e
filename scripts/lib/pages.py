"""`scripts/docs --site DIRECTORY`: the pages as a site of HTML, with every link and every code block looked at.

Runs in .venv. Markdown is read by `markdown-it-py`, by which `rich` reads it, too.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fedrdma_fate.cli.main import main as main_command

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("docs", "deploy", "examples")
"""Where pages lie, beside those in the root."""

INDEX = Path("docs/index.md")
"""The page that leads to all others."""

_STYLE = """\
body{max-width:60rem;margin:0 auto;padding:1rem;font:1rem/1.5 sans-serif}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{border:1px solid #bbb;padding:.2rem .5rem;text-align:left}
pre{overflow-x:auto;background:#f4f4f4;padding:.6rem}code{font-size:.9em}nav{border-bottom:1px solid #bbb}
"""


class PageError(Exception):
    """What is wrong with the pages, a line each."""


@dataclasses.dataclass(frozen=True)
class Page:
    """A page that was read.

    Attributes:
        path: from the root.
        tokens: what is in it.
        title: its first heading.
        anchors: of its headings.
    """

    path: Path
    tokens: Sequence[Token]
    title: str
    anchors: frozenset[str]

    @property
    def file(self) -> Path:
        """In the site."""
        return self.path.with_suffix(".html")


def build(root: Path, site: Path) -> int:
    """Write the site; how many pages it has.

    Args:
        root: of the repository.
        site: a directory that is not there, or empty.

    Raises:
        PageError: a link leads nowhere, or a code block is not what it says it is; nothing is written then.
    """
    if site.exists() and any(site.iterdir()):
        raise PageError(f"{site} is not empty")
    reader = MarkdownIt("commonmark").enable("table")
    pages = {page.path: page for page in (_read(reader, root, path) for path in _paths(root))}
    copied: set[Path] = set()
    troubles: list[str] = []
    for page in pages.values():
        for token in _links(page.tokens):
            target = str(token.attrs["href"])
            try:
                token.attrs["href"] = _led(root, pages, page, target, copied)
            except PageError as error:
                troubles.append(f"{page.path}: the link to {target}: {error}")
        troubles += [f"{page.path}, line {line}: {told}" for line, told in check_blocks(page.tokens)]
    if troubles:
        raise PageError("\n".join(troubles))
    for page in pages.values():
        _write(reader, site, page)
    for path in copied:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, site / path)
    to_index = f'<meta http-equiv="refresh" content="0; url={INDEX.with_suffix(".html")}">'
    (site / "index.html").write_text(f'<!doctype html><meta charset="utf-8">{to_index}\n')
    return len(pages)


def _paths(root: Path) -> list[Path]:
    found = [*root.glob("*.md"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.md"))]
    return sorted(path.relative_to(root) for path in found)


def _read(reader: MarkdownIt, root: Path, path: Path) -> Page:
    tokens = reader.parse((root / path).read_text())
    titles, anchors = list[str](), set[str]()
    for token, content in itertools.pairwise(tokens):
        if token.type != "heading_open":
            continue
        text = "".join(child.content for child in content.children or ())
        titles.append(text)
        # as GitHub makes them, where the pages are read, too
        anchor = base = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 0
        while anchor in anchors:
            number += 1
            anchor = f"{base}-{number}"
        anchors.add(anchor)
        token.attrs["id"] = anchor
    return Page(path, tokens, titles[0] if titles else path.stem, frozenset(anchors))


def _links(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                yield child


def _led(root: Path, pages: dict[Path, Page], page: Page, target: str, copied: set[Path]) -> str:
    """Where a link of a page leads in the site.

    Raises:
        PageError: nowhere.
    """
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return target
    name, _, fragment = target.partition("#")
    path = Path(os.path.normpath(page.path.parent / name)) if name else page.path
    if path.parts[:1] == ("..",):
        raise PageError("it leads out of the repository")
    if (root / path).is_dir():
        path = path / "README.md"
    found = pages.get(path)
    if found is None:
        if not (root / path).is_file():
            raise PageError(f"there is no {path}")
        copied.add(path)
        file = path
    else:
        file = found.file
        if fragment and fragment not in found.anchors:
            raise PageError(f"{path} has no heading of that name")
    return os.path.relpath(file, page.path.parent) + (f"#{fragment}" if fragment else "")


def _write(reader: MarkdownIt, site: Path, page: Page) -> None:
    file = site / page.file
    file.parent.mkdir(parents=True, exist_ok=True)
    home = os.path.relpath(INDEX.with_suffix(".html"), page.path.parent)
    content = reader.renderer.render(page.tokens, reader.options, {})
    file.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(page.title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>\n{_STYLE}</style></head>\n'
        f'<body><nav><a href="{home}">fedrdma-fate</a></nav>\n{content}</body></html>\n'
    )


# -- code blocks ------------------------------------------------------------------------------------------------------


def check_blocks(tokens: Sequence[Token]) -> list[tuple[int, str]]:
    """Line and trouble of each code block that is not what it says it is."""
    found = []
    for token in tokens:
        if token.type != "fence":
            continue
        language = token.info.strip()
        check = _CHECKS.get(language)
        told = f"{language or 'no'!s} is no language of code blocks here" if check is None else check(token.content)
        if told:
            found.append(((token.map or [0])[0] + 1, told))
    return found


def _shell(text: str) -> str:
    """Whether bash could read it, and `fedrdma` has the commands and options that it names."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if done.stderr:
        return " ".join(done.stderr.split())
    lines = text.replace("\\\n", " ").splitlines()
    told = [_command(shlex.split(line, comments=True)) for line in lines if re.match(r"\s*fedrdma\s", line)]
    return next(filter(None, told), "")


def _command(words: Sequence[str]) -> str:
    command, named = typing.cast("click.Command", main_command), words[0]
    for word in words[1:]:
        if word in ("|", ">", "&", "&&", ";"):
            break
        if word.startswith("--"):
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            if word.partition("=")[0] not in known | {"--help", "--version"}:
                return f"{named} has no option {word}"
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return f"{named} has no command {word}"
            command, named = found, f"{named} {word}"
    return ""


def _yaml(text: str) -> str:
    try:
        list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        return " ".join(str(error).split())
    return ""


def _json(text: str) -> str:
    """A document, or one on each line."""
    try:
        json.loads(text)
    except ValueError as whole:
        try:
            for line in text.splitlines():
                json.loads(line)
        except ValueError:
            return str(whole)
    return ""


def _python(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError as error:
        return str(error)
    return ""


def _any(_text: str) -> str:
    return ""


_CHECKS: dict[str, Callable[[str], str]] = {
    "sh": _shell,
    "yaml": _yaml,
    "json": _json,
    "python": _python,
    "ini": _any,
    "mermaid": _any,
    "properties": _any,
    "text": _any,
}
"""By language."""


def main() -> None:
    """See the module."""
    try:
        count = build(ROOT, Path(sys.argv[1]))
    except PageError as error:
        raise SystemExit(f"scripts/docs: {error}") from None
    print(f"{count} pages in {sys.argv[1]}")


if __name__ == "__main__":
    main()
