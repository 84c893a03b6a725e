"""What a gateway and its worker say to each other over a socket pair: length-prefixed msgpack, a job and its answer."""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from fedrdma_fate.wire.summand import Shape

LENGTH_PREFIX = struct.Struct("<I")


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of jobs and answers."""


class Begin(_Message, frozen=True, tag="begin"):
    """Map an accumulator, whose descriptor comes with this.

    Attributes:
        sum_id: of the sum.
        order: in what order it adds.
        parties: how many belong to it.
        shapes: of its arrays.
        offset: where its slot begins in the file.
        length: of the slot.
    """

    sum_id: int
    order: Literal["exact", "rank", "arrival"]
    parties: int
    shapes: tuple[Shape, ...]
    offset: int
    length: int


class Add(_Message, frozen=True, tag="add"):
    """Add an update from the file whose descriptor comes with this.

    Attributes:
        sum_id: of the sum.
        number: of the update, from 1 on.
        offset: where its planes begin in the file.
        keep_mapped: the file is a region, from which more will come; else it is one that was spilled to.
        parties: where it is the sum of so many parties, that was not finished; 0: it is an update.
    """

    sum_id: int
    number: int
    offset: int
    keep_mapped: bool
    parties: int = 0


class AddLast(_Message, frozen=True, tag="add-last"):
    """Add a piece of the last update, which may still be coming: what the sum is with it is written to its total.

    Attributes:
        sum_id: of the sum, which does not change.
        total_id: of the total, which was begun as a sum is.
        offset: where its planes begin in the file whose descriptor comes with this.
        start: of the blocks that begin in these bytes behind there.
        end: see `start`.
        keep_mapped: as in `Add`.
        parties: as in `Add`.
        is_end: the total is whole by this: sum and total are unmapped, as by `End`.
    """

    sum_id: int
    total_id: int
    offset: int
    start: int
    end: int
    keep_mapped: bool
    parties: int = 0
    is_end: bool = False


class Finish(_Message, frozen=True, tag="finish"):
    """Make float64 of what was added to a sum."""

    sum_id: int


class End(_Message, frozen=True, tag="end"):
    """A sum is over: unmap its accumulator."""

    sum_id: int


class Done(_Message, frozen=True, tag="done"):
    """A job is done.

    Attributes:
        began: when the addition began, by time.monotonic, which all processes of a host share; 0: it was another job.
    """

    began: float = 0.0


class Unfit(_Message, frozen=True, tag="unfit"):
    """An update cannot be added, and is not in the sum."""

    reason: str


class Unmapped(_Message, frozen=True, tag="unmapped"):
    """The file that a notice names is not mapped here any more: the same as a job, with its descriptor."""


Job = Begin | Add | AddLast | Finish | End
JobAnswer = Done | Unfit | Unmapped

_encoder = msgspec.msgpack.Encoder()
_job_decoder: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
_answer_decoder: msgspec.msgpack.Decoder[JobAnswer] = msgspec.msgpack.Decoder(JobAnswer)


def encode(message: Job | JobAnswer) -> bytes:
    """A message with its length in front."""
    body = _encoder.encode(message)
    return LENGTH_PREFIX.pack(len(body)) + body


def decode_job(body: bytes) -> Job:
    """Parse a job; raises msgspec.MsgspecError."""
    return _job_decoder.decode(body)


def decode_answer(body: bytes) -> JobAnswer:
    """Parse an answer; raises msgspec.MsgspecError."""
    return _answer_decoder.decode(body)
