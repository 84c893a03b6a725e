"""What may be configured of the site that adds this one's sums."""

from __future__ import annotations

from typing import Any

import pytest

from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import MOST_FAN_IN

SITE = {"site": "a", "parties": ["1"], "security": "off", "listen": {"brokers": "127.0.0.1:9371"}}
PEERS = [
    {"site": "b", "parties": ["2"], "address": "10.0.0.2:9370"},
    {"site": "c", "kind": "osx", "parties": ["3"], "address": "10.0.0.3:9370"},
]


def test_a_parent_is_a_peer_and_nobody_is_one_unless_it_is_said() -> None:
    assert parse_config({**SITE, "peers": PEERS}).aggregate.parent is None
    config = parse_config({**SITE, "peers": PEERS, "aggregate": {"parent": "b", "fan_in": 0}})
    assert (config.aggregate.parent, config.aggregate.fan_in) == ("b", 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("parent", "a"),
        ("parent", "c"),
        ("parent", "nobody"),
        ("parent", ""),
        ("parent", 7),
        ("fan_in", -1),
        ("fan_in", MOST_FAN_IN + 1),
        ("fan_in", "auto"),
    ],
)
def test_a_parent_that_is_no_peer_with_a_gateway_and_sums_that_cannot_be_counted_are_refused(
    key: str, value: Any
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({**SITE, "peers": PEERS, "aggregate": {key: value}})
    assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert f"aggregate.{key}" in refused.value.message
