"""One silo of the job on each of the testbed's three hosts: guest on host 0, host on 1, arbiter on 2.

    scripts/testbed run --hosts 3 --memory 3GiB --out runs/verbs -- \\
        .venv/bin/python examples/gpt2_advertisegen/on_testbed.py --preset tiny --transport verbs

Takes the options of run_silo.py but those that the testbed answers: --silo, --at and --output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROLES = ("guest", "host", "arbiter")
CONTROL_PORT = 9370


def silo_arguments(environment: Mapping[str, str], options: Sequence[str]) -> list[str]:
    """Arguments of run_silo.py for the host that the testbed's variables describe.

    Raises:
        ValueError: this is no host of a testbed with three.
    """
    addresses = environment.get("TESTBED_HOSTS", "").split(",")
    if len(addresses) != len(ROLES):
        raise ValueError("this program runs on a testbed of three hosts: scripts/testbed run --hosts 3 -- PROGRAM")
    role = ROLES[int(environment["TESTBED_HOST"])]
    at = [f"--at={other}={address}:{CONTROL_PORT}" for other, address in zip(ROLES, addresses, strict=True)]
    # nobody else reaches the testbed's network
    return [f"--silo={role}", *at, "--insecure", f"--output={environment['TESTBED_OUT']}/{role}", *options]


if __name__ == "__main__":
    # imports are from the repository, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

    from examples.gpt2_advertisegen.silo_command import main

    try:
        main(silo_arguments(os.environ, sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))
