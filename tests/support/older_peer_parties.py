"""The parties of one site in a job of FATE's secure aggregation, each a process, by whatever package is imported.

What to do comes as JSON on standard input, see `older_peer.py`, which runs this by its path: of the tests nothing is
imported, and of the package only what each revision of it has.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np


def update_of(rank: int, number: int, items: int) -> Any:
    """What a client has in a round."""
    return np.random.default_rng((rank, number)).standard_normal(items)


def _run(party: tuple[str, str], asked: dict[str, Any], home: Path) -> dict[str, Any]:
    from fate.arch.computing.backends.standalone import CSession
    from fate.arch.context import Context
    from fate.arch.protocol.secure_aggregation import SecureAggregatorClient, SecureAggregatorServer

    import fedrdma_fate
    from fedrdma_fate.fate.federation import FedRDMAFederation

    everybody = [(role, party_id) for role, party_id in asked["everybody"]]
    computing = CSession("-".join(party), data_dir=str(home / "data"), options={"task_cores": 1})
    federation = FedRDMAFederation(asked["session"], computing, party, everybody, asked["address"])
    context = Context(computing=computing, federation=federation)
    ranks = [context.guest.rank, *context.hosts.ranks]
    errors = []
    if party[0] == "arbiter":
        server = SecureAggregatorServer(ranks, "older")
        for _, ctx in context.on_iterations.ctxs_range(asked["rounds"]):
            server.secure_aggregate(ctx)
    else:
        clients = [each for each in everybody if each[0] != "arbiter"]
        shares = [(1 + rank) / sum(range(1, 1 + len(clients))) for rank in range(len(clients))]
        mine = clients.index(party)
        client = SecureAggregatorClient("older")
        client.dh_exchange(context, ranks)
        for number, ctx in context.on_iterations.ctxs_range(asked["rounds"]):
            sent = [update_of(mine, number, asked["items"])]
            mean = client.secure_aggregate(ctx, sent, shares[mine])[0]
            right = sum(share * update_of(rank, number, asked["items"]) for rank, share in enumerate(shares))
            errors.append(float(np.abs(mean - right).max()))
    context.destroy()
    return {"errors": errors, "package": str(Path(fedrdma_fate.__file__).parent)}


def _party(party: tuple[str, str], asked: dict[str, Any], home: Path) -> None:
    try:
        told = _run(party, asked, home)
    except BaseException:
        told = {"failed": traceback.format_exc()}
    (home / f"{'-'.join(party)}.json").write_text(json.dumps(told))
    if "failed" in told:
        os._exit(1)


def main() -> None:
    """Run them, and exit with whether all went well."""
    asked = json.loads(sys.stdin.read())
    home = Path(asked["home"])
    # imported once, before any process is forked
    import fate.arch.protocol.secure_aggregation  # noqa: F401

    import fedrdma_fate.fate.federation  # noqa: F401

    forked = multiprocessing.get_context("fork")
    mine = [(role, party_id) for role, party_id in asked["mine"]]
    processes = [forked.Process(target=_party, args=(party, asked, home)) for party in mine]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
