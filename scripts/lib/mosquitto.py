"""Puts Debian's mosquitto into `.venv` where the machine has none. Rows of `fedrdma bench protocols` want it."""

from __future__ import annotations

from scripts.lib.unpacked import UnpackedProgram

_HELP_STATUS = 3
"""With which mosquitto 2.0 ends when it has explained itself."""

MOSQUITTO = UnpackedProgram(
    "mosquitto",
    ("mosquitto", "libmosquitto1", "libcjson1", "libdlt2", "libwrap0"),
    "usr/sbin/mosquitto",
    ["-h"],
    trial_status=_HELP_STATUS,
    system_path="/usr/sbin",
)
