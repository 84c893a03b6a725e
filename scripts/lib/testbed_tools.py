"""The programs that the testbed's guests need, from Debian's iproute2 where the machine lacks them."""

from __future__ import annotations

import os
import shutil
import subprocess

from scripts.lib.debian import APT_OPTIONS, PackageUnavailableError

TOOLS = ("ip", "tc", "rdma", "bridge")
PACKAGE = "iproute2"
_INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", PACKAGE)
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where administrators' programs lie; an ordinary user's PATH leaves it out, the guests' does not."""


def are_there() -> bool:
    """Whether the machine has them all."""
    path = f"{os.environ.get('PATH', '')}:{_ADMIN_PATH}"
    return all(shutil.which(tool, path=path) for tool in TOOLS)


def provide() -> str:
    """Install them, as root; a few words on where they came from.

    Raises:
        PackageUnavailableError: not root, no Debian, or it cannot be had.
    """
    if shutil.which("apt-get") is None:
        raise PackageUnavailableError("this is no Debian")
    if os.geteuid() != 0:
        raise PackageUnavailableError("only root installs it")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", *APT_OPTIONS, "update"], _INSTALL):
        done = subprocess.run(command, check=False, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise PackageUnavailableError(f"{' '.join(command[:1])} {command[-1]} failed")
    return "Debian's, installed"


def remedy() -> str:
    """The command that an administrator runs."""
    return f"apt-get update && {' '.join(_INSTALL)}"
