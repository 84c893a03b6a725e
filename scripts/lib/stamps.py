"""Remembers what an environment was made from, so that repeating the set-up costs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path


class Stamp:
    """A small JSON file of name → digest. A missing or damaged file reads as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> str | None:
        """The recorded digest, or None."""
        try:
            recorded = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None
        value = recorded.get(name) if isinstance(recorded, dict) else None
        return value if isinstance(value, str) else None

    def write(self, digests: Mapping[str, str]) -> None:
        """Replace everything recorded."""
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(dict(digests)))
        temporary.replace(self.path)

    def clear(self) -> None:
        """Forget everything: what follows is unfinished until the next `write`."""
        self.path.unlink(missing_ok=True)


def digest_files(paths: Iterable[Path], root: Path) -> str:
    """SHA-256 over the names, relative to root, and the contents of files, whatever order they come in."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        total.update(f"{path.relative_to(root)}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def wheel_sources(root: Path) -> list[Path]:
    """The files that the project's wheel is made of."""
    package = (path for path in (root / "fedrdma_fate").rglob("*") if path.is_file())
    own = [path for path in package if "__pycache__" not in path.parts and path.suffix != ".pyc"]
    return [*own, root / "fedrdma_fate.pth", root / "pyproject.toml", root / "README.md"]
