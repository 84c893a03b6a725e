"""Between two gateways that seal: what goes over the network, what breaks it, and what they do not agree on."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedrdma_fate.core.digest import chunk_digest
from fedrdma_fate.core.plan import HEADER_SPACE_BYTES, Chunk
from fedrdma_fate.engine.outgoing_transfer import OutgoingTransfer
from fedrdma_fate.gateway import assembly as assembly_module
from fedrdma_fate.gateway.config.schema import GatewayConfig, parse_config
from fedrdma_fate.gateway.peers import paths as paths_module
from fedrdma_fate.gateway.peers.greeting import own_hello
from fedrdma_fate.gateway.peers.path_keys import PeerKeys
from fedrdma_fate.gateway.tasks import pushing as pushing_module
from fedrdma_fate.gateway.transports import TransportSet, make_transports
from fedrdma_fate.ports import Completion, CompletionKind
from fedrdma_fate.security import sealing
from fedrdma_fate.transport.outbound import Outbound, Piece
from fedrdma_fate.transport.sealed_pieces import sealed_length
from fedrdma_fate.transport.stream_frames import HEAD_BYTES, Head, Op, unpack_head
from fedrdma_fate.transport.tcp import TcpEndpoint
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import Mode
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD, TAG_BYTES
from tests.support import sites as sites_module
from tests.support.certificates import TestAuthority
from tests.support.combinations import in_turns
from tests.support.faulty import FaultPlan, FaultyTransport
from tests.support.sites import InThread, Sites, eventually, party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(3_000_000)
MODES: tuple[Mode, ...] = ("fedrdma-e", "fedrdma", "grpc", "fedrdma-x")
MODES_OVER_TCP = [mode for mode in MODES if mode != "grpc"]
"""Which send out of the slot itself; gRPC gets a copy."""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Starts gateways with certificates that do this to chunks; None: what they do by default."""
    seals: dict[str, str | None] = {}
    authority = TestAuthority(tmp_path / "tls")

    def parse(document: dict[str, Any]) -> GatewayConfig:
        config = parse_config(document)
        return msgspec.structs.replace(config, seal=seals[config.site])

    def begin(seal: str | dict[str, str] | None = None, **settings: Any) -> Any:
        seals.update(seal if isinstance(seal, dict) else dict.fromkeys(LAYOUT, seal))
        monkeypatch.setattr(sites_module, "parse_config", parse)
        return start_gateways(LAYOUT, tmp_path, authority=authority, **{"chunk": "100KB", **settings})

    return begin


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What goes out sealed, record by record."""
    records: list[bytes] = []
    seal = sealing.AttemptSealer.seal

    def keep(self: Any, place: bytes, data: memoryview, into: memoryview) -> None:
        seal(self, place, data, into)
        records.append(bytes(into))

    seal_in_place = sealing.AttemptSealer.seal_in_place

    def keep_in_place(self: Any, place: bytes, data: memoryview) -> tuple[bytes, bytes] | None:
        apart = seal_in_place(self, place, data)
        if apart is not None:
            records.append(apart[0] + bytes(data) + apart[1])
        return apart

    monkeypatch.setattr(sealing.AttemptSealer, "seal", keep)
    monkeypatch.setattr(sealing.AttemptSealer, "seal_in_place", keep_in_place)
    return records


def exchange(sites: Sites, name: str = "m", mode: Mode | None = None) -> None:
    """A message from a to b, which must come whole."""
    with sites["a"].client(mode=mode) as a, sites["b"].client() as b:
        push(a, name)
        assert bytes(b.get(name, "t", party("guest:1"), timeout=30).buffer) == BODY


def refusal_of_a_message(sites: Sites) -> ErrorCode:
    """What b is told of a message from a, which does not come."""
    with sites["a"].client() as a, sites["b"].client() as b:
        push(a, "m")
        with pytest.raises(FedRDMAError) as told:
            b.get("m", "t", party("guest:1"), timeout=30)
    return told.value.code


def push(client: Any, name: str) -> None:
    lease = client.lease(len(BODY))
    lease.buffer[:] = BODY
    lease.commit(name, "t", [party("host:2")], "object")


def metrics(sites: Sites, name: str) -> str:
    runner = sites.runner
    assert isinstance(runner, InThread)
    assembly = runner.gateways[name]._assembly
    assert assembly is not None
    return assembly.context.metrics.render()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(
    ("mode", "seal"),
    [pytest.param("fedrdma-e", None, id="by-default"), *itertools.product(MODES, ["on", "integrity"])],
)
def test_all_of_a_message_and_its_headers_is_sealed(
    start: Callable[..., Any], sealed: list[bytes], mode: Mode, seal: str | None
) -> None:
    with start(seal) as sites:
        exchange(sites, mode=mode)
    assert sum(len(record) - 24 for record in sealed) > len(BODY)
    readable = b"".join(sealed).count(BODY[:64])
    assert readable == (seal == "integrity")


@pytest.mark.parametrize(("seal", "mode"), [("on", "fedrdma"), ("integrity", "fedrdma-e")])
def test_on_another_sealed_path_what_a_tag_has_vouched_for_is_not_sent_again(
    start: Callable[..., Any], sealed: list[bytes], monkeypatch: pytest.MonkeyPatch, mode: Mode, seal: str
) -> None:
    def make(config: Any, *arguments: Any) -> TransportSet:
        made = make_transports(config, *arguments)
        if config.site == "a":
            plans = [FaultPlan(break_after_bytes=2_000_000), *[FaultPlan(refuse_connect=True)] * 100]
            made["tcp"] = FaultyTransport(made["tcp"], plans)
        return made

    monkeypatch.setattr(assembly_module, "make_transports", make)
    monkeypatch.setattr(paths_module, "FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(paths_module, "GIVE_UP_FOR_LAST_RESORT_SECONDS", 0.5)
    with start(seal, transport="tcp") as sites:
        exchange(sites, mode=mode)
        (peer,) = sites["a"].status()["peers"]
        assert [path["transport"] for path in peer["paths"] if path["main"]] == ["grpc"]
    # of what was on its way, 200 KB at most; whole, it would have been 2 MB more
    assert sum(len(record) - 24 for record in sealed) < len(BODY) + 500_000


def test_without_sealing_nothing_is_sealed(start: Callable[..., Any], sealed: list[bytes]) -> None:
    with start("off") as sites:
        exchange(sites)
    assert not sealed


@pytest.mark.parametrize("mode", MODES)
def test_a_record_that_is_changed_on_its_way_breaks_the_path_is_counted_and_the_message_still_comes_whole(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    seal, left = sealing.AttemptSealer.seal, [5]

    def damage(self: Any, place: bytes, data: memoryview, into: memoryview) -> None:
        seal(self, place, data, into)
        left[0] -= 1
        if not left[0]:
            into[-1] ^= 1

    monkeypatch.setattr(sealing.AttemptSealer, "seal", damage)
    with start() as sites:
        exchange(sites, mode=mode)
        line = 'fedrdma_refused_records_total{peer="a",reason="forged"} 1.0'
        eventually(lambda: line in metrics(sites, "b"))
    assert "have a wrong tag" in caplog.text


def writes_on(monkeypatch: pytest.MonkeyPatch, message: bytes, times: int) -> None:
    """The task changes the first chunk of a message so often between its tag and its way out."""
    seal, left = sealing.AttemptSealer.seal_in_place, [times]

    def change(self: Any, place: bytes, data: memoryview) -> tuple[bytes, bytes] | None:
        apart = seal(self, place, data)
        if apart is not None and left[0] and bytes(data[:64]) == message[:64]:
            left[0] -= 1
            return apart[0], bytes(TAG_BYTES)
        return apart

    monkeypatch.setattr(sealing.AttemptSealer, "seal_in_place", change)


@pytest.mark.parametrize("mode", MODES_OVER_TCP)
def test_a_task_that_writes_on_once_while_its_message_goes_readable_has_it_delivered_whole_over_the_same_path(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    writes_on(monkeypatch, BODY, 1)
    with start("integrity") as sites:
        exchange(sites, mode=mode)
        line = 'fedrdma_refused_records_total{peer="a",reason="forged"} 1.0'
        eventually(lambda: line in metrics(sites, "b"))
    assert "broke the protocol" not in caplog.text


def told_of(task: Any, code: str) -> bool:
    """Whether a call of it is told that an earlier push failed."""
    try:
        task.lease(4096).release()
    except FedRDMAError as error:
        return code in str(error)
    return False


@pytest.mark.parametrize("mode", MODES_OVER_TCP)
def test_a_task_that_goes_on_writing_into_a_message_that_goes_readable_is_told_and_stops_no_other(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    writes_on(monkeypatch, BODY, 1000)
    other = bytes(reversed(BODY))
    with start("integrity", mode=mode) as sites:
        assert refusal_of_a_message(sites) is ErrorCode.DIGEST_MISMATCH
        with sites["a"].client() as a, sites["b"].client() as b:
            # its receiver may hear of it before its sender's gateway does
            eventually(lambda: told_of(a, "FR301"))
            lease = a.lease(len(other))
            lease.buffer[:] = other
            lease.commit("other", "t", [party("host:2")], "object")
            assert bytes(b.get("other", "t", party("guest:1"), timeout=30).buffer) == other
    assert "broke the protocol" not in caplog.text


@pytest.mark.parametrize(("mode", "what", "seal"), in_turns(MODES, ["chunk", "header"], ["on", "integrity"]))
def test_a_write_that_is_turned_on_a_place_where_another_has_landed_costs_no_byte(
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    what: str,
    seal: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    take, addresses = Outbound.take, list[int]()
    # what went first has landed by then, and was found to be right
    number = 3 if mode == "grpc" else 20

    def turn(self: Outbound) -> Piece | None:
        piece = take(self)
        if piece is None:
            return piece
        head, behind = unpack_head(piece.head[:HEAD_BYTES]), piece.head[HEAD_BYTES:]
        if head.op == Op.ACK:
            return piece
        addresses.append(head.address)
        is_turned = len(addresses) >= number and not turned and (what == "header") == (head.op == Op.FENCED)
        if is_turned:
            turned.append(head)
            place = HEADER_SPACE_BYTES if mode == "fedrdma" else addresses[0]
            return dataclasses.replace(piece, head=head._replace(address=place).pack() + behind)
        return piece

    turned: list[Head] = []
    monkeypatch.setattr(Outbound, "take", turn)
    with start(seal) as sites:
        exchange(sites, mode=mode)
    assert "have a wrong tag" in caplog.text


@pytest.mark.parametrize(("mode", "seal"), in_turns(MODES, ["on", "integrity"]))
def test_a_forged_write_right_behind_the_last_header_costs_no_byte(
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    seal: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both are read in one go: the message is found to be whole, and its slot is still open for the forged one."""
    take, headers = Outbound.take, list[Head]()
    last = len(BODY) // 100_000 if mode == "fedrdma" else 1

    def append(self: Outbound) -> Piece | None:
        piece = take(self)
        if piece is None or len(piece.head) < HEAD_BYTES:
            return piece
        head = next((each for each in heads_of(piece.head) if each.op == Op.FENCED), None)
        if head is None:
            return piece
        headers.append(head)
        if len(headers) != last:
            return piece
        forged = head._replace(
            sequence=head.sequence + 1, address=HEADER_SPACE_BYTES, length=60_000, piece_length=60_000
        )
        introduction = piece.head[-sealed_length(head) :][:INTRODUCTION_BYTES]
        record = bytes(RECORD_OVERHEAD) + b"f" * forged.length
        return dataclasses.replace(piece, head=piece.head + forged.pack() + introduction + record)

    monkeypatch.setattr(Outbound, "take", append)
    with start(seal) as sites:
        exchange(sites, mode=mode)
    assert len(headers) >= last
    assert "the peer broke the protocol" in caplog.text


def heads_of(raw: bytes) -> Iterator[Head]:
    """The acknowledgements that go ahead, and the head behind them."""
    for at in range(0, len(raw), HEAD_BYTES):
        yield (head := unpack_head(raw[at : at + HEAD_BYTES]))
        if head.op != Op.ACK:
            return


@pytest.mark.parametrize("seal", [None, "off"])
def test_a_peer_that_writes_a_chunk_elsewhere_than_it_says_has_nothing_delivered_that_lay_there_before(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, seal: str | None
) -> None:
    """Two chunks go to one place, so that in the other lies what was there before, perhaps another peer's message."""
    post, moved = TcpEndpoint.post_chunk, list[int]()

    def move(self: Any, request: int, source: Any, target: Any, offset: int, pair: int, immediate: int) -> None:
        if is_lying and immediate & 0xFFFFF == 3 and not moved:
            moved.append(offset)
            offset -= source.length
        post(self, request, source, target, offset, pair, immediate)

    monkeypatch.setattr(TcpEndpoint, "post_chunk", move)
    is_lying = False
    with start(seal, mode="fedrdma-x", timeouts={"idle": 2}) as sites:
        exchange(sites, "before")
        is_lying = True
        assert refusal_of_a_message(sites) is ErrorCode.IDLE_TIMEOUT
    assert moved


@pytest.mark.parametrize("mode", ["fedrdma-e", "fedrdma"])
def test_a_peer_is_not_told_whether_it_has_guessed_what_lay_in_its_slot_before(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """It leaves a chunk out, and says what digest the bytes have that it guesses there: perhaps another peer's."""
    post, digest, left_out = TcpEndpoint.post_write, OutgoingTransfer.digest, list[int]()

    def leave_out(self: Any, request: int, source: Any, target: Any, offset: int) -> None:
        is_first = source.length == 100_000 and bytes(source.view[:64]) == BODY[:64]
        if is_guessing and is_first:
            left_out.append(offset)
            self._complete(Completion(CompletionKind.WRITE_DONE, request))
            return
        post(self, request, source, target, offset)

    def guess(self: OutgoingTransfer, chunk: Chunk) -> int:
        if chunk.index:
            return digest(self, chunk)
        # what is staged lies where the last chunk of the message before lay
        start = len(BODY) - chunk.length if mode == "fedrdma" else chunk.offset
        return chunk_digest(BODY[start : start + chunk.length])

    monkeypatch.setattr(TcpEndpoint, "post_write", leave_out)
    is_guessing = False
    with start(mode=mode) as sites:
        exchange(sites, "before")
        monkeypatch.setattr(OutgoingTransfer, "digest", guess)
        is_guessing = True
        assert refusal_of_a_message(sites) is ErrorCode.DIGEST_MISMATCH
    assert left_out


@pytest.mark.parametrize(("ours", "theirs"), [("on", "off"), ("off", "on"), ("on", "integrity")])
def test_two_sites_that_seal_differently_are_both_told_and_lose_nothing(
    start: Callable[..., Any], ours: str, theirs: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    seals = {"a": ours, "b": theirs}
    with start(seals, connected=False) as sites, sites["a"].client() as a:
        push(a, "early")
        told = f"[{ErrorCode.SEAL_MISMATCH.value}]"
        eventually(lambda: caplog.text.count(told) >= 2, 20)
        assert f"`seal: {ours}`" in caplog.text
        assert f"`seal: {theirs}`" in caplog.text
        assert not sites["a"].connected()
        sites.runner.stop(sites["b"])
        start({"a": ours, "b": ours})
        sites.runner.start(sites["b"])
        with sites["b"].client() as b:
            assert bytes(b.get("early", "t", party("guest:1"), timeout=30).buffer) == BODY


def test_what_was_sealed_for_another_message_is_not_delivered(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sender whose introduction names another offer than its frame does."""
    monkeypatch.setattr("fedrdma_fate.engine.outgoing_transfer.digest_of_offer", lambda _: b"another" + bytes(25))
    with start() as sites, sites["a"].client() as a, sites["b"].client() as b:
        push(a, "m")
        with pytest.raises(Exception, match="FR306"):
            b.get("m", "t", party("guest:1"), timeout=30)
        eventually(lambda: 'reason="other-transfer"} 1.0' in metrics(sites, "b"))
    assert "sealed for another message" in caplog.text


def test_verbs_is_offered_where_chunks_have_to_be_sealed(start: Callable[..., Any]) -> None:
    with start("on") as sites:
        runner = sites.runner
        assert isinstance(runner, InThread)
        assembly = runner.gateways["a"]._assembly
        assert assembly is not None
        context = assembly.context
        (peer,) = context.config.peers
        auto = msgspec.structs.replace(peer, transport="verbs")
        context.transports["verbs"] = context.transports["tcp"]
        try:
            hello = own_hello(auto, context, PeerKeys("off"))
        finally:
            del context.transports["verbs"]
        assert hello.transports == ("verbs", "grpc")


@pytest.mark.parametrize(
    ("mode", "committed"),
    [
        ("fedrdma-e", "committed"),
        ("fedrdma-x", "committed"),
        ("grpc", "digests-wanted"),
        ("fedrdma", "digests-wanted"),
    ],
)
def test_digests_of_long_payloads_are_wanted_of_tasks_though_tags_replace_them_for_they_may_be_pushed_again(
    start: Callable[..., Any], mode: Mode, committed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing_module, "DIGESTED_BY_TASKS_BYTES", len(BODY) - 1)
    with start() as sites:
        eventually(lambda: sites["a"].connected() and sites["b"].connected())
        with sites["a"].client(mode=mode) as a, sites["b"].client() as b:
            lease = a.lease(len(BODY))
            assert lease.commit_unfinished("m", "t", [party("host:2")], "object") == committed
            assert lease.digests_wanted
            lease.buffer[:] = BODY
            if committed == "committed":
                lease.written(0, [])
                lease.release()
            else:
                lease.commit("m", "t", [party("host:2")], "object")
            assert bytes(b.get("m", "t", party("guest:1"), timeout=30).buffer) == BODY
        (sent,) = eventually(lambda: sites["a"].events("sent"))
        assert sent["resent_bytes"] == 0
