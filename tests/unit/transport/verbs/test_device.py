"""Events of a device, which any link may be the first to see, and the device's end with its last user."""

from __future__ import annotations

import pytest

from fedrdma_fate.transport.verbs.device import EventBoard, VerbsHost
from fedrdma_fate.transport.verbs.device_selection import PortWish, choose_port
from fedrdma_fate.transport.verbs.interface import EventKind, VerbsError
from tests.support.fake_verbs import FakeDevice, FakeNetwork, device_info


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(device_info(), FakeNetwork())


def host_of(device: FakeDevice) -> VerbsHost:
    return VerbsHost(device, choose_port([device.info], PortWish(), lambda _: True))


def test_a_port_that_went_down_is_told_to_every_link_and_forgotten_with_the_next(device: FakeDevice) -> None:
    board = EventBoard(device)
    device.report(EventKind.PORT_DOWN)
    assert [board.look(), board.look()] == ["its port went down"] * 2
    board.forget()
    assert board.look() is None


def test_a_device_that_has_gone_is_never_forgotten(device: FakeDevice) -> None:
    board = EventBoard(device)
    assert not board.device_is_gone()
    device.report(EventKind.DEVICE_GONE)
    device.report(EventKind.PORT_DOWN)
    board.forget()
    assert board.look() == "the device is gone"
    board.forget()
    assert board.device_is_gone()


def test_a_port_that_went_down_before_its_device_does_not_hide_that(device: FakeDevice) -> None:
    board = EventBoard(device)
    device.report(EventKind.PORT_DOWN)
    assert not board.device_is_gone()
    device.report(EventKind.DEVICE_GONE)
    assert board.device_is_gone()


def test_a_device_that_cannot_be_asked_any_more_has_gone(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise VerbsError("cannot get an event", 5)

    monkeypatch.setattr(device, "next_event", fail)
    assert EventBoard(device).device_is_gone()


def test_refused_writes_of_peers_are_counted_and_other_events_are_not(device: FakeDevice) -> None:
    board = EventBoard(device)
    for kind in (EventKind.ACCESS_ERROR, EventKind.OTHER, EventKind.ACCESS_ERROR):
        device.report(kind)
    assert board.look() is None
    assert board.access_errors == 2


def test_the_last_user_closes_the_device_and_everything_made_from_it(device: FakeDevice) -> None:
    host = host_of(device)
    host.join()
    host.leave()
    assert not device.closed
    host.leave()
    assert (device.closed, device.left) == (True, [])
