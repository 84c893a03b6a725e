"""Which transports a gateway offers: RDMA where it is wanted and there, and why not where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedrdma_fate.gateway import transports as module
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.transports import link_settings, make_transports
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.transport.verbs.transport import VerbsTransport
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from tests.support.endpoints import HeapRegion
from tests.support.fake_verbs import FakeVerbs, device_info

Made = list[Any]


def config(**changes: Any) -> Any:
    peer = {"site": "b", "parties": ["host:2"], **changes.pop("peer", {})}
    return parse_config({"site": "a", "parties": ["guest:1"], "security": "off", "peers": [peer], **changes})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The verbs transports that were made; the devices of this host are `devices`."""
    found: Made = []

    def make(settings: Any, regions: Any) -> VerbsTransport:
        found.append((settings, list(regions)))
        return VerbsTransport(settings, regions, FakeVerbs(*devices))

    monkeypatch.setattr(module, "VerbsTransport", make)
    devices.clear()
    return found


devices: list[Any] = []


def make(settings: Any, directory: Path) -> module.TransportSet:
    receive, send = HeapRegion(8192), HeapRegion(4096)
    transports = make_transports(settings, directory, receive, send)
    for transport in transports.values():
        transport.close()
    return transports


def test_auto_offers_verbs_where_there_is_a_device_and_registers_both_regions(made: Made, tmp_path: Path) -> None:
    devices.append(device_info("fake0", "127.0.0.1"))
    transports = make(config(verbs={"queue_pairs": 4, "poll": "busy"}), tmp_path)
    assert "verbs" in transports
    assert transports.absent == {}
    ((settings, regions),) = made
    assert [region.length for region in regions] == [8192, 4096]
    assert (settings.queue_pairs, settings.poll) == (4, "busy")


def test_a_window_for_a_peer_goes_before_that_of_the_gateway() -> None:
    settings = config(window="1MiB")
    (peer,) = settings.peers
    by_hand = msgspec.structs.replace(peer, window=5)
    for given, of, window in ((settings, peer, 1 << 20), (settings, by_hand, 5), (config(), peer, None)):
        assert (
            link_settings(given, of, "tcp", None, admits=lambda _: True, complaints=Complaints()).window_bytes == window
        )


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("infos", "reason"),
    [
        ([], "this host has no RDMA device"),
        ([device_info(active=False)], "port 1 of fake0 is down"),
        ([device_info(gids=())], "port 1 of fake0 has no RoCE v2 GID of an IPv4 address"),
    ],
)
def test_auto_does_without_verbs_and_keeps_the_reason(tmp_path: Path, infos: list[Any], reason: str) -> None:
    devices.extend(infos)
    transports = make(config(), tmp_path)
    assert "verbs" not in transports
    assert transports.absent == {"verbs": f"{reason} (a)"}


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("changes", [{"transport": "verbs"}, {"transport": "tcp", "peer": {"transport": "verbs"}}])
def test_who_asks_for_verbs_is_told_that_there_is_none_and_nothing_is_left_listening(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = module.TcpTransport.close
    monkeypatch.setattr(module.TcpTransport, "close", lambda self: (closed.append(self.name), close(self))[1])
    with pytest.raises(TransportError, match="no RDMA device") as error:
        make(config(**changes), tmp_path)
    assert error.value.code is ErrorCode.TRANSPORT_UNAVAILABLE
    assert closed == ["tcp"]


def test_who_wants_no_verbs_does_not_look_for_devices(made: Made, tmp_path: Path) -> None:
    transports = make(config(transport="tcp"), tmp_path)
    assert made == []
    assert transports.absent == {}


def test_memory_that_is_taken_slot_by_slot_cannot_be_registered(made: Made, tmp_path: Path) -> None:
    devices.append(device_info("fake0", "127.0.0.1"))
    transports = make(config(memory={"warm": False}), tmp_path)
    assert "cannot stay registered" in transports.absent["verbs"]
    with pytest.raises(TransportError) as error:
        make(config(memory={"warm": False}, transport="verbs"), tmp_path)
    assert "memory.warm" in error.value.remedy
    assert made == []


@pytest.mark.usefixtures("made")
def test_a_gid_that_does_not_exist_is_told_by_the_configured_index(tmp_path: Path) -> None:
    devices.append(device_info("fake0", "127.0.0.1"))
    with pytest.raises(TransportError, match="no GID at index 9"):
        make(config(transport="verbs", verbs={"gid_index": 9}), tmp_path)


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({"mode": "fedrdma-x"}, True),
        ({"peer": {"mode": "fedrdma-x"}}, True),
        ({}, False),
        ({"mode": "fedrdma-x", "transport": "tcp"}, False),
        ({"transport": "udp"}, True),
    ],
)
def test_udp_is_offered_where_it_is_asked_for_and_by_auto_in_mode_fedrdma_x(
    made: Made, tmp_path: Path, changes: dict[str, Any], there: bool
) -> None:
    assert made == []
    assert ("udp" in make(config(**changes), tmp_path)) is there


def refuse_udp(*_: object) -> None:
    raise TransportError(ErrorCode.TRANSPORT_UNAVAILABLE, "no udp data path: the port is taken.", "")


def test_auto_does_without_udp_whose_port_is_taken_and_keeps_the_reason(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made == []
    monkeypatch.setattr(module, "UdpTransport", refuse_udp)
    transports = make(config(mode="fedrdma-x"), tmp_path)
    assert "udp" not in transports
    assert transports.absent["udp"] == "no udp data path: the port is taken (a)"
    with pytest.raises(TransportError, match="the port is taken"):
        make(config(transport="udp"), tmp_path)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("data", [None, "127.0.0.1:0"])
def test_data_paths_come_to_the_port_of_the_control_channel_unless_they_have_one_of_their_own(
    tmp_path: Path, data: str | None
) -> None:
    transports = make(config(listen={"control": "127.0.0.1:9370", "data": data}), tmp_path)
    tcp = transports["tcp"]
    assert isinstance(tcp, module.TcpTransport)
    assert transports.on_control_port is (tcp if data is None else None)
    assert (tcp.port == 9370) is (data is None)
