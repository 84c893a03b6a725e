"""The program of the row `broker` of `fedrdma bench notices`: it passes notices on.

Arguments: descriptors of the socket that they come from, and of the one that they go to; the process it ends with.
"""

from __future__ import annotations

import socket
import sys

from fedrdma_fate.aggregate.notices import NOTICE_BYTES
from fedrdma_fate.bench.processes import end_with_parent
from fedrdma_fate.unix_sockets import receive_with_descriptors


def main(arguments: list[str]) -> None:
    source, target = (socket.socket(fileno=int(each)) for each in arguments[:2])
    end_with_parent(int(arguments[2]))
    while True:
        try:
            target.sendall(receive_with_descriptors(source, NOTICE_BYTES, 0)[0])
        except (EOFError, OSError):
            return


if __name__ == "__main__":
    main(sys.argv[1:])
