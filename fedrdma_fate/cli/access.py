"""`fedrdma access`: the file by which tasks on other hosts get to a gateway."""

from __future__ import annotations

import secrets
from pathlib import Path

import click
import msgspec

from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.client.access import TaskAccess, parse_access
from fedrdma_fate.gateway.config.schema import load_config, split_address
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_SECRET_BYTES = 32
"""256 bits, which nobody guesses."""


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--config", "path", type=click.Path(path_type=Path), required=True, help="The gateway's YAML file.")
@click.option("--address", required=True, help="HOST:PORT of `listen.tasks`, as other hosts reach it.")
def access(output: Path, path: Path, address: str) -> None:
    """Make the file OUTPUT, by which tasks on other hosts get to this site's gateway, with a new secret.

    Name it in the gateway's configuration as `tasks_access`, and copy it to each host, for the user who runs tasks
    there and nobody else: who has it can push and pull in the name of every party of the site.
    """
    with told_plainly():
        config = load_config(path)
        split_address("--address", address)
        if not config.tls.authorities:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"key 'tls.authorities' is missing in {path}: by these, tasks know their gateway.",
                "Set up certificates.",
            )
        authorities = b"".join(each.read_bytes() for each in config.tls.authorities).decode()
        made = TaskAccess(address, config.site, secrets.token_hex(_SECRET_BYTES), authorities)
        content = msgspec.json.format(msgspec.json.encode(made), indent=2)
        parse_access(content, output)
        try:
            output.touch(0o600, exist_ok=False)
            output.write_bytes(content + b"\n")
        except OSError as error:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE, f"cannot make {output}: {error.strerror}.", "Remove an older one first."
            ) from error
        click.echo(f"# in the configuration of {config.site}:\ntasks_access: {output.resolve()}")
