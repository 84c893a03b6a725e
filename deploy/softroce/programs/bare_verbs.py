"""The least that RDMA writes from Python can be: pyverbs in a loop. What others are measured by."""

from __future__ import annotations

import ipaddress
import os
import time
from typing import Any

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QPT_RC,
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from fedrdma_fate.memory.region import SharedRegion

PORT = 1
_MOST_GIDS = 16
_HOP_LIMIT = 64


class BareVerbs:
    """Reliable queue pairs on this host's device, and one registered region."""

    def __init__(self, region: SharedRegion, queue_pairs: int, depth: int) -> None:
        """Make them; `depth` is how many writes may be under way on all of them together."""
        self._region = region
        self._depth = depth
        self.context = Context(name=os.environ["TESTBED_DEVICE"])
        own = ipaddress.ip_address(f"::ffff:{os.environ['TESTBED_ADDRESS']}")
        self._gid_index, self._gid = next(
            (entry.gid_index, entry.gid_str())
            for entry in self.context.query_gid_table(_MOST_GIDS)
            if ipaddress.ip_address(entry.gid_str()) == own
        )
        self._domain = PD(self.context)
        access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
        self._memory = MR(self._domain, region.length, access, address=region.address)
        self._channel = CompChannel(self.context)
        self._queue = CQ(self.context, 2 * depth + queue_pairs, None, self._channel, 0)
        self._pairs = [self._queue_pair() for _ in range(queue_pairs)]
        self._peer: dict[str, Any] = {}

    @property
    def offer(self) -> dict[str, Any]:
        """What the other host needs."""
        return {
            "gid": self._gid,
            "pairs": [pair.qp_num for pair in self._pairs],
            "key": self._memory.rkey,
            "address": self._region.address,
        }

    def connect(self, peer: dict[str, Any]) -> None:
        """To the other host's queue pairs."""
        self._peer = peer
        for pair, number in zip(self._pairs, peer["pairs"], strict=True):
            route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=self._gid_index, hop_limit=_HOP_LIMIT)
            attributes = QPAttr(port_num=PORT)
            attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE
            attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT)
            attributes.path_mtu = self.context.query_port(PORT).active_mtu
            attributes.dest_qp_num = number
            attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
            attributes.min_rnr_timer = 12
            attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 16, 6, 7
            pair.to_rts(attributes)

    def write(self, total: int, chunk: int) -> float:
        """Write so many bytes to the same place of the peer's region, chunk after chunk; the seconds it took.

        Raises:
            SystemExit: a write failed.
        """
        started = time.monotonic()
        posted = under_way = 0
        while posted < total or under_way:
            while posted < total and under_way < self._depth:
                self._post(posted, min(chunk, total - posted))
                posted += min(chunk, total - posted)
                under_way += 1
            under_way -= self._wait()
        return time.monotonic() - started

    def close(self) -> None:
        """Give everything back."""
        for part in (*self._pairs, self._queue, self._channel, self._memory, self._domain, self.context):
            part.close()

    def _queue_pair(self) -> QP:
        capacity = QPCap(max_send_wr=self._depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        attributes = QPInitAttr(qp_type=IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=capacity, sq_sig_all=0)
        return QP(self._domain, attributes)

    def _post(self, at: int, length: int) -> None:
        piece = SGE(self._region.address + at, length, self._memory.lkey)
        request = SendWR(opcode=IBV_WR_RDMA_WRITE, num_sge=1, sg=[piece], send_flags=IBV_SEND_SIGNALED)
        request.set_wr_rdma(self._peer["key"], self._peer["address"] + at)
        self._pairs[at // length % len(self._pairs)].post_send(request)

    def _wait(self) -> int:
        """How many have completed; sleeps until there is one."""
        self._queue.req_notify()
        count, completions = self._queue.poll(self._depth)
        if not count:
            # holds the GIL, which nobody else wants here
            self._channel.get_cq_event(self._queue)
            self._queue.ack_events(1)
        for completion in completions or ():
            if completion.status != IBV_WC_SUCCESS:
                raise SystemExit(f"a write ended with status {completion.status}")
        return int(count)
