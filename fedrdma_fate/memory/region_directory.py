"""The memory regions of one gateway, and its directory where other gateways of the host find it."""

from __future__ import annotations

import os
from pathlib import Path

from fedrdma_fate.memory.owned_directory import OwnedDirectory
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion, region_unusable
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

SEND_REGION, RECEIVE_REGION = "send", "receive"
"""Names of a gateway's two regions."""


class RegionDirectory:
    """Makes the regions of one gateway and gives them all back at the end.

    The memory goes with the last process that has it; of the directory, what a crashed gateway left is removed when the
    next one opens.
    """

    def __init__(self, directory: OwnedDirectory) -> None:
        """Use `open`."""
        self._directory = directory
        self._regions: list[SharedRegion] = []

    @classmethod
    def open(cls, parent: Path, site: str) -> RegionDirectory:
        """Make `<parent>/fedrdma-<site>-<random>`.

        Args:
            parent: `memory.directory` of the configuration.
            site: name of the gateway's site.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when that is not possible.
        """
        try:
            return cls(OwnedDirectory.create(parent, site))
        except OSError as error:
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"cannot make a directory in {parent}: {error.strerror}.",
                "Point memory.directory at one that exists and that the gateway's user may write, like /dev/shm.",
            ) from error

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    def create_region(self, name: str, length: int, *, warm: bool = True) -> SharedRegion:
        """A region of `length` bytes, rounded up to whole pages.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when there is no room for it.
        """
        pages = -(-length // PAGE_BYTES)
        region = SharedRegion.create(name, pages * PAGE_BYTES, warm=warm)
        self._regions.append(region)
        return region

    def adopt_region(self, name: str, fileno: int, length: int, inode: int, *, warm: bool) -> SharedRegion:
        """A region that an earlier run has made, and that a keeper has held.

        Args:
            name: of the region.
            fileno: its descriptor, which is taken over, whatever comes of it.
            length: bytes that it is to have.
            inode: of its file, as that run has written down.
            warm: whether it is to have all its pages.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when it is another one, has another length, or could be cut short.
        """
        if (found := os.fstat(fileno).st_ino) != inode:
            os.close(fileno)
            error = ValueError(f"its keeper hands over the file {found}, not {inode}")
            raise region_unusable(f"the {name} region of an earlier run", error)
        region = SharedRegion.attach(fileno, -(-length // PAGE_BYTES) * PAGE_BYTES, name, warm=warm)
        self._regions.append(region)
        return region

    def close(self) -> None:
        """Give the regions back and remove the directory. May be repeated."""
        for region in self._regions:
            region.close()
        self._regions.clear()
        self._directory.close()
