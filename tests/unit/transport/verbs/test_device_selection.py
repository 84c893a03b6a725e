"""Which device, port and GID are taken; for whatever will not do, an error that says what is wrong and what to do."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from fedrdma_fate.transport.verbs.device_selection import PortWish, address_is_ours, choose_port
from fedrdma_fate.transport.verbs.interface import DeviceInfo, GidEntry, PortInfo
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.fake_verbs import device_info


def always(_: str) -> bool:
    return True


def refused(*devices: DeviceInfo, wish: PortWish = PortWish(), ours: bool = True) -> TransportError:  # noqa: B008
    with pytest.raises(TransportError) as caught:
        choose_port(devices, wish, lambda _: ours)
    assert caught.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    assert caught.value.remedy
    return caught.value


def test_the_roce_v2_gid_of_an_ipv4_address_is_taken() -> None:
    gids = (
        GidEntry(0, "fe80::1", True),
        GidEntry(2, "::ffff:10.0.0.1", False),
        GidEntry(3, "::ffff:10.0.0.1", True),
    )
    port = choose_port([device_info(gids=gids)], PortWish(), always)
    assert (port.gid_index, port.gid) == (3, "::ffff:10.0.0.1")


def test_of_several_devices_the_first_by_name_is_taken_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        port = choose_port([device_info("b"), device_info("a")], PortWish(), always)
    assert port.device == "a"
    assert "(a, b): using a" in caplog.text


def test_a_device_that_will_not_do_is_passed_over() -> None:
    port = choose_port([device_info("a", active=False), device_info("b")], PortWish(), always)
    assert port.device == "b"


def test_what_the_configuration_names_is_taken() -> None:
    wish = PortWish("b", 1, 0, 1024)
    port = choose_port([device_info("a"), device_info("b")], wish, always)
    assert (port.device, port.gid_index, port.gid, port.mtu) == ("b", 0, "fe80::1", 1024)


def test_a_configured_mtu_never_raises_that_of_the_port() -> None:
    assert choose_port([device_info(mtu=1024)], PortWish(mtu=4096), always).mtu == 1024


def test_the_active_one_of_several_ports_is_taken() -> None:
    first = device_info().ports[0]
    second = dataclasses.replace(first, number=2)
    device = DeviceInfo("two", True, (dataclasses.replace(first, active=False), second))
    assert choose_port([device], PortWish(), always).port == 2


def test_an_address_of_another_network_namespace_is_not_ours() -> None:
    assert address_is_ours("127.0.0.1")
    assert not address_is_ours("192.0.2.1")
    assert "network namespace" in refused(device_info(), ours=False).remedy


def test_no_device_reads_as_such() -> None:
    assert "no RDMA device" in refused().message


def test_an_unknown_device_is_named_with_those_that_exist() -> None:
    error = refused(device_info("mlx5_0"), wish=PortWish(device="mlx5_9"))
    assert "'mlx5_9'" in error.message
    assert "mlx5_0" in error.remedy


def test_a_port_that_is_down_is_named() -> None:
    assert "port 1 of fake0 is down" in refused(device_info(active=False)).message


def test_a_port_that_does_not_exist_is_named() -> None:
    error = refused(device_info(), wish=PortWish(port=3))
    assert "no port 3" in error.message


def test_a_gid_that_does_not_exist_is_named_with_the_table() -> None:
    error = refused(device_info(), wish=PortWish(gid_index=7))
    assert "no GID at index 7" in error.message
    assert "1: ::ffff:10.0.0.1" in error.remedy


def test_a_port_without_an_ipv4_gid_shows_its_table() -> None:
    error = refused(device_info(gids=(GidEntry(0, "fe80::1", True),)))
    assert "no RoCE v2 GID" in error.message
    assert "0: fe80::1" in error.remedy


def test_a_device_without_memory_windows_is_refused() -> None:
    info = dataclasses.replace(device_info(), windows=False)
    assert "memory windows" in refused(info).message


def test_of_several_devices_that_will_not_do_each_is_explained() -> None:
    message = refused(device_info("a", active=False), device_info("b", gids=())).message
    assert "port 1 of a is down" in message
    assert "port 1 of b has no RoCE v2 GID" in message


def test_ports_are_described_by_what_they_carry() -> None:
    port = PortInfo(1, True, 4096, 1 << 30, (GidEntry(1, "::ffff:10.1.2.3", True),))
    assert port.gids[0].ipv4 == "10.1.2.3"
    assert GidEntry(0, "fe80::1", True).ipv4 is None
