"""`security: off`: no credentials, no encryption. Addresses that other hosts can reach are warned of, not refused."""

from __future__ import annotations

import ipaddress
import logging

logger = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Whether an address of this name can be reached from this host only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def warn_if_reachable(hosts: dict[str, str]) -> list[str]:
    """Warn of every address that others can reach without any check of who they are; which keys those are.

    Args:
        hosts: configuration key to host.
    """
    open_to_others = [key for key, host in hosts.items() if not is_loopback(host)]
    for key in open_to_others:
        logger.warning(
            "security is off and %s is %s: anybody who reaches it can read and write model weights", key, hosts[key]
        )
    return open_to_others
