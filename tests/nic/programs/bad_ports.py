"""On host 0: ports, GIDs and devices that will not do, as the transport of real devices tells; prints JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from deploy.softroce.programs.links import shared_region
from fedrdma_fate.transport.verbs import interface as boundary
from fedrdma_fate.transport.verbs.device_selection import PortPreference
from fedrdma_fate.transport.verbs.easy import EasyVerbs, QueuePair
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport
from fedrdma_fate.wire.errors import FedRDMAError
from tests.support.hosts import from_outside, on_host, run
from tests.support.namespaces import NamespacedVerbs

MEMLOCK_BYTES = 512 * 1024
"""Enough for a device, and not for what a link needs beside a region of half of it."""


def refused(action: Callable[[], object]) -> list[str]:
    """Code, message and remedy with which it is refused."""
    try:
        action()
    except FedRDMAError as error:
        return [error.code.name, error.message, error.remedy]
    return []


def open_port(**preference: str | int) -> Callable[[], VerbsTransport]:
    return lambda: VerbsTransport(VerbsSettings(PortPreference(**preference)))  # type: ignore[arg-type]


def path_mtus() -> list[int]:
    """The MTUs that the queue pairs of a link are connected with when host 1 carries less than host 0."""
    used: list[int] = []
    connect = QueuePair.connect

    def note(
        pair: QueuePair,
        port: boundary.LocalPort,
        peer: boundary.PairAddress,
        first_packet: int,
        mtu: int,
        retry: boundary.RetrySettings,
    ) -> None:
        used.append(mtu)
        connect(pair, port, peer, first_packet, mtu, retry)

    run(on_host(1, "ip", "link", "set", "eth0", "mtu", "1500"))
    # its packets have to fit through the other end of the cable as well, which they do: it carries more
    far = VerbsTransport(VerbsSettings(PortPreference(gid_index=1)), verbs=NamespacedVerbs("host1", EasyVerbs()))
    near = VerbsTransport(VerbsSettings())
    QueuePair.connect = note  # type: ignore[method-assign, assignment]
    try:
        dialling, waiting = near.open("active"), far.open("passive")
        with ThreadPoolExecutor(1) as executor:
            answered = executor.submit(waiting.connect, dialling.address, 5.0)
            ends = [dialling.connect(waiting.address, 5.0), answered.result()]
    finally:
        QueuePair.connect = connect  # type: ignore[method-assign]
    for end in ends:
        end.close()
    for transport in (near, far):
        transport.close()
    return used


def with_little_memlock(region_bytes: int) -> list[str]:
    """A transport with a region, and a link, in a process that may lock no more than MEMLOCK_BYTES."""
    limit = ["prlimit", f"--memlock={MEMLOCK_BYTES}:{MEMLOCK_BYTES}"]
    # with this capability the kernel asks for no limit
    unprivileged = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]
    seen: list[str] = json.loads(run([*limit, *unprivileged, sys.executable, __file__, str(region_bytes)]))
    return seen


def open_link(region_bytes: int) -> None:
    """As far as a gateway comes without a peer."""
    with (
        shared_region(region_bytes) as region,
        contextlib.closing(VerbsTransport(VerbsSettings(), [region])) as transport,
    ):
        transport.open("active").close()


def main() -> None:
    """Try everything."""
    seen: dict[str, object] = {"mtus": path_mtus()}
    seen["memlock-region"] = with_little_memlock(2 * MEMLOCK_BYTES)
    seen["memlock-link"] = with_little_memlock(MEMLOCK_BYTES // 2)
    seen["unknown-device"] = refused(open_port(device="mlx5_7"))
    seen["unknown-port"] = refused(open_port(port=3))
    seen["unknown-gid"] = refused(open_port(gid_index=77))
    run(["ip", "link", "set", "eth0", "down"])
    seen["port-down"] = refused(open_port())
    run(["ip", "link", "set", "eth0", "up"])
    run(["rdma", "link", "delete", "rxe0"])
    seen["no-device"] = refused(open_port())
    run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"])
    run(from_outside("rdma", "dev", "set", "rxe0", "netns", "host0"))
    seen["back"] = refused(lambda: open_port()().close())
    print(json.dumps(seen))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(refused(lambda: open_link(int(sys.argv[1])))))
    else:
        main()
