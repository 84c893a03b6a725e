"""`fedrdma access`: the file by which tasks on other hosts get to a gateway."""

from __future__ import annotations

import secrets
from pathlib import Path

import click
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.client.access import TaskAccess, parse_access
from fedrdma_fate.gateway.config.schema import GatewayConfig, load_config, split_address
from fedrdma_fate.security.credentials import CredentialFiles, load_credentials
from fedrdma_fate.security.reloading import utc_now
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_SECRET_BYTES = 32
"""256 bits, which nobody guesses."""


def _authorities(config: GatewayConfig) -> str:
    """PEM of those above the site's own certificate alone: the others of its peers could vouch for a false gateway.

    Raises:
        ConfigError: there is none, or a file of `tls` will not do.
    """
    tls = config.tls
    if tls.certificate is None or tls.key is None:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            "`tls` names no certificate: by that, tasks know their gateway.",
            "Set up certificates.",
        )
    files = CredentialFiles(tls.certificate, tls.key, tls.authorities, tls.revocation_lists)
    credentials = load_credentials(files, config.site, utc_now())
    above = credentials.trust.above(x509.load_pem_x509_certificates(credentials.pem[0]))
    if not above:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"none of `tls.authorities` has issued {tls.certificate}: tasks would not believe it.",
            "List its own authority there, too.",
        )
    return b"".join(each.public_bytes(Encoding.PEM) for each in above).decode()


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
        made = TaskAccess(address, config.site, secrets.token_hex(_SECRET_BYTES), _authorities(config))
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
