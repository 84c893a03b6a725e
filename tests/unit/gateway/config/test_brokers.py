"""What may be configured of a peer that has an OSX broker."""

from __future__ import annotations

from typing import Any

import pytest

from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

SITE = {"site": "a", "parties": ["1"], "security": "off"}
LISTEN = {"brokers": "127.0.0.1:9371"}
PEER = {"site": "b", "kind": "osx", "parties": ["2"], "address": "10.0.0.2:9370"}
TLS = {"certificate": "a.pem", "key": "a.key", "authorities": ["ca.pem"]}


def test_brokers_and_gateways_are_told_apart() -> None:
    peers = [PEER, {"site": "c", "parties": ["3"], "address": "10.0.0.3:9370"}]
    config = parse_config({**SITE, "listen": LISTEN, "peers": peers})
    assert [peer.site for peer in config.brokers] == ["b"]
    assert [peer.site for peer in config.gateways] == ["c"]
    assert not config.brokers_use_tls


@pytest.mark.parametrize(("tls", "used"), [(None, True), (True, True), (False, False)])
def test_with_certificates_brokers_use_them_unless_it_is_said_that_they_do_not(tls: bool | None, used: bool) -> None:
    given = {**SITE, "security": "mtls", "tls": TLS, "listen": LISTEN, "peers": [{**PEER, "tls": tls}]}
    assert parse_config(given).brokers_use_tls is used


@pytest.mark.parametrize(
    ("key", "listen", "peers"),
    [
        ("listen.brokers", {}, [PEER]),
        ("listen.brokers", {"brokers": "9371"}, [PEER]),
        ("peers.address", LISTEN, [{**PEER, "address": None}]),
        ("peers.mode", LISTEN, [{**PEER, "mode": "fedrdma-x"}]),
        ("peers.transport", LISTEN, [{**PEER, "transport": "tcp"}]),
        ("peers.data_hosts", LISTEN, [{**PEER, "data_hosts": ["x.example"]}]),
        ("peers.rate", LISTEN, [{**PEER, "rate": 1e9}]),
        ("peers.tls", LISTEN, [{**PEER, "tls": True}]),
        ("peers.tls", LISTEN, [{**PEER, "kind": "gateway", "tls": False}]),
        ("peers.tls", LISTEN, [{**PEER, "tls": True}, {**PEER, "site": "c", "parties": ["3"], "tls": False}]),
    ],
)
def test_what_would_not_do_is_refused_with_its_key(key: str, listen: Any, peers: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({**SITE, "listen": listen, "peers": peers})
    assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert key in refused.value.message


def test_without_certificates_brokers_reach_loopback_alone_unless_it_is_said() -> None:
    given = {**SITE, "listen": {"brokers": "0.0.0.0:9371"}, "peers": [PEER]}
    with pytest.raises(ConfigError) as refused:
        parse_config(given)
    assert refused.value.code is ErrorCode.INSECURE_REFUSED
    assert parse_config({**given, "security_off_beyond_loopback": True}).listen.brokers == "0.0.0.0:9371"
