"""RDMA in a few lines: devices, memory, queue pairs and completions over pyverbs, for use alone or by the transport.

The only module that imports pyverbs. A program makes a `Device`, registers its own memory with it, makes a completion
queue and a queue pair, tells the peer number, GID and keys by whatever means it has, connects, writes, and waits on the
queue's descriptor. `examples/verbs_hello` is such a program. Everything raises `VerbsError` when a verb fails.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel, cqe_status_to_str
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from fedrdma_fate.transport.verbs import interface as boundary
from fedrdma_fate.transport.verbs.interface import (
    MTUS,
    DeviceEvent,
    DeviceInfo,
    EventKind,
    GidEntry,
    LocalPort,
    Outcome,
    PairAddress,
    PairKind,
    Piece,
    PortInfo,
    RetrySettings,
    Target,
    VerbsError,
    WorkCompletion,
)

_MTU_BYTES = dict(
    zip((e.IBV_MTU_256, e.IBV_MTU_512, e.IBV_MTU_1024, e.IBV_MTU_2048, e.IBV_MTU_4096), MTUS, strict=True)
)
_MTU_CODES = {size: code for code, size in _MTU_BYTES.items()}
_KINDS = {PairKind.RELIABLE: e.IBV_QPT_RC, PairKind.UNRELIABLE: e.IBV_QPT_UC}
_OUTCOMES = {
    e.IBV_WC_SUCCESS: Outcome.DONE,
    e.IBV_WC_WR_FLUSH_ERR: Outcome.FLUSHED,
    e.IBV_WC_RETRY_EXC_ERR: Outcome.NO_ANSWER,
    e.IBV_WC_RNR_RETRY_EXC_ERR: Outcome.NO_ANSWER,
    e.IBV_WC_RESP_TIMEOUT_ERR: Outcome.NO_ANSWER,
    e.IBV_WC_REM_ACCESS_ERR: Outcome.REFUSED,
    e.IBV_WC_LOC_ACCESS_ERR: Outcome.REFUSED,
}
_EVENTS = {
    e.IBV_EVENT_QP_ACCESS_ERR: EventKind.ACCESS_ERROR,
    e.IBV_EVENT_PORT_ERR: EventKind.PORT_DOWN,
    e.IBV_EVENT_DEVICE_FATAL: EventKind.DEVICE_GONE,
}
_ROCE_V2 = 2
"""GID type in the table that `query_gid_table` gives."""
_MOST_GIDS = 512
"""Entries of a device's GID table, of all its ports, that are looked at: each address of an interface has two."""
_HOP_LIMIT = 64
"""Routers between two sites: what Linux gives IP packets unless told otherwise (net.ipv4.ip_default_ttl)."""
_MIN_RNR_TIMER = 12
"""0.64 ms: how long a peer waits that found no receive posted."""
_EVENT_DESCRIPTOR = "anon_inode:[infinibandevent]"

_descriptors_are_being_made = threading.Lock()
"""pyverbs hides the descriptors of events: they are found by what is new in /proc, one at a time in this process."""


def devices() -> tuple[DeviceInfo, ...]:
    """The RDMA devices of this host; none where there is no RDMA.

    Raises:
        VerbsError: one cannot be asked.
    """
    try:
        names = [device.name.decode() for device in get_device_list()]
    except PyverbsError:
        # what libibverbs says on a host without RDMA
        return ()
    found = []
    for name in names:
        with _verbs(f"cannot open the device {name}"), contextlib.closing(Context(name=name)) as context:
            found.append(_describe(name, context))
    return tuple(found)


class MemoryRegion:
    """Registered memory. Made by `Device.register`."""

    def __init__(self, region: MR) -> None:
        self.handle = region
        self.local_key: int = region.lkey
        self.remote_key: int = region.rkey

    def close(self) -> None:
        """Deregister it; may be repeated."""
        with _verbs("cannot deregister memory"):
            self.handle.close()


class MemoryWindow:
    """A part of a region that peers may write into. Made by `QueuePair.bind`, or empty by `Device.window`."""

    def __init__(self, window: MW) -> None:
        self._window = window
        self.key: int = window.rkey

    def close(self) -> None:
        """Close it to peers; may be repeated."""
        with _verbs("cannot deallocate a memory window"):
            self._window.close()


class CompletionQueue:
    """Completions, and a descriptor to wait on for them. Made by `Device.completion_queue`."""

    def __init__(self, context: Context, depth: int) -> None:
        with _verbs(f"cannot make a completion queue of {depth} entries"):
            with _new_event_descriptor() as found:
                self._channel = CompChannel(context)
            self.fileno = found[0]
            self.handle = CQ(context, depth, None, self._channel, 0)
            self.handle.req_notify()
        self._readable = select.poll()
        self._readable.register(self.fileno, select.POLLIN)

    def arm(self) -> None:
        """Take in events, and ask for one at the next completion; completions that are there give none, so `poll`."""
        taken = 0
        with _verbs("cannot ask for completion events"):
            # pyverbs would hold the GIL while it waits, so it is asked only when there is something to get
            while self._readable.poll(0):
                self._channel.get_cq_event(self.handle)
                taken += 1
            if taken:
                self.handle.ack_events(taken)
                self.handle.req_notify()

    def poll(self, most: int = 64) -> Sequence[WorkCompletion]:
        """Up to so many completions that are there; never waits."""
        with _verbs("cannot poll a completion queue"):
            _, found = self.handle.poll(most)
        return [_completion(entry) for entry in found]

    def close(self) -> None:
        """Destroy it and its channel; may be repeated."""
        with _verbs("cannot destroy a completion queue"):
            self.handle.close()
            self._channel.close()


class QueuePair:
    """One end of a connection, in the state INIT. Made by `Device.queue_pair`."""

    def __init__(
        self, domain: PD, queue: CompletionQueue, port: int, kind: PairKind, sends: int, receives: int
    ) -> None:
        self._domain = domain
        self._kind = kind
        self._port = port
        # without the explicit zero every write would be signalled
        capacity = QPCap(max_send_wr=sends, max_recv_wr=receives, max_send_sge=2, max_recv_sge=2)
        attributes = QPInitAttr(qp_type=_KINDS[kind], scq=queue.handle, rcq=queue.handle, cap=capacity, sq_sig_all=0)
        with _verbs("cannot make a queue pair"):
            self._pair = QP(domain, attributes)
            initial = QPAttr(port_num=port)
            initial.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
            self._pair.to_init(initial)
        self.number: int = self._pair.qp_num

    def connect(self, port: LocalPort, peer: PairAddress, first_packet: int, mtu: int, retry: RetrySettings) -> None:
        """Bring it to RTR and RTS: from now on it receives and sends.

        Args:
            port: ours.
            peer: the other queue pair.
            first_packet: sequence number of our first packet, which the peer must know.
            mtu: path MTU in bytes, equal at both ends.
            retry: when to give up.
        """
        route = GlobalRoute(
            dgid=GID(ipaddress.IPv6Address(peer.gid).exploded), sgid_index=port.gid_index, hop_limit=_HOP_LIMIT
        )
        attributes = QPAttr()
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=self._port)
        attributes.dest_qp_num = peer.number
        attributes.path_mtu = _MTU_CODES[mtu]
        attributes.rq_psn, attributes.sq_psn = peer.first_packet, first_packet
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = _MIN_RNR_TIMER
        attributes.timeout, attributes.retry_cnt = retry.timeout_exponent, retry.retries
        attributes.rnr_retry = retry.receiver_retries
        with _verbs(f"cannot connect queue pair {self.number} to {peer.number} of {peer.gid}"):
            self._pair.to_rts(attributes)

    def write(
        self, work_request: int, source: Piece, target: Target, *, signalled: bool = True, immediate: int | None = None
    ) -> None:
        """RDMA WRITE of a piece of our memory into the peer's; with an immediate, the peer gets a completion too."""
        opcode = e.IBV_WR_RDMA_WRITE if immediate is None else e.IBV_WR_RDMA_WRITE_WITH_IMM
        request = SendWR(
            wr_id=work_request,
            opcode=opcode,
            num_sge=1,
            imm_data=immediate or 0,
            sg=[SGE(*source)],
            send_flags=e.IBV_SEND_SIGNALED if signalled else 0,
        )
        request.set_wr_rdma(target.key, target.address)
        with _verbs("cannot post a write"):
            self._pair.post_send(request)

    def send(self, work_request: int, *source: Piece, signalled: bool = True) -> None:
        """SEND one piece of our memory, or two in a row, into the peer's next receive."""
        flags, pieces = e.IBV_SEND_SIGNALED if signalled else 0, [SGE(*piece) for piece in source]
        request = SendWR(wr_id=work_request, opcode=e.IBV_WR_SEND, num_sge=len(pieces), sg=pieces, send_flags=flags)
        with _verbs("cannot post a send"):
            self._pair.post_send(request)

    def receive(self, work_request: int, *into: Piece) -> None:
        """Post a receive: for a SEND, or (length 0 will do) for a write with immediate."""
        with _verbs("cannot post a receive"):
            self._pair.post_recv(RecvWR(work_request, len(into), [SGE(*piece) for piece in into]))

    def bind(self, work_request: int, region: boundary.MemoryRegion, address: int, length: int) -> MemoryWindow:
        """Open a part of a region to writes of peers; it is open when the work request completes."""
        assert isinstance(region, MemoryRegion)
        with _verbs(f"cannot bind a memory window of {length} bytes"):
            window = MW(self._domain, e.IBV_MW_TYPE_1)
            info = MWBindInfo(region.handle, address, length, e.IBV_ACCESS_REMOTE_WRITE)
            self._pair.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED, work_request))
        return MemoryWindow(window)

    def fail(self) -> None:
        """Force it into the error state."""
        with _verbs("cannot modify a queue pair"):
            self._pair.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def close(self) -> None:
        """Destroy it; may be repeated."""
        with _verbs("cannot destroy a queue pair"):
            self._pair.close()


class ProtectionDomain:
    """Memory, windows and queue pairs that may use each other. Made by `Device.domain`."""

    def __init__(self, context: Context) -> None:
        with _verbs("cannot make a protection domain"):
            self._domain = PD(context)

    def register(self, address: int, length: int, *, windows: bool = False, remote_write: bool = False) -> MemoryRegion:
        """Register memory of this process, which must stay mapped.

        Args:
            address: of its first byte.
            length: bytes.
            windows: whether windows may be bound to pairs of it, which peers then may write into.
            remote_write: whether peers may write into all of it.
        """
        access = e.IBV_ACCESS_LOCAL_WRITE
        access |= e.IBV_ACCESS_MW_BIND if windows else 0
        access |= e.IBV_ACCESS_REMOTE_WRITE if remote_write else 0
        with _verbs(f"cannot register {length} bytes of memory"):
            return MemoryRegion(MR(self._domain, length, access, address=address))

    def window(self) -> MemoryWindow:
        """A window that is bound to nothing: only writes of no bytes get in."""
        with _verbs("cannot allocate a memory window"):
            return MemoryWindow(MW(self._domain, e.IBV_MW_TYPE_1))

    def queue_pair(
        self,
        queue: boundary.CompletionQueue,
        port: int = 1,
        *,
        kind: PairKind = PairKind.RELIABLE,
        sends: int = 64,
        receives: int = 64,
    ) -> QueuePair:
        """A queue pair in the state INIT: it has a number, and receives can be posted; next is `connect`."""
        assert isinstance(queue, CompletionQueue)
        return QueuePair(self._domain, queue, port, kind, sends, receives)

    def close(self) -> None:
        """Give it back, with what is left of it; may be repeated."""
        with _verbs("cannot deallocate a protection domain"):
            self._domain.close()


class Device(ProtectionDomain):
    """An open device, with a protection domain for everything made from it, and further ones on demand."""

    def __init__(self, name: str) -> None:
        """Open it.

        Raises:
            VerbsError: there is none of this name, or it is not ours to use.
        """
        with _verbs(f"cannot open the device {name}"):
            with _new_event_descriptor() as found:
                self._context = Context(name=name)
            self.events_fileno = found[0]
            self.info = _describe(name, self._context)
        super().__init__(self._context)
        self._readable = select.poll()
        self._readable.register(self.events_fileno, select.POLLIN)
        self._closed = False

    def next_event(self) -> DeviceEvent | None:
        """The next asynchronous event, or None; never waits.

        Raises:
            VerbsError: the device was closed, or cannot be asked.
        """
        if self._closed:
            # pyverbs follows a pointer that is gone, and the descriptor may be another file's
            raise VerbsError("the device was closed")
        if not self._readable.poll(0):
            return None
        with _verbs("cannot get an event"):
            event = self._context.get_async_event()
            event.ack()
        return DeviceEvent(_EVENTS.get(event.event_type, EventKind.OTHER), str(event).strip())

    def domain(self) -> ProtectionDomain:
        """A further protection domain: what is made from it and what is made from another cannot use each other."""
        return ProtectionDomain(self._context)

    def completion_queue(self, depth: int = 256) -> CompletionQueue:
        """A completion queue, armed; must hold the completions of every queue pair that uses it."""
        return CompletionQueue(self._context, depth)

    def close(self) -> None:
        """Give back what is left, and close the device; may be repeated."""
        self._closed = True
        with _verbs("cannot close the device"):
            self._domain.close()
            self._context.close()


class EasyVerbs:
    """The devices of this host, by pyverbs."""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """See `devices`."""
        return devices()

    def open(self, name: str) -> Device:
        """Open one."""
        return Device(name)


@contextlib.contextmanager
def _verbs(what: str) -> Iterator[None]:
    try:
        yield
    except PyverbsError as error:
        number = getattr(error, "error_code", 0)
        raise VerbsError(f"{what}: {os.strerror(number) if number > 0 else error}", max(number, 0)) from error


@contextlib.contextmanager
def _new_event_descriptor() -> Iterator[list[int]]:
    """The descriptor that the block makes, to be looked at after it."""
    found: list[int] = []
    with _descriptors_are_being_made:
        before = _event_descriptors()
        yield found
        found += _event_descriptors() - before


def _event_descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # one that another thread has just closed
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == _EVENT_DESCRIPTOR:
                found.add(int(name))
    return found


def _describe(name: str, context: Context) -> DeviceInfo:
    attributes = context.query_device()
    table = context.query_gid_table(_MOST_GIDS)
    ports = tuple(_describe_port(number, context, table) for number in range(1, attributes.phys_port_cnt + 1))
    return DeviceInfo(name, bool(attributes.device_cap_flags & e.IBV_DEVICE_MEM_WINDOW), ports)


def _describe_port(number: int, context: Context, table: Sequence[Any]) -> PortInfo:
    port = context.query_port(number)
    gids = tuple(
        GidEntry(entry.gid_index, _address(entry), entry.gid_type == _ROCE_V2)
        for entry in table
        if entry.port_num == number
    )
    return PortInfo(number, port.state == e.IBV_PORT_ACTIVE, _MTU_BYTES[port.active_mtu], port.max_msg_sz, gids)


def _address(entry: Any) -> str:
    text = entry.gid_str() if callable(entry.gid_str) else entry.gid_str
    return str(ipaddress.IPv6Address(text))


def _completion(entry: Any) -> WorkCompletion:
    outcome = _OUTCOMES.get(entry.status, Outcome.FAILED)
    if outcome is not Outcome.DONE:
        return WorkCompletion(entry.wr_id, entry.qp_num, outcome, _status_text(entry.status))
    has_immediate = entry.wc_flags & e.IBV_WC_WITH_IMM
    return WorkCompletion(
        entry.wr_id, entry.qp_num, outcome, "", entry.byte_len, entry.imm_data if has_immediate else None
    )


def _status_text(status: int) -> str:
    return str(cqe_status_to_str(status)).lower()
