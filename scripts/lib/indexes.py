"""Hands pip's settings of this machine on to uv, which does not read them."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SECTIONS = ("global", "install", ":env:")
"""Of `pip config list`, in rising precedence for `pip install`."""


def parse_pip_config(listing: str) -> dict[str, str]:
    """Option names and values that `pip install` would use, from the output of `pip config list`.

    Lines that are not `section.option='value'` are ignored.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        key, equals, quoted = line.partition("=")
        section, dot, option = key.rpartition(".")
        if not (equals and dot and section in found):
            continue
        try:
            value = ast.literal_eval(quoted)
        except (ValueError, SyntaxError):
            continue
        found[section][option] = str(value)
    return {option: value for section in _SECTIONS for option, value in found[section].items()}


def uv_environment(pip: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that make uv use the same indexes, links, certificates and time-out as pip.

    What the caller's environment already says to uv is left alone.
    """
    wanted = {
        "UV_DEFAULT_INDEX": pip.get("index-url", ""),
        "UV_INDEX": " ".join(pip.get("extra-index-url", "").split()),
        "UV_FIND_LINKS": ",".join(_usable_links(pip.get("find-links", ""))),
        "UV_INSECURE_HOST": " ".join(pip.get("trusted-host", "").split()),
        "UV_HTTP_TIMEOUT": pip.get("timeout") or pip.get("default-timeout", ""),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "SSL_CLIENT_CERT": pip.get("client-cert", ""),
        "ALL_PROXY": pip.get("proxy", ""),
    }
    if wanted["UV_INDEX"]:
        # pip treats all indexes alike; the hashes in the lock say which file is the right one
        wanted["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in wanted.items() if value and not environment.get(name)}


def uv_flags(pip: Mapping[str, str]) -> list[str]:
    """Options of uv for pip's settings that have no variable."""
    return ["--no-index"] if pip.get("no-index", "").lower() in ("1", "true", "yes", "on") else []


def read_pip_config(python: Path) -> dict[str, str]:
    """What pip is configured to do for this Python; empty when pip cannot say."""
    command = [str(python), "-m", "pip", "config", "list"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    return parse_pip_config(result.stdout) if result.returncode == 0 else {}


def _usable_links(setting: str) -> list[str]:
    """Links without local directories that do not exist: pip passes over them, uv stops."""
    return [link for link in setting.split() if "://" in link or Path(link).expanduser().exists()]
