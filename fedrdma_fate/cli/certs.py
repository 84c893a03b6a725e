"""`fedrdma certs`: an authority and certificates for a trial."""

from __future__ import annotations

import datetime
from pathlib import Path

import click
import yaml

from fedrdma_fate.cli.failure import told_plainly
from fedrdma_fate.security.trial_authority import VALID_DAYS
from fedrdma_fate.security.trial_files import (
    make_certificates,
    renew_certificates,
    revoke_certificates,
    tls_settings,
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("sites", nargs=-1, metavar="SITE...")
@click.option(
    "--days", type=click.IntRange(1, 36500), default=VALID_DAYS, show_default=True, help="How long they hold."
)
@click.option("--renew", is_flag=True, help="Make new ones in the place of these sites' old ones.")
@click.option(
    "--revoke",
    is_flag=True,
    help="Put all certificates of these sites on the list DIRECTORY/revoked.pem instead; without a SITE, make it anew.",
)
@click.option("--superseded", is_flag=True, help="With --revoke: only those that were renewed, not SITE.pem.")
def certs(directory: Path, sites: tuple[str, ...], days: int, *, renew: bool, revoke: bool, superseded: bool) -> None:
    """Make certificates for a trial, one for each SITE, in DIRECTORY, and an authority there if it has none.

    Give each site its own two files, SITE.pem and SITE.key, and all of them ca.pem. Keep ca.key: who has it can be
    any site. For more than a trial, have your organisation's authority make them: docs/security.md says how.
    """
    _check_options(sites, renew=renew, revoke=revoke, superseded=superseded)
    with told_plainly():
        now, valid = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=days)
        if revoke:
            path = revoke_certificates(directory, sites, now, valid, superseded=superseded)
            click.echo(yaml.safe_dump({"tls": {"revocation_lists": [str(path.resolve())]}}, sort_keys=False), nl=False)
            return
        (renew_certificates if renew else make_certificates)(directory, sites, now, valid)
        for site in sites:
            settings = {"security": "mtls", "tls": tls_settings(directory, site)}
            click.echo(f"# in the configuration of {site}:\n{yaml.safe_dump(settings, sort_keys=False)}", nl=False)


def _check_options(sites: tuple[str, ...], *, renew: bool, revoke: bool, superseded: bool) -> None:
    if not sites and not revoke:
        raise click.UsageError("Missing argument 'SITE...'.")
    if renew and revoke:
        raise click.UsageError("--renew and --revoke are two steps.")
    if superseded and not revoke:
        raise click.UsageError("--superseded says what --revoke puts on the list.")
