"""What peers and tasks have chosen is shown on a terminal, and does not act on it."""

from __future__ import annotations

import ast
import io
import json
import logging
from pathlib import Path

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedrdma_fate import cli
from fedrdma_fate.cli.doctor import render
from fedrdma_fate.cli.failure import tell, told_plainly
from fedrdma_fate.cli.terminal import Terminal
from fedrdma_fate.doctor.gateway_status import read_status
from fedrdma_fate.doctor.site import check_peers
from fedrdma_fate.obs.log import HumanFormatter, JsonFormatter, escaped
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

HOSTILE = "1.0\x1b]0;title\x07\x1b[2J\x9b31m\r\u202e\u2066end\ud800"
HARMLESS = "1.0\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\r\\u202e\\u2066end\\ud800"


def is_harmless(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


def test_escapes_are_shown_and_lines_stay() -> None:
    assert escaped(f"first\n\t{HOSTILE}") == f"first\n\t{HARMLESS}"
    assert escaped("grüße 模型") == "grüße 模型"


def shown(*renderables: object, colour: bool = False) -> str:
    out = io.StringIO()
    terminal = Terminal(
        file=out, width=200, force_terminal=colour, color_system="standard" if colour else None, no_color=False
    )
    terminal.print(*renderables)
    return out.getvalue()


def test_no_text_of_a_table_reaches_the_terminal_as_a_control_character() -> None:
    table = Table("a", HOSTILE, title=HOSTILE)
    table.add_row(Text(HOSTILE), HOSTILE)
    assert is_harmless(shown(Group(table, Text(HOSTILE)), HOSTILE))


def test_styles_are_still_there_and_are_all_that_acts_on_it() -> None:
    text = shown(Text("bad", style="bold red"), Text(HOSTILE), colour=True)
    assert "\x1b[1;31mbad" in text
    assert "\x1b[2J" not in text
    assert "\x1b]" not in text
    assert "\x9b" not in text


def test_the_version_of_a_peer_is_told_harmlessly_by_the_doctor() -> None:
    peer = {"site": "b", "connected": True, "version": HOSTILE, "paths": [{"transport": "tcp", "up": True}]}
    status = read_status({"site": "a", "version": "1", "peers": [peer]})
    text = shown(render(check_peers(status)))
    assert is_harmless(text)
    assert "its version is 1.0\\x1b]0;title" in text


def test_an_error_whose_reason_a_peer_has_chosen_is_told_harmlessly(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), told_plainly():
        raise GatewayError(ErrorCode.TRANSFER_ABORTED, HOSTILE)
    tell(HOSTILE)
    out, err = capsys.readouterr()
    assert out == f"{HARMLESS}\n"
    assert HARMLESS in err
    assert is_harmless(err)


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
def test_a_log_line_and_its_traceback_are_harmless(formatter: logging.Formatter) -> None:
    try:
        raise GatewayError(ErrorCode.TRANSFER_ABORTED, HOSTILE)
    except GatewayError as error:
        info = type(error), error, error.__traceback__
    record = logging.LogRecord("fedrdma_fate.x", logging.ERROR, __file__, 1, HOSTILE, None, info)
    record.peer = HOSTILE
    line = formatter.format(record)
    assert is_harmless(line)
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["message"] == HOSTILE


def test_no_command_but_benchmarks_of_this_machine_has_another_way_to_the_terminal() -> None:
    files = [path for path in Path(cli.__file__).parent.glob("*.py") if not path.name.startswith("bench")]
    assert len(files) > 10
    found = [
        f"{path.name}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Console", "print")
    ]
    assert found == []
