"""Two organisations with FATE's own OSX brokers change to gateways one after the other, and back: docs/replace-osx.md.

By hand, as it takes many minutes: `.venv/bin/python -m tests.support.replaced_brokers DIRECTORY BUILT`, a directory
that does not exist yet, and `java/osx` of FATE's source after `mvn package`. A HomoNN job runs after each change. It
needs lsof, as `fate_flow stop` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from fedrdma_fate.bench.ports import free_ports
from fedrdma_fate.doctor.fate_flow import BROKER_BYTES
from tests.support.certificates import TestAuthority
from tests.support.fate_flow import FateFlow, running_fate_flow
from tests.support.osx_broker import built_broker
from tests.support.sites import InProcesses, Site, eventually, gateway_site

JOB = Path(__file__).resolve().parents[1] / "fate" / "jobs" / "homo_nn.py"
PARTY = {"a": "9999", "b": "10000"}
OTHER = {"a": "b", "b": "a"}
RESTART_SECONDS = 240.0
"""For a FATE Flow to answer again, on a loaded machine."""

MEMORY = {"send_bytes": "32MiB", "receive_bytes": "64MiB", "ring_slot_bytes": "1MiB"}


@dataclasses.dataclass(frozen=True)
class Ports:
    """Of one organisation: its FATE Flow, its broker, and its gateway's `control`, `osx` and `brokers`."""

    http: int
    grpc: int
    broker: int
    control: int
    osx: int
    brokers: int


@dataclasses.dataclass(frozen=True)
class Organisation:
    """One of the two.

    Attributes:
        flow: its FATE Flow.
        routes: its broker's route table.
        site: its gateway, once it has one.
    """

    name: str
    ports: Ports
    flow: FateFlow
    routes: Path
    site: Site


class Change:
    """Carries out the page's steps, and tells how long each took."""

    def __init__(self, organisations: Mapping[str, Organisation]) -> None:
        self._organisations = organisations
        self._runner = InProcesses()

    def close(self) -> None:
        """Stop the gateways and the servers."""
        self._runner.stop_all()
        for each in self._organisations.values():
            each.flow.command("stop")

    def job(self, what: str) -> None:
        """Submit one at a; print what gateways show then."""
        began = time.monotonic()
        _run(self._organisations["a"].flow)
        print(f"{what}: job: success, {time.monotonic() - began:.0f} s", flush=True)
        for name in self._runner.processes:
            status = self._organisations[name].site.status()
            calls = sum(each["answered"] for each in status["flow"])
            refused = sum(each["refused"] for each in status["flow"])
            brokers = [f"{each['pushed']} messages to the broker of {each['site']}" for each in status["brokers"]]
            peers = [f"{each['site']} connected: {each['connected']}" for each in status["peers"]]
            print(f"  {name}: {calls} calls, {refused} refused; {', '.join(brokers + peers)}", flush=True)

    def gateway(self, name: str, peer: Mapping[str, Any]) -> None:
        """Steps 1 and 2: it runs with this peer."""
        site = self._organisations[name].site
        site.config["peers"] = [dict(peer)]
        if name in self._runner.processes:
            self._runner.stop(site)
        self._runner.start(site)

    def route(self, name: str, port: int) -> None:
        """Have a broker look for the other organisation at another port."""
        routes = self._organisations[name].routes
        document = json.loads(routes.read_text())
        document["route_table"][PARTY[OTHER[name]]]["default"][0]["port"] = port
        # by a second file: the broker looks at it while it runs
        routes.with_suffix(".new").write_text(json.dumps(document))
        routes.with_suffix(".new").replace(routes)

    def shorten(self, name: str) -> None:
        """Have a FATE Flow that keeps its broker send no message that a broker would not keep."""
        flow = self._organisations[name].flow
        self._keep_before(name)
        local = flow.home / "conf" / "local.service_conf.yaml"
        said = yaml.safe_load(local.read_text())
        said["federation"]["osx"]["max_message_size"] = BROKER_BYTES
        local.write_text(yaml.safe_dump(said))
        self._restart(flow)

    def step_4(self, name: str) -> None:
        """Have its FATE Flow use the gateway."""
        flow, site = self._organisations[name].flow, self._organisations[name].site
        conf = flow.home / "conf"
        self._keep_before(name)
        arguments = ["fate", "config", "--home", str(flow.home), "--gateway", str(site.config_file), "--engine", "osx"]
        (conf / "new.yaml").write_text(_fedrdma(*arguments))
        (conf / "new.yaml").replace(conf / "local.service_conf.yaml")
        self._restart(flow)
        print(_fedrdma("fate", "check", "--home", str(flow.home), "--socket", site.address), flush=True)

    def back(self, name: str) -> None:
        """Put the earlier file in place."""
        flow = self._organisations[name].flow
        (flow.home / "conf" / "local.service_conf.yaml").write_bytes((flow.home / "conf" / "before.yaml").read_bytes())
        self._restart(flow)

    def wait_until_connected(self) -> None:
        """Step 3."""
        for each in self._organisations.values():
            eventually(each.site.connected, 60)

    def stop_gateways(self) -> None:
        """Nobody needs them any more."""
        self._runner.stop_all()
        self._runner.processes.clear()

    def _keep_before(self, name: str) -> None:
        conf = self._organisations[name].flow.home / "conf"
        if not (before := conf / "before.yaml").exists():
            before.write_bytes((conf / "local.service_conf.yaml").read_bytes())

    @staticmethod
    def _restart(flow: FateFlow) -> None:
        flow.command("stop")
        flow.command("start")
        eventually(flow.answers, RESTART_SECONDS)


def main(directory: Path, built: Path) -> None:
    """Change one, then the other, then go back; a job after each."""
    with organisations(directory, built) as both, contextlib.ExitStack() as stack:
        change = Change(both)
        stack.callback(change.close)
        _upload(directory, both)
        change.job("two brokers")
        a, b = both["a"].ports, both["b"].ports
        began = time.monotonic()
        change.gateway("a", _broker_of("b", b))
        change.step_4("a")
        change.route("b", a.brokers)
        change.shorten("b")
        print(f"a has a gateway: {time.monotonic() - began:.0f} s", flush=True)
        change.job("a gateway and a broker")
        began = time.monotonic()
        change.gateway("a", {"site": "b", "parties": [PARTY["b"]], "address": f"127.0.0.1:{b.control}"})
        change.gateway("b", {"site": "a", "parties": [PARTY["a"]]})
        change.wait_until_connected()
        change.step_4("b")
        change.step_4("a")
        print(f"b has one, too: {time.monotonic() - began:.0f} s", flush=True)
        change.job("two gateways")
        began = time.monotonic()
        change.route("b", a.broker)
        change.back("a")
        change.back("b")
        change.stop_gateways()
        print(f"back: {time.monotonic() - began:.0f} s", flush=True)
        change.job("two brokers again")


@contextlib.contextmanager
def organisations(directory: Path, built: Path) -> Iterator[dict[str, Organisation]]:
    """Both, with brokers."""
    authority = TestAuthority(directory / "tls")
    numbers = iter(free_ports(12))
    ports = {name: Ports(*(next(numbers) for _ in dataclasses.fields(Ports))) for name in PARTY}
    with contextlib.ExitStack() as stack:
        made = {}
        for name, own in ports.items():
            routes = {
                PARTY[name]: f"127.0.0.1:{own.grpc}",
                PARTY[OTHER[name]]: f"127.0.0.1:{ports[OTHER[name]].broker}",
            }
            home = directory / f"broker-{name}"
            stack.enter_context(built_broker(built, home, (PARTY[name],), routes, own.broker))
            flow = stack.enter_context(
                running_fate_flow(
                    directory / f"flow-{name}",
                    {},
                    party_id=PARTY[name],
                    http_port=own.http,
                    osx_port=own.broker,
                    grpc_port=own.grpc,
                )
            )
            authority.issue(name)
            site = gateway_site(
                name,
                [PARTY[name]],
                home=directory / f"gateway-{name}",
                sockets=directory,
                port=own.control,
                listen={"osx": f"127.0.0.1:{own.osx}", "brokers": f"127.0.0.1:{own.brokers}"},
                flow={"server": f"127.0.0.1:{own.http}"},
                memory=MEMORY,
                tls=authority.settings(name),
                security="mtls",
            )
            made[name] = Organisation(name, own, flow, home / "conf" / "broker" / "route_table.json", site)
        yield made


def _broker_of(name: str, ports: Ports) -> dict[str, Any]:
    return {
        "site": name,
        "kind": "osx",
        "parties": [PARTY[name]],
        "address": f"127.0.0.1:{ports.broker}",
        "tls": False,
    }


def _upload(directory: Path, both: Mapping[str, Organisation]) -> None:
    def upload(name: str) -> None:
        data = directory / f"data-{name}"
        data.mkdir()
        _run(both[name].flow, "--data", str(data), "--upload-only")

    with ThreadPoolExecutor(len(both)) as pool:
        list(pool.map(upload, both))


def _run(flow: FateFlow, *options: str) -> None:
    """Run the client at one server."""
    command = [str(flow.python), str(JOB), "--port", str(flow.port), *options]
    done = subprocess.run(command, env=flow.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + flow.logs()


def _fedrdma(*arguments: str) -> str:
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
