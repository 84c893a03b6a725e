"""One party of one of FATE's own test scripts, over FATE's standalone federation or over ours.

`python -m tests.support.fate_own_party SCRIPT [ROLE]`, with `FATE_OWN_PARTY` in the environment: what is told by
`Surroundings`, as JSON. The script itself stays as it is: what it imports as FATE's standalone federation is replaced
before it starts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import runpy
import sys
from typing import Any

VARIABLE = "FATE_OWN_PARTY"

WORKERS = 2
"""Of each computing session; FATE's default is one for each core."""


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a script does not know.

    Attributes:
        session: of the federation, the same at all parties. The scripts take the minute of the clock at which each
            party starts, or a name that the next run has too.
        data: directory of the standalone engine, the same at all parties. The scripts give none, or one in the
            directory that they are run in.
        gateways: address by `role:id`; empty for FATE's standalone federation.
        get_seconds: for a get of ours.
    """

    session: str
    data: str
    gateways: dict[str, str]
    get_seconds: float


def main() -> None:
    """See the module."""
    surroundings = Surroundings(**json.loads(os.environ[VARIABLE]))
    script, *arguments = sys.argv[1:]
    _draw_the_same_each_time()
    _replace(surroundings)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def _draw_the_same_each_time() -> None:
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _replace(surroundings: Surroundings) -> None:
    import fate.arch.computing.backends.standalone as computing
    import fate.arch.federation.backends.standalone as federations

    class Session(computing.CSession):  # type: ignore[misc]
        def __init__(self, session_id: str | None = None, **_given: Any) -> None:
            super().__init__(session_id, data_dir=surroundings.data, options={"task_cores": WORKERS})

    original = federations.StandaloneFederation

    def federation(engine: Any, _name: str, party: Any, parties: Any) -> Any:
        if not surroundings.gateways:
            return original(engine, surroundings.session, party, parties)
        from fedrdma_fate.fate.federation import FedRDMAFederation
        from fedrdma_fate.fate.settings import FederationOptions

        address = surroundings.gateways[":".join(map(str, party))]
        options = FederationOptions(get_timeout=surroundings.get_seconds)
        return FedRDMAFederation(surroundings.session, engine, party, parties, address, options)

    computing.CSession = Session
    federations.StandaloneFederation = federation
    # as they were called in FATE 2.0; a script still says so
    sys.modules["fate.arch.computing.standalone"] = computing
    sys.modules["fate.arch.federation.standalone"] = federations


if __name__ == "__main__":
    main()
