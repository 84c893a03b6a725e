"""Which hosts the data paths to a peer may lead to: a peer must not choose where this gateway dials.

A peer says in its `connect` where its data port is. Believed as it comes, that would let it have this gateway dial any
address that it can reach: another service of the site, or a third party. So a data path leads to the host that the
control channel leads to, or to one that is listed; where it says that both have one port, to where the channel leads.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable

from fedrdma_fate.gateway.config.schema import PeerConfig, split_address
from fedrdma_fate.ports import Draft, Endpoint, EndpointAddress
from fedrdma_fate.wire.errors import ErrorCode, TransportError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MOST_HOST_LENGTH = 253
"""Of a name in the DNS (RFC 1035, section 2.3.4, as it is written): longer ones are not looked up."""


class DataHosts:
    """The hosts of one peer. May look names up, so it is asked on a link's thread, where connecting may block."""

    def __init__(self, peer: PeerConfig, remote_host: Callable[[], str | None] = lambda: None) -> None:
        """
        Args:
            peer: its part of the configuration.
            remote_host: the address that the control channel leads to, where that is known.
        """
        self._site = peer.site
        self._listed = peer.data_hosts
        self._dialled: str | None = None
        self._port = 0
        if peer.address is not None:
            self._dialled, self._port = split_address("peers.address", peer.address)
        self._remote_host = remote_host

    def admitted(self, offer: EndpointAddress) -> EndpointAddress:
        """The peer's half of a data path, whose host is one of the peer's, and written so that it stays that one.

        Raises:
            TransportError: DATA_HOST_REFUSED when it names another.
        """
        if "gid" in offer and self._listed:
            self._check_gid(offer["gid"])
        if "host" not in offer:
            return offer
        if "control" in offer and self._port and (host := self._remote_host()) is not None:
            # whatever addresses are translated on the way there, this one leads to it
            return {**offer, "host": host, "port": self._port}
        return {**offer, "host": self._host(offer["host"])}

    def _host(self, presented: str | int) -> str:
        text = str(presented)
        if not isinstance(presented, str) or not 0 < len(text) <= MOST_HOST_LENGTH:
            raise self._refused(text[:MOST_HOST_LENGTH])
        known = self._known()
        if text.lower() in known:
            return text
        addresses = _addresses_of(text)
        if any(address.is_unspecified for address in addresses) and known:
            # it listens everywhere, so also where the control channel leads to
            return known[0]
        # nothing is dialled by a name that the peer chose: the next answer of the DNS might be another
        ours = {address for host in known for address in _addresses_of(host)}
        for address in addresses:
            if address in ours:
                return str(address)
        raise self._refused(text)

    def _check_gid(self, gid: str | int) -> None:
        """RDMA has networks of its own, so a GID is held against the listed hosts, where there are some."""
        ours = {address for host in self._known() for address in _addresses_of(host)}
        if not set(_addresses_of(str(gid)[:MOST_HOST_LENGTH])) & ours:
            raise self._refused(str(gid)[:MOST_HOST_LENGTH])

    def _known(self) -> list[str]:
        """Names and addresses of the peer's hosts: where the control channel leads to first."""
        hosts = (self._remote_host(), self._dialled, *self._listed)
        return [host.lower() for host in hosts if host]

    def _refused(self, host: str) -> TransportError:
        known = ", ".join(dict.fromkeys(self._known())) or "none"
        return TransportError(
            ErrorCode.DATA_HOST_REFUSED,
            f"{self._site} wants its data path to lead to {host!r}, which is none of its hosts: {known}.",
            "If it is the peer's, add it to `peers[].data_hosts`.",
        )


class GuardedDraft:
    """A draft that is connected to hosts of the peer alone. See `ports.Draft`."""

    def __init__(self, inner: Draft, hosts: DataHosts) -> None:
        self._inner = inner
        self._hosts = hosts

    @property
    def address(self) -> EndpointAddress:
        return self._inner.address

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Meet the other half, where it may be.

        Raises:
            TransportError: DATA_HOST_REFUSED; and as the draft inside does.
        """
        return self._inner.connect(self._hosts.admitted(peer), timeout)

    def abandon(self) -> None:
        """See `ports.Draft`."""
        self._inner.abandon()

    def close(self) -> None:
        """Drop it."""
        self._inner.close()


def _addresses_of(host: str) -> list[Address]:
    """What a name or an address stands for, in order; nothing where that cannot be known."""
    try:
        found: Iterable[str] = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        return [_plain(ipaddress.ip_address(text)) for text in found]
    except (OSError, UnicodeError, ValueError):
        return []


def _plain(address: Address) -> Address:
    """An IPv4 address that is written as one of IPv6 (`::ffff:10.0.0.1`), as IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
