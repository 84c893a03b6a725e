"""Brokers that run already, are somebody else's, and are named on the command line."""

from __future__ import annotations

import dataclasses
import re
import socket

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

PULSAR_HTTP_PORT = 8080
"""Of Pulsar's own configuration (`webServicePort`): where tenants and namespaces are made."""
BROKER_ANSWERS_SECONDS = 5.0
"""A broker that takes no connection by then is not there; on this machine it takes one at once."""
_HIGHEST_PORT = 65535
"""Ports have 16 bits."""
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+):([0-9]{1,5})(?::([0-9]{1,5}))?")
"""HOST:PORT, or HOST:PORT:PORT."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunningBroker:
    """Where it listens.

    Attributes:
        host: its name or address.
        port: for messages.
        http_port: for what Pulsar is asked over HTTP.
    """

    host: str
    port: int
    http_port: int = PULSAR_HTTP_PORT

    def __str__(self) -> str:
        return f"{self.host}:{self.port}:{self.http_port}"

    def find_problem(self) -> str | None:
        """Why nothing can be sent to it; None when it takes a connection."""
        try:
            socket.create_connection((self.host, self.port), BROKER_ANSWERS_SECONDS).close()
        except OSError as error:
            return f"no broker at {self.host}:{self.port}: {error.strerror or type(error).__name__}"
        return None


def parse_running(option: str, text: str) -> RunningBroker:
    """HOST:PORT, or HOST:PORT:HTTP-PORT.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: it is something else; names the option.
    """
    found = _ADDRESS.fullmatch(text)
    ports = [] if found is None else [int(port) for port in found.groups()[1:] if port is not None]
    if found is None or not all(1 <= port <= _HIGHEST_PORT for port in ports):
        problem = f"{option}: {text!r} is not HOST:PORT, or HOST:PORT:PORT with the one for HTTP."
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, problem)
    return RunningBroker(found.group(1), *ports)
