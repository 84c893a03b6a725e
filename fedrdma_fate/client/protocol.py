"""What tasks and their gateway say to each other over a unix socket or TLS: length-prefixed msgpack, request and reply.

More than 500 lines: it is one list, and who reads a request wants to see its answer.
"""

from __future__ import annotations

import struct
from typing import Annotated, Literal, TypeVar

import msgspec

from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import (
    INLINE_LIMIT_BYTES,
    MOST_NAME_CHARACTERS,
    MOST_PARTIES,
    MOST_PARTY_CHARACTERS,
    LossShare,
    MessageKind,
    Mode,
    Party,
)
from fedrdma_fate.wire.summand import MOST_ARRAYS, Shape

CLIENT_PROTOCOL_VERSION = 12

LENGTH_PREFIX = struct.Struct("<I")
MAX_FRAME_BYTES = INLINE_LIMIT_BYTES + 1024 * 1024
"""No frame is longer: payloads beyond the inline limit go through slots."""

DIGESTED_AT_COMMIT_BYTES = 1024 * 1024
"""A payload up to this length needs none told: the gateway computes them when it is committed, in about 0.1 ms."""

DIGESTED_BY_TASKS_BYTES = 16 * 1024 * 1024
"""Up to this length tasks tell them of what is lent or stays here, too, where only the same push made again may need
them, and of bytes that are put as they are: of blocks that a task writes, and that lie in the cache, that takes it a
millisecond or so."""

MOST_DESCRIPTORS = 1
"""With a reply: of the memory that it speaks of."""

Place = Literal["region", "borrowed", "spilled"]
"""What file a payload lies in: the gateway's own region, that of another gateway on the host, or a spill file."""

Bytes = Annotated[int, msgspec.Meta(ge=0)]

MOST_STRAGGLER_WAIT = 100.0
"""Times the others' time that a late message is waited for: longer says as much as no value at all."""

StragglerWait = Annotated[float, msgspec.Meta(ge=0, le=MOST_STRAGGLER_WAIT)]
"""How much longer than the others the last message of a round is waited for, as a share of their median time."""
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Digest = Annotated[int, msgspec.Meta(ge=0)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of requests and replies."""


# -- requests -----------------------------------------------------------------------------------------------------

Destinations = Annotated[tuple[Party, ...], msgspec.Meta(max_length=MOST_PARTIES)]
"""Of one push: no more than a session has parties."""


SECRET_BYTES = 16
"""Of what a task makes up to be known by when it comes back; nobody guesses 128 bits."""

MOST_HELD = 65536
"""Leases that a task names when it comes back: for each it has something mapped, and a descriptor."""

MOST_LEASES = 1024
"""Given back by one request, all in one turn of the gateway's event loop; a task gives back one at a time."""


class Attach(_Message, frozen=True, tag="attach"):
    """First request on a connection: who is calling.

    Attributes:
        protocol: version of this protocol.
        client: random id of the task process; all its connections share leases, which end with the last of them.
        session: federation session.
        party: the party the task runs for.
        mode: transfer mode that this job asks for, or None for the gateway's.
        parties: who is in the session: at other sites, nobody else may send messages of it. None where the task does
            not know; then every party may that a peer speaks for.
        secret: random bytes, the same on all connections of the task: by them the next run of the gateway knows it.
            Without any, it cannot come back there.
    """

    protocol: int
    client: Annotated[str, msgspec.Meta(max_length=MOST_PARTY_CHARACTERS)]
    session: Annotated[str, msgspec.Meta(max_length=MOST_NAME_CHARACTERS)]
    party: Party
    mode: Mode | None = None
    parties: Annotated[tuple[Party, ...], msgspec.Meta(max_length=MOST_PARTIES)] | None = None
    secret: Annotated[bytes, msgspec.Meta(max_length=SECRET_BYTES)] = b""


class GoOn(_Message, frozen=True, tag="go-on"):
    """The task had attached to an earlier run of the gateway, which was killed, and goes on with what it had there.

    First request of a task to another run. By it the gateway knows what the earlier run had given, and the task has not
    got, or has given back: leases go back, and messages that it has not got wait again.

    Attributes:
        held: the leases that the task has.
        highest: the highest lease that it has ever had; those to come are higher.
        unanswered: numbers of its gets that were not answered.
    """

    held: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_HELD)]
    highest: Annotated[int, msgspec.Meta(ge=0)]
    unanswered: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_HELD)] = ()


class LeaseSlot(_Message, frozen=True, tag="lease"):
    """Lease a send slot; answered when there is room.

    Attributes:
        total_bytes: length.
        timeout: seconds to wait for room; None for the gateway's own time-out.
    """

    total_bytes: Bytes
    timeout: Seconds | None = None


class Commit(_Message, frozen=True, tag="commit"):
    """Send what was written into a leased slot.

    Attributes:
        lease: the lease.
        name: FATE's message name.
        tag: FATE's tag.
        destinations: the parties to send it to.
        kind: what the payload holds.
        keep: the task keeps the lease, to commit the same bytes to further destinations.
        unfinished: the task has still to write it, and tells of it by `Written`; it also keeps the lease until then.
            The gateway answers `Begun`, or `NotYet`: then nothing was committed.
        loss_share: how much of what lies behind `whole_bytes` may be missing in the end.
        whole_bytes: from the start of the payload, that have to come.
        again: it was asked for before, of a gateway that was killed: where that has done it, it is done.
    """

    lease: int
    name: str
    tag: str
    destinations: Destinations
    kind: MessageKind
    keep: bool = False
    unfinished: bool = False
    loss_share: LossShare = 0.0
    whole_bytes: Bytes = 0
    again: bool = False


class Written(_Message, frozen=True, tag="written"):
    """More of a payload lies in a leased slot, which is written from its end to its start.

    Attributes:
        lease: the lease.
        written_from: everything lies there from this offset on.
        block_digests: of the payload's blocks (`core.digest`) from there on, as far as not told before; may be empty.
    """

    lease: int
    written_from: Bytes
    block_digests: tuple[Digest, ...] = ()


class PutInline(_Message, frozen=True, tag="put-inline"):
    """Send a small message; `again` as in `Commit`."""

    name: str
    tag: str
    destinations: Destinations
    kind: MessageKind
    body: Annotated[bytes, msgspec.Meta(max_length=INLINE_LIMIT_BYTES)]
    again: bool = False


class Tolerate(_Message, frozen=True, tag="tolerate"):
    """The task will get messages of this name and tag, and lets something of them be missing.

    Attributes:
        name: FATE's message name.
        tag: FATE's tag.
        sources: the parties they come from.
        loss_share: how much of what may be missing may be so, of each.
        jointly: it is of all together: what is missing of one may be of the others for nothing, for it is lost with it.
        straggler_wait: when all but one are there, how much longer that one is waited for, as a share of the median
            time of the others' transfers, once what is missing of it may be; None: until all of it was sent.
    """

    name: str
    tag: str
    sources: Destinations
    loss_share: LossShare
    jointly: bool = False
    straggler_wait: StragglerWait | None = None


class Get(_Message, frozen=True, tag="get"):
    """Wait for a message.

    Attributes:
        name: FATE's message name.
        tag: FATE's tag.
        source: the party it comes from.
        timeout: seconds to wait; None waits for ever.
        tolerates: whether the task expects that something of it may be missing.
        number: another one for each get of a task; see `GoOn`.
        keeps: it waits again once the task gives its lease back, or is gone, until `Forget`: for another get of it.
    """

    name: str
    tag: str
    source: Party
    timeout: Seconds | None = None
    tolerates: bool = False
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    keeps: bool = False


class Forget(_Message, frozen=True, tag="forget"):
    """Messages that were got by gets that keep them are not wanted any more.

    Attributes:
        prefix: what their names begin with.
        tag: FATE's tag.
        source: the party they come from.
    """

    prefix: str
    tag: str
    source: Party


class Sum(_Message, frozen=True, tag="sum"):
    """Wait for the sum of what several parties send under one name. Answered by `Summed` or `NotSummed`.

    Attributes:
        name: FATE's message name.
        tag: FATE's tag.
        sources: the parties, in the order of their ranks.
        timeout: seconds to wait; None waits for ever.
        number: as in `Get`.
    """

    name: str
    tag: str
    sources: Annotated[tuple[Party, ...], msgspec.Meta(min_length=1, max_length=MOST_PARTIES)]
    timeout: Seconds | None = None
    number: Annotated[int, msgspec.Meta(ge=0)] = 0


class ExpectSum(_Message, frozen=True, tag="expect-sum"):
    """The task will ask for sums of what these parties send under one name, with tags that it does not know yet.

    Attributes:
        name: FATE's message name.
        sources: the parties, in the order of their ranks.
    """

    name: str
    sources: Annotated[tuple[Party, ...], msgspec.Meta(min_length=1, max_length=MOST_PARTIES)]


class ReleaseLeases(_Message, frozen=True, tag="release"):
    """Give leases back; unknown ones are ignored."""

    leases: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_LEASES)]


class ReturnLease(_Message, frozen=True, tag="return"):
    """The task cannot use what a get has brought it, for want of a descriptor or of memory: it waits again."""

    lease: int


class Leave(_Message, frozen=True, tag="leave"):
    """The party leaves the session: what is still here for it is dropped; what it has pushed still goes out."""


class AskStatus(_Message, frozen=True, tag="status"):
    """Ask for the gateway's status; allowed without Attach."""


class AskProbe(_Message, frozen=True, tag="probe"):
    """Ask for measurements of the path to a peer; allowed without Attach.

    Attributes:
        peer: name of its site.
        total_bytes: most bytes to send.
        seconds: most time to take.
    """

    peer: str
    total_bytes: Bytes
    seconds: Seconds


class AskSessions(_Message, frozen=True, tag="sessions"):
    """Ask for the sessions at this gateway; allowed without Attach."""


class DropSession(_Message, frozen=True, tag="drop-session"):
    """End a session at all sites; allowed without Attach, to the gateway's own user. Answered by SessionsReport."""

    session: Annotated[str, msgspec.Meta(max_length=MOST_NAME_CHARACTERS)]


# of tasks on other hosts, over `listen.tasks`: what others read and write in shared memory travels


REMOTE_PIECE_BYTES = 1024 * 1024
"""Of a payload in one frame, at most: so much is in memory at a time for each connection."""

LONGEST_SECRET = 256
"""Characters of what such a task has to know: `secrets.token_hex(32)` has 64."""

MOST_ENTER_BYTES = 1024
"""Of the first frame of a connection, which anybody may send."""


class Enter(_Message, frozen=True, tag="enter"):
    """First on a connection of a task on another host: it knows the site's secret. Answered by `Done`."""

    secret: Annotated[str, msgspec.Meta(max_length=LONGEST_SECRET)]


class Fill(_Message, frozen=True, tag="fill"):
    """Write a piece of a payload into a leased slot. Not answered; of an unknown lease it is ignored.

    Attributes:
        lease: the lease.
        offset: where in the slot.
        body: the bytes.
    """

    lease: int
    offset: Bytes
    body: Annotated[bytes, msgspec.Meta(max_length=REMOTE_PIECE_BYTES)]


class Fetch(_Message, frozen=True, tag="fetch"):
    """Read a piece of a message that the task has got. Answered by `Piece`.

    Attributes:
        lease: of the message.
        offset: where in its payload.
        length: bytes.
    """

    lease: int
    offset: Bytes
    length: Annotated[int, msgspec.Meta(ge=1, le=REMOTE_PIECE_BYTES)]


Request = (
    Attach
    | GoOn
    | LeaseSlot
    | Commit
    | Written
    | PutInline
    | Tolerate
    | Get
    | Forget
    | Sum
    | ExpectSum
    | ReleaseLeases
    | ReturnLease
    | Leave
    | AskStatus
    | AskProbe
    | AskSessions
    | DropSession
)

RemoteRequest = Request | Fill | Fetch
"""What a task of another host may ask once it has entered."""

# -- replies ------------------------------------------------------------------------------------------------------


class Notice(_Message, frozen=True, tag="notice"):
    """Why a request waits; its reply is still to come.

    Attributes:
        message: for people.
        move: whether it would help that the task moves what it got, and still holds, to memory of its own.
    """

    message: str
    move: bool


class Done(_Message, frozen=True, tag="done"):
    """The request was carried out."""


class Begun(_Message, frozen=True, tag="begun"):
    """What is still being written is on its way.

    Attributes:
        digests: whether the digests of its blocks will be of use.
    """

    digests: bool


class NotYet(_Message, frozen=True, tag="not-yet"):
    """What is still being written cannot be used: commit it when it is whole.

    Attributes:
        digests: whether the digests of its blocks will be of use.
    """

    digests: bool


class Attached(_Message, frozen=True, tag="attached"):
    """Welcome. With it comes a descriptor of the send region, to be mapped by the task.

    Attributes:
        incarnation: this run of the gateway.
        patience: seconds for which what a run had is kept for the next one, if it is killed; 0: nothing is.
    """

    incarnation: str
    patience: Seconds = 0.0


class Leased(_Message, frozen=True, tag="leased"):
    """A send slot: its offset in the send region."""

    lease: int
    offset: int


class GotInline(_Message, frozen=True, tag="got-inline"):
    """The message was small: here it is."""

    kind: MessageKind
    body: bytes


class GotSlot(_Message, frozen=True, tag="got-slot"):
    """The message lies in a file, whose descriptor comes with this.

    Attributes:
        kind: what the payload holds.
        lease: to be released when nothing maps it any more.
        place: what file it is.
        offset: where the payload starts in it, page-aligned.
        total_bytes: its length.
        missing: what has not come of it and is zeros, from one byte of it to before another.
    """

    kind: MessageKind
    lease: int
    place: Place
    offset: int
    total_bytes: int
    missing: tuple[tuple[Bytes, Bytes], ...] = ()


class Unfinished(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What no worker could do, and whoever gets the sum does in its own copy: see `aggregate.accumulator`.

    Attributes:
        order: in what order it adds.
        half: of whom some is in it, and not all, as a number of the request's sources; None: nobody.
        weight: the sum of the weights with that one's.
    """

    order: Literal["exact", "rank", "arrival"]
    half: Annotated[int, msgspec.Meta(ge=0)] | None = None
    weight: float | None = None


class Summed(_Message, frozen=True, tag="summed"):
    """A sum, in a slot of the gateway's region whose descriptor comes with this. Who is not in it is to be got as ever.

    Attributes:
        parties_in: who is in it, as numbers of the request's sources.
        weight: the sum of their weights; None where they have none.
        shapes: of the arrays; each has two planes, see `wire.summand`.
        lease: to be released when nothing maps it any more.
        offset: where the first plane starts in the file, page-aligned.
        total_bytes: of all planes.
        reason: why not everybody is in it, or empty.
        before: bytes in front of that offset, of the accumulator.
        unfinished: what is still to be done, where something is.
    """

    parties_in: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_PARTIES)]
    weight: float | None
    shapes: Annotated[tuple[Shape, ...], msgspec.Meta(max_length=MOST_ARRAYS)]
    lease: int
    offset: int
    total_bytes: int
    reason: str
    before: Bytes = 0
    unfinished: Unfinished | None = None


class NotSummed(_Message, frozen=True, tag="not-summed"):
    """Nothing was summed: every update is to be got as ever.

    Attributes:
        reason: why.
        expected: that is as it should be, and nothing to tell people of.
    """

    reason: str
    expected: bool


class Piece(_Message, frozen=True, tag="piece"):
    """Bytes of a message, as many as were asked for."""

    body: bytes


class StatusReport(_Message, frozen=True, tag="status-report"):
    """The gateway's status as a JSON document."""

    document: bytes


class ProbeReport(_Message, frozen=True, tag="probe-report"):
    """What a probe has measured, as a JSON document."""

    document: bytes


class SessionsReport(_Message, frozen=True, tag="sessions-report"):
    """The sessions at this gateway, or what was dropped of one, as a JSON document."""

    document: bytes


class Error(_Message, frozen=True, tag="error"):
    """The request failed.

    Attributes:
        code: of the error.
        message: for people.
        remedy: for people.
        next_run: the gateway is stopping, and leaves what it has to its next run, which may be asked the same.
    """

    code: str
    message: str
    remedy: str
    next_run: bool = False


Reply = (
    Notice
    | Done
    | Begun
    | NotYet
    | Attached
    | Leased
    | GotInline
    | GotSlot
    | Summed
    | NotSummed
    | Piece
    | StatusReport
    | ProbeReport
    | SessionsReport
    | Error
)

AnyMessage = TypeVar("AnyMessage")

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_remote_request_decoder: msgspec.msgpack.Decoder[RemoteRequest] = msgspec.msgpack.Decoder(RemoteRequest)
_enter_decoder: msgspec.msgpack.Decoder[Enter] = msgspec.msgpack.Decoder(Enter)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode_message(message: RemoteRequest | Enter | Reply) -> bytes:
    """A request or reply with its length in front."""
    body = _encoder.encode(message)
    return LENGTH_PREFIX.pack(len(body)) + body


def frame_length(prefix: bytes) -> int:
    """The length announced by LENGTH_PREFIX.size bytes.

    Raises:
        WireError: MALFORMED_FRAME when no frame may be that long.
    """
    length = int(LENGTH_PREFIX.unpack(prefix)[0])
    if length > MAX_FRAME_BYTES:
        raise WireError(ErrorCode.MALFORMED_FRAME, f"a frame of {length} bytes; {MAX_FRAME_BYTES} is the limit.")
    return length


def decode_request(body: bytes) -> Request:
    """Parse a request.

    Raises:
        WireError: MALFORMED_FRAME.
    """
    return _decoded(_request_decoder, body, "a request")


def decode_remote_request(body: bytes) -> RemoteRequest:
    """Parse a request of a task on another host.

    Raises:
        WireError: MALFORMED_FRAME.
    """
    return _decoded(_remote_request_decoder, body, "a request")


def decode_enter(body: bytes) -> Enter:
    """Parse the first request of a connection from another host.

    Raises:
        WireError: MALFORMED_FRAME.
    """
    return _decoded(_enter_decoder, body, "a first request")


def decode_reply(body: bytes) -> Reply:
    """Parse a reply.

    Raises:
        WireError: MALFORMED_FRAME.
    """
    return _decoded(_reply_decoder, body, "a reply")


def _decoded(decoder: msgspec.msgpack.Decoder[AnyMessage], body: bytes, what: str) -> AnyMessage:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(ErrorCode.MALFORMED_FRAME, f"{what} does not parse: {error}.") from error
