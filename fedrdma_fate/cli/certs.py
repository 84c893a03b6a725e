"""`fedrdma certs`: an authority and certificates for a trial."""

from __future__ import annotations

import datetime
from pathlib import Path

import click
import yaml

from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.security.trial_authority import VALID_DAYS
from fedrdma_fate.security.trial_files import make_certificates, revoke_certificates, tls_settings


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("sites", nargs=-1, required=True, metavar="SITE...")
@click.option(
    "--days", type=click.IntRange(1, 36500), default=VALID_DAYS, show_default=True, help="How long they hold."
)
@click.option("--revoke", is_flag=True, help="Put these sites' certificates on the list DIRECTORY/revoked.pem instead.")
def certs(directory: Path, sites: tuple[str, ...], days: int, revoke: bool) -> None:
    """Make certificates for a trial, one for each SITE, in DIRECTORY, and an authority there if it has none.

    Give each site its own two files, SITE.pem and SITE.key, and all of them ca.pem. Keep ca.key: who has it can be
    any site. For more than a trial, have your organisation's authority make them: docs/security.md says how.
    """
    with told_plainly():
        now, valid = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=days)
        if revoke:
            path = revoke_certificates(directory, sites, now, valid)
            click.echo(yaml.safe_dump({"tls": {"revocation_lists": [str(path.resolve())]}}, sort_keys=False), nl=False)
            return
        make_certificates(directory, sites, now, valid)
        for site in sites:
            settings = {"security": "mtls", "tls": tls_settings(directory, site)}
            click.echo(f"# in the configuration of {site}:\n{yaml.safe_dump(settings, sort_keys=False)}", nl=False)
