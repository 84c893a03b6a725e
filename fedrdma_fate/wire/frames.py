"""Control frames between two gateways, as tagged msgpack. Strict: an unknown field or tag is an error, but for fields
of a greeting.

More than 500 lines: all that two gateways say is to be seen in one place, and most lines say what a field means.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD

INLINE_LIMIT_BYTES = 64 * 1024
"""Payloads up to this size ride in an `Inline` frame on the control channel."""

PROBE_TRANSFERS_FROM = 1 << 52
"""Transfers with ids from here on are probes: they get spare memory only, and are dropped when they have arrived."""

MOST_NAME_CHARACTERS = 1024
"""Of a session's id, and of a message's name and tag: FATE's are some hundred long at most."""

MOST_PARTY_CHARACTERS = 256
"""Of a role, a party id, and other names of what is configured."""

MOST_REASON_CHARACTERS = 1024
"""Of a reason, which is for people; longer ones are cut by whoever sends them."""

MOST_PARTIES = 4096
"""Served by one site."""

MOST_ADDRESS_ITEMS = 256
"""In what a transport needs of the other side: for `verbs` some for each of 64 queue pairs."""

MOST_ADDRESS_CHARACTERS = 8192
"""Of one of them."""

MOST_RESUMED = 8192
"""Transfers that a reconciliation lists: a sender has fewer under way."""

MOST_CIPHERS = 16
"""That a gateway may know; this version knows two."""

MOST_KEY_BYTES = 64
"""Of a public half or a nonce: 32 are right, and whoever uses them says so of others."""

LEAST_FRAMES_PER_SECOND = 100
"""That a gateway may say it reads, as its configuration may: with less, tasks would wait for ever."""

MOST_TOLD_DIGESTS = 1 << 16
"""Of chunks, in one frame, half a MiB then: 1 GiB in chunks of 16 KiB. A payload of more goes again whole."""

MOST_HELD_RANGES = 1024
"""Of bytes that lie in a granted slot, which a grant names, in some 20 KB: of 64 MiB in chunks of 64 KiB, of which some
have not come, it would name ten where one in a hundred is lost."""

TAGS_OF_A_RUN = 4096
"""Told in one frame: 96 KiB, so that no other frame waits long behind it."""

MOST_LOSS_SHARE = 0.2
"""Of a message that may be missing. Beyond, the model suffers more than the round gains."""

DIGESTS_OF_A_RUN = 64
"""Of chunks, told at once: half a KiB, which fits a packet, and with both copies 0.1 % of chunks of 16 KiB."""

MOST_HOLDERS = 8
"""That are told of memory which others wait for."""

MOST_SUM_ORDERS = 64
"""That stand with one peer: each is of a sum that is being added now, mostly one for each job."""

MOST_FAN_IN = 1024
"""Sums of other sites in one: as many as a federation is taken to have of them."""

MOST_CALL_BYTES = 1024 * 1024
"""Of the body of a scheduling call, or of its answer: the largest is the DAG of a job, some kB."""

MOST_CALL_HEADERS = 32
"""Of a scheduling call that travel: FATE Flow's own are nine."""

Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME_CHARACTERS)]
PartyText = Annotated[str, msgspec.Meta(max_length=MOST_PARTY_CHARACTERS)]
Reason = Annotated[str, msgspec.Meta(max_length=MOST_REASON_CHARACTERS)]
AddressText = Annotated[str, msgspec.Meta(max_length=MOST_ADDRESS_CHARACTERS)]

Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""Of any clock: 30,000 years. Infinity, and what is no number, are none, nor is whatever is computed with them."""

MOST_SHARE = 1e13
"""Bytes a second that a share may be, 80 Tbit/s: no link has more."""

MOST_COUNTED_BYTES = 1 << 62
"""That can ever have come; two such numbers still fit into 64 bits."""

CountedBytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNTED_BYTES)]

KeyBytes = Annotated[bytes, msgspec.Meta(max_length=MOST_KEY_BYTES)]

CallId = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Of a scheduling call: unique for the incarnation of who asks."""

CallBody = Annotated[bytes, msgspec.Meta(max_length=MOST_CALL_BYTES)]

LossShare = Annotated[float, msgspec.Meta(ge=0, le=MOST_LOSS_SHARE)]
"""Of what may be missing of a message, that may be so at once."""

MessageKind = Literal["object", "bytes", "partition"]
Mode = Literal["grpc", "fedrdma", "fedrdma-e", "fedrdma-x"]


class Party(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A FATE party: its role (guest, host, arbiter, local) and party id."""

    role: PartyText
    party_id: PartyText

    def __str__(self) -> str:
        return f"{self.role}:{self.party_id}"


class MessageKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes a FATE message unique: the federation session, its name and tag, from whom and to whom."""

    session: Name
    name: Name
    tag: Name
    source: Party
    destination: Party

    def __str__(self) -> str:
        return f"{self.session}/{self.name}/{self.tag} {self.source}->{self.destination}"


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="frame"):
    """Base of every control frame."""


class Hello(Frame, frozen=True, tag="hello", forbid_unknown_fields=False):
    """First frame in each direction. Fields of a newer version are passed over: it does without what they are about.

    Attributes:
        site: name of the sending gateway's site.
        incarnation: random id of this run of the gateway; another one means all state there is gone.
        protocol: wire protocol version.
        version: fedrdma-fate version, for people.
        host: identity of the host, equal on two gateways that can share memory.
        parties: the parties served there, as `9999` (every role) or `host:10000`.
        transports: data transports usable there, in its order of preference.
        receive_bytes: the largest receive slot it can ever grant.
        borrows: whether it uses messages of gateways on its host where they lie, when they are lent to it.
        exchange_key: its half of the key exchange (X25519), made for this run and this peer.
        seal: what it does to chunks; both sides have to do the same.
        ciphers: what it can seal with, fast ones first.
        frames_per_second: control frames that it reads; who sends more for long is cut off.
        sessions: whether it knows frames about the end of sessions.
        memory_held: whether it knows MemoryHeld.
        obeys_shares: whether it keeps to a `Share` that it is told; else it is told none.
        resumes: what an earlier run of it was to send comes all the same, or it says that it will not.
        chunk_digests: whether it tells the digests of chunks when it is asked.
        continues: whether it knows a grant that continues another, and goes on there.
        chunk_tags: whether it knows ChunkTags, and goes on where chunks lie sealed.
        bounded_loss: whether it knows offers of which something may be missing, DigestRun, and WantedWhole.
        journal: random id of the journal that it goes on with, of this run where it keeps none: another one means that
            what it had confirmed, and was to send, is gone. Empty where it does not say.
        flow_calls: whether it knows frames of FATE Flow's scheduling calls.
        site_sums: whether it obeys SumOrders.
        same_payload: whether it knows SamePayload.
        party_back: whether it knows PartyBack.
        sends_trains: whether it sends a train of datagrams when it is asked for one.
        sum_parent: the site to which its sums go first, which may order them, too; empty: to who has asked for them.
        sum_fan_in: sums of other sites that it adds to one of its own; 0: none.
    """

    site: PartyText
    incarnation: PartyText
    protocol: int
    version: PartyText
    host: Name
    parties: Annotated[tuple[PartyText, ...], msgspec.Meta(max_length=MOST_PARTIES)]
    transports: Annotated[tuple[PartyText, ...], msgspec.Meta(max_length=MOST_ADDRESS_ITEMS)]
    receive_bytes: int
    borrows: bool = False
    exchange_key: KeyBytes = b""
    seal: Literal["on", "integrity", "off"] = "off"
    ciphers: Annotated[tuple[PartyText, ...], msgspec.Meta(max_length=MOST_CIPHERS)] = ()
    frames_per_second: Annotated[float, msgspec.Meta(ge=LEAST_FRAMES_PER_SECOND)] = 20_000.0
    sessions: bool = False
    memory_held: bool = False
    obeys_shares: bool = False
    resumes: bool = False
    chunk_digests: bool = False
    continues: bool = False
    chunk_tags: bool = False
    bounded_loss: bool = False
    journal: PartyText = ""
    flow_calls: bool = False
    site_sums: bool = False
    same_payload: bool = False
    party_back: bool = False
    sends_trains: bool = False
    sum_parent: PartyText = ""
    sum_fan_in: Annotated[int, msgspec.Meta(ge=0, le=MOST_FAN_IN)] = 0


class Connect(Frame, frozen=True, tag="connect"):
    """Open (or open anew) the data path of the link. Each side sends one; equal `attempt` numbers meet.

    Attributes:
        transport: chosen transport.
        reason: why it was chosen, for logs and status.
        attempt: counts connections of this link; the dialling side counts up. The other asks for one with 0.
        main: whether all modes use it, or only mode `grpc`.
        offer: an `EndpointAddress`: what the transport needs of the other side (address, token, QP number, …).
        nonce: random bytes for the keys of this attempt; empty with attempt 0.
    """

    transport: PartyText
    reason: Reason
    attempt: int
    main: bool
    offer: Annotated[dict[AddressText, AddressText | int], msgspec.Meta(max_length=MOST_ADDRESS_ITEMS)]
    nonce: KeyBytes = b""


class PathUse(Frame, frozen=True, tag="path-use"):
    """What a data path is used for from now on.

    Attributes:
        transport: which path.
        attempt: its connection; of another one nothing is meant.
        main: it is up, and all modes are to use it; the dialling side says so. Else its sender has no use for it: one
            beside the main path is gone there, the main path does not carry what it should.
        reason: why, for logs and status.
    """

    transport: PartyText
    attempt: int
    main: bool
    reason: Reason


class GrantRequest(Frame, frozen=True, tag="grant-request"):
    """Ask for a receive slot of `slot_bytes` for a transfer that no standing grant can hold.

    Attributes:
        transport: the data path it is for.
        transfer: that will be announced.
        slot_bytes: length of the slot, header space included.
        key: the message, by which the receiver knows whether it can use it now.
    """

    transport: PartyText
    transfer: int
    slot_bytes: int
    key: MessageKey | None = None


class Grant(Frame, frozen=True, tag="grant"):
    """A receive slot that the peer may write into, once. Sent anew, with a new key, when the data path is renewed.

    Attributes:
        transport: the data path it is for.
        grant: id among this gateway's grants to the peer, below 2**32: the immediate value of the header write.
        key: remote key (rkey).
        address: where the slot starts in the space that `key` names.
        length: bytes, header space included.
        transfer: the transfer that asked, or 0 for a standing grant (a credit).
        continues: the grant whose slot it is, of the same transfer on another data path; 0: none.
        held: bytes of the payload that lie there already, as far as the receiver knows: [start, end) each, ascending.
    """

    transport: PartyText
    grant: int
    key: int
    address: int
    length: int
    transfer: int = 0
    continues: int = 0
    held: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=MOST_HELD_RANGES)] = ()


class Share(Frame, frozen=True, tag="share"):
    """What the receiver lets through of all that its peer sends in mode `fedrdma-x` by a data path, until it says else.

    It comes when the path is up, before any grant, and whenever it changes; by a datagram of the path, too.

    Attributes:
        transport: the data path.
        number: counts up; one that is not above the latest is late.
        rate: payload bytes a second; 0: no bound.
        place: which part of the time of its first chunk the sender does not wait: of many that begin together, each has
            another, so that their first chunks do not come at one moment.
    """

    transport: PartyText
    number: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    rate: Annotated[float, msgspec.Meta(ge=0, le=MOST_SHARE)]
    place: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


class GrantRecall(Frame, frozen=True, tag="grant-recall"):
    """The receiver wants a standing grant back."""

    transport: PartyText
    grant: int


class GrantReturn(Frame, frozen=True, tag="grant-return"):
    """The sender gives an unused grant back."""

    transport: PartyText
    grant: int


class Offer(Frame, frozen=True, tag="offer"):
    """A transfer begins: what it is and how it will come.

    Attributes:
        transport: the data path it comes by.
        transfer: id, unique for the sender's incarnation.
        key: the message.
        kind: what the payload holds.
        total_bytes: payload length.
        mode: transfer mode.
        grant: the grant it is written into.
        chunk_bytes: base chunk size s.
        enable_bytes: size of the Link-Enable chunk cut off the end, 0 without.
        covered_chunks: `fedrdma-x`: chunks that repair chunks make up for: those that go last.
        repair_chunks: how many repair chunks come besides.
        wished_bytes: the slot that such a message would use best, with room for repair chunks; 0: what it needs.
        loss_share: `fedrdma-x`: how much of what lies behind `whole_bytes` the sender's task lets be missing.
        whole_bytes: from the start of the payload, that have to come.
        tail_from: index of the first of those chunks that go behind all others; 0: they go from the last to the first.
    """

    transport: PartyText
    transfer: int
    key: MessageKey
    kind: MessageKind
    total_bytes: int
    mode: Mode
    grant: int
    chunk_bytes: int
    enable_bytes: int
    covered_chunks: int = 0
    repair_chunks: int = 0
    wished_bytes: int = 0
    loss_share: LossShare = 0.0
    whole_bytes: CountedBytes = 0
    tail_from: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)] = 0


class Inline(Frame, frozen=True, tag="inline"):
    """A whole small message."""

    transfer: int
    key: MessageKey
    kind: MessageKind
    body: bytes


class SamePayload(Frame, frozen=True, tag="same-payload"):
    """A whole message, of the same bytes as another of the sender's, by whose transfer they come.

    To who has said in Hello to know it. The answer is Delivered, Refused or SamePayloadGone. Sent anew after a
    reconnection, until one of them has come.

    Attributes:
        transfer: id, unique for the sender's incarnation, by which it would have come alone.
        key: the message.
        kind: what the payload holds.
        total_bytes: payload length.
        same_as: the transfer that brings the payload.
        is_coming: the sender has not heard yet that it has.
    """

    transfer: int
    key: MessageKey
    kind: MessageKind
    total_bytes: CountedBytes
    same_as: int
    is_coming: bool


class SamePayloadGone(Frame, frozen=True, tag="same-payload-gone"):
    """The receiver cannot have a message's payload from that transfer: it is to be sent by itself.

    Attributes:
        transfer: id of the message, as in SamePayload.
        same_as: as there.
    """

    transfer: int
    same_as: int


class Lend(Frame, frozen=True, tag="lend"):
    """A whole message, to be used where it lies: in the sender's send region, on the host of both.

    The answer is Delivered, Refused or LendDecline; LendReturn follows when nobody uses it any more. Sent anew after a
    reconnection, until it is returned.

    Attributes:
        transfer: id, unique for the sender's incarnation.
        key: the message.
        kind: what the payload holds.
        total_bytes: payload length.
        offset: where the payload starts in the send region, page-aligned.
    """

    transfer: int
    key: MessageKey
    kind: MessageKind
    total_bytes: int
    offset: int


class LendDecline(Frame, frozen=True, tag="lend-decline"):
    """The message cannot be used where it lies, and why: it is to be sent by the data path."""

    transfer: int
    reason: Reason


class LendRecall(Frame, frozen=True, tag="lend-recall"):
    """The sender wants its slot back: what no task has pulled yet is to be copied and returned.

    Attributes:
        transfer: the loan.
        final: the sender goes away, and its slot keeps its bytes for whoever has it mapped: return it at once.
    """

    transfer: int
    final: bool


class LendReturn(Frame, frozen=True, tag="lend-return"):
    """Nobody on the receiver's side uses the sender's slot any more."""

    transfer: int


class Reconcile(Frame, frozen=True, tag="reconcile"):
    """After a reconnection: the transfers under way, as (transfer, grant) pairs; answered by Delivered or Restart."""

    transport: PartyText
    transfers: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=MOST_RESUMED)]


class Restart(Frame, frozen=True, tag="restart"):
    """The receiver no longer knows this transfer: offer it anew, with another grant."""

    transport: PartyText
    transfer: int


class ChunkAck(Frame, frozen=True, tag="chunk-ack"):
    """`fedrdma`: chunk `index` was read out of the staging slot (paper, section 3.1)."""

    transfer: int
    index: int


class Report(Frame, frozen=True, tag="report"):
    """`fedrdma-x`: everything received so far; any later report makes up for a lost one.

    Positions count chunks in the order of sending: position 0 is the last chunk of the payload. Where the data path can
    carry it, it does not come by the control channel.

    Attributes:
        transfer: id.
        epoch: counts how often the receiver threw away what it had.
        complete: every position below this one has arrived.
        beyond: bit k set: position complete + k has arrived too; little-endian.
        newest: position that arrived last, -1 when none has.
        arrived_at: when that was, seconds on the receiver's clock.
        held: seconds from then to this report.
        received_bytes: payload bytes arrived by then, those that came twice counted twice.
    """

    transfer: int
    epoch: int
    complete: int
    beyond: bytes
    newest: int
    arrived_at: Seconds
    held: Seconds
    received_bytes: Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNTED_BYTES)]


class ResendChunks(Frame, frozen=True, tag="resend"):
    """The receiver found damage: send these chunks, and the header, again."""

    transfer: int
    chunks: tuple[int, ...]


class DigestRequest(Frame, frozen=True, tag="digest-request"):
    """All of a transfer has come and its digest is wrong: which are those of its chunks? Answered by ChunkDigests.

    To who has said in Hello to know it. What is asked for in the ResendChunks that follows is then just what it names,
    in `fedrdma-x`, too.
    """

    transfer: int


class ChunkDigests(Frame, frozen=True, tag="chunk-digests"):
    """The digests of all chunks of a transfer.

    Attributes:
        transfer: id.
        digests: in index order, 64 bits each, little-endian.
    """

    transfer: int
    digests: Annotated[bytes, msgspec.Meta(max_length=8 * MOST_TOLD_DIGESTS)]


class ChunkTags(Frame, frozen=True, tag="chunk-tags"):
    """Counters and tags of chunks that were sealed before they were posted, ahead of the table that has them all.

    To who has said in Hello to know it. So what has come can be opened when the data path is gone.

    Attributes:
        transfer: id.
        grant: in whose slot the chunks lie.
        introduction: as the table has it; see `wire/sealed.py`.
        first: the first of these records, counted from the start of the payload.
        tags: of so many from there on, RECORD_OVERHEAD bytes each.
    """

    transfer: int
    grant: int
    introduction: Annotated[bytes, msgspec.Meta(min_length=INTRODUCTION_BYTES, max_length=INTRODUCTION_BYTES)]
    first: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
    tags: Annotated[bytes, msgspec.Meta(max_length=RECORD_OVERHEAD * TAGS_OF_A_RUN)]


class DigestRun(Frame, frozen=True, tag="digest-run"):
    """`fedrdma-x`: digests of chunks that may be missing, so that what came can be told from what is wrong.

    By two datagrams of the data path, and by the control channel.

    Attributes:
        transfer: id.
        first: index of the first chunk.
        digests: of so many chunks from there on, 64 bits each, little-endian.
    """

    transfer: int
    first: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
    digests: Annotated[bytes, msgspec.Meta(max_length=8 * DIGESTS_OF_A_RUN)]


class Delivered(Frame, frozen=True, tag="delivered"):
    """The payload is whole and kept for its destination; the sender may let its slot go."""

    transfer: int


class Refused(Frame, frozen=True, tag="refused"):
    """The receiver will not deliver this transfer, and why."""

    transfer: int
    code: PartyText
    reason: Reason


class Abort(Frame, frozen=True, tag="abort"):
    """The sender gives this transfer up, and why."""

    transfer: int
    code: PartyText
    reason: Reason


class Undeliverable(Frame, frozen=True, tag="undeliverable"):
    """A message that was pushed will never come, and why: for whoever waits for it."""

    key: MessageKey
    code: PartyText
    reason: Reason


class WantedWhole(Frame, frozen=True, tag="wanted-whole"):
    """A task got a message of which its sender had let something be missing, and lets nothing be; for people.

    Attributes:
        name: of the message.
        tag: of the message.
    """

    name: Name
    tag: Name


class MemoryHeld(Frame, frozen=True, tag="memory-held"):
    """Transfers of the receiver's wait at the sender's for receive memory, which tasks there hold; for people.

    Attributes:
        holders: parties and bytes, the most first; none: they wait for that no longer.
    """

    holders: Annotated[tuple[tuple[Party, CountedBytes], ...], msgspec.Meta(max_length=MOST_HOLDERS)]


class SumOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of some messages that the receiver's parties send to one of the sender's, their sum is asked for.

    Attributes:
        number: of the order, unique for the sender's incarnation.
        session: of the messages, as are `name`, `tag` and `destination`.
        name: see there.
        tag: see there; `site_sum.NEXT_TAG` where it is not known yet.
        destination: see there.
        sources: the parties that send them, in the order of their ranks.
        parties: how many the whole sum has, with those of other sites.
    """

    number: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    session: Name
    name: Name
    tag: Name
    destination: Party
    sources: Annotated[tuple[Party, ...], msgspec.Meta(min_length=2, max_length=MOST_PARTIES)]
    parties: Annotated[int, msgspec.Meta(ge=2, le=4 * MOST_PARTIES)]


class SumOrders(Frame, frozen=True, tag="sum-orders"):
    """All orders of the sender's that stand; what an earlier frame named, and this one does not, is over."""

    orders: Annotated[tuple[SumOrder, ...], msgspec.Meta(max_length=MOST_SUM_ORDERS)]


class SessionAsk(Frame, frozen=True, tag="session-ask"):
    """Has the receiver a living task in this session? Answered by SessionIdle, where the asking site is in it."""

    session: Name


class SessionIdle(Frame, frozen=True, tag="session-idle"):
    """For how long no task of the session has lived at the sender's site.

    Attributes:
        session: which.
        seconds: 0 while one lives; where the session is not known, since the gateway was started.
    """

    session: Name
    seconds: Seconds


class SessionEnd(Frame, frozen=True, tag="session-end"):
    """The session is over at the sender's site, and why: nothing more of it comes from there, or is taken.

    Told again on each new control channel; nobody confirms it.
    """

    session: Name
    reason: Reason


class PartyBack(Frame, frozen=True, tag="party-back"):
    """A party of the sender's site that had left a session is in it again: what of its messages will not come?

    Answered by an Undeliverable for each, where there are any. To who has said in Hello to know it.
    """

    session: Name
    party: Party


class FlowCall(Frame, frozen=True, tag="flow-call"):
    """FATE Flow at the sender's site calls that at the receiver's; answered by FlowAnswer or FlowRefused.

    To who has said in Hello to know it. It comes again on each new control channel until it is answered, and is carried
    out once.

    Attributes:
        call: id.
        path: of the HTTP request, which is a POST.
        headers: names and values of those that travel.
        body: JSON.
    """

    call: CallId
    path: PartyText
    headers: Annotated[tuple[tuple[PartyText, Name], ...], msgspec.Meta(max_length=MOST_CALL_HEADERS)]
    body: CallBody


class FlowAnswer(Frame, frozen=True, tag="flow-answer"):
    """What FATE Flow answered to a call: status of HTTP, and JSON. Remembered until FlowHeard."""

    call: CallId
    status: Annotated[int, msgspec.Meta(ge=200, le=599)]
    body: CallBody


class FlowRefused(Frame, frozen=True, tag="flow-refused"):
    """A call has no answer of FATE Flow's, and why. Remembered until FlowHeard."""

    call: CallId
    code: PartyText
    reason: Reason


class FlowHeard(Frame, frozen=True, tag="flow-heard"):
    """Whoever asked has the answer, or wants it no more: it need not be remembered."""

    call: CallId


class Ping(Frame, frozen=True, tag="ping"):
    """Keep-alive and round-trip probe; comes back as a Pong with the same stamp."""

    stamp: float


class Pong(Frame, frozen=True, tag="pong"):
    """Answer to a Ping."""

    stamp: float


class Goodbye(Frame, frozen=True, tag="goodbye"):
    """Orderly shutdown of the sending gateway.

    Attributes:
        reason: for people.
        forgets: it has told of all that it had, and the next run begins with another journal; to who names its own.
    """

    reason: Reason
    forgets: bool = False


ControlFrame = (
    Hello
    | Connect
    | PathUse
    | GrantRequest
    | Grant
    | GrantRecall
    | GrantReturn
    | Share
    | Offer
    | Inline
    | SamePayload
    | SamePayloadGone
    | Lend
    | LendDecline
    | LendRecall
    | LendReturn
    | Reconcile
    | Restart
    | ChunkAck
    | Report
    | ResendChunks
    | DigestRequest
    | ChunkDigests
    | ChunkTags
    | DigestRun
    | Delivered
    | Refused
    | Abort
    | Undeliverable
    | WantedWhole
    | MemoryHeld
    | SumOrders
    | SessionAsk
    | SessionIdle
    | SessionEnd
    | PartyBack
    | FlowCall
    | FlowAnswer
    | FlowRefused
    | FlowHeard
    | Ping
    | Pong
    | Goodbye
)

_T = TypeVar("_T")

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ControlFrame] = msgspec.msgpack.Decoder(ControlFrame)


def encode_frame(frame: Frame) -> bytes:
    """The frame as msgpack bytes; a reason that is longer than frames may carry is cut."""
    reason = getattr(frame, "reason", "")
    if len(reason) > MOST_REASON_CHARACTERS:
        frame = msgspec.structs.replace(frame, reason=reason[:MOST_REASON_CHARACTERS])
    return _encoder.encode(frame)


def decode_frame(raw: bytes) -> ControlFrame:
    """Parse one frame.

    Raises:
        WireError: MALFORMED_FRAME when the bytes are not one known, complete frame.
    """
    return parse_message(_decoder, raw, "control frame")


def parse_message(decoder: msgspec.msgpack.Decoder[_T], raw: bytes, what: str) -> _T:
    """Parse one message of a peer's.

    Raises:
        WireError: MALFORMED_FRAME when the decoder does not take the bytes; names `what` they should have been.
    """
    try:
        return decoder.decode(raw)
    # msgspec lets the two others through for a string that is not UTF-8 and for nesting without end
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(
            ErrorCode.MALFORMED_FRAME,
            f"a {what} of {len(raw)} bytes does not parse: {error}.",
            "Run the same fedrdma-fate version on both sides.",
        ) from error
