"""Whose call it is where it may be one of several sites', as those of OSX brokers without certificates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.flow import rules
from fedrdma_fate.gateway.flow.call import SchedulingCall
from fedrdma_fate.gateway.flow.rules import CallRules
from fedrdma_fate.gateway.routing import Routes
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.flow import body_for

PEERS = [
    {"site": site, "parties": [party], "kind": "osx", "address": "127.0.0.1:1"}
    for site, party in (("b", "10000"), ("c", "10001"), ("d", "10002"))
]


@pytest.fixture
def of_calls() -> CallRules:
    document = {
        "site": "a",
        "parties": ["9999"],
        "security": "off",
        "listen": {"osx": "127.0.0.1:0", "brokers": "127.0.0.1:0"},
        "peers": PEERS,
    }
    return CallRules(Routes(parse_config(document)))


def call_of(party: str) -> SchedulingCall:
    headers = (("dest-party-id", "9999"), ("src-party-id", party))
    return SchedulingCall("/v2/partner/job/create", headers, json.dumps(body_for("guest", "9999")).encode())


@pytest.mark.parametrize(("party", "site"), [("10000", "b"), ("10001", "c"), ("10002", "d")])
def test_the_site_that_asks_is_the_one_of_its_parties_and_its_body_is_read_once(
    of_calls: CallRules, monkeypatch: pytest.MonkeyPatch, party: str, site: str
) -> None:
    read, document_of = list[bytes](), rules.document_of

    def noting(body: bytes) -> dict[str, Any]:
        read.append(body)
        return document_of(body)

    monkeypatch.setattr(rules, "document_of", noting)
    assert of_calls.check_one_of(call_of(party), ("b", "c", "d")) == (site, "a")
    assert len(read) == 1


def test_a_call_in_the_name_of_a_party_of_none_of_them_is_refused(of_calls: CallRules) -> None:
    with pytest.raises(GatewayError) as caught:
        of_calls.check_one_of(call_of("9999"), ("b", "c", "d"))
    assert caught.value.code is ErrorCode.WRONG_PARTY
