"""`fedrdma gateway`: runs the gateway of a site until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import get_args

import click

from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.gateway.config.schema import GatewayConfig, load_config
from fedrdma_fate.gateway.daemon import Gateway
from fedrdma_fate.gateway.peers.channel_security import credentials_of
from fedrdma_fate.gateway.tasks.users import TaskUsers
from fedrdma_fate.memory.heap import keep_little, look_only_for_new_cycles
from fedrdma_fate.obs.log import LogFormat, LogLevel, configure
from fedrdma_fate.security.grpc_credentials import ONLY_TLS_1_3

_MOST_FILES = 65536
"""Open files, as in the unit that is shipped: tasks and peers have one for each connection, spilled messages none."""


@click.command()
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="YAML file; see conf/.")
@click.option("--check", is_flag=True, help="Only check the configuration, its certificates and users.")
@click.option("--log-level", type=click.Choice(get_args(LogLevel)), default="warning", show_default=True)
@click.option("--log-format", type=click.Choice(get_args(LogFormat)), default="human", show_default=True)
def gateway(path: Path, check: bool, log_level: LogLevel, log_format: LogFormat) -> None:
    """Run the gateway of a site.

    SIGTERM stops it in order, and keeps what was not delivered or not pulled for the next run (`timeouts.restart`).
    Ctrl-C (SIGINT) ends it for good. SIGHUP opens its trace anew.
    """
    configure(log_level, log_format, sys.stderr)
    with told_plainly():
        config = load_config(path)
        if check:
            credentials_of(config)
            TaskUsers.of_config(config)
            click.echo(f"{path} is right.")
            return
        if config.security == "mtls":
            # read by grpcio when it is first used, and nothing of it has been yet
            os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", ONLY_TLS_1_3)
        allow_files()
        keep_little()
        asyncio.run(_serve(config))


def allow_files() -> None:
    """Let this process have as many open files as it may allow itself: a shell's soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(config: GatewayConfig) -> None:
    server = Gateway(config)
    loop = asyncio.get_running_loop()
    keep: set[bool] = set()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(wanted, _stop, server, keep, wanted is signal.SIGTERM)
    loop.add_signal_handler(signal.SIGHUP, server.reopen_trace)
    await server.start()
    look_only_for_new_cycles()
    click.echo(f"gateway of {config.site} is up", err=True)
    await server.wait()
    await server.stop(keep=keep == {True})


def _stop(server: Gateway, keep: set[bool], keeps: bool) -> None:
    keep.add(keeps)
    server.stop_soon()
