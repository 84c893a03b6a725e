"""The job of `exchange.py` at one party, over FATE's own federation for OSX: `over_osx.py ROLE ID PORT DATA_DIR`."""

import secrets
import sys

from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context
from fate.arch.federation import FederationBuilder

from tests.fate.jobs.exchange import run

PARTIES = [("guest", "9999"), ("host", "10000"), ("arbiter", "10000")]


def main(role: str, party_id: str, port: int, data: str) -> None:
    """Run it to its end; its own assertions decide."""
    name = f"over_osx_{role}_{secrets.token_hex(4)}"
    computing = CSession(session_id=name, data_dir=data, options={"task_cores": 2})
    builder = FederationBuilder(federation_session_id="over-osx", party=(role, party_id), parties=PARTIES)
    context = Context(computing=computing, federation=builder.build_osx(computing, "127.0.0.1", port))
    run(context)
    context.destroy()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
