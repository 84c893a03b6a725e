"""What the kernel says when there is no descriptor left for a connection, and how long to leave it alone then."""

from __future__ import annotations

import errno

RETRY_SECONDS = 1.0
"""Until the next accept: the socket stays ready, so whoever asked at once would ask without end. Connections wait in
the kernel meanwhile."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""accept(2): nothing is wrong with the connection."""


def is_exhausted(error: OSError) -> bool:
    """Whether it says that there are no descriptors, or no memory, for another connection."""
    return error.errno in _EXHAUSTED
