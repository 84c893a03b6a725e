"""One other site: its control channel, what each frame on it leads to, and its data paths.

More than 500 lines: where every frame and every event leads to is to be seen in one place.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Sequence

from fedrdma_fate.core.sum_tree import SumPlace
from fedrdma_fate.engine.events import (
    DatagramsDropped,
    FrameToSend,
    GrantRequested,
    LinkEvent,
    PathConnected,
    PathLost,
    PathStalled,
    PayloadLanded,
    PayloadReceived,
    PayloadSent,
    ReceiveFailed,
    RecordsRefused,
    SendFailed,
    SlotsReturned,
    SlotsStillOpen,
    TransferAnnounced,
    TransferKept,
    TransferNoted,
    TransferProgress,
    TransferSealed,
)
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.gateway.config.schema import PeerConfig
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Met
from fedrdma_fate.gateway.peers.borrowing import region_of_lender
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.data_hosts import DataHosts, GuardedDraft
from fedrdma_fate.gateway.peers.entitlement import Entitlement
from fedrdma_fate.gateway.peers.flow_talk import FlowTalk
from fedrdma_fate.gateway.peers.greeting import allowed_transports, own_hello
from fedrdma_fate.gateway.peers.link_events import LinkEvents
from fedrdma_fate.gateway.peers.link_regions import LinkRegions
from fedrdma_fate.gateway.peers.main_path import MainPath
from fedrdma_fate.gateway.peers.metering import FRAMES_OF_AN_ORDER, SHUT_OUT_SECONDS, Pace
from fedrdma_fate.gateway.peers.path_keys import SEALED_IN_SLOT, PeerKeys
from fedrdma_fate.gateway.peers.paths import DataPaths
from fedrdma_fate.gateway.peers.probe_transfers import ProbeTransfers
from fedrdma_fate.gateway.peers.receiving import Receiving
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.peers.session_talk import SessionTalk
from fedrdma_fate.gateway.peers.site_sum_talk import SiteSumTalk
from fedrdma_fate.gateway.peers.watchdog import until_silent
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.gateway.transports import link_settings
from fedrdma_fate.obs.complaints import EACH_TELLS, cut
from fedrdma_fate.ports import LentRegion, Role
from fedrdma_fate.security.identity import PeerIdentity
from fedrdma_fate.security.plain import is_loopback
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, WireError
from fedrdma_fate.wire.frames import (
    MOST_HOLDERS,
    Abort,
    ChunkAck,
    ChunkDigests,
    ChunkTags,
    Connect,
    ControlFrame,
    Delivered,
    DigestRequest,
    DigestRun,
    FlowAnswer,
    FlowCall,
    FlowHeard,
    FlowRefused,
    Goodbye,
    Grant,
    GrantRecall,
    GrantRequest,
    GrantReturn,
    Hello,
    Inline,
    Lend,
    LendDecline,
    LendRecall,
    LendReturn,
    MemoryHeld,
    MessageKey,
    Offer,
    Party,
    PartyBack,
    PathUse,
    Ping,
    Pong,
    Reconcile,
    Refused,
    Report,
    ResendChunks,
    Restart,
    SamePayload,
    SamePayloadGone,
    SessionAsk,
    SessionEnd,
    SessionIdle,
    Share,
    SumOrders,
    Undeliverable,
    WantedWhole,
    decode_frame,
    encode_frame,
)

logger = logging.getLogger(__name__)


class Peer:
    """The session with one other gateway; outlives its control channel. Belongs to the event loop's thread."""

    def __init__(self, config: PeerConfig, context: GatewayContext) -> None:
        self.config = config
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._stream: ControlStream | None = None
        self._dialled_by = ""
        self._heard_at = 0.0
        self.shut_out_until = 0.0
        self.hello: Hello | None = None
        self._journal = ""
        self._link_regions = LinkRegions(config.site, context.make_region)
        self.last_error = "not connected yet"
        self.rtt_seconds: float | None = None
        self.offline = asyncio.Event()
        self.offline.set()
        self.offline_since = self._loop.time()
        self._told_held: tuple[tuple[Party, int], ...] = ()
        self.session_talk: SessionTalk | None = None
        self.flow_talk: FlowTalk | None = None
        self.site_sums: SiteSumTalk | None = None
        self._entitlement = Entitlement(
            config.site,
            context.config.site,
            context.routes,
            context.mailbox.sessions,
            functools.partial(context.sum_orders.awaits, config.site),
        )
        self.receiving = Receiving(
            config.site,
            context,
            self.send,
            self._lender_region,
            lambda: self.sending.rtt_seconds,
            lambda: self.main_path.least_round_trip,
        )
        self.probes = ProbeTransfers(config.site, context, self.send)
        self.keys = PeerKeys(context.config.sealing)
        hosts = DataHosts(config, lambda: None if self._stream is None else self._stream.remote_host)
        self.paths = DataPaths(
            config.site,
            context.transports,
            self._allows,
            self._make_link,
            self.send,
            self._loop.call_later,
            self._loop.time,
            context.config.timeouts.connect,
            lambda transport: self.main_path.fall_back(transport),
            lambda name, role: GuardedDraft(context.transports.open(name, role, config.site, self.identity), hosts),
            has_next=lambda transport: self.main_path.has_next(transport),
            drop=lambda transport, reason: self.main_path.on_aside_lost(transport, reason),
            secure=self.keys.path,
            complaints=context.complaints,
        )
        self.main_path = MainPath(
            config,
            context,
            self.paths,
            lambda: self.hello,
            self.send,
            self._abandon,
            self._on_main_path_changed,
            self._loop.call_later,
            self._loop.time,
        )
        # of the peer and not of its channel: who comes back goes on where it was
        self._pace = Pace(config.site, context, self.paths, self._loop.time)
        self.sending = Sending(
            config, context, self.send, self.paths, lambda: self.hello, self.shares_memory, self._loop.time
        )
        context.sum_orders.register(config.site, self)
        context.recalls[context.receive_pool].append(self._recall_credits)
        context.receive_pool.when_freed.append(self._on_room)
        context.receive_pool.when_wanted.append(self._on_wanted)

    @property
    def shut_out(self) -> bool:
        """Whether the peer was cut off just now, and is to wait."""
        return self._loop.time() < self.shut_out_until

    @property
    def connected(self) -> bool:
        return self._stream is not None

    @property
    def identity(self) -> PeerIdentity | None:
        """Who is at the other end of the control channel by its certificate; None without one, or without TLS."""
        return None if self._stream is None else self._stream.identity

    @property
    def has_to_tell(self) -> bool:
        """Whether the next channel has to bring the peer something about messages that nobody will get."""
        return self.sending.has_to_tell or self.receiving.has_to_tell

    # -- the control channel --------------------------------------------------------------------------------------

    def own_hello(self) -> Hello:
        """Our greeting."""
        return own_hello(self.config, self._context, self.keys)

    async def run(self, stream: ControlStream, hello: Hello, dialled_by: str) -> None:
        """Serve a control channel whose greetings have been exchanged, until it ends.

        Of two channels that met half-way, the one that the site with the smaller name dialled stays. A site that dials
        again has given its earlier channel up, whether or not that shows here.
        """
        if self._stream is not None:
            if self.hello == hello and self._dialled_by < dialled_by:
                stream.write(encode_frame(Goodbye("another control channel is in use")))
                stream.close()
                return
            self._lose("replaced by a newer control channel")
        self._adopt(stream, hello, dialled_by)
        watchdog = asyncio.create_task(self._watch(stream))
        try:
            await self._serve(stream)
        except (WireError, GatewayError) as error:
            self.shut_out_until = self._loop.time() + (SHUT_OUT_SECONDS if isinstance(error, GatewayError) else 0.0)
            message = "control channel of %s: %s"
            kind = "malformed frame" if isinstance(error, WireError) else "flood"
            self._complain(kind, message, self.config.site, error, level=logging.ERROR)
            stream.write(encode_frame(Goodbye(cut(error))))
        except Exception:
            # whatever a frame has led to: the next channel begins from a state that both sides know
            logger.exception("control channel of %s: internal error", self.config.site)
            stream.write(encode_frame(Goodbye("internal error")))
        finally:
            watchdog.cancel()
            stream.close()
            if self._stream is stream:
                self._lose(f"the control channel ended{stream.end_reason}")

    async def _serve(self, stream: ControlStream) -> None:
        while (raw := await stream.read()) is not None and self._stream is stream:
            self._heard_at = time.monotonic()
            self._on_frame(decode_frame(raw))
            if pause := self._pace.pause(len(raw), stream.unsent_bytes):
                await pause
        if isinstance(stream.failure, WireError):
            raise stream.failure

    def send(self, frame: ControlFrame) -> bool:
        """Queue a frame; False and dropped without a control channel: state is reconciled when there is one again."""
        if self._stream is None:
            return False
        self._stream.write(encode_frame(frame))
        return True

    def send_first(self, frame: ControlFrame) -> bool:
        """As `send`, ahead of small messages that wait: for what people, or time-outs, wait for, and keeps no order."""
        if self._stream is None:
            return False
        self._stream.write_first(encode_frame(frame))
        return True

    def end(self, reason: str, *, forgets: bool = False) -> None:
        """End the control channel, and say why; another may follow, of a run that knows nothing of this one."""
        # who does not name its own journal does not know that field
        self.send(Goodbye(reason, forgets and self.hello is not None and bool(self.hello.journal)))
        if self._stream is not None:
            self._lose(reason)

    def close(self, reason: str, *, forgets: bool = False) -> list[LinkHandle]:
        """Say goodbye and end all links; those whose threads may still have to be waited for."""
        self.end(reason, forgets=forgets)
        self.sending.lending.close()
        self.main_path.close()
        self.receiving.kept.drop_all()
        return self.paths.close()

    def _adopt(self, stream: ControlStream, hello: Hello, dialled_by: str) -> None:
        identity = stream.identity
        certificates = (b"", b"") if identity is None else (identity.own_certificate, identity.certificate)
        self.keys.agree(self.own_hello(), hello, *certificates)
        restarted = self.hello is not None and self.hello.incarnation != hello.incarnation
        self.hello, self._stream, self._dialled_by = hello, stream, dialled_by
        self.sending.rates.peer_reads(hello.frames_per_second)
        stream.followed = True
        self._heard_at = time.monotonic()
        self.last_error = ""
        self.offline.clear()
        self._complain("connected", "connected to %s (%s)", hello.site, hello.version, level=logging.INFO)
        if set(hello.parties) != set(self.config.parties):
            served, expected = ", ".join(hello.parties), ", ".join(self.config.parties)
            message = "%s serves %s; it is configured here as serving %s"
            self._complain("other parties", message, hello.site, served, expected)
        if restarted:
            self._forget_old_run()
        else:
            self.sending.lending.peer_back()
            # it tells all of them again
            self.receiving.same.drop_all()
        role: Role = "active" if dialled_by == self._context.config.site else "passive"
        self._compare_journal(hello.journal)
        self.paths.online(role)
        self.main_path.online()
        if self.site_sums is not None and not hello.site_sums:
            # an older version now, or it adds no more: it has no orders
            self.site_sums.on_orders(self.config.site, ())
        # ahead of messages, which may be what its parties wait for before they send what is to be summed
        self._context.sum_orders.tell(self.config.site)
        self.sending.hand_over()
        self.sending.resend_small()
        if self.session_talk is not None:
            self.session_talk.online(self.config.site)
        if self.flow_talk is not None:
            self.flow_talk.online()
        self.receiving.tell_lost()
        self.send(Ping(time.monotonic()))

    def _forget_old_run(self) -> None:
        """The peer has no memory of what was under way: what we send begins anew, and so does what it sent, or ends."""
        message = "%s was restarted: what was on its way to it is sent anew"
        self._complain("restarted", message, self.config.site)
        for transport in list(self.paths.paths):
            self._abandon(transport)
        self.main_path.peer_restarted()
        self.sending.peer_restarted()
        self.receiving.peer_restarted(resumes=self.hello is not None and self.hello.resumes)

    def restore_journal(self, journal: str) -> None:
        """An earlier run was told that the peer goes on with this one."""
        self._journal = journal

    def _compare_journal(self, journal: str) -> None:
        """Where the peer goes on with another journal than before, what it had is gone: sessions that it was in end."""
        before = self._journal
        if before and journal and journal != before and self.session_talk is not None:
            message = "%s has lost its journal, or a part of it: what it had confirmed and was to send is gone"
            self._complain("journal lost", message, self.config.site, level=logging.ERROR)
            self.session_talk.forgotten(self.config.site, self.sending.confirmed_sessions())
        if journal:
            self._note_journal(journal)

    def _note_journal(self, journal: str) -> None:
        if journal != self._journal:
            self._journal = journal
            self._context.journal.write(Met(self.config.site, journal))

    def _lose(self, reason: str) -> None:
        stream, self._stream = self._stream, None
        self.last_error = reason = cut(reason)
        self.rtt_seconds = None
        self._complain("lost", "lost %s: %s", self.config.site, reason)
        self._context.trace.peer_lost(self.config.site, reason)
        for transport in self.paths.paths:
            self._context.metrics.link_up(self.config.site, transport, False)
        self._context.sharing.leave(self.config.site)
        self._context.send_sharing.leave(self.config.site)
        self.main_path.offline()
        self.paths.offline(reason)
        self.receiving.forget_requests()
        self.receiving.borrowing.peer_lost()
        self.sending.lending.peer_lost()
        if self.site_sums is not None:
            self.site_sums.lost(self.config.site)
        self.offline.set()
        self.offline_since = self._loop.time()
        self._told_held = self.sending.held_there = ()
        if stream is not None:
            stream.close()

    async def _watch(self, stream: ControlStream) -> None:
        silence = self._context.config.timeouts.peer_silence
        await until_silent(silence, self._last_sign, lambda: self.send(Ping(time.monotonic())))
        if self._stream is stream:
            self._lose(f"silent for {silence:g} s")

    def _last_sign(self) -> float:
        return max([self._heard_at, *(path.link.heard_at for path in self.paths.paths.values())])

    # -- frames ---------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: ControlFrame) -> None:
        # before anything else, so that no frame can name a message that is none of this peer's and ours
        if objection := self._entitlement.objection(frame):
            self._refuse(frame, objection)
            return
        match frame:
            case Ping(stamp=stamp):
                self.send(Pong(stamp))
            case Pong(stamp=stamp):
                self._on_pong(stamp)
            case Goodbye(reason=reason, forgets=forgets):
                if forgets:
                    self._note_journal("")
                self._lose(f"it said goodbye: {reason}")
            case Connect():
                self._pace.charge_connect()
                self._on_connect(frame)
            case PathUse():
                self.main_path.on_use(frame)
            case Inline():
                self.receiving.on_inline(frame)
            case SamePayload():
                self.receiving.on_same_payload(frame)
            case SamePayloadGone(transfer=transfer, same_as=same_as):
                self.sending.on_same_payload_gone(transfer, same_as)
            case Undeliverable(key=key, code=code, reason=reason):
                self.receiving.on_undeliverable(key, code, reason)
            case WantedWhole(name=name, tag=tag):
                message = "%s lets nothing be missing of %r, tag %r: that the task here lets some be is of no use"
                site = self.config.site
                self._context.complaints.add(logger, "wanted whole", site, message, site, name, tag, level=logging.INFO)
            case MemoryHeld(holders=holders):
                self.sending.held_there = holders
            case SumOrders(orders=orders):
                if self.site_sums is not None:
                    self._pace.charge(FRAMES_OF_AN_ORDER * self.site_sums.on_orders(self.config.site, orders))
            case SessionAsk() | SessionIdle() | SessionEnd():
                if self.session_talk is not None:
                    self.session_talk.on_frame(self.config.site, frame)
            case PartyBack(session=session, party=party):
                self._pace.charge(self.sending.party_is_back(session, party))
            case FlowCall() | FlowAnswer() | FlowRefused() | FlowHeard():
                if self.flow_talk is not None:
                    self.flow_talk.on_frame(frame)
            case Hello():
                raise WireError(ErrorCode.MALFORMED_FRAME, "a second greeting on one control channel.")
            case Delivered(transfer=transfer):
                if not self.sending.on_delivered(transfer):
                    self._to_all_links(frame)
            case Refused(transfer=transfer, code=code, reason=reason):
                if not self.sending.on_refused(transfer, code, reason):
                    self._to_all_links(frame)
            case Abort(transfer=transfer):
                self.receiving.on_abort(transfer)
                self._to_all_links(frame)
            case ChunkTags():
                self.receiving.on_chunk_tags(frame)
                self._to_all_links(frame)
            case ChunkAck() | Report() | ResendChunks() | DigestRequest() | ChunkDigests() | DigestRun():
                self._to_all_links(frame)
            case Lend():
                self.receiving.on_lend(frame)
            case LendRecall(transfer=transfer, final=final):
                self.receiving.borrowing.on_recall(transfer, final=final)
            case LendDecline(transfer=transfer, reason=reason):
                self.sending.on_lend_declined(transfer, reason)
            case LendReturn(transfer=transfer):
                self.sending.on_lend_returned(transfer)
            case _:
                self._on_path_frame(frame)

    def _refuse(self, frame: ControlFrame, why: FedRDMAError) -> None:
        """Do nothing of what a frame asks for; whoever sends a message learns why it is not taken."""
        # of a message that is not the peer's to name nothing is noted
        is_mixed = why.code is ErrorCode.ENGINES_MIXED
        if is_mixed and isinstance(frame, (Offer, Inline, Lend, GrantRequest, SamePayload)) and frame.key is not None:
            self._context.mailbox.note_mixed(frame.key)
        match frame:
            case Offer():
                if (link := self._link(frame.transport)) is not None:
                    link.decline(frame, self.receiving.refuse(frame, why.code, why.message))
            case Inline() | Lend() | GrantRequest() | SamePayload():
                self.send(self.receiving.refuse(frame, why.code, why.message))
            case _:
                code, kind, reason = why.code.value, type(frame).__name__, why.message
                message = "ignored %s from %s: [%s] %s"
                self._complain("ignored frame", message, kind, self.config.site, code, reason, level=logging.ERROR)

    def _on_path_frame(self, frame: ControlFrame) -> None:
        """Frames that name the data path they are about."""
        match frame:
            case Offer():
                if (link := self._link(frame.transport)) is not None:
                    self.receiving.on_offer(frame, link)
            case Reconcile(transport=transport, transfers=transfers):
                if (link := self._link(transport)) is not None:
                    link.frame(Reconcile(transport, self.receiving.answer_ended(transfers)))
            case GrantRequest() | Grant() | GrantRecall() | GrantReturn() | Share() | Restart():
                if (link := self._link(frame.transport)) is not None:
                    link.frame(frame)
            case _:
                raise WireError(ErrorCode.MALFORMED_FRAME, f"{type(frame).__name__} is not for a gateway.")

    def _to_all_links(self, frame: ControlFrame) -> None:
        for path in self.paths.paths.values():
            path.link.frame(frame)

    def _link(self, transport: str) -> LinkHandle | None:
        """The link that a frame is about; None when we have given it up, as the peer will learn."""
        if transport not in self._context.transports:
            raise WireError(ErrorCode.MALFORMED_FRAME, f"a frame about the unknown transport {transport!r}.")
        path = self.paths.paths.get(transport)
        return None if path is None else path.link

    # -- data paths -----------------------------------------------------------------------------------------------

    def _on_pong(self, stamp: float) -> None:
        elapsed = time.monotonic() - stamp
        # what a peer sends back need not be what we sent; no comparison holds for what is no number
        if 0 <= elapsed <= self._context.config.timeouts.peer_silence:
            self.rtt_seconds = self.sending.rtt_seconds = elapsed
            self.probes.on_pong(stamp)
            is_least = elapsed < self.main_path.least_round_trip
            self.main_path.on_round_trip(elapsed)
            if is_least:
                # a data path may be up before any ping was answered
                for path in self.paths.paths.values():
                    self._hint(path.link)

    def _hint(self, link: LinkHandle) -> None:
        if self.rtt_seconds is not None:
            least = min(self.main_path.least_round_trip, self.rtt_seconds)
            link.hint(least, None if self.config.rate is None else self.config.rate / 8)

    def _on_connect(self, frame: Connect) -> None:
        main = self.paths.main_transport
        changed = frame.main and frame.attempt and main is not None and main != frame.transport
        if changed and main is not None and self.paths.offers(frame.transport):
            # the active side has changed its mind
            self.main_path.give_up(main)
            self.receiving.retry_early_lends()
        path = self.paths.paths.get(frame.transport)
        was_up = path is not None and path.up
        self.paths.on_connect(frame)
        if was_up and path is not None and not path.up:
            self._note_lost(frame.transport, f"{self.config.site} has lost it, and asks for a new one")
        self.sending.hand_over()

    def _on_main_path_changed(self) -> None:
        self.receiving.retry_early_lends()
        self._share_link()
        if (transport := self.paths.main_transport) is not None:
            self._refill_ring(transport)
        self.sending.hand_over()

    def _abandon(self, transport: str) -> None:
        self.receiving.forget_requests(self.paths.paths[transport].link)
        self._context.sharing.leave(self.config.site, self.paths.paths[transport].link)
        self._context.send_sharing.leave(self.config.site, self.paths.paths[transport].link)
        self._context.metrics.link_up(self.config.site, transport, False)
        self.probes.link_retired(self.paths.paths[transport].link)
        self._context.path_store.note(self.config.site, transport, self.paths.paths[transport].link.known_path)
        self.paths.abandon(transport)
        self.sending.take_back(transport)

    def shares_memory(self) -> bool:
        """Whether the peer is here, on this host, and takes what is lent to it."""
        both = self._context.config.shm.lend and self.hello is not None and self.hello.borrows
        return both and self.connected and self.paths.main_transport == "shm"

    def _allows(self, transport: str) -> bool:
        """Whether a data path of this kind may lead to the peer."""
        if transport not in allowed_transports(self.config, self._context):
            return False
        return transport != "shm" or (self.hello is not None and self.hello.host == self._context.host)

    def _lender_region(self) -> LentRegion | None:
        return region_of_lender(self._context, self.config.site, self.paths)

    def _make_link(self, transport: str) -> tuple[LinkHandle, LinkEvents]:
        known = self._context.path_store.recall(self.config.site, transport)
        regions = self._link_regions
        makers = regions.maker("repairs", transport), regions.maker("sealing", transport)
        admits = self._entitlement.admits
        settings = link_settings(
            self._context.config,
            self.config,
            transport,
            known,
            *makers,
            admits=admits,
            kept=functools.partial(self._context.journal.received, self.config.site),
            complaints=self._context.complaints,
            tells_digests=lambda: self.hello is not None and self.hello.chunk_digests,
            continues=lambda: self.hello is not None and self.hello.continues,
            knows_tags=lambda: self.hello is not None and self.hello.chunk_tags,
            leaves_room_for_tags=self._may_seal_in_slots,
            notes_arrivals=self._context.journal.is_kept,
            bounds_loss=lambda: self.hello is not None and self.hello.bounded_loss,
            loss_share=self._context.mailbox.tolerances.share,
            spend_holes=self._context.mailbox.tolerances.spend,
            is_late=self._context.mailbox.tolerances.is_late,
        )
        events = LinkEvents(self._loop, functools.partial(self._on_link_event, transport))
        return self._context.make_link(self.config.site, settings, events.emit), events

    def tell_wanted_whole(self, key: MessageKey) -> None:
        """Tell the peer that nothing was let be missing of a message, though its task has let some be."""
        if self.hello is not None and self.hello.bounded_loss:
            self.send(WantedWhole(key.name, key.tag))

    def look_again(self, key: MessageKey) -> None:
        """What may be missing of a message of the peer's, or whether it is late, is not what it was."""
        for path in self.paths.paths.values():
            path.link.look_again(key)

    def _may_seal_in_slots(self, slot_bytes: int) -> bool:
        """Whether there may be a data path to the peer on which what lies in a slot is sealed; on any thread.

        Where the peer can grant no slot as long as this, what it is asked for has no room for that.
        """
        hello = self.hello
        if hello is None or not hello.chunk_tags or slot_bytes > hello.receive_bytes:
            return False
        seals = self._context.config.sealing != "off"
        return seals and any(name in hello.transports and name in self._context.transports for name in SEALED_IN_SLOT)

    def transfers(self) -> list[TransferProgress]:
        """Transfers under way, those that wait for the peer included."""
        on_links = [progress for path in self.paths.paths.values() for progress in path.link.progress()]
        return on_links + self.sending.waiting_for_path()

    def tell_held(self, holders: tuple[tuple[Party, int], ...]) -> None:
        """Tell the peer who holds the receive memory that its transfers wait for, where they do, or that none does."""
        told = holders[:MOST_HOLDERS] if self.receiving.waits_for_memory else ()
        if told != self._told_held and self.hello is not None and self.hello.memory_held:
            self._told_held = told
            self.send(MemoryHeld(told))

    def ask_for_notices(self, session: str, party: Party) -> None:
        """A party of this site is in a session again; without a channel, the next one tells all that is to be told."""
        if self.hello is not None and self.hello.party_back:
            self.send(PartyBack(session, party))

    # -- sums of a site -------------------------------------------------------------------------------------------

    @property
    def takes_sum_orders(self) -> bool:
        """See `OrderedSite`."""
        return not self.why_no_sums

    @property
    def why_no_sums(self) -> str:
        """See `OrderedSite`."""
        if not self.connected or self.hello is None:
            return "it is not connected"
        if not self.hello.site_sums:
            return f"its gateway ({self.hello.version}) is of an older version, or has aggregate.site_sums: false"
        return "its messages are lent, and cross no network" if self.shares_memory() else ""

    @property
    def sum_place(self) -> SumPlace:
        """See `OrderedSite`."""
        hello = self.hello
        return SumPlace() if hello is None else SumPlace(hello.sum_parent, hello.sum_fan_in)

    def tell_sum_orders(self, orders: SumOrders) -> None:
        """See `OrderedSite`."""
        if self._stream is not None:
            self._stream.write_latest(encode_frame(orders))

    def note_summed(self, transfers: Sequence[int]) -> None:
        """See `OrderedSite`."""
        for delivered in self.receiving.note_summed(transfers):
            self.send(delivered)

    # -- from our links -------------------------------------------------------------------------------------------

    def _on_link_event(self, transport: str, event: LinkEvent) -> None:
        match event:
            case FrameToSend(frame):
                self.send(frame)
            case PathConnected(connection, lent_region):
                self._on_path_connected(transport, connection, lent_region)
            case PathLost(connection, reason, code):
                self._on_path_lost(transport, connection, reason, code)
            case PathStalled(connection, reason, silent):
                self.main_path.on_stalled(transport, connection, reason, silent=silent)
            case TransferAnnounced(offer):
                self.receiving.on_early_offer(offer, self.paths.paths[transport].link)
            case DatagramsDropped(counts):
                for reason, count in counts.items():
                    self._context.metrics.datagrams_dropped(self.config.site, reason, count)
            case RecordsRefused(counts):
                for fault, count in counts.items():
                    self._context.metrics.records_refused(self.config.site, fault, count)
            case GrantRequested(request, early):
                ask = self.receiving.on_early_grant_request if early else self.receiving.on_grant_request
                ask(request, self.paths.paths[transport].link)
            case PayloadReceived(offer, slot, payload_at, stats, missing):
                self._note_carried(transport)
                self.receiving.received(offer, slot, payload_at, stats, missing)
                self._refill_ring(transport)
            case ReceiveFailed(offer, slot, code, reason):
                self.receiving.receive_failed(offer, slot, code, reason)
                self._refill_ring(transport)
            case SlotsReturned(slots):
                self.receiving.slots_returned(slots)
            case SlotsStillOpen(slots):
                self.receiving.slots_still_open(slots)
            case TransferKept(kept):
                self.receiving.keep(kept)
            case PayloadLanded():
                self.receiving.landed(event)
            case TransferNoted():
                self.receiving.note(event)
            case TransferSealed():
                self.receiving.sealed(event)
            case PayloadSent(outgoing, stats):
                self._note_carried(transport)
                if not self.probes.sent(outgoing, stats):
                    self.sending.sent(outgoing, stats, transport)
            case SendFailed(outgoing, code, reason):
                if not self.probes.send_failed(outgoing, code, reason):
                    self.sending.send_failed(outgoing, code, reason)

    def _note_carried(self, transport: str) -> None:
        if (path := self.paths.paths.get(transport)) is not None:
            path.carried = True

    def _on_path_connected(self, transport: str, connection: int, lent_region: LentRegion | None) -> None:
        if not self.paths.on_up(transport, connection, lent_region):
            return
        path = self.paths.paths[transport]
        self._hint(path.link)
        self._context.metrics.link_up(self.config.site, transport, True)
        message = "data path to %s over %s is up"
        self._complain("data path up", message, self.config.site, transport, level=logging.INFO)
        self._context.trace.link(self.config.site, transport, path.reason)
        self.main_path.on_connected(transport)
        # before any slot is granted by it
        self._share_link()
        self._refill_ring(transport)
        self.receiving.retry_early_lends()

    def _share_link(self) -> None:
        """Have the peer take its part in sharing the link, where the path that it sends by is up, and crosses it."""
        transport, stream = self.paths.main_transport, self._stream
        path = None if transport is None else self.paths.paths.get(transport)
        if transport is None or path is None or not path.up or stream is None or self.hello is None:
            return
        # what stays on this host takes nothing of the link, and would make it look faster than it is
        if is_loopback(stream.remote_host or ""):
            return
        if self._context.send_sharing.join(self.config.site, transport, path.link, self.rtt_seconds):
            self.sending.share_begun()
        if self.hello.obeys_shares and self._context.sharing.join(
            self.config.site, transport, path.link, self.rtt_seconds, sends_trains=self.hello.sends_trains
        ):
            self.receiving.share_announced()

    def _on_path_lost(self, transport: str, connection: int, reason: str, code: ErrorCode | None) -> None:
        path = self.paths.paths[transport]
        if path.connection != connection:
            return
        self._note_lost(transport, reason)
        self.receiving.forget_requests(path.link)
        self.paths.on_lost(transport, reason, code)

    def _note_lost(self, transport: str, reason: str) -> None:
        self._complain("data path lost", "data path to %s over %s: %s", self.config.site, transport, reason)
        self._context.sharing.leave(self.config.site, self.paths.paths[transport].link)
        self._context.send_sharing.leave(self.config.site, self.paths.paths[transport].link)
        self._context.metrics.link_up(self.config.site, transport, False)
        self._context.trace.link_lost(self.config.site, transport, reason)

    def _complain(self, kind: str, message: str, *values: object, level: int = logging.WARNING) -> None:
        site = self.config.site
        self._context.complaints.add(logger, kind, site, message, *values, level=level, lines=EACH_TELLS)

    def _on_wanted(self) -> None:
        # not in the middle of what frees a slot
        self._loop.call_soon(make_room, self._context, self._context.receive_pool)

    def _recall_credits(self, owner: str | None) -> None:
        if owner in (None, self.receiving.owner):
            # not in the middle of asking for room
            self._loop.call_soon(self.receiving.kept.drop_all)
            self.paths.recall_credits()

    def _on_room(self) -> None:
        for transport in self.receiving.lacks_ahead():
            # not in the middle of what frees the slot
            self._loop.call_soon(self._refill_ring, transport)

    def _refill_ring(self, transport: str) -> None:
        path = self.paths.paths.get(transport)
        # not for a path that is being left, or only tried
        if path is not None and path.up and not self.paths.is_aside(transport):
            self.receiving.fill_ring(path.link, transport)
