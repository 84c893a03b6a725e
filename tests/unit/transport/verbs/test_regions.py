"""Registered memory: once a region, forgotten with it, and in clear words when the device does not allow it."""

from __future__ import annotations

import errno
import gc

import pytest

from fedrdma_fate.transport.verbs import regions as regions_module
from fedrdma_fate.transport.verbs.device_selection import PortPreference, select_port
from fedrdma_fate.transport.verbs.interface import VerbsError
from fedrdma_fate.transport.verbs.regions import RegionTable, WindowBinder, registration_failed
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.endpoints import HeapRegion
from tests.support.fake_verbs import FakeDevice, FakeDomain, FakeNetwork, FakeVerbs, device_info


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(device_info(), FakeNetwork())


def test_a_region_is_registered_when_it_is_first_used_and_not_again(device: FakeDevice) -> None:
    table, region = RegionTable(device), HeapRegion(8192)
    assert table.registrations == 0
    first = table.piece(region.slot(100, 10))
    second = table.piece(region.slot(200, 10))
    assert (first.address, second.address) == (region.address + 100, region.address + 200)
    assert first.key == second.key
    assert table.registrations == len(device.regions) == 1


def test_a_region_that_has_gone_is_deregistered_and_another_at_its_place_is_not_taken_for_it(
    device: FakeDevice,
) -> None:
    table, region = RegionTable(device), HeapRegion(8192)
    table.register(region)
    del region
    gc.collect()
    assert device.regions == []
    table.register(HeapRegion(8192))
    assert table.registrations == 2


def test_closing_the_table_deregisters_everything(device: FakeDevice) -> None:
    table, kept = RegionTable(device), [HeapRegion(4096) for _ in range(3)]
    for region in kept:
        table.register(region)
    table.close()
    assert device.regions == []


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EPERM, errno.EAGAIN])
def test_too_small_a_memlock_limit_is_named_with_its_remedy(device: FakeDevice, number: int) -> None:
    device.registration_errno = number
    with pytest.raises(TransportError, match="cannot register 8192 bytes of memory: the memlock limit") as error:
        RegionTable(device).register(HeapRegion(8192))
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    assert "ulimit -l" in error.value.remedy


def test_any_other_failure_keeps_the_devices_own_words() -> None:
    error = registration_failed(1 << 40, VerbsError("cannot register: Invalid argument", errno.EINVAL))
    assert "Invalid argument" in error.message
    assert "max_mr_size" in error.remedy


def test_a_transport_that_cannot_register_its_regions_gives_the_device_back(monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = FakeVerbs(device_info("fake0", "127.0.0.1"))
    monkeypatch.setattr(FakeDomain, "register", _refuse)
    with pytest.raises(TransportError, match="memlock"):
        VerbsTransport(VerbsSettings(), [HeapRegion(4096)], verbs)
    assert (verbs.opened[0].closed, verbs.opened[0].left) == (True, [])


def _refuse(*_: object, **__: object) -> None:
    raise VerbsError("cannot register 4096 bytes of memory", errno.ENOMEM)


def binder_of(device: FakeDevice) -> WindowBinder:
    return WindowBinder(device, device, select_port([device.info], PortPreference(), lambda _: True))


def test_a_window_opens_its_part_of_the_region_until_it_is_closed(device: FakeDevice) -> None:
    region = HeapRegion(8192)
    window = binder_of(device).open(RegionTable(device).register(region), region.address + 100, 50)
    opened = device.windows[window.key]
    assert (opened.address, opened.length) == (region.address + 100, 50)
    window.close()
    assert device.windows == {}


def test_a_window_of_no_bytes_opens_nothing(device: FakeDevice) -> None:
    region = HeapRegion(4096)
    window = binder_of(device).open(RegionTable(device).register(region), region.address, 0)
    assert device.windows[window.key].length == 0


def test_a_bind_that_fails_leaves_no_window(device: FakeDevice) -> None:
    device.binds = False
    region = HeapRegion(4096)
    with pytest.raises(VerbsError, match="does not bind"):
        binder_of(device).open(RegionTable(device).register(region), region.address, 4096)
    assert device.windows == {}


def test_a_device_that_never_answers_a_bind_is_given_up(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions_module, "BIND_SECONDS", 0.05)
    binder, region = binder_of(device), HeapRegion(4096)
    registered = RegionTable(device).register(region)
    monkeypatch.setattr(device.queues[-1], "push", lambda _: None)
    with pytest.raises(VerbsError, match=r"within 0\.05 s"):
        binder.open(registered, region.address, 4096)
    assert device.windows == {}
