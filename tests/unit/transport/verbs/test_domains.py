"""Each peer has a protection domain of its own, and in it nothing but its slots is open, whatever the device checks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from fedrdma_fate.ports import Endpoint, RemoteSlot
from fedrdma_fate.transport.verbs.device_selection import PortPreference, select_port
from fedrdma_fate.transport.verbs.interface import EventKind, LocalPort, VerbsError
from fedrdma_fate.transport.verbs.window_check import windows_are_checked
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.fake_verbs import FakeDevice, FakeNetwork, FakeRegion, FakeWindow, device_info
from tests.support.verbs_links import FakeLink, unconnected

SLOT_AT, SLOT_BYTES = 4096, 8192


@pytest.fixture(params=[False, True], ids=["windows", "careless device"])
def made(request: pytest.FixtureRequest) -> Iterator[FakeLink]:
    """Two sides, not connected; nothing may be left in the end."""
    link = unconnected(careless=request.param)
    yield link
    link.close()
    assert (link.active.device.left, link.passive.device.left) == ([], [])


def lost(link: FakeLink) -> None:
    """Both ends of the link that was made last find it broken."""

    def steps() -> None:
        for _ in range(5):
            link.passive.progress()

    with pytest.raises(TransportError) as error:
        steps()
    assert error.value.code is ErrorCode.LINK_LOST


def test_a_key_of_another_peer_is_refused_and_ends_the_link_that_used_it(made: FakeLink) -> None:
    made.connect(peer="honest")
    stolen = made.passive.expose(1, SLOT_AT, SLOT_BYTES)
    honest: list[Endpoint] = [made.active.end, made.passive.end]
    made.connect(peer="thief")
    made.active.write(1, b"w" * 100, stolen)
    lost(made)
    assert made.passive.untouched
    for endpoint in (made.active.end, made.passive.end):
        endpoint.close()
    made.active.endpoint, made.passive.endpoint = honest
    made.active.write(2, b"w" * 100, stolen)
    made.settle()
    assert bytes(made.passive.region.view[SLOT_AT : SLOT_AT + 100]) == b"w" * 100, "its owner may still use it"


def test_no_guess_at_a_key_reaches_what_was_granted_to_another(made: FakeLink) -> None:
    made.connect(peer="honest")
    made.passive.expose(1, SLOT_AT, SLOT_BYTES)
    honest = [made.active.end, made.passive.end]
    highest = next(made.network.keys)
    for guess in range(0x100, highest):
        made.connect(peer="thief")
        target = RemoteSlot(guess, made.passive.region.address + SLOT_AT, SLOT_BYTES)
        made.active.write(1, b"w" * 100, target)
        lost(made)
        made.active.end.close()
        made.passive.end.close()
    assert made.passive.untouched
    made.active.endpoint, made.passive.endpoint = honest


def test_a_key_is_refused_after_its_slot_was_withdrawn_on_this_link_and_on_the_next(made: FakeLink) -> None:
    made.connect(peer="b")
    stolen = made.passive.expose(1, SLOT_AT, SLOT_BYTES)
    made.passive.end.withdraw(1)
    for _ in range(2):
        made.active.write(1, b"w" * 100, stolen)
        lost(made)
        assert made.passive.untouched
        made.active.end.close()
        made.passive.end.close()
        made.connect(peer="b")


def test_a_key_is_dead_when_its_link_is(made: FakeLink) -> None:
    made.connect(peer="b")
    stolen = made.passive.expose(1, SLOT_AT, SLOT_BYTES)
    made.passive.device.pairs[-1].fail()
    made.passive.end.close()
    made.active.end.close()
    made.connect(peer="b")
    made.active.write(1, b"w" * 100, stolen)
    lost(made)
    assert made.passive.untouched


@pytest.mark.parametrize("beside", [-1, SLOT_BYTES - 99])
def test_a_write_that_leaves_its_slot_is_refused_though_the_sender_does_not_check(made: FakeLink, beside: int) -> None:
    made.connect(peer="b")
    target = made.passive.expose(1, SLOT_AT, SLOT_BYTES)
    forged = RemoteSlot(target.key, target.address + beside, SLOT_BYTES)
    made.active.write(1, b"w" * 100, forged)
    lost(made)
    assert made.passive.untouched


def test_a_slot_of_no_bytes_opens_nothing(made: FakeLink) -> None:
    made.connect(peer="b")
    target = made.passive.expose(1, SLOT_AT, 0)
    made.active.write(1, b"w", RemoteSlot(target.key, target.address, 1))
    lost(made)
    assert made.passive.untouched


def test_each_peer_has_the_memory_registered_once_and_the_first_finds_it_so(made: FakeLink) -> None:
    assert made.passive.transport.registrations == 1
    for peer, registrations in (("b", 1), ("b", 1), ("c", 2), ("b", 2), ("d", 3)):
        made.connect(peer=peer)
        made.active.end.close()
        made.passive.end.close()
        assert made.passive.transport.registrations == registrations


def test_memory_that_cannot_be_registered_for_a_further_peer_is_a_matter_of_memlock(made: FakeLink) -> None:
    made.connect(peer="b")
    ends = made.active.end, made.passive.end
    draft = made.passive.transport.open("passive", "c")
    made.passive.device.registration_errno = 12
    with pytest.raises(TransportError, match="memlock") as error:
        draft.connect(made.active.transport.open("active").address, 0.1)
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    made.passive.device.registration_errno = 0
    made.active.endpoint, made.passive.endpoint = ends


# --- finding out ---


def port_of(device: FakeDevice) -> LocalPort:
    return select_port([device.info], PortPreference(), lambda _: True)


@pytest.mark.parametrize("careless", [False, True])
def test_it_is_found_out_whether_a_device_checks_windows_and_nothing_is_left_of_that(careless: bool) -> None:
    device = FakeDevice(device_info(), FakeNetwork())
    device.checks_windows = not careless
    assert windows_are_checked(device, port_of(device)) is not careless
    assert device.left == []


def test_a_device_on_which_it_cannot_be_found_out_is_taken_for_careless(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(device_info(), FakeNetwork())
    device.binds = False
    assert not windows_are_checked(device, port_of(device))
    device.binds, device.most_pairs = True, 0
    assert not windows_are_checked(device, port_of(device))
    device.most_pairs = 10
    monkeypatch.setattr("fedrdma_fate.transport.verbs.window_check.CHECK_SECONDS", 0.05)
    monkeypatch.setattr("tests.support.fake_verbs.FakeQueue.push", lambda *_: None)
    assert not windows_are_checked(device, port_of(device))
    assert device.left == []


@pytest.mark.parametrize("careless", [False, True])
def test_the_log_says_so_at_the_start_where_a_device_does_not_check(
    caplog: pytest.LogCaptureFixture, careless: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        unconnected(careless=careless).close()
    said = "verbs: fake0 does not keep writes inside memory windows, as Soft-RoCE does not"
    assert (said in caplog.text) is careless


def test_a_careless_device_opens_slots_without_any_window() -> None:
    made = unconnected(careless=True)
    made.connect()
    target = made.passive.expose(1, SLOT_AT, SLOT_BYTES)
    assert made.passive.device.windows == {}
    opened = [region for region in made.passive.device.regions if region.remote_write]
    assert [(region.address, region.length) for region in opened] == [(target.address, SLOT_BYTES)]
    made.close()


def test_a_region_that_is_registered_is_open_to_nobody_as_a_whole(made: FakeLink) -> None:
    made.connect(peer="b")
    for region in made.passive.device.regions:
        assert not region.remote_write


# --- keys that the device does not end ---


class Stubborn:
    """Keys of fake devices cannot be ended while `holds`."""

    holds = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind in (FakeWindow, FakeRegion):
            self._make(monkeypatch, kind)

    def _make(self, monkeypatch: pytest.MonkeyPatch, kind: type[FakeWindow] | type[FakeRegion]) -> None:
        ends = kind.close

        def close(key: Any) -> None:
            if self.holds and (isinstance(key, FakeWindow) or key.remote_write):
                raise VerbsError("cannot deallocate it", 16)
            ends(key)

        monkeypatch.setattr(kind, "close", close)


def test_a_key_that_the_device_does_not_end_costs_the_link_and_is_told_until_it_is(
    made: FakeLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made.connect(peer="b")
    for grant in (1, 2):
        made.passive.expose(grant, grant * SLOT_BYTES, SLOT_BYTES)
    assert list(made.passive.end.still_open) == []
    stubborn = Stubborn(monkeypatch)
    made.passive.end.withdraw(1)
    lost(made)
    assert sorted(made.passive.end.still_open) == [1, 2]
    assert "the key of grant 1 is still open: cannot deallocate it" in caplog.text
    stubborn.holds = False
    made.passive.end.close()
    assert list(made.passive.end.still_open) == []


def test_a_key_that_is_never_ended_stays_told_after_the_link_was_closed(
    made: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.connect(peer="b")
    made.passive.expose(1, SLOT_AT, SLOT_BYTES)
    stubborn = Stubborn(monkeypatch)
    made.passive.end.close()
    assert list(made.passive.end.still_open) == [1]
    stubborn.holds = False
    made.passive.end._end_keys()  # type: ignore[attr-defined]


def test_keys_of_a_device_that_is_gone_open_nothing(made: FakeLink, monkeypatch: pytest.MonkeyPatch) -> None:
    made.connect(peer="b")
    made.passive.expose(1, SLOT_AT, SLOT_BYTES)
    stubborn = Stubborn(monkeypatch)
    made.passive.device.report(EventKind.DEVICE_GONE)
    lost(made)
    assert list(made.passive.end.still_open) == []
    stubborn.holds = False
    for key in [*made.passive.device.windows.values(), *made.passive.device.regions]:
        key.close()
