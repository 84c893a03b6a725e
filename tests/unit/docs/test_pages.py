"""The pages as a site: built in every run, and what is wrong with a page is found."""

from __future__ import annotations

import html.parser
from pathlib import Path

import pytest

from scripts.lib.pages import PageError, build
from tests.support.repository import ROOT


class _Found(html.parser.HTMLParser):
    """Links and names of a page of HTML."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag == "a" and (target := said.get("href")):
            self.links.append(target)
        if name := said.get("id"):
            self.names.add(name)


def test_all_pages_make_a_site_whose_links_lead_somewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    count = build(ROOT, site)

    pages = {file: _Found(file) for file in site.rglob("*.html")}
    assert len(pages) == count + 1
    for file, found in pages.items():
        for target in found.links:
            if "://" in target:
                continue
            name, _, fragment = target.partition("#")
            led = (file.parent / name).resolve() if name else file
            assert led.is_file(), f"{file}: {target}"
            assert not fragment or fragment in pages[led].names, f"{file}: {target}"
    assert "<table>" in (site / "docs" / "replace-osx.html").read_text()


def page(root: Path, text: str) -> Path:
    (root / "docs").mkdir(parents=True)
    (root / "docs" / "index.md").write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[x](none.md)", "docs/index.md: the link to none.md: there is no docs/none.md"),
        ("# One\n[x](#two)", "docs/index.md has no heading of that name"),
        ("[x](../../outside)", "it leads out of the repository"),
        ("[x]: none.md\n\n[x]", "there is no docs/none.md"),
        ("```\nls\n```", "docs/index.md, line 1: no is no language"),
        ("```sh\nif true\n```", "syntax error"),
        ("\n```sh\nfedrdma nothing\n```", "line 2: fedrdma has no command nothing"),
        ("```sh\nfedrdma status \\\n  --nothing\n```", "fedrdma status has no option --nothing"),
        ("```sh\nx=$(ls)\n  fedrdma fate check --hom /x\n```", "fedrdma fate check has no option --hom"),
        ("```yaml\na: [\n```", "docs/index.md, line 1: while parsing"),
        ("```json\n{a: 1}\n```", "Expecting property name"),
        ("```python\nx = ...get\n```", "invalid syntax"),
    ],
)
def test_what_is_wrong_with_a_page_is_told_and_no_site_is_written(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(PageError) as error:
        build(page(tmp_path / "root", text), tmp_path / "site")
    assert told in str(error.value)
    assert not (tmp_path / "site").exists()


def test_headings_of_one_name_have_names_of_their_own_and_files_come_along(tmp_path: Path) -> None:
    root = page(
        tmp_path / "root", "# A `b`-c\n## A b-c\n[x](#a-b-c-1) [y](#a-b-c) [z](../conf/f.yaml#L3) [w](../deploy)\n"
    )
    (root / "conf").mkdir()
    (root / "conf" / "f.yaml").write_text("a: 1")
    (root / "deploy").mkdir()
    (root / "deploy" / "README.md").write_text("# Deploy <x>")

    assert build(root, tmp_path / "site") == 2

    text = (tmp_path / "site" / "docs" / "index.html").read_text()
    for made in ('id="a-b-c"', 'id="a-b-c-1"', 'href="../conf/f.yaml#L3"', 'href="../deploy/README.html"'):
        assert made in text
    assert (tmp_path / "site" / "conf" / "f.yaml").read_text() == "a: 1"
    assert "<title>Deploy &lt;x&gt;</title>" in (tmp_path / "site" / "deploy" / "README.html").read_text()


def test_a_directory_that_has_something_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mine").touch()
    with pytest.raises(PageError, match="is not empty"):
        build(page(tmp_path / "root", "# x"), tmp_path / "site")
