"""On host 0: ports, GIDs and devices that will not do, as the transport of real devices tells; prints JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fedrdma_fate.transport.verbs import boundary
from fedrdma_fate.transport.verbs.choice import PortWish
from fedrdma_fate.transport.verbs.easy import EasyVerbs, QueuePair
from fedrdma_fate.transport.verbs.transport import VerbsSettings, VerbsTransport
from fedrdma_fate.wire.errors import FedRDMAError
from tests.support.hosts import from_outside, on_host, run
from tests.support.namespaces import NamespacedVerbs


def refused(action: Callable[[], object]) -> list[str]:
    """Code, message and remedy with which it is refused."""
    try:
        action()
    except FedRDMAError as error:
        return [error.code.name, error.message, error.remedy]
    return []


def open_port(**wish: str | int) -> Callable[[], VerbsTransport]:
    return lambda: VerbsTransport(VerbsSettings(PortWish(**wish)))  # type: ignore[arg-type]


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
        patience: boundary.Patience,
    ) -> None:
        used.append(mtu)
        connect(pair, port, peer, first_packet, mtu, patience)

    run(on_host(1, "ip", "link", "set", "eth0", "mtu", "1500"))
    # its packets have to fit through the other end of the cable as well, which they do: it carries more
    far = VerbsTransport(VerbsSettings(PortWish(gid_index=1)), verbs=NamespacedVerbs("host1", EasyVerbs()))
    near = VerbsTransport(VerbsSettings())
    QueuePair.connect = note  # type: ignore[method-assign]
    try:
        dialling, waiting = near.open("active"), far.open("passive")
        with ThreadPoolExecutor(1) as executor:
            answered = executor.submit(waiting.connect, dialling.offer, 5.0)
            ends = [dialling.connect(waiting.offer, 5.0), answered.result()]
    finally:
        QueuePair.connect = connect  # type: ignore[method-assign]
    for end in ends:
        end.close()
    for transport in (near, far):
        transport.close()
    return used


def main() -> None:
    seen: dict[str, object] = {"mtus": path_mtus()}
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


main()
