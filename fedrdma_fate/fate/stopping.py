"""Ends the session of a task that FATE Flow has stopped, or seen to its end, at all sites."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.client.sessions import drop_session
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import Party

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0
"""To wait for a gateway that is not there. Who stops a job waits for it, and a clean-up comes later in any case."""


def end_session_of(parameters: Mapping[str, Any]) -> None:
    """End the session of a task whose processes are gone. Never raises: FATE Flow goes on with what it was doing.

    What is on its way is given up at all sites. Where FATE Flow's user is not the gateway's it may end no session: then
    the task's party leaves it.

    Args:
        parameters: of the task, as FATE Flow keeps them.
    """
    try:
        federation = parameters["conf"]["federation"]
        if federation["type"] != "fedrdma":
            return
        metadata = federation["metadata"]
        address, local = metadata["fedrdma_config"]["gateway"], metadata["parties"]["local"]
        # uploads and transformations have no gateway
        if address:
            _end(address, metadata["federation_id"], Party(local["role"], local["partyid"]))
    except FedRDMAError as error:
        logger.warning("the session of a stopped task did not end at once: %s", error)
    except Exception as error:  # a task of another version of FATE Flow
        logger.warning("the session of a stopped task is not known: %r", error)


def _end(address: str, session: str, party: Party) -> None:
    try:
        drop_session(address, session)
    except GatewayError as error:
        if error.code is ErrorCode.SESSION_ENDED:
            return
        if error.code is not ErrorCode.USER_REFUSED:
            raise
        with contextlib.closing(GatewayClient(address, session, party, connect_timeout=LEAVE_SECONDS)) as client:
            client.leave()
