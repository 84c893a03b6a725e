"""Targets: files that a gateway reads."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fedrdma_fate.core.path import PathState
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.gateway.config.schema import load_config
from fedrdma_fate.gateway.path_store import PathStore
from fedrdma_fate.wire.errors import ConfigError
from tests.fuzz.target import Target, require

MOST_TEXT_BYTES = 1024

CONFIGURATION = b"""\
site: a
security: off
listen: {control: "127.0.0.1:0"}
memory: {send_bytes: 1 GiB, receive_bytes: 1073741824}
parties: ["9999", "host:10000"]
peers:
  - {site: b, address: "127.0.0.1:5", parties: ["10000"], mode: fedrdma-x}
seal: off
"""


def configuration() -> Target:
    """The configuration of a gateway."""
    folder = Path(tempfile.mkdtemp())

    def read(data: bytes) -> bool:
        path = folder / "gateway.yaml"
        # a few lines are enough, and YAML is slow
        path.write_bytes(data[:MOST_TEXT_BYTES])
        load_config(path)
        return True

    # numbers, dates and bytes of YAML's own: no site's name
    seeds = [
        CONFIGURATION,
        b'site: a\nparties: ["9999"]\nsecurity: off\n',
        b"site: &a [1, 0x1F, 2001-01-01, 1:2, !!binary aGk=]",
    ]
    return Target("configuration", seeds, read, (ConfigError,), close=lambda: shutil.rmtree(folder))


def path_store() -> Target:
    """What was kept of the paths: a file that cannot be used is ignored, whatever it holds."""
    folder = Path(tempfile.mkdtemp())
    store = PathStore(folder, "a", lambda: 1e9)
    store.note("b", "tcp", KnownPath(PathState(1e9, 0.05, 0.001), "measured"))
    seed = store.pending()
    assert seed is not None
    assert store.file is not None
    file = store.file

    def read(data: bytes) -> bool:
        file.write_bytes(data)
        known = PathStore(folder, "a", lambda: 1e9).recall("b", "tcp")
        if known is not None:
            require(
                0 < known.state.rate <= 1e13 and 0 < known.state.min_rtt <= 3600, "a path that cannot be is believed"
            )
        return known is not None

    return Target("path-store", [seed], read, (), close=lambda: shutil.rmtree(folder))
