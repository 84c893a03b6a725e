"""`scripts/testbed`: the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from deploy.softroce.build import SUITE, build
from deploy.softroce.errors import TestbedError
from deploy.softroce.host_links import HostLink, parse_host_link
from deploy.softroce.kernel import FLAVOURS, VARIABLE, find_kernel
from deploy.softroce.local import remove, set_up
from deploy.softroce.netem import ENDLESS_PACKETS
from deploy.softroce.run import TIMED_OUT, Outcome, Run, execute
from deploy.softroce.schedule import parse_change
from deploy.softroce.wan import DEFAULT_BUFFER_BYTES, DEFAULT_MTU, MAX_HOSTS, NIC_SPEEDUP, Wan
from fedrdma_fate.bench.wan.shaping import RateTrace, parse_cross_traffic, parse_policer, read_rate_trace
from fedrdma_fate.quantities import QuantityError, parse_loss, parse_rate, parse_size, parse_time

T = TypeVar("T")
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

TESTBED_FAILED = 125
"""Exit status when not a program but the testbed failed."""

_RUN_EPILOG = f"""\
Every host finds in its environment: TESTBED_HOST (its number from 0), TESTBED_HOSTS (all addresses, with commas),
TESTBED_ADDRESS, TESTBED_DEVICE (its RDMA device), TESTBED_NETDEV, TESTBED_OUT (a directory shared with this machine),
TESTBED_RATE and TESTBED_RTT (of the WAN: bit/s, seconds), TESTBED_VIRTUAL_TIME (0 or 1). It sees this machine's files;
what it writes elsewhere than in TESTBED_OUT is gone afterwards. Packets that the WAN dropped are counted at the end.
The exit status is that of the first host that failed, {TIMED_OUT} after the time limit, {TESTBED_FAILED} when the
testbed itself failed.

  scripts/testbed run --rate 1gbit --rtt 20ms --loss 0.1% -- .venv/bin/python transfer.py
  scripts/testbed run --on '0=python server.py' --on '1=python client.py'
"""


def _quantity(parse: Callable[[str], T]) -> Callable[[str], T]:
    def convert(text: str) -> T:
        try:
            return parse(text)
        except QuantityError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _host_command(text: str) -> tuple[int, str]:
    host, separator, command = text.partition("=")
    if not separator or not host.isdecimal() or not command.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST=COMMAND, such as 0='python server.py'")
    return int(host), command


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return value


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/testbed",
        description="RDMA hosts with Soft-RoCE and a WAN between them, without RDMA hardware. See docs/testbed.md.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_host(commands)
    _add_build(commands)
    kernel = commands.add_parser("kernel", help="find the kernel that `run` boots, and print its path")
    _add_kernel_option(kernel)
    return parser


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run a program on every host of a fresh testbed",
        description="Boot a guest, make hosts and a WAN in it, run a program on every host at the same time.",
        epilog=_RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rate, time, size, loss = (_quantity(parse) for parse in (parse_rate, parse_time, parse_size, parse_loss))
    run.add_argument("--hosts", type=int, default=2, metavar="N", help=f"how many: 2 to {MAX_HOSTS} (default 2)")
    run.add_argument("--rate", type=rate, metavar="RATE", help="of the bottleneck, such as 1gbit (default: no limit)")
    run.add_argument(
        "--rate-trace",
        type=_quantity(lambda text: read_rate_trace(Path(text))),
        metavar="FILE",
        help="in place of --rate: lines of seconds and bit/s, from the programs' start on; the last rate holds, or the "
        "last line is seconds and 'repeat'",
    )
    run.add_argument(
        "--nic-rate",
        type=rate,
        metavar="RATE",
        help=f"at which a host sends (default: {NIC_SPEEDUP} times --rate, or the trace's highest)",
    )
    run.add_argument("--rtt", type=time, default=0, metavar="TIME", help="round-trip time, such as 20ms (default 0)")
    run.add_argument(
        "--loss", type=loss, default=0.0, metavar="SHARE", help="in each direction, such as 0.1%% (default 0)"
    )
    run.add_argument(
        "--jitter",
        type=time,
        default=0,
        metavar="TIME",
        help="by which packets are earlier or later, each way; their order is kept (default 0)",
    )
    run.add_argument("--reorder", action="store_true", help="let packets overtake each other by the jitter")
    run.add_argument(
        "--slots",
        type=time,
        default=0,
        metavar="TIME",
        help="packets go on every so often, as a radio's schedule has it, each way (default 0: as they come)",
    )
    run.add_argument(
        "--back-slots", type=time, metavar="TIME", help="of what the hosts other than 0 send (default: --slots)"
    )
    run.add_argument(
        "--burst",
        type=float,
        default=1.0,
        metavar="PACKETS",
        help="that are lost one after the other, on average (default 1: each by itself)",
    )
    run.add_argument(
        "--policer",
        type=_quantity(parse_policer),
        metavar="RATE:BURST",
        help="drop what exceeds this rate once a burst has passed, and queue nothing, such as 500mbit:100kB",
    )
    run.add_argument(
        "--cross",
        type=_quantity(parse_cross_traffic),
        metavar="FLOWS[:ON:OFF]",
        help="TCP flows from a host of their own to host 1, each sends for a second and pauses for one, or as long as "
        "said, such as 2:1s:500ms",
    )
    run.add_argument(
        "--back-rate", type=rate, metavar="RATE", help="of the bottleneck in front of host 0 (default: --rate)"
    )
    run.add_argument(
        "--back-loss", type=loss, metavar="SHARE", help="of what the hosts other than 0 send (default: --loss)"
    )
    run.add_argument(
        "--buffer", type=size, default=DEFAULT_BUFFER_BYTES, metavar="SIZE", help="of the bottleneck (default 4MB)"
    )
    run.add_argument(
        "--delay-packets",
        type=int,
        default=ENDLESS_PACKETS,
        metavar="N",
        help="that a way's delay line holds before it drops; netem's own default is 1000 (default: no limit)",
    )
    run.add_argument(
        "--mtu", type=int, default=DEFAULT_MTU, metavar="BYTES", help=f"of an IP packet (default {DEFAULT_MTU})"
    )
    run.add_argument(
        "--host",
        type=_quantity(parse_host_link),
        action="append",
        default=[],
        metavar="HOST:KEY=VALUE,...",
        help="a link of its own for one host, such as 3:rate=700mbit,rtt=40ms,loss=1%%; keys are rate, nic-rate, rtt, "
        "loss, buffer; may be repeated",
    )
    run.add_argument("--seed", type=int, default=1, metavar="N", help="of the losses (default 1)")
    run.add_argument(
        "--at",
        type=_quantity(parse_change),
        action="append",
        default=[],
        metavar="TIME:CHANGE",
        help="change rate, rtt, loss, back-rate, back-loss, jitter or buffer so long after the programs were started, "
        "such as 2s:rate=500mbit,loss=1%%; may be repeated",
    )
    run.add_argument(
        "--virtual-time", action="store_true", help="computing takes no time, only the WAN does: exact and repeatable"
    )
    _add_kernel_option(run)
    run.add_argument("--memory", type=size, default=2 * 2**30, metavar="SIZE", help="of the guest (default 2GiB)")
    run.add_argument("--timeout", type=_seconds, default=600.0, metavar="SECONDS", help="wall time (default 600)")
    run.add_argument("--out", type=Path, metavar="DIR", help="the directory that TESTBED_OUT names")
    run.add_argument(
        "--report", type=Path, metavar="FILE", help="write exit statuses and dropped packets there, as JSON"
    )
    run.add_argument(
        "--watch-queues",
        action="store_true",
        help="find out how full the bottlenecks' buffers get, and tell at the end",
    )
    run.add_argument(
        "--on",
        type=_host_command,
        action="append",
        default=[],
        metavar="HOST=COMMAND",
        help="a shell command for one host; may be repeated; the other hosts run PROGRAM, or nothing",
    )
    run.add_argument("program", nargs="*", metavar="-- PROGRAM", help="the program and its arguments, for every host")


def _add_host(commands: Commands) -> None:
    host = commands.add_parser(
        "host",
        help="set up a Soft-RoCE device on this machine itself",
        description="Put a Soft-RoCE device on a network interface of this machine, whose kernel must have the module "
        "rdma_rxe, or load it. Needs root.",
    )
    host.add_argument("--netdev", metavar="NAME", help="the interface (default: that of the default route)")
    host.add_argument("--device", default="rxe0", metavar="NAME", help="name of the RDMA device (default rxe0)")
    host.add_argument("--remove", action="store_true", help="take the device away again")


def _add_build(commands: Commands) -> None:
    kernel = commands.add_parser(
        "build-kernel",
        help="build the kernels from Debian's kernel source",
        description="Fetch Debian's kernel source from the mirror that this machine's apt uses, patch and configure "
        "it, and build both kernels into build/testbed. Takes about 16 minutes of one core and 3 GB.",
    )
    kernel.add_argument("--suite", default=SUITE, help=f"of Debian, to take the source from (default {SUITE})")
    kernel.add_argument("--source", type=Path, metavar="DIR", help="an unpacked kernel source; it is patched in place")
    kernel.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="compilers at once")
    kernel.add_argument("--configure-only", action="store_true", help="stop before compiling")


def _add_kernel_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernel",
        default=FLAVOURS[0],
        metavar="KERNEL",
        help=f"{', '.join(FLAVOURS)} or a path (default {FLAVOURS[0]}; ${VARIABLE} replaces both names)",
    )


def host_commands(hosts: int, program: Sequence[str], on: Sequence[tuple[int, str]]) -> tuple[tuple[str, ...], ...]:
    """What each host runs.

    Raises:
        ValueError: nothing to run, or a host that does not exist or is named twice.
    """
    if not program and not on:
        raise ValueError("nothing to run: name a PROGRAM after --, or use --on")
    chosen: dict[int, tuple[str, ...]] = {}
    for host, command in on:
        if host >= hosts:
            raise ValueError(f"--on {host}: there are hosts 0 to {hosts - 1}")
        if host in chosen:
            raise ValueError(f"--on {host} is given twice")
        chosen[host] = ("bash", "-c", command)
    common = tuple(program) or ("true",)
    return tuple(chosen.get(host, common) for host in range(hosts))


def make_run(options: argparse.Namespace) -> Run:
    """The run that the options ask for.

    Raises:
        ValueError: they contradict each other.
        NoKernelError: there is no kernel.
    """
    trace: RateTrace | None = options.rate_trace
    if trace is not None and options.rate is not None:
        raise ValueError("--rate and --rate-trace: the trace is the rate, give one of them")
    rate = options.rate if trace is None else trace.highest_bps
    nic_rate = options.nic_rate
    if nic_rate is None and rate is not None:
        nic_rate = rate * NIC_SPEEDUP
    wan = Wan(
        rate=rate,
        trace=trace,
        nic_rate=nic_rate,
        rtt_ns=options.rtt,
        loss=options.loss,
        buffer_bytes=options.buffer,
        mtu=options.mtu,
        seed=options.seed,
        exact=options.virtual_time,
        delay_packets=options.delay_packets,
        jitter_ns=options.jitter,
        reorders=options.reorder,
        slot_ns=options.slots,
        back_slot_ns=options.back_slots,
        burst_packets=options.burst,
        policer=options.policer,
        back_rate=options.back_rate,
        back_loss=options.back_loss,
        own=tuple(_with_card(link, options.nic_rate) for link in options.host),
    )
    return Run(
        commands=host_commands(options.hosts, options.program, options.on),
        wan=wan,
        kernel=find_kernel(options.kernel),
        virtual_time=options.virtual_time,
        memory_bytes=options.memory,
        timeout=options.timeout,
        output=options.out,
        watch_queues=options.watch_queues,
        changes=tuple(options.at),
        cross=options.cross,
    )


def _with_card(link: HostLink, nic_rate: int | None) -> HostLink:
    """A host with a rate of its own has a card that fits to it, where nobody says how fast cards are."""
    if nic_rate is not None or link.nic_rate is not None or link.rate is None:
        return link
    return dataclasses.replace(link, nic_rate=link.rate * NIC_SPEEDUP)


def show_line(host: int, stream: str, text: str) -> None:
    """Print what a host's program printed, on the same stream, with the host's number before it."""
    ending = "" if text.endswith("\n") else "\n"
    print(f"[{host}] {text}", end=ending, file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)


def explain(run: Run, outcome: Outcome) -> Iterator[str]:
    """What is to be said at the end of a run that did not go well."""
    if outcome.timed_out:
        running = [str(host) for host in range(len(run.commands)) if host not in outcome.statuses]
        yield f"stopped after {run.timeout:g} s; still running on host {', '.join(running)}"
    for host, status in sorted(outcome.statuses.items()):
        if status:
            yield f"host {host} ended with status {status}"


def dropped(outcome: Outcome) -> Iterator[str]:
    """What became of packets that did not arrive, and how full buffers got."""
    if any(outcome.lost.values()):
        yield f"the WAN lost {_counts(outcome.lost)}"
    if any(outcome.overflowed.values()):
        yield f"buffers overflowed by {_counts(outcome.overflowed)}"
    if any(outcome.policed.values()):
        yield f"policers dropped {_counts(outcome.policed)}"
    if outcome.queues:
        most = {host: max((size for _, size in peaks), default=0) for host, peaks in sorted(outcome.queues.items())}
        each = ", ".join(f"{size} in front of host {host}" for host, size in most.items())
        yield f"buffers held at most so many bytes: {each}"


def _counts(by_host: Mapping[int, int]) -> str:
    each = ", ".join(f"{count} host {host}" for host, count in sorted(by_host.items()) if count)
    return f"{sum(by_host.values())} packets ({each})"


def _run(run: Run, report: Path | None) -> int:
    outcome = execute(run, show_line)
    if report is not None:
        report.write_text(json.dumps(dataclasses.asdict(outcome)))
    for line in (*explain(run, outcome), *dropped(outcome)):
        print(f"testbed: {line}", file=sys.stderr)
    return outcome.status


def _dispatch(options: argparse.Namespace) -> int:
    match options.command:
        case "run":
            return _run(make_run(options), options.report)
        case "kernel":
            print(find_kernel(options.kernel))
        case "host":
            print(remove(options.device) if options.remove else set_up(options.netdev, options.device))
        case "build-kernel":
            build(
                _progress,
                suite=options.suite,
                jobs=options.jobs,
                source=options.source,
                configure_only=options.configure_only,
            )
    return 0


def _progress(text: str) -> None:
    print(f"==> {text}", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    # a terminated command still takes its guest down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _dispatch(options)
    except ValueError as error:
        parser.error(str(error))
    except TestbedError as error:
        print(f"error: {error.message}", file=sys.stderr)
        for line in error.remedy.splitlines():
            print(f"  {line}", file=sys.stderr)
        return TESTBED_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
