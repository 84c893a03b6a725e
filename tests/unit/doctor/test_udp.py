"""What the doctor says of UDP sockets: buffers that the kernel caps, and kernels that take datagrams one by one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from fedrdma_fate.doctor.site import uses_udp
from fedrdma_fate.doctor.udp import UdpSockets, check_udp, look_at_udp
from fedrdma_fate.gateway.config.schema import load_config
from fedrdma_fate.transport.udp.socket_options import BUFFER_BYTES

GOOD = UdpSockets(BUFFER_BYTES, BUFFER_BYTES, cuts=True, joins=True)
CAPPED = 212_992
PEER = {"site": "b", "parties": ["2"], "address": "127.0.0.1:9"}


def test_sockets_that_get_all_they_ask_for_are_fine() -> None:
    finding = check_udp(GOOD, used=True)
    assert (finding.level, finding.remedy) == ("ok", "")
    assert "4 MiB to receive" in finding.found


@pytest.mark.parametrize(
    ("capped", "named", "other"),
    [
        ({"receive_bytes": CAPPED}, "net.core.rmem_max=4194304", "wmem_max"),
        ({"send_bytes": CAPPED}, "net.core.wmem_max=4194304", "rmem_max"),
    ],
)
def test_a_buffer_that_the_kernel_caps_is_a_warning_with_the_sysctl_to_set(
    capped: dict[str, int], named: str, other: str
) -> None:
    finding = check_udp(dataclasses.replace(GOOD, **capped), used=True)  # type: ignore[arg-type]
    assert finding.level == "warning"
    assert "208 KiB" in finding.found
    assert f"sysctl -w {named}," in finding.remedy
    assert other not in finding.remedy


@pytest.mark.parametrize("missing", ["cuts", "joins"])
def test_a_kernel_that_takes_datagrams_one_by_one_is_a_warning(missing: str) -> None:
    finding = check_udp(dataclasses.replace(GOOD, **{missing: False}), used=True)  # type: ignore[arg-type]
    assert finding.level == "warning"
    assert "one by one" in finding.found
    assert "Linux 5.0" in finding.remedy


def test_where_udp_is_not_used_nothing_of_it_is_wrong() -> None:
    finding = check_udp(UdpSockets(CAPPED, CAPPED, cuts=False, joins=False), used=False)
    assert finding.level == "ok"
    assert "not used" in finding.found


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({}, False),
        ({"transport": "udp"}, True),
        ({"mode": "fedrdma-x"}, False),
        ({"mode": "fedrdma-x", "peers": [PEER]}, True),
        ({"mode": "fedrdma-x", "transport": "tcp", "peers": [PEER]}, False),
        ({"peers": [{**PEER, "transport": "udp"}]}, True),
    ],
)
def test_the_configuration_says_whether_it_is_used(tmp_path: Path, changes: dict[str, object], used: bool) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump({"site": "a", "parties": ["1"], "security": "off", **changes}))
    assert uses_udp(load_config(path)) is used
    assert not uses_udp(None)


def test_this_machine_is_looked_at_without_a_word_sent() -> None:
    sockets = look_at_udp()
    assert 0 < sockets.receive_bytes <= BUFFER_BYTES
    assert 0 < sockets.send_bytes <= BUFFER_BYTES
