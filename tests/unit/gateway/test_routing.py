"""Which site serves a party."""

from __future__ import annotations

import pytest

from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party


@pytest.fixture
def routes() -> Routes:
    peers = [{"site": "b", "parties": ["2", "host:1"]}]
    return Routes(parse_config({"site": "a", "parties": ["1"], "security": "off", "peers": peers}))


def test_a_role_goes_before_a_whole_party(routes: Routes) -> None:
    assert routes.site_of(Party("host", "1")) == "b"
    assert routes.site_of(Party("guest", "1")) == "a"
    assert routes.is_local(Party("guest", "1"))
    assert not routes.is_local(Party("host", "1"))


def test_a_party_that_no_site_serves_is_refused_with_those_that_are_known(routes: Routes) -> None:
    assert routes.find(Party("guest", "7")) is None
    with pytest.raises(GatewayError) as caught:
        routes.site_of(Party("guest", "7"))
    assert caught.value.code is ErrorCode.WRONG_PARTY
    assert "known: 1, 2, host:1" in caught.value.remedy
