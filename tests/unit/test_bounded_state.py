"""Whatever can grow while a gateway runs has a bound, written down here: a new map or list without one is found."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT

FOLDERS = ("gateway", "engine", "transport", "client")
"""What a peer or a task reaches; `core` holds state of one transfer at a time, and what it keeps of grants is here."""

FILES = (
    "core/credits.py",
    "memory/journal_file.py",
    "core/shares/receive_shares.py",
    "core/shares/share_sender.py",
    "core/shares/windows.py",
    "memory/pool.py",
    "memory/waiting.py",
    "obs/complaints.py",
    "security/sealing.py",
)
"""And what is kept for all of them elsewhere."""

GROWING = {"dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter", "Queue", "bytearray", "WeakSet"} | {
    "WeakKeyDictionary",
    "WeakValueDictionary",
    "OutgoingFrames",
}

BOUNDS: dict[str, dict[str, str]] = {
    "by the configuration": {
        "gateway/peers/dialling.py:Dialler": "_known",
        "gateway/routing.py:Routes": "_sites",
        "gateway/flow/calls.py:FlowCalls": "counts peers",
        "gateway/osx/broker_front.py:BrokerScheduling": "_reading _repeats",
        "gateway/sum_orders.py:StandingSumOrders": "_sites",
        "gateway/link_sharing.py:LinkSharing": "_links",
        "gateway/journal/state.py:JournalState": "met",
        "gateway/messages/late_messages.py:LateMessages": "_sites",
        "gateway/journal/lost_messages.py:LostMessages": "_sites",
        "gateway/receive_sharing.py:ReceiveSharing": "_sending_trains",
        "gateway/send_sharing.py:SendSharing": "_by_datagrams",
        "core/shares/receive_shares.py:ReceiveShares": "senders _told _uneven",
        "core/shares/windows.py:Windows": "_measured",
        "gateway/accepting.py:Acceptor": "_listening _pauses",
        "gateway/context.py:GatewayContext": "making_room recalls",
        "gateway/tasks/held_memory.py:HeldMemory": "_leases",
        "gateway/transports.py:TransportSet": "absent",
        "gateway/peers/entitlement.py:Entitlement": "_fields",
        "gateway/path_store.py:PathStore": "_records",
        "gateway/peers/sending.py:Sending": "tuners",
        "memory/pool.py:SlotPool": "when_freed when_wanted",
        "transport/tcp.py:TcpEndpoint": "_connections _readers _writers",
        "transport/verbs/domains.py:PeerDomains": "_domains",
        "transport/verbs/regions.py:RegionTable": "_registered",
    },
    "by the transports of a peer: four": {
        "gateway/peers/paths.py:DataPaths": "paths unusable _connections",
        "gateway/peers/main_path.py:MainPath": "_leaving",
        "gateway/peers/path_retries.py:PathRetries": "_retries",
        "gateway/peers/receiving.py:Receiving": "_ahead",
        "gateway/peers/link_regions.py:LinkRegions": "_made",
    },
    "links that still end: one is retired for each attempt to connect, and forgotten when its thread is over": {
        "gateway/peers/paths.py:DataPaths": "_retired",
    },
    "`limits` of the configuration, of each peer and session": {
        "gateway/messages/mailbox.py:Mailbox": "_messages _failed",
        "gateway/messages/budget.py:Budget": "_uses",
        "gateway/tasks/presence.py:Presence": "_sessions",
        "gateway/tasks/session_ends.py:SessionEnds": "_rounds",
    },
    "MOST_TOLERANCES": {
        "gateway/messages/tolerances.py:Tolerances": "_rounds _late",
        "gateway/messages/tolerances.py:Round": "_awaited _seconds",
        "gateway/messages/stragglers.py:Stragglers": "_waits",
    },
    "MOST_DRAINING": {"transport/exposure.py:ExposureTable": "_draining"},
    "lengths of payloads that were delivered with holes, of the parties of one `Tolerate`": {
        "gateway/messages/tolerances.py:JointBudget": "_spent",
    },
    "`limits.outgoing_bytes`": {"gateway/peers/sending.py:Sending": "_inline"},
    "by what own tasks do in sessions that they have not left": {
        "gateway/messages/mailbox.py:Mailbox": "_waiting",
        "gateway/messages/sessions.py:Sessions": "_engines",
        "gateway/messages/open_parties.py:OpenParties": "_named _counts",
    },
    "MOST_REMEMBERED; sessions with MOST_FAILURES besides": {
        "gateway/messages/sessions.py:Sessions": "_sessions",
        "gateway/tasks/session_ends.py:SessionEnds": "_of_earlier_run",
        "gateway/messages/sessions.py:_Session": "pulled pushed others sources",
    },
    "slots that a peer has: each is struck out before it is given back": {
        "gateway/peers/kept_transfers.py:KeptTransfers": "_noted",
        "gateway/journal/state.py:JournalState": "coming",
    },
    "MOST_RUNS, MOST_TOLD_BYTES of a peer": {"engine/told_tags.py:ToldTags": "_runs _unnoted"},
    "by the grants that a peer has": {"gateway/peers/kept_transfers.py:KeptTransfers": "_sealed _told"},
    "MOST_PIECES": {"engine/arrival_notes.py:ArrivalNotes": "_fresh _waiting"},
    "MOST_KEPT": {"gateway/peers/kept_transfers.py:KeptTransfers": "_kept"},
    "MOST_LARGE": {"gateway/peers/sending.py:Sending": "_transfers _brings _with_another _restored"},
    "MOST_HERE, MOST_WAITING": {"gateway/peers/same_payload.py:SamePayloads": "_here _waiting _of _of_message"},
    "MOST_SMALL_BYTES, and the slots that large messages lie in": {"gateway/peers/saving.py:Saving": "_entries _ahead"},
    "MOST_UNWRITTEN_BYTES": {"memory/journal_file.py:JournalFile": "_unwritten"},
    "MOST_BYTES": {"gateway/messages/unspilled.py:Unspilled": "_messages"},
    "MOST_FAILURES for each party": {"gateway/messages/sessions.py:_Session": "failures"},
    "by the processes of own tasks, in each session": {"gateway/tasks/presence.py:_Life": "tasks"},
    "REMEMBERED_ENDED": {
        "gateway/messages/ended.py:EndedSessions": "_here _at_peers",
        "gateway/tasks/session_ends.py:SessionEnds": "_to_tell",
    },
    "MOST_UNTOLD": {"gateway/messages/mailbox.py:Mailbox": "_untold"},
    "MOST_CLOSED": {"gateway/messages/closed_parties.py:ClosedParties": "_places"},
    "MOST_LATE": {"gateway/messages/late_messages.py:_OfSite": "messages"},
    "REMEMBERED_CONFIRMED, REMEMBERED_UNDELIVERED": {
        "gateway/peers/sending.py:Sending": "_delivered _notices",
        "gateway/journal/state.py:JournalState": "_confirmed undelivered",
    },
    "what one request writes": {"gateway/journal/journal.py:_Group": "records actions"},
    "REMEMBERED_TRANSFERS": {
        "gateway/peers/ended_transfers.py:EndedTransfers": "_refused",
        "gateway/journal/journal.py:Journal": "_received",
    },
    "REMEMBERED_LOST": {
        "gateway/peers/receiving.py:Receiving": "_lost",
    },
    "by the messages that the gateway had, and REMEMBERED_TRANSFERS of each peer": {
        "gateway/journal/state.py:JournalState": "messages outgoing leases _ended",
        "gateway/restoring.py:_Restoration": "_held _small tasks",
        "gateway/tasks/returning.py:Had": "leases messages small sums unfinished",
        "gateway/tasks/task.py:Task": "unfinished _in_doubt _seen_mapped _sums",
        "gateway/restoring.py:_Slots": "_first",
    },
    "by what tasks of an earlier run have pulled, as far as sessions remember it": {
        "gateway/messages/mailbox.py:Mailbox": "_in_doubt",
        "gateway/tasks/returning.py:Had": "pulls",
        "gateway/tasks/task.py:Task": "_pulls",
    },
    "by connections that there are: of a listed user MOST_OF_A_USER, of others who are refused MOST_REFUSED": {
        "gateway/tasks/socket.py:TaskSocket": "_of_user _large_of_user _turns_of_user",
        "gateway/tasks/turns.py:Turns": "_waiting",
        "gateway/tasks/refused_connections.py:RefusedConnections": "_of_user",
    },
    "MOST_TRANSFERS": {"core/shares/share_sender.py:Sender": "transfers turn_transfers"},
    "REMEMBERED_CROWDS": {"core/shares/receive_shares.py:ReceiveShares": "_crowds"},
    "MOST_ANNOUNCED, by whoever adds": {"gateway/peers/announced.py:AnnouncedTransfers": "_offers _of_message"},
    "MOST_SUM_ORDERS of each peer": {
        "gateway/sum_orders.py:StandingSumOrders": "_orders _ahead _awaited",
        "gateway/tasks/site_sums.py:SiteSums": "_sums _asked _expected _ahead",
    },
    "MOST_PARTIES: of one sum": {
        "gateway/tasks/running_sum.py:RunningSum": "_here _takes _sum_takes",
        "gateway/tasks/merging.py:Merging": "_here",
        "gateway/tasks/ordered_sums.py:OrderedSums": "_number_of _orders",
        "gateway/tasks/ordered_sums.py:_Ordered": "below",
        "gateway/tasks/site_addition.py:SiteAddition": "_missing _kept _ready _parts _narrowed",
        "gateway/tasks/child_sums.py:ChildSums": "_children _here",
        "gateway/summand_grants.py:ExpectedUpdates": "_keys _coming _held",
        "gateway/summand_grants.py:SummandGrants": "_sum_of",
        "gateway/coming_updates.py:ComingUpdates": "_listeners",
        "gateway/journal/kept_sums.py:KeptSum": "added",
    },
    "by the receive region: each sum has a slot of it": {"gateway/journal/kept_sums.py:KeptSums": "_sums"},
    "MOST_REQUESTS_KEPT; standing grants are few": {
        "gateway/peers/receiving.py:Receiving": "_requests _held _asked_by _granted _early_requests",
        "gateway/context.py:GatewayContext": "tasks",
        "engine/incoming.py:IncomingTransfers": "_granted _tagged",
        "engine/openings.py:Openings": "_opening",
        "security/sealing.py:PathOpener": "_grants _resumed wiped",
        "transport/exposure.py:ExposureTable": "_by_key _keys",
        "transport/shm_keys.py:KeyTable": "_free _live _revoked",
        "transport/verbs/endpoint.py:VerbsEndpoint": "_came _windows",
        "transport/udp/reassembly.py:ChunkAssembly": "_keys _received _slots",
    },
    "MOST_BORROWED, MOST_EARLY": {"gateway/peers/borrowing.py:Borrowing": "_borrowed _early"},
    "by the send region, and MOST_LARGE for each peer: each has a slot of it, perhaps one of several": {
        "gateway/peers/lending.py:Lending": "_loans",
        "gateway/peers/probe_transfers.py:ProbeTransfers": "_transfers",
        "engine/outgoing.py:OutgoingTransfers": "_damaged _restarted _waiting _granted _given_up _lingering",
        "engine/outgoing_transfer.py:ActiveTransfers": "_tagged",
        "engine/stalled.py:StalledTransfers": "_waiting",
        "gateway/tasks/task.py:Task": "sending",
    },
    "by the regions and `limits.bytes`: each has a slot or a file": {
        "client/connections.py:Connections": "_mapped",
        "client/remote.py:RemoteConnections": "_buffers _filled_from _leases",
        "gateway/tasks/task.py:Task": "received _kept _summed _returned_sums",
        "memory/pool.py:SlotPool": "_held _holders _leases",
    },
    "MOST_REQUESTS, MOST_SESSION_REQUESTS": {
        "core/credits.py:RequestShares": "_session_of _of_session",
        "engine/slot_requests.py:SlotRequests": "_repeated",
    },
    "MOST_CREDITS": {"core/credits.py:Credits": "_grants", "core/credits.py:GrantDeduplicator": "_early"},
    "MOST_UNREAD_BYTES: then nothing more is read from the connection": {
        "gateway/peers/control_stream.py:ControlStream": "_incoming",
        "gateway/peers/control_connection.py:ControlConnection": "_unparsed",
    },
    "MOST_UNSENT_BYTES and `limits.outgoing_bytes`: then the peer is cut off": {
        "gateway/peers/control_stream.py:ControlStream": "_outgoing",
    },
    "MOST_COMMANDS from a peer's frames: then no further ones are read": {
        "engine/link_thread.py:LinkHandle": "_commands",
    },
    "_AT_ONCE, accepted in one turn of the event loop and done in the next": {
        "gateway/accepting.py:Acceptor": "_connecting",
    },
    "MOST_NEWCOMERS, MOST_ADDRESSES": {
        "gateway/peers/newcomers.py:Newcomers": "_buckets _present",
        "gateway/peers/arrivals.py:Arrivals": "_present",
        "gateway/peers/control_channel.py:ControlServer": "_connections _serving",
    },
    "MOST_NEWCOMERS and MOST_OF_OTHER_HOSTS": {"gateway/tasks/port.py:TaskPort": "_serving"},
    "own pings": {"gateway/peers/probe_transfers.py:ProbeTransfers": "_pings"},
    "by the processes of own tasks and of users that are listed": {
        "gateway/tasks/server.py:TaskServer": "_tasks _waiting",
        "gateway/tasks/sums.py:Sums": "_running",
        "gateway/tasks/socket.py:TaskSocket": "_connections",
        "gateway/journal/state.py:JournalState": "tasks",
        "client/connections.py:Connections": "_idle _owed _held _unanswered",
        "client/remote.py:RemoteConnections": "_idle _owed",
    },
    "READ_AHEAD": {"gateway/tasks/request_reader.py:RequestReader": "_queue"},
    "MOST_SESSIONS": {"gateway/peers/session_rates.py:SessionRates": "_of_session"},
    "MOST_SESSIONS_OF_A_USER": {"gateway/tasks/user_sessions.py:UserSessions": "_of_user"},
    "MOST_SPARE_PIECES and the blocks of a write": {"transport/inbound.py:Arrival": "pieces"},
    "FIRST_PINGS": {"gateway/peers/main_path.py:MainPath": "_first_round_trips"},
    "MOST_PARTIAL_CHUNKS": {"transport/udp/reassembly.py:ChunkAssembly": "_partial _untold"},
    "MOST_CUTS": {"transport/udp/outbound.py:DatagramOutbound": "_earlier_sizes"},
    "MOST_PINGS": {"transport/udp/path_mtu.py:PathMtu": "_pings"},
    "MOST_SENT_CHUNKS; told in each turn": {
        "transport/udp/nacks.py:NackedChunks": "_sent _repeated",
        "transport/udp/outbound.py:DatagramOutbound": "nacks",
    },
    "MOST_PARTIAL_MESSAGES": {"transport/udp/reassembly.py:MessageAssembly": "_partial"},
    "MOST_MESSAGES": {"transport/udp/outbound.py:DatagramOutbound": "_messages"},
    "by the window of whoever posts": {"transport/udp/outbound.py:DatagramOutbound": "_chunks"},
    "links that are being connected or are connected, of peers that are configured": {
        "transport/udp/listening.py:UdpListener": "_expected _followed",
    },
    "by the slots of the receive region": {"gateway/coming_updates.py:ComingUpdates": "_told"},
    "MOST_EARLY of a link": {"gateway/peers/link_events.py:LinkEvents": "_early"},
    "MOST_EARLY_CHUNKS of a link": {"engine/granted_slot.py:Granted": "early early_writes"},
    "_ENDED": {"engine/incoming.py:IncomingTransfers": "_ended"},
    "_REMEMBERED": {"engine/openings.py:Openings": "_broken"},
    "MOST_SUBJECTS, MOST_KINDS": {"obs/complaints.py:Complaints": "_subjects _kinds"},
    "MOST_REQUESTS_KEPT of each peer, and own tasks": {"memory/waiting.py:Waiting": "_queues"},
    "by the kinds of faults": {
        "engine/link_datagrams.py:LinkDatagrams": "_complained _dropped",
        "security/sealing.py:PathOpener": "_refused",
    },
    "by the chunks of one transfer": {
        "engine/outgoing_transfer.py:OutgoingTransfer": "stalled",
        "engine/payload.py:Payload": "_block_digests _odd _tables",
        "engine/sealed_source.py:SealedSource": "_kept _table _to_vouch _untold",
        "engine/opening.py:Opening": "damaged",
        "transport/inbound.py:Arrival": "block_digests",
        "engine/link.py:Link": "snapshot",
    },
    "by the window of sequence numbers, or the depth of queues": {
        "engine/posted_writes.py:PostedWrites": "_posted",
        "transport/inbound.py:Inbound": "_arriving _landed_beyond",
        "transport/outbound.py:Outbound": "_acks _leaving _posted _unacknowledged",
        "transport/shm_endpoint.py:ShmEndpoint": "_posted _received _unsent",
        "transport/verbs/chunks.py:DatagramChannel": "_copies",
        "transport/verbs/chunks.py:ChunkPairs": "_made pairs",
        "transport/verbs/chunks.py:ChunkOutbound": "_by_number _lanes _waiting",
        "transport/verbs/endpoint.py:VerbsEndpoint": "_chunks _data _early",
        "transport/verbs/handshake.py:Handshake": "_probing early",
        "transport/verbs/link_messages.py:LinkMessageChannel": "_free",
        "transport/verbs/outbound.py:Lane": "_batch _under_way",
        "transport/verbs/outbound.py:VerbsOutbound": "_by_number _fenced _lanes _plain",
        "transport/verbs/queue_pairs.py:StagingArea": "_places",
        "transport/verbs/queue_pairs.py:LinkQueuePairs": "data",
    },
    "of one turn of the link": {
        "transport/grpc_endpoint.py:GrpcEndpoint": "_completions",
        "transport/shm_endpoint.py:ShmEndpoint": "_completions",
        "transport/tcp.py:TcpEndpoint": "_completions",
        "transport/udp/endpoint.py:UdpEndpoint": "_completions",
        "transport/verbs/endpoint.py:VerbsEndpoint": "_completions",
    },
    "QUEUED_MESSAGES": {"transport/grpc_pipe.py:MessagePipe": "_incoming _outgoing"},
    "by the calls of the server, one for each link that is being connected": {
        "transport/grpc.py:_Calls": "_pipes _certificates",
    },
    "MOST_PENDING; `_expected` by own attempts to connect": {
        "transport/listener.py:Listener": "_expected _pending",
        "transport/listener.py:_Pending": "received",
        "transport/verbs/transport.py:VerbsTransport": "_drafts",
        "transport/verbs/transport.py:_VerbsDraft": "_address",
    },
    "MOST_ASKED": {"gateway/flow/asking.py:AskedCalls": "_calls"},
    "MOST_SERVED, MOST_KEPT_ANSWERS and MOST_KEPT_BYTES": {"gateway/flow/serving.py:ServedCalls": "_answers _wanted"},
    "MOST_CALLS_AT_ONCE": {"gateway/flow/call_watch.py:CallWatch": "_callers _ends"},
    "MOST_CALLS": {"gateway/flow/repeats.py:Repeats": "_abandoned _under_way"},
    "MOST_CONNECTIONS": {"gateway/flow/front.py:FlowFront": "_serving"},
    "MOST_MIXED": {"gateway/messages/mailbox.py:Mailbox": "_mixed"},
    "MOST_ENDS, but for those that calls are at": {"gateway/osx/queues.py:Queues": "_ends"},
    "MOST_QUEUES": {"gateway/messages/queue_numbers.py:QueueNumbers": "_numbers"},
    "MOST_PUSHES": {
        "gateway/osx/room.py:PushRoom": "_sites",
        "gateway/osx/room.py:_Site": "current waiting",
        "gateway/osx/refused_pushes.py:UnreadPushes": "_waiting",
    },
    "pops that are answered: MOST_POPS": {"gateway/osx/room.py:AnswerRoom": "_of"},
    "MOST_MEMBERS, but for those that have calls": {"gateway/osx/queues.py:Queues": "_members _released"},
    "by gRPC, which takes 8 KiB of metadata": {"gateway/osx/transport.py:_Call": "metadata"},
    "of fixed length": {
        "transport/tcp_streams.py:StreamReader": "_behind _raw_head _scratch",
        "transport/tcp_streams.py:StreamWriter": "_record",
        "transport/shm_meeting.py:Presented": "_open",
    },
}
"""For each bound, the attributes that have it. A constant that is named here stands beside the attribute."""


def files() -> list[Path]:
    package = ROOT / "fedrdma_fate"
    found = [path for folder in FOLDERS for path in (package / folder).rglob("*.py") if "config" not in path.parts]
    return sorted([*found, *(package / name for name in FILES)])


def growing(tree: ast.AST) -> Iterator[str]:
    """Class.attribute of what instances are made with that can grow."""
    for made in ast.walk(tree):
        if isinstance(made, ast.ClassDef):
            yield from (f"{made.name} {name}" for name in sorted({*_of_fields(made), *_of_init(made)}))


def _of_fields(made: ast.ClassDef) -> Iterator[str]:
    for item in made.body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=ast.Call()) if _names_growing(kind):
                yield name


def _of_init(made: ast.ClassDef) -> Iterator[str]:
    inits = (each for each in made.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    for node in (each for init in inits for each in ast.walk(init)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and value is not None and _grows(value):
            yield from (
                target.attr
                for target in targets
                if isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            )


def _grows(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    return isinstance(value, ast.Call) and _names_growing(value.func)


def _names_growing(node: ast.expr) -> bool:
    names = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node)}
    return bool(names & GROWING)


def found() -> set[str]:
    package = ROOT / "fedrdma_fate"
    return {
        f"{path.relative_to(package)}:{owner}.{name}"
        for path in files()
        for owner, name in (each.split() for each in growing(ast.parse(path.read_text())))
    }


def listed() -> list[str]:
    return [f"{owner}.{name}" for rows in BOUNDS.values() for owner, names in rows.items() for name in names.split()]


def test_everything_that_can_grow_has_a_bound() -> None:
    assert sorted(found() - set(listed())) == [], "say in BOUNDS what bounds it, or bound it"


def test_every_bound_is_of_something_that_is_there_and_of_one_thing() -> None:
    assert sorted(set(listed()) - found()) == []
    assert len(listed()) == len(set(listed()))


def test_a_constant_that_a_bound_names_is_defined() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "fedrdma_fate").rglob("*.py"))
    constants = {word.strip(",;:") for bound in BOUNDS for word in bound.split() if word.strip(",;:_").isupper()}
    assert "MOST_ANNOUNCED" in constants
    assert [name for name in sorted(constants) if f"\n{name} = " not in text] == []


@pytest.mark.parametrize(
    ("line", "grows"),
    [
        ("self.map = {}", True),
        ("self.map: dict[int, str] = {}", True),
        ("self.queue = asyncio.Queue()", True),
        ("self.many = collections.defaultdict(list)", True),
        ("self.seen = [x for x in y]", True),
        ("self.number = 0", False),
        ("self.fixed = (1, 2)", False),
        ("local = {}", False),
    ],
)
def test_an_attribute_that_can_grow_is_found(line: str, grows: bool) -> None:
    tree = ast.parse(f"class C:\n    def __init__(self):\n        {line}\n")
    assert bool(list(growing(tree))) is grows
