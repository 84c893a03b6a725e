"""What the doctor says of RDMA devices, ports, GIDs, pyverbs and the device rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedrdma_fate.doctor.findings import Finding
from fedrdma_fate.doctor.host import VerbsNeed
from fedrdma_fate.doctor.rdma import check_choice, check_ports, check_pyverbs, read_ports
from fedrdma_fate.transport.verbs.device_selection import PortWish
from fedrdma_fate.transport.verbs.interface import DeviceInfo, Verbs, VerbsError
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.fake_verbs import FakeVerbs, device_info
from tests.support.sysfs import GID, NO_GID, add_port


def port_finding(sysfs: Path, need: VerbsNeed = "wanted") -> Finding:
    (finding,) = check_ports(read_ports(sysfs), need)
    return finding


# --- ports ---


def test_an_active_port_is_shown_with_link_layer_rate_gids_and_mtu(tmp_path: Path) -> None:
    add_port(tmp_path, gids=[("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"), (GID, "RoCE v2"), (NO_GID, "")])
    finding = port_finding(tmp_path)
    assert (finding.check, finding.level) == ("rdma mlx5_0 port 1", "ok")
    assert finding.found == (
        "ACTIVE, Ethernet, 100 Gb/sec (4X EDR); 2 GIDs, RoCE v2 with IPv4: 1: 10.0.0.1; "
        "eth5 has MTU 9000, so packets carry 4096 bytes"
    )


def test_an_interface_with_a_small_mtu_is_told_what_a_larger_one_would_bring(tmp_path: Path) -> None:
    add_port(tmp_path, mtu=1500)
    assert "packets carry 1024 bytes (an MTU of 4200 or more would make it 4096)" in port_finding(tmp_path).found


def test_a_port_that_is_down_is_warned_of(tmp_path: Path) -> None:
    add_port(tmp_path, state="1: DOWN")
    finding = port_finding(tmp_path)
    assert (finding.level, finding.remedy) == ("warning", "Bring eth5 up, and check the cable.")


@pytest.mark.parametrize("gids", [[], [(NO_GID, "")], [(GID, "IB/RoCE v1")], [("fe80::1", "RoCE v2")]])
def test_a_port_without_a_roce_v2_gid_of_an_ipv4_address_is_warned_of(
    tmp_path: Path, gids: Sequence[tuple[str, str]]
) -> None:
    add_port(tmp_path, gids=gids)
    finding = port_finding(tmp_path)
    assert finding.level == "warning"
    assert "an IPv4 address" in finding.remedy


def test_a_bad_port_is_no_matter_where_rdma_is_not_used(tmp_path: Path) -> None:
    add_port(tmp_path, state="1: DOWN")
    assert port_finding(tmp_path, "unused").level == "ok"


def test_every_port_of_every_device_has_a_line(tmp_path: Path) -> None:
    add_port(tmp_path, "b", 2)
    add_port(tmp_path, "b", 1)
    add_port(tmp_path, "a", 1)
    checks = [finding.check for finding in check_ports(read_ports(tmp_path), "wanted")]
    assert checks == ["rdma a port 1", "rdma b port 1", "rdma b port 2"]


def test_a_port_of_which_nothing_can_be_read_is_shown_as_unknown(tmp_path: Path) -> None:
    (tmp_path / "class" / "infiniband" / "x" / "ports" / "1").mkdir(parents=True)
    finding = port_finding(tmp_path)
    assert finding.level == "warning"
    assert "unknown state" in finding.found


def test_no_device_is_the_normal_case(tmp_path: Path) -> None:
    finding = port_finding(tmp_path)
    assert (finding.level, finding.remedy) == ("ok", "")


def test_no_device_is_an_error_where_the_configuration_requires_one(tmp_path: Path) -> None:
    finding = port_finding(tmp_path, "required")
    assert finding.level == "error"
    assert "rdma link" in finding.remedy


# --- pyverbs ---


def absent() -> Verbs:
    raise TransportError(ErrorCode.TRANSPORT_UNAVAILABLE, "pyverbs cannot be loaded (no module).", "Install it.")


def test_pyverbs_that_is_there_gives_the_devices() -> None:
    devices = FakeVerbs()
    finding, verbs = check_pyverbs(lambda: devices, "wanted", devices=True)
    assert (finding.level, finding.found, verbs) == ("ok", "installed", devices)


@pytest.mark.parametrize("need", ["wanted", "unused"])
def test_absent_pyverbs_is_the_normal_case(need: VerbsNeed) -> None:
    finding, verbs = check_pyverbs(absent, need, devices=False)
    assert verbs is None
    assert (finding.level, finding.found) == ("ok", "not installed: silos without an RDMA card need none")


def test_absent_pyverbs_says_so_where_a_device_stays_unused() -> None:
    finding, _ = check_pyverbs(absent, "wanted", devices=True)
    assert (finding.level, finding.found) == ("ok", "not installed: this host's RDMA device stays unused")


def test_absent_pyverbs_is_an_error_where_the_configuration_requires_rdma() -> None:
    finding, _ = check_pyverbs(absent, "required", devices=True)
    assert (finding.level, finding.remedy) == ("error", "Install it.")


# --- the rule ---


def choice(
    *devices: DeviceInfo, wish: PortWish | None = None, need: VerbsNeed = "wanted", ours: bool = True
) -> Finding:
    return check_choice(FakeVerbs(*devices), wish or PortWish(), lambda _: ours, need)


def test_what_the_rule_picks_is_shown_with_the_reason() -> None:
    finding = choice(device_info("a", active=False), device_info("b"))
    assert finding.level == "ok"
    assert finding.found.startswith("b port 1, GID 1 (10.0.0.1), MTU 4096: the first by name with an active port")


def test_the_only_device_is_called_so() -> None:
    assert ": the only device, with an active port" in choice(device_info("a")).found


def test_what_the_configuration_picks_is_shown_as_such() -> None:
    finding = choice(device_info("a"), device_info("b"), wish=PortWish(device="b", gid_index=0))
    assert finding.found == "b port 1, GID 0 (fe80::1), MTU 4096: verbs.device, verbs.gid_index in the configuration"


@pytest.mark.parametrize(("need", "level"), [("wanted", "warning"), ("required", "error")])
def test_where_no_device_will_do_the_reason_is_told(need: VerbsNeed, level: str) -> None:
    finding = choice(device_info(active=False), need=need)
    assert finding.level == level
    assert "port 1 of fake0 is down" in finding.found
    assert finding.remedy


def test_an_address_of_another_network_namespace_is_told() -> None:
    finding = choice(device_info(), ours=False)
    assert finding.level == "warning"
    assert "network namespace" in finding.remedy


def test_a_device_that_cannot_be_opened_is_told() -> None:
    class Locked(FakeVerbs):
        def devices(self) -> Sequence[DeviceInfo]:
            raise VerbsError("cannot open the device x: Permission denied", 13)

    finding = check_choice(Locked(), PortWish(), lambda _: True, "wanted")
    assert (finding.level, finding.found) == ("warning", "cannot open the device x: Permission denied")
    assert "/dev/infiniband" in finding.remedy
