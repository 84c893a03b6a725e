"""Asks the own gateway for its sessions, and has it end one."""

from __future__ import annotations

import msgspec

from fedrdma_fate.client.address import socket_path
from fedrdma_fate.client.protocol import AskSessions, DropSession, Error, SessionsReport
from fedrdma_fate.client.rpc import call_once, expect
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

_ANSWER_SECONDS = 10.0
"""As for the status: the gateway's event loop does nothing that takes long."""


def ask_sessions(address: str) -> dict[str, object]:
    """The sessions at the gateway at `unix:///path`; see `gateway.tasks.session_list`.

    Raises:
        GatewayError: GATEWAY_UNREACHABLE; CLIENT_PROTOCOL when it is of a version that lists none.
    """
    return _report(address, AskSessions())


def drop_session(address: str, session: str) -> dict[str, object]:
    """End a session at all sites: what was dropped at this one, and which others were told.

    Raises:
        GatewayError: SESSION_ENDED where there is none of that id; USER_REFUSED; GATEWAY_UNREACHABLE; CLIENT_PROTOCOL.
    """
    return _report(address, DropSession(session))


def _report(address: str, request: AskSessions | DropSession) -> dict[str, object]:
    reply = call_once(socket_path(address), request, _ANSWER_SECONDS)
    if isinstance(reply, Error) and reply.code == ErrorCode.MALFORMED_FRAME:
        raise GatewayError(
            ErrorCode.CLIENT_PROTOCOL,
            f"the gateway at {address} lists no sessions: {reply.message.rstrip('.')}.",
            "Restart it, so that it is of the installed version.",
        )
    return msgspec.json.decode(expect(reply, SessionsReport).document, type=dict[str, object])
