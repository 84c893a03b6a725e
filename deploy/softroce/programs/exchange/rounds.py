"""What a round is, whatever the protocol: begin, down to all silos, computing, up from all; and what is counted."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

from deploy.softroce.programs.counters import Counters, read_counters
from deploy.softroce.programs.exchange.flows import Taken
from deploy.softroce.programs.exchange.interface import Host, Options, Server, Silo, models_of
from deploy.softroce.programs.exchange.leaving import Watch, nobody_watches
from deploy.softroce.programs.exchange.usage import Usage, in_testbed, summary, usage
from deploy.softroce.programs.meeting import Chair, Seat

PAUSE_SECONDS = 0.5
"""Before each round: credits are granted anew, and queues are empty."""


def first_counted(rounds: int) -> int:
    """The round from which on CPU time counts: the second, where there is one.

    What a process does once, as it imports, allocates and touches memory for the first time, is none of a round's: an
    exchange runs for long, and of few rounds it would be a good part.
    """
    return min(1, rounds - 1)


def counted() -> Counters:
    """What the kernel has counted of this host; nothing on loopback, where all hosts share one interface."""
    return read_counters() if in_testbed() else Counters(0, 0)


def run_server(
    server: Server, chair: Chair, options: Options, taken: Taken | None = None, watch: Watch = nobody_watches
) -> list[dict[str, Any]]:
    """All rounds, from the server's end; what each took.

    Args:
        taken: what other flows bring meanwhile, where there are such.
        watch: ends a round that a host leaves.
    """
    taken = taken or Taken()
    rounds: list[dict[str, Any]] = []
    models = models_of(0, options)
    used, not_its_own = usage(), 0.0
    for number in range(options.rounds):
        models.prepare(number)
        chair.hear()
        if number == first_counted(options.rounds):
            not_its_own = models.cpu_seconds() + taken.cpu_seconds()
            used = usage()
        begin = time.monotonic() + PAUSE_SECONDS
        before = counted()
        chair.tell(begin)
        time.sleep(max(0.0, begin - time.monotonic()))
        with watch(chair, number):
            done = server.exchange(number)
            resent = server.resent(number)
        told = chair.hear()
        since = counted().since(before)
        last = max(one.moment for one in done.received)
        # into the server: from when the first silo sends
        own_rate = taken.rate(min(each["got"] for each in told) + options.computing_seconds, last)
        rates = [rate for rate in (own_rate, *(each.get("flow_bps") for each in told)) if rate is not None]
        rounds.append(
            {
                "begun": begin,
                "seconds": last - begin - options.computing_seconds,
                "fedcomm_seconds": last - done.sent - options.computing_seconds,
                "silo_seconds": [one.moment - begin - options.computing_seconds for one in done.received],
                "down_seconds": [each["got"] - begin for each in told],
                "resent_bytes": resent + sum(each["resent"] for each in told),
                "tcp_resent_bytes": since.tcp_resent_bytes + sum(each["tcp_resent_bytes"] for each in told),
                "sent_bytes": since.sent_bytes,
                "received_bytes": since.received_bytes,
                "missing_down_bytes": sum(each["missing"] for each in told),
                "missing_up_bytes": sum(one.missing_bytes for one in done.received),
                "dropped": sum(one.dropped for one in done.received) + sum(each["dropped"] for each in told),
                "flow_bps": statistics.fmean(rates) if rates else None,
                **models.finish(number),
            }
        )
    used = usage().since(used)
    not_its_own = models.cpu_seconds() + taken.cpu_seconds() - not_its_own
    chair.tell("done")
    silos = [Usage(**told) for told in chair.hear()]
    if in_testbed():
        return rounds
    count = options.rounds - first_counted(options.rounds)
    return [{**one, "usage": summary(used.without(not_its_own), silos, count)} for one in rounds]


def run_silo(silo: Silo, seat: Seat, host: Host, options: Options, taken: Taken | None = None) -> None:
    """All rounds, from a silo's end.

    Args:
        taken: what other flows bring meanwhile, where there are such.
    """
    taken = taken or Taken()
    models = models_of(host.number, options)
    used, not_its_own = usage(), 0.0
    for number in range(options.rounds):
        if number == first_counted(options.rounds):
            not_its_own = models.cpu_seconds() + taken.cpu_seconds()
            used = usage()
        models.prepare(number)
        silo.prepare(number)
        before = counted()
        seat.say("ready")
        begin = float(seat.hear())
        got = silo.receive(number)
        models.compute(number)
        time.sleep(options.computing_seconds)
        silo.send(number)
        resent = silo.resent(number)
        seat.say(
            {
                "got": got.moment,
                "missing": got.missing_bytes,
                "dropped": got.dropped,
                "resent": resent,
                "tcp_resent_bytes": counted().since(before).tcp_resent_bytes,
                "flow_bps": taken.rate(begin, got.moment),
            }
        )
    # when the server has all: what a silo has handed over may be sent after `send`
    seat.hear()
    used = usage().since(used)
    own = used.without(models.cpu_seconds() + taken.cpu_seconds() - not_its_own)
    seat.say(dataclasses.asdict(own))
