"""The documentation says what the code does: links, configuration, metrics, trace events, frames, dependencies."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import yaml

from fedrdma_fate.engine.events import TransferStats
from fedrdma_fate.fate.settings import BackendSettings
from fedrdma_fate.gateway.config.schema import GatewayConfig, load_config
from fedrdma_fate.gateway.trace_events import TraceEvents
from fedrdma_fate.obs.metrics import GatewayMetrics, Occupancy
from fedrdma_fate.wire.datagrams import Datagram
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ControlFrame, MessageKey, Party
from fedrdma_fate.wire.header import HEADER_BYTES, MAGIC, PROTOCOL_VERSION, ChunkHeader, HeaderKind
from scripts.lib import aioquic
from scripts.lib.config_reference import attribute_docs, describe_type, render_page
from tests.support.repository import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = ROOT / "docs"
PACKAGE = ROOT / "fedrdma_fate"
FOLDERS = ("fedrdma_fate", "scripts", "deploy", "examples", "tests")
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "deploy").rglob("*.md")])


def _read(name: str) -> str:
    return (DOCS / name).read_text()


# --- pages and links ---


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _links(page: Path) -> Iterator[tuple[Path, str]]:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in target:
            path, _, fragment = target.partition("#")
            yield (page.parent / path if path else page), fragment


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, fragment in _links(page):
        assert target.exists(), f"{target} does not exist"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            assert fragment in [_anchor(heading) for heading in headings]


def _sources() -> set[str]:
    return {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}


def _is_source(name: str, page: Path, sources: set[str]) -> bool:
    """Whether a page may call a file so: from the root, below the package, from where the page lies, or by its name."""
    if "/" not in name:
        return any(source.endswith(f"/{name}") for source in sources)
    beside = (page.parent / name).resolve()
    return name in sources or f"fedrdma_fate/{name}" in sources or beside.is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_file_that_a_page_names_is_there(page: Path) -> None:
    sources = _sources()
    named = re.findall(r"`([\w./-]+\.py)`", page.read_text())
    assert [name for name in named if not _is_source(name, page, sources)] == []


@pytest.mark.parametrize("name", ["core/no_such.py", "no_such.py", "transport/sender.py", "../core/sender.py"])
def test_a_python_file_that_is_not_there_is_found(name: str) -> None:
    assert not _is_source(name, DOCS / "contributors.md", _sources())


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[Path] = set()
    frontier = {(DOCS / "index.md").resolve()}
    while frontier:
        reached |= frontier
        linked = {target.resolve() for page in frontier for target, _ in _links(page) if target.suffix == ".md"}
        frontier = linked - reached
    assert {page.resolve() for page in DOCS.rglob("*.md")} <= reached


RESULTS = "results"
MOST_LINES = 180
"""A design page that is longer speaks of more than one subject; error pages, results and the reference are no such."""


REFERENCE = "configuration.md"
"""It has a line for each key, and is written from the code."""


@pytest.mark.parametrize("page", sorted({*DOCS.glob("*.md")} - {DOCS / REFERENCE}), ids=lambda page: page.name)
def test_a_design_page_has_one_subject(page: Path) -> None:
    assert len(page.read_text().splitlines()) < MOST_LINES


@pytest.mark.parametrize("page", sorted((DOCS / RESULTS).glob("[!i]*.md")), ids=lambda page: page.name)
def test_a_page_of_results_names_the_commits_and_the_commands(page: Path) -> None:
    text = page.read_text()
    assert re.search(r"[Mm]easured[^.]*`[0-9a-f]{7}`", text)
    assert re.search(
        r"^(fedrdma bench|scripts/testbed run|"
        r"\.venv/bin/python -m tests\.(soak|"
        r"support\.(sim\.(compare|bounded)|osx_queue_times|matrix_sweep|(table|spark|site)_times|fate_own_tests|"
        r"gpt2_between_sites|replaced_brokers))) ",
        text,
        flags=re.MULTILINE,
    )


def test_the_readme_points_to_the_documentation_and_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    for needed in ("scripts/demo", "scripts/test", "docs/index.md", "docs/operators.md", "CHANGELOG.md"):
        assert needed in readme


def test_the_changelog_has_its_three_sections_under_each_release() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert releases
    for release in releases:
        assert re.findall(r"^### (.*)$", release, flags=re.MULTILINE) == ["Incompatible", "Added", "Fixed"]


# --- configuration ---


def test_the_configuration_reference_is_what_the_code_says() -> None:
    assert _read("configuration.md") == render_page(), "docs/configuration.md is old; run scripts/docs"


def test_a_field_without_a_description_is_an_error() -> None:
    class Section(msgspec.Struct):
        """A section.

        Attributes:
            described: it is.
        """

        described: int
        forgotten: int

    with pytest.raises(ValueError, match="Section does not describe forgotten"):
        attribute_docs(Section)


def test_a_field_may_be_described_by_the_class_that_declares_it() -> None:
    assert {"gateway", "put_timeout"} <= set(attribute_docs(BackendSettings))


def test_a_type_without_words_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no words for"):
        describe_type(complex)


def test_the_example_configuration_loads_and_shows_every_key() -> None:
    path = ROOT / "conf" / "gateway.yaml"
    load_config(path)
    document = yaml.safe_load(path.read_text())
    missing = [
        key
        for key in _keys(GatewayConfig)
        if not (_has(document, key.split(".")) or _in_an_example(path.read_text(), key))
    ]
    assert missing == []


def test_the_example_configuration_shows_the_defaults() -> None:
    shown = load_config(ROOT / "conf" / "gateway.yaml")
    differing = [
        field.name
        for field in msgspec.structs.fields(GatewayConfig)
        # others than these have no default that would do: names of files and sites
        if not field.required and field.name not in ("peers", "tls") and getattr(shown, field.name) != field.default
    ]
    assert differing == []


def _in_an_example(text: str, key: str) -> bool:
    """Whether a comment shows the key: sections of a list that is empty by default have no other place."""
    return re.search(rf"^# +(- )?{key.rpartition('.')[2]}: ", text, flags=re.MULTILINE) is not None


def _keys(section: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    for name, hint in typing.get_type_hints(section).items():
        yield f"{prefix}{name}"
        for part in (hint, *typing.get_args(hint)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from _keys(part, f"{prefix}{name}.")


def _has(document: object, steps: list[str]) -> bool:
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict) or steps[0] not in document:
        return False
    return len(steps) == 1 or _has(document[steps[0]], steps[1:])


def test_the_fragment_for_fate_flow_is_one_that_the_backend_accepts() -> None:
    fragment = yaml.safe_load((ROOT / "conf" / "fate_flow.yaml").read_text())
    assert fragment["default_engines"]["federation"] == "fedrdma"
    settings = msgspec.convert(fragment["federation"]["fedrdma"], BackendSettings)
    assert settings.gateway == GatewayConfig(site="a", parties=(), security="off").listen.socket


def test_the_fragment_for_fate_flow_needs_no_broker_as_it_comes() -> None:
    fragment = yaml.safe_load((ROOT / "conf" / "fate_flow.yaml").read_text())
    server, federation = fragment["fateflow"], fragment["federation"]
    assert set(federation) == {server["proxy_name"], "fedrdma"}
    # its own proxy: otherwise something else has to run before the first job
    proxy = federation[server["proxy_name"]]
    assert [proxy[key] for key in ("host", "http_port", "grpc_port")] == [
        server[key] for key in ("host", "http_port", "grpc_port")
    ]


def test_the_fragment_for_fate_flow_is_right_with_a_broker_too() -> None:
    text = (ROOT / "conf" / "fate_flow.yaml").read_text()
    entry = re.search(r"^  # osx:\n(?:  #   .*\n)+", text, flags=re.MULTILINE)
    assert entry is not None
    federation = yaml.safe_load(text.replace(entry[0], re.sub(r"^  # ", "  ", entry[0], flags=re.MULTILINE)))[
        "federation"
    ]
    assert set(federation["osx"]) == {"host", "port", "mode"}


def test_the_gateway_of_the_laboratory_serves_both_parties_without_a_peer(tmp_path: Path) -> None:
    block = re.search(r"^```yaml\n(# laboratory: .*?)^```", _read("fate.md"), re.M | re.S)
    assert block is not None
    path = tmp_path / "gateway.yaml"
    path.write_text(block[1])
    config = load_config(path)
    assert (config.parties, config.peers) == (("9999", "10000"), ())


@pytest.mark.parametrize("block", re.findall(r"^```yaml\n# (?:bank-\w+): .*?^```", _read("operators.md"), re.M | re.S))
def test_the_configurations_in_the_operators_guide_load(block: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(block.removeprefix("```yaml\n").removesuffix("```"))
    assert load_config(path).peers


# --- what can be observed ---


def test_the_metrics_page_names_every_metric_and_no_other() -> None:
    metrics = GatewayMetrics()
    metrics.watch(lambda: Occupancy({}, {}))
    documented = set(re.findall(r"^\| `(fedrdma_\w+)` \|", _read("observability.md"), flags=re.MULTILINE))
    assert documented == {family.name for family in metrics.registry.collect()}


KEY_FIELDS = {"session", "name", "tag", "source", "destination"}


class _Recorder:
    """Takes trace events down, with the names of their fields."""

    def __init__(self) -> None:
        self.fields: dict[str, set[str]] = {}

    def emit(self, event: str, **fields: object) -> None:
        self.fields.setdefault(event, set()).update(fields)


def _trace_events() -> dict[str, set[str]]:
    """Every event of the trace and its fields; none of the report that a probe makes."""
    recorder = _Recorder()
    events = TraceEvents(recorder)
    key = MessageKey("s", "m", "t", Party("guest", "1"), Party("host", "2"))
    given = {
        int: 1,
        float: 1.0,
        float | None: 1.0,
        str: "x",
        bool: True,
        Party: key.source,
        MessageKey: key,
        ErrorCode: ErrorCode.LINK_LOST,
        TransferStats: TransferStats(1.0, 0, 1),
        Iterable[Party]: [key.destination],
        Mapping[str, object]: {},
    }
    for name, method in inspect.getmembers(events, inspect.ismethod):
        if not name.startswith("_"):
            hints = typing.get_type_hints(method)
            method(**{argument: given[hint] for argument, hint in hints.items() if argument != "return"})
    return recorder.fields


def test_the_trace_page_names_every_event_with_its_fields_and_no_other() -> None:
    trace_part = _read("observability.md").partition("## Trace")[2].partition("## Logs")[0]
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", trace_part, flags=re.MULTILINE)
    documented = {event: set(re.findall(r"`(\w+)`", fields)) for event, fields in rows}
    emitted = {event: fields - KEY_FIELDS for event, fields in _trace_events().items()}
    # the trace's own, of events that it could not write
    assert documented == {**emitted, "lost": {"events"}}


def test_no_other_module_of_the_gateway_names_a_trace_event() -> None:
    users = [
        source.name
        for source in (ROOT / "fedrdma_fate" / "gateway").rglob("*.py")
        if re.search(r"\.emit\(\s*[\"']", source.read_text())
    ]
    assert users == ["trace_events.py"]


# --- protocol ---


def test_the_protocol_page_names_every_frame() -> None:
    table = _read("protocol.md").partition("## Control frames")[2].partition("## The header")[0]
    rows = "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    documented = set(re.findall(r"`([\w-]+)`", rows))
    tags = {str(frame.__struct_config__.tag) for frame in typing.get_args(ControlFrame)}
    assert documented == tags


def test_the_protocol_page_names_every_datagram() -> None:
    section = _read("protocol.md").partition("## Datagrams")[2].partition("## Checks")[0]
    tags = {str(datagram.__struct_config__.tag) for datagram in typing.get_args(Datagram)}
    assert {tag for tag in re.findall(r"`([\w-]+)`", section) if "." not in tag} == tags


def test_the_header_lies_as_the_protocol_page_says() -> None:
    header = ChunkHeader(HeaderKind.PAYLOAD, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77).encode()
    numbers = re.findall(r"^\| (\d+)(?:–(\d+))? \| (\w+)", _read("protocol.md"), flags=re.MULTILINE)
    spans = [(int(first), int(last or first) + 1) for first, last, _ in numbers]
    assert [first for first, _ in spans[1:]] == [end for _, end in spans[:-1]]
    assert spans[-1][1] == HEADER_BYTES
    values = [int.from_bytes(header[first:end], "little") for first, end in spans]
    assert values[:11] == [MAGIC, PROTOCOL_VERSION, 2, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77]


# --- the ways through the code ---


def _defined(tree: ast.AST) -> set[str]:
    """What a source file defines: functions, classes and constants, and of classes `Class.method` besides."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name, body=body):
                names |= {name} | {f"{name}.{member.name}" for member in body if isinstance(member, ast.FunctionDef)}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    return names


def _beside_paths(text: str) -> Iterator[tuple[str, str]]:
    """File and identifier, where a text has them side by side: `file`, `name` or `name` (`file`)."""
    for path, name in re.findall(r"`([\w/]+\.py)`,\s+`([A-Za-z_][\w.]*)`", text):
        if not name.endswith(".py"):
            yield path, name
    for name, path in re.findall(r"`([A-Za-z_][\w.]*)`\s+\(`([\w/]+\.py)`\)", text):
        yield path, name


def _misplaced(text: str) -> list[tuple[str, str]]:
    """Files of the package, and names beside them that they do not define."""
    return [
        (path, name)
        for path, name in _beside_paths(text)
        if name not in _defined(ast.parse((ROOT / "fedrdma_fate" / path).read_text()))
    ]


def _ways_through_the_code() -> str:
    return _read("contributors.md").partition("## Three ways through the code")[2].partition("## How to add a mode")[0]


def test_names_beside_a_file_are_defined_in_it_on_the_ways_through_the_code() -> None:
    ways = _ways_through_the_code()
    assert len(list(_beside_paths(ways))) > 15
    assert _misplaced(ways) == []


@pytest.mark.parametrize(
    "text",
    [
        "`engine/setup.py`, `sending_machine`",
        "`LinkThread.frame` (`engine/link_thread.py`)",
        "by `best_chunk_bytes`\n   (`engine/setup.py`)",
    ],
)
def test_a_name_beside_the_wrong_file_is_found(text: str) -> None:
    assert len(_misplaced(text)) == 1


def _way_of_a_payload() -> str:
    return _read("architecture.md").partition("## The way of a payload")[2].partition("## Layers")[0]


@pytest.mark.parametrize("text", [_ways_through_the_code(), _way_of_a_payload()], ids=["ways", "payload"])
def test_every_class_that_a_way_through_the_code_names_is_one(text: str) -> None:
    everything = set().union(*(_defined(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")))
    named = set(re.findall(r"`(_?[A-Z]\w*[a-z]\w*(?:\.\w+)?)`", text))
    assert len(named) > 8
    assert named - everything == set()


def test_the_page_of_the_rate_names_constants_that_there_are() -> None:
    sources = list((PACKAGE / "core").rglob("*.py"))
    everything = set().union(*(_defined(ast.parse(path.read_text())) for path in sources))
    named = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", _read("fedrdma-x-rate.md")))
    assert len(named) > 20
    assert named - everything == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_blank_line_follows_each_heading(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^#+ .*\n(?=[^\n])", prose, flags=re.MULTILINE) == []


# --- transports ---

NAMES_A_TRANSPORT = re.compile(r'"(?:verbs|tcp|shm)"')
"""Not `grpc`, which is a mode as well, and asked for as such."""


def test_the_contributors_guide_names_every_file_that_names_a_transport() -> None:
    apart = ("transport", "bench")
    """Transports name themselves, and what is measured is named after them."""
    sources = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in apart]
    naming = {str(path.relative_to(PACKAGE)) for path in sources if NAMES_A_TRANSPORT.search(path.read_text())}
    section = _read("contributors.md").partition("## How to add a transport")[2].partition("## How to add a mode")[0]
    assert _files_of_table(section) == naming


def _files_of_table(section: str) -> set[str]:
    """The files in the first column of the table of a section."""
    return {name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`(.*?)`", row)}


# --- modes ---

COMPARES_A_MODE = re.compile(r'(?:==|!=|\bin) \(?"fedrdma(?:-[ex])?"|mode\)? (?:==|!=|in) \(?"grpc"')


def test_the_contributors_guide_names_every_file_that_asks_for_the_mode() -> None:
    sources = [path for folder in ("core", "engine", "gateway") for path in (PACKAGE / folder).rglob("*.py")]
    asking = {str(path.relative_to(PACKAGE)) for path in sources if COMPARES_A_MODE.search(path.read_text())}
    section = _read("contributors.md").partition("## How to add a mode")[2].partition("In this order")[0]
    assert _files_of_table(section) == asking


# --- dependencies ---


def _declared() -> dict[str, set[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: {re.split(r"[<>=~!\[ ]", line)[0] for line in lines} for name, lines in groups.items()}


def test_every_dependency_has_its_reason() -> None:
    page = _read("dependencies.md")
    kept = page.partition("## Not taken")[0]
    documented = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", kept, flags=re.MULTILINE))
    assert set(documented) == set().union(*_declared().values(), {re.split(r"[<>=]", aioquic.WANTED)[0]})


def test_every_dependency_is_bounded_or_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values(), [aioquic.WANTED]]
    assert [line for group in groups for line in group if not re.search(r"[<>=]=?\d", line)] == []
