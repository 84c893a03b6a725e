"""Builds the federation from what FATE's configuration says. Imported when a backend is wanted, not before."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fedrdma_fate.fate.compatibility import require_supported_fate
from fedrdma_fate.fate.gateway_client import PartyTuple, SoloConnector, to_party
from fedrdma_fate.fate.settings import parse_settings
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

logger = logging.getLogger(__name__)


def build_federation(
    session: str, computing: Any, party: PartyTuple, parties: Sequence[PartyTuple], values: Mapping[str, Any]
) -> Any:
    """A federation for one party.

    Args:
        session: federation session id.
        computing: FATE's computing session.
        party: the local party.
        parties: everybody.
        values: this backend's part of the configuration.

    Raises:
        ConfigError: an unknown key, a wrong value, or no gateway for this party.
        FateError: FATE_VERSION.
        GatewayError: GATEWAY_UNREACHABLE or WRONG_PARTY.
    """
    require_supported_fate()
    from fedrdma_fate.fate.federation import FedRDMAFederation

    settings = parse_settings(values)
    alone = all(other == party for other in parties)
    address = "" if alone else settings.address_for(to_party(party))
    return FedRDMAFederation(session, computing, party, parties, address, settings.options)


def build_federation_to_destroy(
    session: str, computing: Any, party: PartyTuple, parties: Sequence[PartyTuple], values: Mapping[str, Any]
) -> Any:
    """The same for a clean-up, which has something to destroy besides: also where the session has ended already.

    Raises:
        ConfigError: see `build_federation`.
        FateError: see there.
        GatewayError: GATEWAY_UNREACHABLE or WRONG_PARTY.
    """
    try:
        return build_federation(session, computing, party, parties, values)
    except GatewayError as error:
        if error.code is not ErrorCode.SESSION_ENDED:
            raise
        logger.info("nothing is left to clean up at the gateway: %s", error.message)
    from fedrdma_fate.fate.federation import FedRDMAFederation

    return FedRDMAFederation(session, computing, party, parties, connector=SoloConnector(session, to_party(party)))
