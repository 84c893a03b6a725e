"""Changes settings of a peer in a configuration file, and nothing else: comments and layout stay."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from fedrdma_fate.gateway.config.schema import load_config
from fedrdma_fate.gateway.config.strict_yaml import load_yaml
from fedrdma_fate.wire.errors import ConfigError, ErrorCode


def set_peer_settings(path: Path, site: str, settings: Mapping[str, str]) -> None:
    """Write settings of a peer into a configuration file; the file is replaced at once, or not at all.

    Args:
        path: the file.
        site: name of the peer.
        settings: keys of the peer, and their values as YAML writes them.

    Raises:
        ConfigError: the file is not right, has no such peer, cannot be written, or uses anchors in a way in which no
            simple edit has the wanted effect; then it is as it was.
    """
    load_config(path)
    text = path.read_bytes().decode()
    edited = edit_peer(text, site, settings)
    if not _says(edited, _with_settings(text, site, settings)):
        raise _cannot_edit(path, site, settings, "the peer is written in a way that cannot be edited safely")
    try:
        _replace(path.resolve(), edited)
    except OSError as error:
        raise _cannot_edit(path, site, settings, str(error)) from error


def edit_peer(text: str, site: str, settings: Mapping[str, str]) -> str:
    """The text of a configuration with these settings of a peer: replaced where they are, else put behind `site`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when it has no such peer.
    """
    peer = _find_peer(yaml.compose(text, Loader=yaml.SafeLoader), site)
    present = {key.value: value for key, value in peer.value}
    edits: list[tuple[int, int, str]] = []
    added: list[str] = []
    for key, setting in settings.items():
        if key in present:
            node = present[key]
            # `chunk:` without a value has its mark right behind the colon
            space = " " if node.start_mark.index == node.end_mark.index else ""
            edits.append((node.start_mark.index, node.end_mark.index, f"{space}{setting}"))
        else:
            added.append(f"{key}: {setting}")
    if added:
        edits.append(_insertion(text, peer, present["site"], added))
    for start, end, piece in sorted(edits, reverse=True):
        text = text[:start] + piece + text[end:]
    return text


def snippet(site: str, settings: Mapping[str, str]) -> str:
    """The settings as they would stand in the configuration."""
    lines = [f"  - site: {site}", *(f"    {key}: {setting}" for key, setting in settings.items())]
    return "\n".join(["peers:", *lines])


def _insertion(text: str, peer: yaml.MappingNode, site: yaml.Node, added: list[str]) -> tuple[int, int, str]:
    """Where and what to insert, behind the peer's name: in the braces, or as lines of their own."""
    if peer.flow_style:
        at = site.end_mark.index
        return at, at, "".join(f", {line}" for line in added)
    newline = "\r\n" if "\r\n" in text else "\n"
    end = text.find(newline, site.end_mark.index)
    at = len(text) if end < 0 else end
    indent = " " * next(key for key, value in peer.value if value is site).start_mark.column
    return at, at, "".join(f"{newline}{indent}{line}" for line in added)


def _find_peer(document: yaml.Node | None, site: str) -> yaml.MappingNode:
    peers = _value(document, "peers")
    for peer in peers.value if isinstance(peers, yaml.SequenceNode) else ():
        name = _value(peer, "site")
        if isinstance(peer, yaml.MappingNode) and name is not None and name.value == site:
            return peer
    raise ConfigError(
        ErrorCode.CONFIG_BAD_VALUE, f"key 'peers' has no site {site!r}.", "Name the configuration of this gateway."
    )


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in pairs if name.value == key), None)


def _says(text: str, document: object) -> bool:
    """Whether a text means this document."""
    try:
        return bool(load_yaml(text) == document)
    except yaml.YAMLError:
        return False


def _with_settings(text: str, site: str, settings: Mapping[str, str]) -> object:
    """The document as it shall be."""
    document = load_yaml(text)
    peer = next(peer for peer in document["peers"] if peer["site"] == site)
    peer.update({key: load_yaml(setting) for key, setting in settings.items()})
    return document


def _replace(path: Path, text: str) -> None:
    """Put a new file in the place of an old one, with its permissions."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
        os.chmod(name, path.stat().st_mode & 0o7777)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _cannot_edit(path: Path, site: str, settings: Mapping[str, str], why: str) -> ConfigError:
    return ConfigError(
        ErrorCode.CONFIG_UNREADABLE,
        f"cannot change {path}: {why.rstrip('.')}.",
        f"Write it there yourself:\n{snippet(site, settings)}",
    )
