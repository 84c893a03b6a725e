"""Sends messages from host 0 to host 1 of the testbed by verbs; each host prints a JSON line of what it saw.

send_between.py [MESSAGES [BYTES]]
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import sys
import time
from typing import Any

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_SEND
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

CONTROL_PORT = 7471
PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.0005
DEPTH = 16
PORT = 1


class Endpoint:
    """One queue pair on this host's device, with one buffer."""

    def __init__(self, device: str, address: str, size: int) -> None:
        self.size = size
        self.context = Context(name=device)
        wanted = ipaddress.ip_address(f"::ffff:{address}")
        self.gid_index, self.gid = next(
            (entry.gid_index, entry.gid_str())
            for entry in self.context.query_gid_table(DEPTH)
            if ipaddress.ip_address(entry.gid_str()) == wanted
        )
        domain = PD(self.context)
        self.memory = MR(domain, size, IBV_ACCESS_LOCAL_WRITE)
        self.queue = CQ(self.context, 2 * DEPTH)
        capacity = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        self.pair = QP(
            domain, QPInitAttr(qp_type=IBV_QPT_RC, scq=self.queue, rcq=self.queue, cap=capacity, sq_sig_all=0)
        )

    def connect(self, peer: dict[str, Any]) -> None:
        attributes = QPAttr(port_num=PORT)
        attributes.ah_attr = AHAttr(
            gr=GlobalRoute(dgid=GID(peer["gid"]), sgid_index=self.gid_index), is_global=1, port_num=PORT
        )
        attributes.path_mtu = self.context.query_port(PORT).active_mtu
        attributes.dest_qp_num = peer["qp"]
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = 12
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 14, 7, 7
        self.pair.to_rts(attributes)

    def receive(self) -> None:
        self.pair.post_recv(RecvWR(num_sge=1, sg=self._segment()))

    def send(self) -> None:
        self.pair.post_send(SendWR(opcode=IBV_WR_SEND, send_flags=IBV_SEND_SIGNALED, num_sge=1, sg=self._segment()))

    def _segment(self) -> list[SGE]:
        return [SGE(self.memory.buf, self.size, self.memory.lkey)]

    def completed(self) -> None:
        """Wait for one work request, which must have gone well."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            done, completions = self.queue.poll(1)
            if done:
                if completions[0].status != IBV_WC_SUCCESS:
                    raise SystemExit(f"a work request ended with status {completions[0].status}")
                return
            # in virtual time nothing moves while a program polls without a pause
            time.sleep(PAUSE_SECONDS)
        raise SystemExit("a completion is missing")


def meet(host: int, addresses: list[str]) -> socket.socket:
    """A TCP connection between the two hosts."""
    if host == 1:
        with socket.create_server((addresses[1], CONTROL_PORT)) as server:
            return server.accept()[0]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection((addresses[1], CONTROL_PORT), timeout=PATIENCE_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def main(messages: int, size: int) -> None:
    host, addresses = int(os.environ["TESTBED_HOST"]), os.environ["TESTBED_HOSTS"].split(",")
    endpoint = Endpoint(os.environ["TESTBED_DEVICE"], addresses[host], size)
    # two files: one that is both forgets what it has read ahead when it writes
    with meet(host, addresses) as control, control.makefile("r") as heard, control.makefile("w") as said:
        print(json.dumps({"gid": endpoint.gid, "qp": endpoint.pair.qp_num}), file=said, flush=True)
        peer = json.loads(heard.readline())
        endpoint.connect(peer)
        if host == 1:
            endpoint.receive()
        else:
            endpoint.memory.write(b"across the WAN".ljust(size, b"."), size)
        print("ready", file=said, flush=True)
        if heard.readline() != "ready\n":
            raise SystemExit("the other host is gone")
        started = time.monotonic()
        for number in range(messages):
            if host == 0:
                endpoint.send()
            endpoint.completed()
            if host == 1 and number + 1 < messages:
                endpoint.receive()
        seconds = time.monotonic() - started
        seen = {
            "devices": [device.name.decode() for device in get_device_list()],
            "peer": peer["gid"],
            "text": endpoint.memory.read(14, 0).decode(),
            "seconds": round(seconds, 9),
        }
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*(int(argument) for argument in [*sys.argv[1:], *["1", "64"][len(sys.argv) - 1 :]]))
