"""A peer speaks of its own messages to us and of its own transfers; whatever else it names, it changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import typing
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from fedrdma_fate.engine.events import GrantRequested, TransferAnnounced
from fedrdma_fate.engine.link import Link
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.gateway.config.schema import PeerConfig
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.entitlement import Entitlement, fields_with_messages
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.security.datagram_tags import DatagramSealer
from fedrdma_fate.wire.datagrams import Datagram, encode_datagram
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import (
    PROBE_TRANSFERS_FROM,
    ControlFrame,
    Frame,
    Grant,
    Inline,
    MessageKey,
    Offer,
    Party,
    Reconcile,
    Refused,
    Undeliverable,
)
from tests.support.endpoints import MemoryWire
from tests.support.engine import DATAGRAM_KEYS
from tests.support.outside import examples
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import BODY, Play, key_to, peer_of, pull, sent_by, work

OTHERS = Party("arbiter", "3")
"""A party of neither site."""

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (*typing.get_args(ControlFrame), *typing.get_args(Datagram))
}
NAMES_A_MESSAGE = sorted(
    name for name, kind in KINDS.items() if "MessageKey" in msgspec.json.schema(kind).get("$defs", {})
)
"""Found by another way than the code's: what a JSON schema of the frame refers to."""

NAMES_A_TRANSFER = sorted(
    kind.__name__
    for kind in typing.get_args(ControlFrame)
    if kind.__name__ not in NAMES_A_MESSAGE and {"transfer", "transfers", "grant"} & set(kind.__struct_fields__)
)


def example(kind: type[Any], **fields: Any) -> Any:
    """A frame of this kind, with these values where it has such fields."""
    (made, _), *_ = (given for name, given in examples(Datagram | ControlFrame) if name == kind.__struct_config__.tag)
    known = {name: value for name, value in fields.items() if name in kind.__struct_fields__}
    return msgspec.structs.replace(made, **known)


def wrong_keys(twin: Twin) -> Iterator[MessageKey]:
    """Messages that the first site may not tell the second of."""
    yield key_to(twin, PARTIES["b"], OTHERS)
    yield key_to(twin, OTHERS)
    yield MessageKey("s", "m", "t", PARTIES["b"], PARTIES["a"])
    yield MessageKey("s", "m", "t", PARTIES["b"], PARTIES["b"])


# --- frames that name a message ---


def test_the_frames_that_are_known_to_name_messages_are_among_those_that_are_found() -> None:
    assert NAMES_A_MESSAGE == ["GrantRequest", "Inline", "Lend", "Offer", "SamePayload", "Undeliverable"]
    assert {name for name, kind in KINDS.items() if fields_with_messages(kind)} == set(NAMES_A_MESSAGE)


@pytest.mark.parametrize("name", NAMES_A_MESSAGE)
def test_a_frame_about_a_message_that_is_none_of_the_peers_changes_nothing(
    play: Play, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        half = twin.halves["b"]
        keys = list(wrong_keys(twin))
        waiting = [asyncio.create_task(half.context.mailbox.take(key, None)) for key in keys]
        await twin.settle()
        slots = half.context.receive_pool.stats().slots
        for number, key in enumerate(keys):
            frame = example(KINDS[name], key=key, transport="tcp", transfer=100 + number, body=b"forged", grant=10**6)
            half.peer._on_frame(frame)
            await twin.turn("b")
        assert not any(task.done() for task in waiting)
        assert half.context.mailbox.summary()["messages"] == 0
        assert half.context.mailbox._failed == {}
        assert not half.peer.receiving._announced
        assert half.peer.receiving.borrowing.count == 0
        assert half.context.receive_pool.stats().slots == slots
        codes = [frame.code for frame in sent_by(twin, "b", Refused)]
        assert codes == ([] if name == "Undeliverable" else [ErrorCode.WRONG_PARTY.value] * len(keys))
        for task in waiting:
            task.cancel()

    play(scenario)
    told = [entry.getMessage() for entry in caplog.records if f"[{ErrorCode.WRONG_PARTY.value}]" in entry.getMessage()]
    assert len(told) == 4
    assert all(entry.levelno == logging.ERROR for entry in caplog.records if entry.getMessage() in told)


@pytest.mark.parametrize("name", sorted({"Inline", "Undeliverable"}))
def test_the_same_frame_about_a_message_of_the_peers_is_believed(play: Play, name: str) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        key = key_to(twin, PARTIES["b"])
        waiting = pull(twin, key)
        await twin.settle()
        peer_of(twin, "b")._on_frame(example(KINDS[name], key=key, transfer=100, body=b"x", code="FR303"))
        await twin.settle()
        assert waiting.done()
        assert (waiting.exception() is None) == (name == "Inline")

    play(scenario)


@pytest.mark.parametrize("name", sorted(set(NAMES_A_MESSAGE) & {kind.__name__ for kind in typing.get_args(Datagram)}))
def test_a_datagram_about_a_message_that_is_none_of_the_peers_does_not_leave_the_link(name: str) -> None:
    entitlement = _of_a_at_b()
    for party, expected in ((OTHERS, 0), (PARTIES["a"], 1)):
        events: list[Any] = []
        link = Link("a", LinkSettings("tcp", admits=entitlement.admits), events.append, lambda: 0.0)
        key = MessageKey("s", "m", "t", party, PARTIES["b"])
        link._datagrams.path_up(MemoryWire().ends[0], DATAGRAM_KEYS)
        sealer = DatagramSealer(DATAGRAM_KEYS.receive)
        link._on_datagram(sealer.seal(encode_datagram(example(KINDS[name], key=key, transport="tcp"))), 0.0)
        assert len([event for event in events if isinstance(event, TransferAnnounced | GrantRequested)]) == expected


def test_the_links_of_a_gateway_drop_such_datagrams(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        settings = peer_of(twin, "b").paths.main.link._link._settings
        for key in wrong_keys(twin):
            assert not settings.admits(example(Offer, key=key, transfer=1))
        assert settings.admits(example(Offer, key=key_to(twin, PARTIES["b"]), transfer=1))
        assert settings.admits(example(KINDS["Report"]))

    play(scenario)


class Rumour(Frame, frozen=True, tag="rumour"):
    """A frame that nobody has written yet, which names messages in a way that none does today."""

    heard: dict[str, tuple[MessageKey, ...]]
    latest: MessageKey | None = None


class Whisper(Frame, frozen=True, tag="whisper"):
    """One that names them by way of another frame."""

    first: tuple[Undeliverable, int]


def test_a_frame_that_is_yet_to_be_written_is_checked_as_well() -> None:
    entitlement = _of_a_at_b()
    good = MessageKey("s", "m", "t", PARTIES["a"], PARTIES["b"])
    bad = MessageKey("s", "m", "t", OTHERS, PARTIES["b"])
    assert entitlement.objection(Rumour({"x": (good, good)}, good)) is None
    assert entitlement.objection(Rumour({})) is None
    for frame in (Rumour({"x": (good, bad)}), Rumour({}, bad), Whisper((Undeliverable(bad, "", ""), 1))):
        assert "does not know arbiter:3 as a party of a" in str(entitlement.objection(frame))
    assert entitlement.objection(Whisper((Undeliverable(good, "", ""), 1))) is None


def test_the_offer_of_a_probe_is_no_message_and_what_looks_like_one_elsewhere_is() -> None:
    entitlement = _of_a_at_b()
    key = MessageKey("probe", "", "", Party("gateway", ":a"), Party("gateway", ":b"))
    assert entitlement.objection(example(Offer, transfer=PROBE_TRANSFERS_FROM, key=key)) is None
    assert entitlement.objection(example(Offer, transfer=PROBE_TRANSFERS_FROM - 1, key=key))
    assert entitlement.objection(example(Inline, transfer=PROBE_TRANSFERS_FROM, key=key))


class OneParty:
    """Routes of site b, which knows one party of a."""

    def find(self, party: Party) -> str | None:
        return {str(PARTIES["a"]): "a", str(PARTIES["b"]): "b", str(OTHERS): "c"}.get(str(party))

    def is_local(self, party: Party) -> bool:
        return self.find(party) == "b"


def _of_a_at_b() -> Entitlement:
    routes: Any = OneParty()
    return Entitlement("a", "b", routes)


# --- frames that name a transfer alone ---


@contextlib.asynccontextmanager
async def third_peer(twin: Twin, site: str) -> AsyncIterator[tuple[Peer, ControlStream]]:
    """A peer c of that site, which shares everything with the other but what is kept for each, with a link."""
    peer, stream = Peer(PeerConfig(site="c", parties=(str(OTHERS),)), twin.halves[site].context), ControlStream()
    hello = msgspec.structs.replace(peer_of(twin, site).hello, site="c", parties=(str(OTHERS),), incarnation="c")
    task = asyncio.create_task(peer.run(stream, hello, "c"))
    await twin.settle()
    peer.paths.need("tcp", "the test wants it", main=True, start=False)
    yield peer, stream
    task.cancel()
    for link in peer.close("the test is over"):
        link.turn()


def _forgeries(name: str, transfers: list[int], grants: list[int]) -> Iterator[Any]:
    for transfer in transfers:
        for grant in grants:
            fields = {"transport": "tcp", "transfer": transfer, "grant": grant, "code": "FR303", "reason": "forged"}
            if KINDS[name] is Reconcile:
                yield Reconcile("tcp", ((transfer, grant),))
            else:
                yield example(KINDS[name], **fields)


@pytest.mark.parametrize("name", NAMES_A_TRANSFER)
@pytest.mark.parametrize("small", [True, False])
def test_a_frame_about_another_peers_transfer_does_not_touch_it(play: Play, name: str, small: bool) -> None:
    body = BODY[:100] if small else BODY

    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        keys = [twin.put("a", "m", body), twin.put("b", "n", body)]
        arrived = [pull(twin, key) for key in keys]
        await twin.turn("a")
        await twin.turn("b")
        await twin.carry("b")
        if not small:
            await twin.turn("a")
        half = twin.halves["a"]
        pending = half.peer.sending.pending
        assert pending == 1
        transfers = [half.context.next_transfer, twin.halves["b"].context.next_transfer]
        grants = sorted({each.grant for each in _held(twin, Grant)} | set(range(1, 5)))
        async with third_peer(twin, "a") as (c, _):
            granted = dict(half.peer.receiving._granted)
            delivered = set(half.peer.receiving._ended._delivered)
            refused = dict(half.peer.receiving._ended._refused)
            for frame in _forgeries(name, transfers, grants):
                c._on_frame(frame)
                for path in c.paths.paths.values():
                    path.link.turn()
                await twin.settle()
            assert half.peer.sending.pending == pending
            assert half.peer.receiving._granted == granted
            assert set(half.peer.receiving._ended._delivered) == delivered
            assert half.peer.receiving._ended._refused == refused
            assert half.context.mailbox._failed == {}
            await twin.quiesce()
            assert [await each for each in arrived] == [body, body]
            half.context.mailbox.sessions.raise_push_failure("s", half.party)

    play(scenario)


def _held(twin: Twin, kind: type[Any]) -> list[Any]:
    return [*sent_by(twin, "a", kind), *sent_by(twin, "b", kind)]


def test_every_frame_is_about_a_message_a_transfer_a_session_or_the_channel() -> None:
    # the last two are for people
    about_the_channel = {"Hello", "Connect", "PathUse", "Share", "Ping", "Pong", "Goodbye", "MemoryHeld", "WantedWhole"}
    # who may say what of a session: tests/unit/gateway/tasks/test_session_ends.py
    about_sessions = {"SessionAsk", "SessionIdle", "SessionEnd", "PartyBack"}
    # who may call whom: tests/unit/gateway/flow
    about_calls = {"FlowCall", "FlowAnswer", "FlowRefused", "FlowHeard"}
    # what may be asked of whose messages: tests/unit/gateway/tasks/test_site_sums.py
    about_sums = {"SumOrders"}
    frames = {kind.__name__ for kind in typing.get_args(ControlFrame)}
    about_others = about_the_channel | about_sessions | about_calls | about_sums
    assert frames - set(NAMES_A_MESSAGE) - set(NAMES_A_TRANSFER) == about_others
