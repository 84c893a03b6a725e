"""`fedrdma`: the command line."""

from __future__ import annotations

import click

from fedrdma_fate import __version__
from fedrdma_fate.cli.lazy import LazyGroup, Subcommand

SUBCOMMANDS = (
    Subcommand("access", "fedrdma_fate.cli.access", "Make the file by which tasks on other hosts get to a gateway."),
    Subcommand("advise", "fedrdma_fate.cli.advise", "Say which federation and transport to take to a peer."),
    Subcommand("bench", "fedrdma_fate.cli.bench", "Measure transfers against what else there is."),
    Subcommand("certs", "fedrdma_fate.cli.certs", "Make an authority and certificates for a trial."),
    Subcommand("doctor", "fedrdma_fate.cli.doctor", "Check this machine, its RDMA devices, the gateway and FATE."),
    Subcommand("explain", "fedrdma_fate.cli.explain", "Say what an error's code means, and what to do."),
    Subcommand("fate", "fedrdma_fate.cli.fate", "Check a FATE Flow against its gateway, and print its settings."),
    Subcommand("gateway", "fedrdma_fate.cli.gateway", "Run the gateway of a site."),
    Subcommand("probe", "fedrdma_fate.cli.probe", "Measure the path to a peer, and choose its settings."),
    Subcommand("sessions", "fedrdma_fate.cli.sessions", "List the sessions at a gateway, or end one at all sites."),
    Subcommand("status", "fedrdma_fate.cli.status", "Show peers, their transports, pools and transfers."),
)


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fedrdma")
def main() -> None:
    """Moves FATE's model weights between sites: by RDMA in chunks, by TCP, or through shared memory."""


if __name__ == "__main__":
    main()
