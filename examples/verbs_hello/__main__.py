"""`python -m examples.verbs_hello`: greets another host by RDMA WRITE. See README.md."""

from __future__ import annotations

import argparse
import os
import sys

from examples.verbs_hello.hello import Waiter, meet, read, write
from fedrdma_fate.transport.verbs.interface import VerbsError
from fedrdma_fate.wire.errors import FedRDMAError


def main() -> None:
    """Read the arguments; without any, take both from the testbed's environment."""
    parser = argparse.ArgumentParser(prog="python -m examples.verbs_hello", description="Greet a host by RDMA WRITE.")
    in_testbed = "TESTBED_HOST" in os.environ
    parser.add_argument("role", nargs="?", choices=("read", "write"), help="`read` waits, `write` dials and greets")
    parser.add_argument("address", nargs="?", help="IPv4 address of the host that reads")
    parser.add_argument("--port", type=int, default=7475, help="TCP port where the two meet (default 7475)")
    arguments = parser.parse_args()
    if in_testbed and arguments.role is None:
        arguments.role = ("write", "read")[int(os.environ["TESTBED_HOST"])]
        arguments.address = os.environ["TESTBED_HOSTS"].split(",")[1]
    if arguments.role is None or arguments.address is None:
        parser.error("outside of the testbed, ROLE and ADDRESS are needed")
    try:
        with meet(arguments.role, arguments.address, arguments.port) as control, Waiter() as waiter:
            print((read if arguments.role == "read" else write)(control, waiter))
    except (FedRDMAError, VerbsError, OSError) as error:
        sys.exit(f"verbs_hello: {error}")


if __name__ == "__main__":
    main()
