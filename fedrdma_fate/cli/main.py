"""`fedrdma`: the command line."""

from __future__ import annotations

import click

from fedrdma_fate import __version__
from fedrdma_fate.cli.bench import bench
from fedrdma_fate.cli.gateway import gateway
from fedrdma_fate.cli.status import status


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fedrdma")
def main() -> None:
    """Moves FATE's model weights between sites: by RDMA in chunks, by TCP, or through shared memory."""


main.add_command(gateway)
main.add_command(status)
main.add_command(bench)

if __name__ == "__main__":
    main()
