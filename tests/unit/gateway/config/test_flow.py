"""What may be configured for FATE Flow's scheduling calls."""

from __future__ import annotations

from typing import Any

import pytest

from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

SITE = {"site": "a", "parties": ["1"], "security": "off"}
SERVER = {"server": "127.0.0.1:9380"}


@pytest.mark.parametrize("front", ["127.0.0.1:9390", "localhost:9390", "[::1]:9390"])
def test_a_front_on_loopback_is_taken(front: str) -> None:
    listen = {"flow": front, "osx": "127.0.0.1:9391"}
    config = parse_config({**SITE, "listen": listen, "flow": {**SERVER, "headers": ["X-Site-Token"]}})
    assert (config.listen.flow, config.flow.server) == (front, SERVER["server"])


@pytest.mark.parametrize(
    ("front", "flow"),
    [
        ("0.0.0.0:9390", SERVER),
        ("10.0.0.1:9390", SERVER),
        ("127.0.0.1", SERVER),
        ("127.0.0.1:9390", {"server": "9380"}),
        ("127.0.0.1:9390", {**SERVER, "headers": ["Host"]}),
        ("127.0.0.1:9390", {**SERVER, "headers": ["Content-Length"]}),
        ("127.0.0.1:9390", {**SERVER, "headers": ["a b"]}),
        ("127.0.0.1:9390", {**SERVER, "headers": [""]}),
        ("127.0.0.1:9390", {**SERVER, "headers": ["dest_party_id"]}),
    ],
)
def test_what_would_not_do_is_refused_with_its_key(front: str, flow: dict[str, Any]) -> None:
    for key in ("flow", "osx"):
        with pytest.raises(ConfigError) as refused:
            parse_config({**SITE, "listen": {key: front}, "flow": flow})
        assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE
        assert f"listen.{key}" in refused.value.message or "flow." in refused.value.message


def test_a_proxy_for_scheduling_alone_needs_a_server_and_queues_need_none() -> None:
    assert parse_config({**SITE, "listen": {"osx": "127.0.0.1:9390"}}).flow.server is None
    with pytest.raises(ConfigError, match=r"listen\.flow.*`flow\.server` is missing"):
        parse_config({**SITE, "listen": {"flow": "127.0.0.1:9390", "osx": "127.0.0.1:9391"}})
