"""Puts Debian's iperf3 into `.venv` where the machine has none. Only some rows of `fedrdma bench wan` want it."""

from __future__ import annotations

from scripts.lib.unpacked import UnpackedProgram

IPERF3 = UnpackedProgram("iperf3", ("iperf3", "libiperf0", "libsctp1"), "usr/bin/iperf3", ["--version"])
