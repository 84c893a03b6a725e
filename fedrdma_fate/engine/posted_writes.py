"""Writes of a link's transfers that its data path has not completed."""

from __future__ import annotations

from fedrdma_fate.core.actions import PostChunk, PostRepair, WriteChunk, WriteHeader
from fedrdma_fate.engine.outgoing_transfer import OutgoingTransfer, Posted
from fedrdma_fate.ports import Endpoint

Post = WriteChunk | PostChunk | PostRepair | WriteHeader


class PostedWrites:
    """Numbers them over all transfers, and keeps of which each is."""

    def __init__(self) -> None:
        self._posted: dict[int, Posted] = {}
        self._next_work_request = 0

    def post(self, endpoint: Endpoint, active: OutgoingTransfer, action: Post) -> None:
        """Hand a write to the transport.

        Raises:
            FedRDMAError: see `Endpoint`.
        """
        self._next_work_request += 1
        request = self._next_work_request
        target, at = active.target, action.at
        match action:
            case WriteHeader(header=header):
                endpoint.post_bytes(request, header.encode(), target, at, active.grant.grant)
            case WriteChunk():
                endpoint.post_write(request, active.source.part(action.chunk), target, at)
            case PostChunk(queue_pair=queue_pair, immediate=immediate):
                endpoint.post_chunk(request, active.source.part(action.chunk), target, at, queue_pair, immediate)
            case PostRepair(number=number, queue_pair=queue_pair, immediate=immediate):
                assert active.repairs is not None
                endpoint.post_chunk(request, active.repairs.slot(number), target, at, queue_pair, immediate)
        is_chunk = not isinstance(action, WriteHeader)
        chunk = action.chunk if isinstance(action, WriteChunk | PostChunk) else None
        active.chunks_in_flight += is_chunk
        if active.sealed is not None and chunk is not None:
            active.sealed.on_posted(chunk)
        self._posted[request] = Posted(active, action.work_request, is_chunk, chunk)
        active.writes += 1

    def take_done(self, work_request: int) -> Posted | None:
        """One has completed; None where it is none of these."""
        posted = self._posted.pop(work_request, None)
        if posted is not None:
            active = posted.transfer
            active.chunks_in_flight -= posted.is_chunk
            if active.sealed is not None and posted.chunk is not None:
                active.sealed.on_done(posted.chunk)
        return posted

    def any_of(self, active: OutgoingTransfer) -> bool:
        """Whether a write of this transfer has not completed."""
        return any(posted.transfer is active for posted in self._posted.values())

    def clear(self) -> None:
        """The data path is gone."""
        self._posted.clear()
