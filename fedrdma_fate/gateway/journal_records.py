"""What the journal's records say. Strict: one that does not parse makes the whole journal one of another version.

More than 500 lines: it is one list, and who writes a record wants to see which others speak of the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from fedrdma_fate.core.held import Piece
from fedrdma_fate.memory.journal_file import ANOTHER_VERSION
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey, MessageKind, Mode, Offer, Party
from fedrdma_fate.wire.summand import Shape


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Base of every record."""


class Began(Record, frozen=True, tag=0):
    """First in every journal: whose it is, and what memory it speaks of.

    Attributes:
        site: name of the site.
        boot: of the machine; the memory of another one is gone.
        region: inode of the receive region's file.
        region_bytes: its length.
        send_region: inode of the send region's file.
        send_region_bytes: its length.
        spill: path of the directory of spilled messages.
        journal: random id, the same as long as each run finds what the one before it has left.
        synced: what was confirmed outlives the machine, too.
    """

    site: str
    boot: str
    region: int
    region_bytes: int
    send_region: int
    send_region_bytes: int
    spill: str
    journal: str = ""
    synced: bool = False


class Received(Record, frozen=True, tag=1):
    """A message is here, whole; written before the peer is told so.

    Attributes:
        origin: the site that it came from; empty for one of this site.
        transfer: its transfer there; together they name it in other records.
        key: the message.
        kind: what the payload holds.
        total_bytes: its length.
        body: the payload itself, where it lies nowhere else.
        offset: else where in a region its slot starts.
        sending: that is the send region, where both parties are of this site.
        payload_at: where in the slot it starts.
        file: name of the file that it lies in, where it was spilled.
        user: whose task pushed it, where that was one of this site.
        handed: a task has it.
        missing: what has not come of it, from one byte to before another.
        client: the task's id.
        lease: number of its lease, 0 where the bytes themselves went to it.
        asked: number of its get.
        pending: the peer is told only when a copy of it is on disk, too; until then it has not come.
        copy: name of the file of that copy.
    """

    origin: str
    transfer: int
    key: MessageKey
    kind: MessageKind
    total_bytes: int
    body: bytes | None = None
    offset: int = 0
    sending: bool = False
    payload_at: int = 0
    file: str = ""
    user: int | None = None
    handed: bool = False
    missing: tuple[tuple[int, int], ...] = ()
    client: str = ""
    lease: int = 0
    asked: int = 0
    pending: bool = False
    copy: str = ""


class Spilled(Record, frozen=True, tag=2):
    """A message was moved to a file; written before its slot is given back."""

    origin: str
    transfer: int
    file: str


class Copied(Record, frozen=True, tag=29):
    """A copy of a message is on disk; written, and synced, before the peer is told that it is here."""

    origin: str
    transfer: int
    file: str


class Handed(Record, frozen=True, tag=3):
    """A task has it, or is about to; `client`, `lease` and `asked` as in `Received`."""

    origin: str
    transfer: int
    client: str = ""
    lease: int = 0
    asked: int = 0


class Returned(Record, frozen=True, tag=4):
    """It was not handed over after all, and waits again."""

    origin: str
    transfer: int


class Gone(Record, frozen=True, tag=5):
    """Nobody needs its memory any more; written before that is given back."""

    origin: str
    transfer: int


class Ended(Record, frozen=True, tag=6):
    """A transfer that was delivered: the peer may ask again."""

    origin: str
    transfer: int


class EndedTogether(Record, frozen=True, tag=46):
    """Transfers that were delivered, as a journal is written anew."""

    origin: str
    transfers: tuple[int, ...]


class Lost(Record, frozen=True, tag=7):
    """A message that was confirmed is gone, and why; both ends are to be told."""

    origin: str
    transfer: int
    key: MessageKey
    reason: str


class Coming(Record, frozen=True, tag=31):
    """A message is under way, and so much of it has come besides what an earlier record of the same slot says.

    What it says may be out of date: whoever goes on in that slot looks at each byte.

    Attributes:
        origin: the site that it comes from.
        offer: what announced it.
        offset: where in the receive region its slot starts.
        length: of the slot.
        payload_at: where in the slot the payload starts.
        tagged: a tag has vouched for these bytes when they came.
        digested: the pieces have digests.
        pieces: which bytes they are.
    """

    origin: str
    offer: Offer
    offset: int
    length: int
    payload_at: int
    tagged: bool
    digested: bool
    pieces: tuple[Piece, ...]


class ComingSealed(Record, frozen=True, tag=34):
    """A message is under way, whose chunks lie in their slot as sealed, and these are more of their tags.

    The key lies in the slot, and nowhere else. Whoever can write there could put another one in its place.

    Attributes:
        origin: the site that it comes from.
        offer: what announced it.
        offset: where in the receive region its slot starts.
        length: of the slot.
        cipher: that they are sealed with.
        encrypts: it encrypts, or gives tags alone.
        introduction: of the attempt.
        key_digest: SHA-256 of its key.
        adopted: from which byte to which it lay there open when the attempt began.
        runs: number of the first record of each run, and counters and tags; see `ChunkTags`.
    """

    origin: str
    offer: Offer
    offset: int
    length: int
    cipher: str
    encrypts: bool
    introduction: bytes
    key_digest: bytes
    adopted: tuple[tuple[int, int], ...]
    runs: tuple[tuple[int, bytes], ...]


class Stopped(Record, frozen=True, tag=32):
    """A message comes no more where it was coming; written before that slot is given back."""

    origin: str
    transfer: int


class Met(Record, frozen=True, tag=33):
    """A peer has said which journal it goes on with; empty: with none, as it has told when it ended."""

    peer: str
    journal: str


class Joined(Record, frozen=True, tag=8):
    """A party's task has attached, and names everybody in the session; None: it does not know."""

    session: str
    party: Party
    parties: tuple[Party, ...] | None


class Left(Record, frozen=True, tag=9):
    """A party has left a session."""

    session: str
    party: Party


class Pushed(Record, frozen=True, tag=10):
    """It is being pushed.

    Attributes:
        key: the message.
        client: id of the task that pushes it.
        digest: xxh3-64 of the payload, where that is known.
        failed: code of why it came to nothing, where it did.
    """

    key: MessageKey
    client: str = ""
    digest: int | None = None
    failed: str = ""


class Unpushed(Record, frozen=True, tag=11):
    """The push came to nothing."""

    key: MessageKey


class Pulled(Record, frozen=True, tag=12):
    """It was handed out.

    Attributes:
        key: the message.
        client: id of the task that has it, or is about to, where no other record says so: it was lent.
        asked: number of its get.
    """

    key: MessageKey
    client: str = ""
    asked: int = 0


class Unpulled(Record, frozen=True, tag=13):
    """It was not, after all."""

    key: MessageKey


class Over(Record, frozen=True, tag=19):
    """A session has ended.

    Attributes:
        session: which.
        reason: why.
        sites: that are told so on each new channel, also by the next run.
    """

    session: str
    reason: str
    sites: tuple[str, ...] = ()


class Outgoing(Record, frozen=True, tag=14):
    """A message is to be sent; written before its task is told that it will be.

    Attributes:
        peer: name of the site.
        transfer: its transfer; together they name it in other records.
        key: the message.
        kind: what the payload holds.
        total_bytes: its length.
        mode: in which it goes.
        body: the payload of a small one.
        offset: else where in the send region it lies.
        whole: whether its task has written all of it.
    """

    peer: str
    transfer: int
    key: MessageKey
    kind: MessageKind
    total_bytes: int
    mode: Mode
    body: bytes | None = None
    offset: int = 0
    whole: bool = True


class Whole(Record, frozen=True, tag=15):
    """A task has written the rest of it."""

    peer: str
    transfer: int


class Sent(Record, frozen=True, tag=16):
    """The peer has it, or will not get it, and knows; written before its slot is given back."""

    peer: str
    transfer: int


class Undelivered(Record, frozen=True, tag=21):
    """The peer will not get it, and is told so on each new channel; written before its slot is given back."""

    peer: str
    transfer: int
    key: MessageKey
    code: str
    reason: str


class Dropped(Record, frozen=True, tag=22):
    """The peer will not get it, or has dropped it after all, and nobody at its site is to be told."""

    peer: str
    transfer: int


class Confirmed(Record, frozen=True, tag=23):
    """The peer has it: it may say yet that it has lost it. What `Outgoing` and `Sent` amount to."""

    peer: str
    transfer: int
    key: MessageKey


class Numbered(Record, frozen=True, tag=60):
    """How far an end of a queue has come, as a journal is written anew: what it forgets of messages says so no more.

    Attributes:
        session: the session.
        name: of what goes through the queue.
        source: who pushes.
        destination: who pops.
        end: which one.
        next: number of the next message there.
    """

    session: str
    name: str
    source: Party
    destination: Party
    end: Literal["push", "pop"]
    next: int


class PushFailed(Record, frozen=True, tag=24):
    """A push came to nothing, and its task is to be told."""

    key: MessageKey
    code: str
    reason: str


class Told(Record, frozen=True, tag=25):
    """A party was told of the first of its pushes that failed."""

    session: str
    party: Party


class Leased(Record, frozen=True, tag=17):
    """A task has a send slot.

    Attributes:
        client: the task's id.
        place: of the byte behind the region that it holds a lock on.
        lease: number of the lease.
        offset: where the slot starts.
        length: bytes.
    """

    client: str
    place: int
    lease: int
    offset: int
    length: int


class Unleased(Record, frozen=True, tag=18):
    """It has given it back, or away."""

    client: str
    lease: int


class Came(Record, frozen=True, tag=26):
    """A task has attached; written before it is told so.

    Attributes:
        client: its id.
        secret: SHA-256 of what only it knows.
        session: federation session.
        party: the party that it runs for.
        mode: transfer mode that it asks for.
        user: whose process it is.
        place: of the byte behind the send region that it holds a lock on.
    """

    client: str
    secret: bytes
    session: str
    party: Party
    mode: Mode | None
    user: int
    place: int


class Went(Record, frozen=True, tag=27):
    """It has ended."""

    client: str


class SumBegan(Record, frozen=True, tag=40):
    """A sum has its slot; written before anything is added there.

    Attributes:
        number: of the sum, in the records that follow.
        client: the task's id that has asked for it.
        keys: its messages, in the order of the ranks.
        order: in what order it adds.
        shapes: of its arrays.
        offset: where in the receive region its slot starts.
        length: of the slot.
    """

    number: int
    client: str
    keys: tuple[MessageKey, ...]
    order: Literal["exact", "rank", "arrival"]
    shapes: tuple[Shape, ...]
    offset: int
    length: int


class SumAdding(Record, frozen=True, tag=41):
    """Some of an update may be in the sum from now on; `party` is the number of its key."""

    number: int
    party: int


class SumAdded(Record, frozen=True, tag=42):
    """All of an update is in the sum; written together with that the message was pulled, and is gone.

    Attributes:
        number: of the sum.
        party: number of its key.
        weight: what it says.
        origin: the site that the message came from, as in `Received`.
        transfer: its transfer there.
    """

    number: int
    party: int
    weight: float | None
    origin: str
    transfer: int


class SumClosed(Record, frozen=True, tag=43):
    """Nothing more is added; written before what was added is made float64.

    Attributes:
        number: of the sum.
        reason: why not everybody is in it, or empty.
        half: number of the key of which some is in it, and no worker could add the rest; None: there is none.
        weight: of that one.
    """

    number: int
    reason: str
    half: int | None = None
    weight: float | None = None


class SumHanded(Record, frozen=True, tag=44):
    """Its task has it, or is about to; `lease` and `asked` as in `Received`. Lease 0: it has not got it after all."""

    number: int
    lease: int
    asked: int


class SumGone(Record, frozen=True, tag=45):
    """Nobody needs its slot any more; written before that is given back."""

    number: int


class SumMoved(Record, frozen=True, tag=62):
    """A sum lies in another slot now, finished; written together with that its last update is in.

    Attributes:
        number: of the sum.
        offset: where in the receive region its slot starts.
        length: of the slot.
    """

    number: int
    offset: int
    length: int


class SumMerging(Record, frozen=True, tag=58):
    """Some of the sum of a site may be in the sum from now on.

    Attributes:
        number: of the sum.
        key: of the message that is the site's; None: nothing of it is in after all.
    """

    number: int
    key: MessageKey | None


class SumMerged(Record, frozen=True, tag=59):
    """All of the sum of a site is in; written together with that it, and each message that is in it, was pulled.

    Attributes:
        number: of the sum.
        weights: by the numbers of the keys of its parties.
        origin: the site that it came from, as in `Received`.
        transfers: by which the messages that are in it would have come alone, in the order of `weights`.
        sites: of these messages, and how many in turn of each; empty: all are of `origin`.
    """

    number: int
    weights: tuple[tuple[int, float | None], ...]
    origin: str
    transfers: tuple[int, ...]
    sites: tuple[tuple[str, int], ...] = ()


class Missed(Record, frozen=True, tag=61):
    """A message was dropped, for its party had left the session: its sender is asked about it when that is back.

    Attributes:
        origin: the site that it came from; empty for one of this site.
        transfer: its transfer there.
        key: the message.
    """

    origin: str
    transfer: int
    key: MessageKey


SessionRecord = Joined | Left | Over | Pushed | Unpushed | Pulled | Unpulled | Numbered | PushFailed | Told | Missed
SendRecord = Outgoing | Whole | Sent | Undelivered | Dropped | Confirmed | Leased | Unleased
TaskRecord = Came | Went
PeerRecord = Met
ReceiveRecord = (
    Received
    | Spilled
    | Copied
    | Handed
    | Returned
    | Gone
    | Ended
    | EndedTogether
    | Lost
    | Coming
    | ComingSealed
    | Stopped
)
SumRecord = SumBegan | SumAdding | SumAdded | SumMerging | SumMerged | SumMoved | SumClosed | SumHanded | SumGone
SingleRecord = Began | ReceiveRecord | SessionRecord | SendRecord | TaskRecord | SumRecord | PeerRecord


class Together(Record, frozen=True, tag=30):
    """Records of which a journal that is cut short has all or none."""

    records: tuple[SingleRecord, ...]


AnyRecord = SingleRecord | Together

_TOGETHER = b"\x92\x1e"
"""How one begins: an array of two (msgpack's fixarray), of which the first is its tag."""

_MOST_TOGETHER = 0xFFFF
"""Of them, by the length of an array that is written (msgpack's array 16)."""

MOST_TOGETHER_BYTES = 8 << 20
"""More is written one by one: half of the longest record. That is one put of 64 KiB to more than a hundred parties."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


def encode_record(record: Record) -> bytes:
    """As it is written."""
    return _encoder.encode(record)


def encode_together(records: Sequence[Record]) -> list[bytes]:
    """As they are written, so that all of them are there or none; beyond `MOST_TOGETHER_BYTES` each for itself."""
    bodies = [encode_record(record) for record in records]
    if len(bodies) < 2 or len(bodies) > _MOST_TOGETHER or sum(map(len, bodies)) > MOST_TOGETHER_BYTES:
        return bodies
    return [b"".join((_TOGETHER, b"\xdc", len(bodies).to_bytes(2, "big"), *bodies))]


def decode_record(body: bytes) -> AnyRecord:
    """As it was written.

    Raises:
        MemoryPoolError: JOURNAL_UNUSABLE.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MemoryPoolError(
            ErrorCode.JOURNAL_UNUSABLE,
            f"the journal of an earlier run cannot be used: a record does not parse: {error}.",
            ANOTHER_VERSION,
        ) from error
