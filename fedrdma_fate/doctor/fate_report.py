"""What a fresh interpreter makes of FATE and of our hooks.

A fresh one, because the hooks work at the start of an interpreter, and because FATE is not to be loaded into this one.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping

import msgspec

from fedrdma_fate.wire.errors import FateError

_AUTOLOAD = "fedrdma_fate.fate.autoload"
REPORT_TIMEOUT_SECONDS = 60.0
"""For an interpreter that imports FATE, and with it torch: on a cold disk that takes a while; longer, and it hangs."""

_LOOK = f"import sys; sys.path = [place for place in sys.path if place]; from {__name__} import main; main()"
"""What it runs. Without the current directory, whatever lies there; `-P` does that from Python 3.11 on."""


class FateReport(msgspec.Struct, frozen=True):
    """What was seen.

    Attributes:
        hooked: whether the `.pth` file has put our hooks in place.
        disabled: whether FEDRDMA_FATE_DISABLE switches them off.
        fate: FATE's version, None where it is not installed.
        mismatch: why this FATE will not do, or an empty string.
        registered: whether FATE's library knows the federation `fedrdma`.
        flow: FATE Flow's version, None where it is not installed.
        flow_registered: whether FATE Flow knows it.
        tables: how FATE's computing engine unpickles tables, `restricted` or `unrestricted`; empty where not seen.
        table_names: where its restriction lists what it lets through; empty where it does not restrict.
        table_names_problem: why that list does not restrict, or cannot be read; empty when neither is so.
        crash: why nothing could be seen, or an empty string.
    """

    hooked: bool = False
    disabled: bool = False
    fate: str | None = None
    mismatch: str = ""
    registered: bool = False
    flow: str | None = None
    flow_registered: bool = False
    tables: str = ""
    table_names: str = ""
    table_names_problem: str = ""
    crash: str = ""


def ask_fresh_interpreter(environment: Mapping[str, str] | None = None) -> FateReport:
    """The report of a fresh interpreter; `environment` is this process's when None."""
    command = [sys.executable, "-c", _LOOK]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=REPORT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return FateReport(crash=f"it does not end within {REPORT_TIMEOUT_SECONDS:g} s")
    except OSError as error:
        return FateReport(crash=str(error))
    return read_report(done.stdout, done.stderr)


def read_report(output: str, errors: str) -> FateReport:
    """The report in what the interpreter wrote; FATE may have written other lines before it."""
    try:
        return msgspec.json.decode(output.splitlines()[-1], type=FateReport)
    except (IndexError, msgspec.MsgspecError):
        return FateReport(crash=errors.strip().rpartition("\n")[2] or "it says nothing")


def look() -> FateReport:
    """Look at this interpreter, which loads FATE."""
    autoload = sys.modules.get(_AUTOLOAD)
    hooked = autoload is not None and autoload.is_installed()
    fate = _version("fate")
    flow = _version("fate_flow")
    tables = _tables() if fate else ""
    table_names, table_names_problem = _table_names() if tables == "restricted" else ("", "")
    return FateReport(
        hooked=hooked,
        disabled=os.environ.get("FEDRDMA_FATE_DISABLE") == "1",
        fate=fate,
        mismatch=_mismatch() if fate else "",
        registered=fate is not None and _knows_us("fate.arch.federation._builder"),
        flow=flow,
        flow_registered=flow is not None and _knows_us("fate_flow.entity.types._engine"),
        tables=tables,
        table_names=table_names,
        table_names_problem=table_names_problem,
    )


def _version(package: str) -> str | None:
    try:
        return str(getattr(importlib.import_module(package), "__version__", "unknown"))
    except ImportError:
        return None


def _mismatch() -> str:
    from fedrdma_fate.fate.compatibility import require_supported_fate

    try:
        require_supported_fate()
    except FateError as error:
        return error.message
    return ""


def _knows_us(module: str) -> bool:
    try:
        return hasattr(importlib.import_module(module).FederationEngine, "FEDRDMA")
    except (ImportError, AttributeError):
        return False


def _tables() -> str:
    try:
        return str(importlib.import_module("fate.arch.config").cfg.safety.serdes.restricted_type)
    except (ImportError, AttributeError):
        return ""


def _table_names() -> tuple[str, str]:
    try:
        names = importlib.import_module("fate.arch.computing.serdes._restricted_serdes").Whitelist
        path = str(names.get_whitelist_path())
    except (ImportError, AttributeError) as error:
        return "", str(error)
    try:
        exact, prefixes = names.get_whitelist(), names.get_whitelist_glob()
    except Exception as error:
        # a file that is not there, or holds something else than a table of lists
        return path, f"cannot be read ({error})"
    if prefixes:
        return path, f"lets everything through below {', '.join(sorted(prefixes))}"
    if "_load_from_bytes" in exact.get("torch.storage", ()):
        return path, "lists _load_from_bytes of torch.storage, which unpickles whatever it is given"
    return path, ""


def main() -> None:
    """Print the report as a line of JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = look()
    print(msgspec.json.encode(report).decode())
