"""The gateway's status as one document, for people and programs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

from cryptography import x509

from fedrdma_fate import __version__
from fedrdma_fate.core.planning import no_slower_than
from fedrdma_fate.engine.events import TransferProgress
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.flow.calls import FlowCalls
from fedrdma_fate.gateway.osx.brokers import Broker
from fedrdma_fate.gateway.peers.paths import DataPath
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.tasks.held_memory import Holding
from fedrdma_fate.gateway.tasks.port import TaskPort
from fedrdma_fate.gateway.tasks.site_addition import AdditionProgress
from fedrdma_fate.gateway.tasks.site_sums import SiteSums
from fedrdma_fate.gateway.tasks.sum_outcome import SumProgress
from fedrdma_fate.gateway.tasks.sums import Sums
from fedrdma_fate.security.identity import uri_of_site
from fedrdma_fate.wire.frames import MessageKey, Party

MOST_MISSING_SHOWN = 8
"""Of the parties whose updates a sum waits for: a thousand names help nobody."""


def status_document(
    context: GatewayContext,
    peers: Mapping[str, Peer],
    task_count: int,
    holdings: Sequence[Holding],
    sums: Sums,
    site_sums: SiteSums,
    calls: FlowCalls,
    brokers: Mapping[str, Broker],
    port: TaskPort | None,
    started: float,
    certificate: x509.Certificate | None,
    may_know: Callable[[Party], bool],
) -> dict[str, object]:
    """Everything `fedrdma status` shows; sizes in bytes, times in seconds, ends of certificates in Unix time.

    Args:
        context: the gateway's.
        peers: the other sites.
        task_count: task processes attached.
        holdings: pools in which somebody waits, and nobody gets room, because of what tasks hold.
        sums: those that are under way.
        site_sums: those that other sites have asked for.
        calls: FATE Flow's scheduling calls.
        brokers: OSX brokers of peers.
        port: of tasks on other hosts; None without `listen.tasks`.
        started: when it started, by time.monotonic.
        certificate: the gateway's own; None with `security: off`.
        may_know: whether it may show transfers of this party of the site.
    """
    config = context.config
    return {
        "site": config.site,
        "version": __version__,
        "incarnation": context.incarnation,
        "uptime_seconds": time.monotonic() - started,
        "mode": config.mode,
        "parties": list(config.parties),
        "security": config.security,
        "certificate": None if certificate is None else _certificate(config.site, certificate),
        "tasks": task_count,
        "tasks_port": None if port is None else {"address": config.listen.tasks, **dataclasses.asdict(port.counts)},
        "peers": [_peer(peer) for peer in peers.values()],
        "receive": context.sharing.status(),
        "send": context.send_sharing.status(),
        "pools": [dataclasses.asdict(pool.stats()) for pool in (context.send_pool, context.receive_pool)],
        "held": [_holding(holding, may_know) for holding in holdings],
        "mailbox": context.mailbox.summary(),
        "sums": [_sum(each) for each in sums.progress() if may_know(each.key.destination)],
        "site_sums": [
            _site_sum(each)
            for each in site_sums.progress()
            if any(map(may_know, each.parties or (each.key.destination,)))
        ],
        "sum_parent": config.aggregate.parent,
        "sum_parent_slow": _slow_parent(config.aggregate.parent, peers, site_sums.askers),
        "sum_workers": {
            "processes": sums.worker_processes,
            "restarts": sums.worker_restarts,
            **dataclasses.asdict(sums.workers.plan()),
            "notices": {"way": sums.notices.way, "reason": sums.notices.reason, "passed": sums.notices.passed()},
        },
        "fronts": {"flow": config.listen.flow, "osx": config.listen.osx},
        "flow": _flow(calls),
        "brokers": [_broker(context, broker) for broker in brokers.values()],
        "transfers": [
            _transfer(peer, progress)
            for peer in peers.values()
            for progress in peer.transfers()
            if may_know(progress.key.source if progress.direction == "send" else progress.key.destination)
        ],
    }


def _certificate(site: str, certificate: x509.Certificate) -> dict[str, object]:
    """By what gateways know a certificate, which was checked; the subject is for people, and may hold anything."""
    return {
        "name": uri_of_site(site),
        "serial": f"{certificate.serial_number:x}",
        "end": certificate.not_valid_after_utc.timestamp(),
    }


def _holding(holding: Holding, may_know: Callable[[Party], bool]) -> dict[str, object]:
    """A pool in which nobody gets room; `bytes` are what tasks of all parties hold there."""
    parties = [
        {"session": session, "party": str(party), "bytes": count}
        for session, party, count in holding.parties
        if may_know(party)
    ]
    held = sum(count for _, _, count in holding.parties)
    return {"pool": holding.pool, "waiting": holding.waiting, "bytes": held, "parties": parties}


def _broker(context: GatewayContext, broker: Broker) -> dict[str, object]:
    """A peer that has an OSX broker, and what became of what went to it."""
    parties = next(peer.parties for peer in context.config.brokers if peer.site == broker.site)
    said = {"site": broker.site, "address": broker.address, "parties": list(parties)}
    return {**said, **dataclasses.asdict(broker.state)}


def _flow(calls: FlowCalls) -> list[dict[str, object]]:
    """Scheduling calls with each site that there were any with; the own one, where FATE Flow called itself."""
    return [
        {
            "site": site,
            "direction": direction,
            "answered": counts.answered,
            "refused": counts.refused,
            "under_way": calls.under_way(direction, site),
            "slowest_seconds": counts.slowest_seconds,
        }
        for direction, of_sites in calls.counts.items()
        for site, counts in of_sites.items()
        if counts.answered or counts.refused or calls.under_way(direction, site)
    ]


def _aggregate(key: MessageKey) -> dict[str, object]:
    """Of which message of a job a sum is made, and who gets it."""
    return {
        "session": key.session,
        "name": key.name,
        "tag": key.tag,
        "party": str(key.destination),
    }


def _sum(progress: SumProgress) -> dict[str, object]:
    return {
        **_aggregate(progress.key),
        "order": progress.order,
        "parties": progress.parties,
        "added": progress.added,
        "waiting": progress.waiting,
        "adding": None if progress.adding is None else str(progress.adding),
        "missing": len(progress.missing),
        "first_missing": [str(party) for party in progress.missing[:MOST_MISSING_SHOWN]],
        "site_sums": progress.site_sums,
        "fan_in": len(progress.asked) + progress.parties - sum(parties for _, _, parties in progress.asked),
        "adders": [dict(zip(("site", "sites", "updates"), each, strict=True)) for each in progress.asked],
        "update_bytes": progress.update_bytes,
        "awaited_bytes": progress.awaited_bytes,
        "worker": progress.worker,
        "seconds": progress.seconds,
        "coming": None
        if progress.coming is None
        else dict(zip(("party", "added_bytes", "bytes"), (str(progress.coming[0]), *progress.coming[1:]), strict=True)),
    }


def _site_sum(progress: AdditionProgress) -> dict[str, object]:
    """What this site adds for another one."""
    return {
        **_aggregate(progress.key),
        "asked_by": progress.asked_by,
        "fan_in": len(progress.parties) + progress.asked_sites,
        "added": progress.added,
        "missing": [str(party) for party in progress.awaited[:MOST_MISSING_SHOWN]],
        "missing_sites": list(progress.sites),
        "sent": progress.is_sent,
    }


def _slow_parent(parent: str | None, peers: Mapping[str, Peer], askers: Sequence[str]) -> dict[str, object] | None:
    """Where sums that go by the parent come no sooner, for the path to it is not the faster one."""
    if parent is None:
        return None
    findings = {name: peer.sending.rate(peer.paths.main_transport or "") for name, peer in peers.items()}
    rates = {name: finding.rate_bps for name, finding in findings.items() if finding is not None}
    if not (faster := no_slower_than(parent, askers, rates)):
        return None
    return {
        "bits_per_second": rates[parent],
        "faster": [{"site": site, "bits_per_second": rates[site]} for site in faster],
    }


def _peer(peer: Peer) -> dict[str, object]:
    identity = peer.identity
    return {
        "site": peer.config.site,
        "address": peer.config.address,
        "parties": list(peer.config.parties),
        "parties_by_itself": list(peer.hello.parties) if peer.hello else None,
        "largest_payload_bytes": peer.hello.receive_bytes if peer.hello else None,
        "connected": peer.connected,
        "version": peer.hello.version if peer.hello else None,
        "certificate": None
        if identity is None
        else _certificate(identity.site, x509.load_der_x509_certificate(identity.certificate)),
        "rtt_seconds": peer.rtt_seconds,
        "last_error": peer.last_error,
        "pending_messages": peer.sending.pending,
        "lent_messages": peer.sending.lending.count,
        "sum_orders": 0 if peer.site_sums is None else peer.site_sums.standing(peer.config.site),
        "sum_parent": peer.hello.sum_parent if peer.hello else None,
        "sum_fan_in": peer.hello.sum_fan_in if peer.hello else None,
        "lent_bytes": peer.sending.lending.lent_bytes,
        "held_there": [{"party": str(party), "bytes": count} for party, count in peer.sending.held_there],
        "borrowed_messages": peer.receiving.borrowing.count,
        "paths": [_path(peer, name, path) for name, path in peer.paths.paths.items()],
        "unused_paths": peer.main_path.unused(),
    }


def _path(peer: Peer, name: str, path: DataPath) -> dict[str, object]:
    """A data path, what it has found of itself, and what modes `fedrdma` and `fedrdma-e` are tuned to."""
    tuner, rate = peer.sending.tuners[name], peer.sending.rate(name)
    known = path.link.known_path
    state = None if known is None else known.state
    return {
        "transport": name,
        "up": path.up,
        "main": path.main,
        "reason": path.reason,
        "attempts": path.attempt,
        "last_error": path.last_error,
        "found_bits_per_second": None if state is None else state.rate * 8,
        "found_rtt_seconds": None if state is None else state.min_rtt,
        "found_packet_loss": None if state is None else state.loss,
        "found_by": None if known is None else known.source,
        "told_bits_per_second": path.link.bound * 8 if math.isfinite(path.link.bound) else None,
        "tuning": {
            "bits_per_second": None if rate is None else rate.rate_bps,
            "known_by": None if rate is None else rate.source,
            "chunk_bytes": tuner.chunk_sizes(),
            "link_enable": tuner.link_enable,
            "link_enable_reason": tuner.link_enable_reason or None,
        },
    }


def _transfer(peer: Peer, progress: TransferProgress) -> dict[str, object]:
    elapsed = time.monotonic() - progress.started if progress.started else 0.0
    rate = progress.done_bytes / elapsed if elapsed > 0 else 0.0
    left = (progress.total_bytes - progress.done_bytes) / rate if rate > 0 else None
    return {
        "transfer": progress.transfer,
        "peer": peer.config.site,
        "direction": progress.direction,
        "message": str(progress.key),
        "mode": progress.mode,
        "state": progress.state,
        "total_bytes": progress.total_bytes,
        "done_bytes": progress.done_bytes,
        "bytes_per_second": rate,
        "seconds_left": left,
    }
