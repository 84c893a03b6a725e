"""What FATE's configuration says about this backend, the same for every way in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fedrdma_fate.client.address import socket_path
from fedrdma_fate.client.protocol import StragglerWait
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import LossShare, Mode, Party

ENGINE_NAME = "fedrdma"
"""How FATE's configuration names this backend."""

_Seconds = Annotated[float, msgspec.Meta(gt=0)]

# an exact pair: what is behind a dot in the name would be an attribute of whatever the name stands for
_ExactName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z")]


class FederationOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a task uses its gateway.

    Attributes:
        mode: transfer mode for this job; None leaves it to the gateway.
        connect_timeout: seconds to wait for a gateway that is not there yet.
        put_timeout: seconds that a put waits for room in the gateway's send pool; None leaves it to the gateway.
        get_timeout: seconds that a get waits for a message; None waits for ever.
        journal: file for a record of every put and get, or None.
        allowed_names: further names that received objects and tables may use, each as `module:name`, exact, without
            dots in the name; see FR705. A peer may call them with whatever it likes.
        tasks_access: file, the same path on all hosts, by which tasks on other hosts than the gateway's get to it; see
            spark. None: they do not.
        sums: whether masked updates are summed by the gateway before FATE gets them; see aggregation.
        loss_tolerance: share of the updates of FATE's aggregation that may be missing on the way, 0 to 0.2, in mode
            `fedrdma-x`; the jobs of both sites must say so, and the smaller counts; see bounded-loss.
        straggler_wait: how much longer than the others the last silo's update is waited for, once what is missing of it
            is no more than `loss_tolerance`, as a share of the median time that the others' took to come, 0 to 100;
            None: until it was sent. It is the arbiter's job that says so; see bounded-loss.
    """

    mode: Mode | None = None
    connect_timeout: _Seconds = 30.0
    put_timeout: _Seconds | None = None
    get_timeout: _Seconds | None = None
    journal: str | None = None
    allowed_names: tuple[_ExactName, ...] = ()
    tasks_access: str | None = None
    sums: bool = True
    loss_tolerance: LossShare = 0.0
    straggler_wait: StragglerWait | None = None

    @property
    def journal_path(self) -> Path | None:
        return Path(self.journal) if self.journal else None


class BackendSettings(FederationOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options, and where the gateway is.

    Attributes:
        gateway: `unix:///path` of the gateway's socket.
        gateways: where several silos share a host: the socket per party, by `host:10000` or, for every role, `10000`.
    """

    gateway: str | None = None
    gateways: dict[str, str] = {}

    def address_for(self, party: Party) -> str:
        """The socket of a party's gateway: the entry for its role, for its id, or the common one.

        Raises:
            ConfigError: CONFIG_BAD_VALUE when there is none, or it is no address.
        """
        address = self.gateways.get(str(party)) or self.gateways.get(party.party_id) or self.gateway
        if address is None:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"no gateway is configured for {party}.",
                "Set federation.fedrdma.gateway, or an entry for the party in federation.fedrdma.gateways.",
            )
        socket_path(address)
        return address

    @property
    def options(self) -> FederationOptions:
        """The options alone."""
        fields = FederationOptions.__struct_fields__
        return FederationOptions(**{field: getattr(self, field) for field in fields})


def parse_settings(values: Mapping[str, Any]) -> BackendSettings:
    """Check what a configuration holds.

    Raises:
        ConfigError: CONFIG_UNKNOWN_KEY or CONFIG_BAD_VALUE; names the key.
    """
    try:
        return msgspec.convert(dict(values), BackendSettings)
    except msgspec.ValidationError as error:
        unknown = re.match(r"Object contains unknown field `(.*)`", str(error))
        code = ErrorCode.CONFIG_UNKNOWN_KEY if unknown else ErrorCode.CONFIG_BAD_VALUE
        raise ConfigError(
            code,
            f"federation.{ENGINE_NAME}: {error}.",
            f"Known keys: {', '.join(BackendSettings.__struct_fields__)}.",
        ) from error
