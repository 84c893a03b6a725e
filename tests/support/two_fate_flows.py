"""Two organisations, each with a FATE Flow and a gateway: a HomoNN job with nothing between them but the gateways.

By hand, as it takes minutes: `.venv/bin/python -m tests.support.two_fate_flows DIRECTORY [osx | BUILT]`, a directory
that does not exist yet. With `osx`, by FATE's own engine of that name, with nothing of ours in FATE's processes. With a
path, one of the two has no gateway, but FATE's own broker, of `java/osx` of FATE's source after `mvn package`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedrdma_fate.bench.ports import free_ports
from tests.support.certificates import TestAuthority
from tests.support.fate_flow import FateFlow, running_fate_flow
from tests.support.osx_broker import built_broker
from tests.support.sites import InProcesses, Sites, start_gateways

JOB = Path(__file__).resolve().parents[1] / "fate" / "jobs" / "homo_nn.py"
PARTY = {"a": "9999", "b": "10000"}
MEMORY = {"send_bytes": "32MiB", "receive_bytes": "64MiB", "ring_slot_bytes": "1MiB"}


def main(directory: Path, engine: str = "fedrdma") -> None:
    """Upload at both, submit at one; print what both gateways show of scheduling calls, whatever comes of it."""
    if engine not in ("fedrdma", "osx"):
        with_broker(directory, Path(engine))
        return
    with two_sites(directory, engine) as (sites, flows), contextlib.ExitStack() as stack:
        stack.callback(lambda: [print(name, json.dumps(site.status()["flow"])) for name, site in sites.items()])
        _run_job(directory, flows)


@contextlib.contextmanager
def two_sites(
    directory: Path,
    engine: str,
    *,
    memory: Callable[[str], Mapping[str, Any]] = lambda _site: MEMORY,
    environment: Mapping[str, str] = MappingProxyType({}),
    osx_message_bytes: int | None = None,
) -> Iterator[tuple[Sites, dict[str, FateFlow]]]:
    """Two gateways with certificates, and a FATE Flow at each; both by name of the site.

    Args:
        directory: does not exist yet.
        engine: `fedrdma`, or `osx`, with nothing of ours in FATE's processes.
        memory: of a site's gateway.
        environment: what FATE's processes have besides.
        osx_message_bytes: the longest message of engine `osx`; None: what `fedrdma fate config` advises.
    """
    servers = dict(zip(PARTY, free_ports(2), strict=True))
    fronts = dict(zip(PARTY, free_ports(2), strict=True))

    def of_site(name: str) -> dict[str, Any]:
        return {
            "listen": {"osx" if engine == "osx" else "flow": f"127.0.0.1:{fronts[name]}"},
            "flow": {"server": f"127.0.0.1:{servers[name]}"},
            "memory": memory(name),
        }

    with contextlib.ExitStack() as stack:
        sites = stack.enter_context(
            start_gateways(
                {name: [party_id] for name, party_id in PARTY.items()},
                directory / "gateways",
                runner=InProcesses(),
                authority=TestAuthority(directory / "tls"),
                of_site=of_site,
            )
        )
        flows = {
            name: stack.enter_context(
                running_fate_flow(
                    directory / f"flow-{name}",
                    {"gateway": sites[name].address, "get_timeout": 600},
                    party_id=party_id,
                    http_port=servers[name],
                    proxy_port=fronts[name],
                    osx_port=fronts[name] if engine == "osx" else None,
                    osx_message_bytes=osx_message_bytes,
                    environment=environment,
                )
            )
            for name, party_id in PARTY.items()
        }
        yield sites, flows


def with_broker(directory: Path, built: Path) -> None:
    """The same with a gateway at a, and FATE's own broker at b."""
    osx, front, broker, grpc_port, *servers = free_ports(6)
    peer = {"site": "b", "kind": "osx", "parties": [PARTY["b"]], "address": f"127.0.0.1:{broker}"}
    listen = {"osx": f"127.0.0.1:{osx}", "brokers": f"127.0.0.1:{front}"}
    # its own party as a route: where its FATE Flow is
    routes = {PARTY["a"]: f"127.0.0.1:{front}", PARTY["b"]: f"127.0.0.1:{grpc_port}"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(built_broker(built, directory / "broker", (PARTY["b"],), routes, broker))
        sites = stack.enter_context(
            start_gateways(
                {"a": [PARTY["a"]]},
                directory / "gateways",
                runner=InProcesses(),
                strangers=[peer],
                listen=listen,
                flow={"server": f"127.0.0.1:{servers[0]}"},
                memory=MEMORY,
            )
        )
        stack.callback(lambda: print(json.dumps([sites["a"].status()[what] for what in ("flow", "brokers")])))
        flows = {}
        for name, port, osx_port in (("a", servers[0], osx), ("b", servers[1], broker)):
            flows[name] = stack.enter_context(
                running_fate_flow(
                    directory / f"flow-{name}",
                    {},
                    party_id=PARTY[name],
                    http_port=port,
                    osx_port=osx_port,
                    grpc_port=grpc_port if name == "b" else None,
                )
            )
        _run_job(directory, flows)


def _run_job(directory: Path, flows: dict[str, FateFlow]) -> None:
    def upload(name: str) -> None:
        data = directory / f"data-{name}"
        data.mkdir()
        _run(flows[name], "--data", str(data), "--upload-only")

    with ThreadPoolExecutor(len(flows)) as pool:
        list(pool.map(upload, flows))
    _run(flows["a"])


def _run(flow: FateFlow, *options: str) -> None:
    """Run the client at one server."""
    subprocess.run([flow.python, str(JOB), "--port", str(flow.port), *options], env=flow.environment, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
