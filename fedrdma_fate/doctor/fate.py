"""Checks of FATE: its version, and whether our hooks are in place."""

from __future__ import annotations

from fedrdma_fate.doctor.fate_report import FateReport
from fedrdma_fate.doctor.findings import Finding, fine
from fedrdma_fate.wire.errors import ErrorCode


def check_fate(report: FateReport) -> Finding:
    """Whether FATE is there, and of the version that is supported."""
    if report.crash:
        return Finding("fate", "error", f"a fresh Python cannot look: {report.crash}", "Repair the installation.")
    if report.fate is None:
        return fine("fate", "not installed here: the gateway needs none, FATE's own environment does")
    flow = "" if report.flow is None else f", FATE Flow {report.flow}"
    found = f"FATE {report.fate}{flow}"
    if report.mismatch:
        remedy = "Use FATE 2.2.0, or set FEDRDMA_FATE_DISABLE=1 to run FATE without this backend."
        return Finding("fate", "error", f"{found}: {report.mismatch}", remedy)
    return fine("fate", found)


def check_hooks(report: FateReport) -> Finding:
    """Whether FATE knows the federation `fedrdma`."""
    check = "fate hooks"
    if report.crash:
        return Finding(check, "error", "not seen, as FATE was not", "See above.")
    if report.disabled:
        remedy = "Remove it from the environment of FATE's processes, if they are to use this backend."
        return Finding(check, "warning", "switched off by FEDRDMA_FATE_DISABLE=1", remedy)
    if report.fate is None:
        return fine(check, "no FATE to extend")
    if not report.hooked:
        remedy = "Install the wheel anew: its fedrdma_fate.pth is missing from site-packages, or not read (python -S)."
        return Finding(check, "error", "not started: a fresh Python does not load them", remedy)
    missing = [
        name
        for name, there, knows in (
            ("FATE", True, report.registered),
            ("FATE Flow", report.flow is not None, report.flow_registered),
        )
        if there and not knows
    ]
    if missing:
        names = " and ".join(missing)
        return Finding(
            check,
            "error",
            f"loaded, but {names} does not know the federation fedrdma",
            ErrorCode.FATE_VERSION.explanation,
        )
    return fine(check, "in place: the federation fedrdma is known")


def check_tables(report: FateReport) -> Finding:
    """What tables may name when FATE's computing engine unpickles them: a peer's, and the site's own."""
    check = "fate tables"
    if report.crash:
        return Finding(check, "error", "not seen, as FATE was not", "See above.")
    if report.fate is None:
        return fine(check, "no FATE to unpickle them")
    checked = "a peer's tables are checked by exact names"
    if report.tables == "unrestricted":
        return fine(check, f"{checked}; the site's own are unpickled unrestricted (docs/received.md)")
    if report.tables != "restricted":
        found = f"{checked}; how the site's own are unpickled is not known"
        return Finding(check, "warning", found, "Look at safety.serdes.restricted_type of FATE's configuration.")
    if report.table_names_problem:
        found = f"{checked}; the site's own are restricted, but {report.table_names} {report.table_names_problem}"
        return Finding(check, "warning", found, "See docs/received.md, the site's own tables.")
    return fine(check, f"{checked}; the site's own may name what {report.table_names} lists, and nothing else")
