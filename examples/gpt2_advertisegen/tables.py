"""What FATE's computing engine may unpickle from tables in a silo's process."""

from __future__ import annotations

from fate.arch.computing.serdes._restricted_serdes import Whitelist
from fate.arch.config import cfg


def restrict_tables() -> None:
    """Have FATE's computing engine take no name at all from tables, which by default may run any code.

    A site sets this in its FATE for all jobs (docs/received.md, own tables). This job sends arrays, and FATE's own
    federation, which it can be compared with, slices of bytes.
    """
    cfg.config.safety.serdes.restricted_type = "restricted"
    Whitelist.deserialize_whitelist = {}
    Whitelist.loaded = True
