"""A data path leads to the host of the control channel or to a listed one, whatever the peer asks for."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from fedrdma_fate.gateway.config.schema import PeerConfig
from fedrdma_fate.gateway.peers import data_hosts
from fedrdma_fate.gateway.peers.data_hosts import DataHosts, GuardedDraft
from fedrdma_fate.ports import EndpointAddress, Transport
from fedrdma_fate.transport.grpc import GrpcSettings, GrpcTransport
from fedrdma_fate.transport.tcp import TcpSettings, TcpTransport
from fedrdma_fate.wire.errors import ErrorCode, TransportError

NAMES = {
    "gw.bank-b": ["10.20.0.2", "fd00::2"],
    "data.bank-b": ["10.30.0.2"],
    "elsewhere": ["10.99.0.1"],
    "rebinding": ["10.99.0.1", "10.20.0.2"],
}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A DNS of a few names, and what it was asked for."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **keywords: Any) -> list[Any]:
        if host not in NAMES:
            return real(host, *arguments, **{**keywords, "flags": socket.AI_NUMERICHOST})
        asked.append(host)
        return [(0, 0, 0, "", (address, 0)) for address in NAMES[host]]

    monkeypatch.setattr(data_hosts.socket, "getaddrinfo", look_up)
    return asked


def hosts(address: str | None, *listed: str, remote: str | None = None) -> DataHosts:
    return DataHosts(PeerConfig("bank-b", ("2",), address, listed), lambda: remote)


@pytest.mark.parametrize(
    ("address", "presented", "dialled"),
    [
        pytest.param("10.20.0.2:9370", "10.20.0.2", "10.20.0.2", id="the same address"),
        pytest.param("[fd00::2]:9370", "FD00:0::2", "fd00::2", id="IPv6 spelt otherwise"),
        pytest.param("10.20.0.2:9370", "::ffff:10.20.0.2", "10.20.0.2", id="IPv4 in IPv6"),
        pytest.param("gw.bank-b:9370", "10.20.0.2", "10.20.0.2", id="an address of the name that is configured"),
        pytest.param("gw.bank-b:9370", "fd00::2", "fd00::2", id="its other address"),
        pytest.param("gw.bank-b:9370", "GW.bank-b", "GW.bank-b", id="that name itself"),
        pytest.param("10.20.0.2:9370", "gw.bank-b", "10.20.0.2", id="a name of the address, by that address"),
        pytest.param("10.20.0.2:9370", "rebinding", "10.20.0.2", id="a name with other addresses too, by ours alone"),
        pytest.param("10.20.0.2:9370", "0.0.0.0", "10.20.0.2", id="listens everywhere"),
        pytest.param("gw.bank-b:9370", "::", "gw.bank-b", id="listens everywhere, by IPv6"),
        pytest.param("127.0.0.1:9370", "127.0.0.1", "127.0.0.1", id="on one host"),
    ],
)
def test_the_host_that_the_control_channel_leads_to_is_dialled(address: str, presented: str, dialled: str) -> None:
    offer: EndpointAddress = {"host": presented, "port": 5, "token": "ab"}
    assert hosts(address).admitted(offer) == {"host": dialled, "port": 5, "token": "ab"}


@pytest.mark.parametrize(
    "presented",
    [
        "10.99.0.1",
        "127.0.0.1",
        "localhost",
        "::1",
        "elsewhere",
        "169.254.169.254",
        "2130706433",
        "no such name",
        "x" * 10_000,
        "",
        7,
    ],
)
def test_any_other_host_is_refused_by_a_typed_error_that_names_both(presented: str | int) -> None:
    with pytest.raises(TransportError) as caught:
        hosts("10.20.0.2:9370").admitted({"host": presented, "port": 5})
    assert caught.value.code is ErrorCode.DATA_HOST_REFUSED
    assert "bank-b wants its data path to lead to" in caught.value.message
    assert "none of its hosts: 10.20.0.2" in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("presented", ["10.1.0.2", "0.0.0.0", "elsewhere", "127.0.0.1"])
def test_what_is_on_the_port_of_the_control_channel_is_dialled_where_that_leads_to(
    presented: str, names: list[str]
) -> None:
    """Also where addresses and ports are translated on the way, and whatever the peer says."""
    offer: EndpointAddress = {"host": presented, "port": 9370, "control": 1, "token": "ab"}
    dialled = hosts("gw.bank-b:443", remote="10.20.0.2").admitted(offer)
    assert dialled == {"host": "10.20.0.2", "port": 443, "control": 1, "token": "ab"}
    assert names == []


def test_where_we_have_not_dialled_a_peer_its_port_does_not_say_where_it_is() -> None:
    with pytest.raises(TransportError) as caught:
        hosts(None, "10.20.0.2").admitted({"host": "10.99.0.1", "port": 9370, "control": 1})
    assert caught.value.code is ErrorCode.DATA_HOST_REFUSED


def test_a_listed_host_is_dialled_too_by_name_or_address() -> None:
    listed = hosts("10.20.0.2:9370", "data.bank-b", "10.40.0.2")
    for presented in ("data.bank-b", "10.30.0.2", "10.40.0.2", "10.20.0.2"):
        assert listed.admitted({"host": presented})["host"] == presented
    with pytest.raises(TransportError):
        listed.admitted({"host": "10.99.0.1"})


def test_where_the_address_of_the_control_channel_is_known_it_is_one_of_the_peers() -> None:
    behind_a_name = hosts("elsewhere:9370", remote="10.50.0.2")
    assert behind_a_name.admitted({"host": "10.50.0.2"})["host"] == "10.50.0.2"
    assert behind_a_name.admitted({"host": "0.0.0.0"})["host"] == "10.50.0.2"


def test_a_peer_that_only_it_can_reach_us_has_no_host_to_dial_unless_one_is_listed() -> None:
    for presented in ("10.20.0.2", "0.0.0.0"):
        with pytest.raises(TransportError, match="none of its hosts: none"):
            hosts(None).admitted({"host": presented})
    assert hosts(None, "10.20.0.2").admitted({"host": "10.20.0.2"})["host"] == "10.20.0.2"


def test_an_absurdly_long_name_is_not_looked_up(names: list[str]) -> None:
    with pytest.raises(TransportError):
        hosts("gw.bank-b:9370").admitted({"host": "x" * 254})
    assert names == []


def test_what_names_no_host_is_left_as_it_is() -> None:
    assert hosts("10.20.0.2:9370").admitted({"streams": 2}) == {"streams": 2}


def test_a_gid_is_held_against_the_hosts_only_where_some_are_listed() -> None:
    offer: EndpointAddress = {"gid": "::ffff:10.30.0.2", "psn": 1}
    assert hosts("10.20.0.2:9370").admitted(offer) == offer, "RDMA has networks of its own"
    assert hosts("10.20.0.2:9370", "data.bank-b").admitted(offer) == offer
    with pytest.raises(TransportError) as caught:
        hosts("10.20.0.2:9370", "10.40.0.2").admitted(offer)
    assert caught.value.code is ErrorCode.DATA_HOST_REFUSED


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_nobody_is_dialled_at_a_host_that_is_refused(kind: str) -> None:
    transport: Transport = TcpTransport(TcpSettings()) if kind == "tcp" else GrpcTransport(GrpcSettings())
    victim = socket.create_server(("127.0.0.2", 0))
    victim.settimeout(0.3)
    try:
        draft = GuardedDraft(transport.open("active"), hosts("127.0.0.1:9370"))
        offer: EndpointAddress = {
            "host": "127.0.0.2",
            "port": victim.getsockname()[1],
            "token": "ab" * 16,
            "streams": 1,
        }
        with pytest.raises(TransportError) as caught:
            draft.connect(offer, 1.0)
        assert caught.value.code is ErrorCode.DATA_HOST_REFUSED
        with pytest.raises(TimeoutError):
            victim.accept()
    finally:
        victim.close()
        transport.close()
