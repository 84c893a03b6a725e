"""The credentials of a gateway that runs: read again when their files change, the old ones kept while new ones are
not right."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from fedrdma_fate.security.credentials import CredentialFiles, Credentials, files_stamp, load_credentials
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

CHECK_SECONDS = 5.0
"""Between two looks at the files, and at the channels: a revocation counts well within a minute."""


def utc_now() -> datetime.datetime:
    """The time of this host's clock."""
    return datetime.datetime.now(datetime.timezone.utc)


class SiteCredentials:
    """Which credentials are in use. `look` may be called from another thread, one call at a time; `current` by any.

    Attributes:
        current: those in use.
        error: why what the files hold now is not in use; None where it is.
    """

    def __init__(self, files: CredentialFiles, site: str, clock: Callable[[], datetime.datetime] = utc_now) -> None:
        """Read them for the first time.

        Args:
            files: where they lie.
            site: who we are.
            clock: the time, with its zone.

        Raises:
            ConfigError: see `load_credentials`.
        """
        self._files = files
        self._site = site
        self.clock = clock
        self.error: ConfigError | None = None
        self._stamp = files_stamp(files.all())
        self.current: Credentials = load_credentials(files, site, clock())

    def look(self) -> bool:
        """Read the files again where they have changed since the last look, or could not be used then.

        Returns:
            Whether there is something to tell: `current` is new, or `error` is, or is about other files.
        """
        stamp = files_stamp(self._files.all())
        changed = stamp != self._stamp
        # what failed once may succeed with the same files: a disk was away, or there were no descriptors left
        if not changed and self.error is None:
            return False
        before = self.error
        try:
            self.current = load_credentials(self._files, self._site, self.clock())
            self.error = None
        except ConfigError as error:
            self.error = error
        # what is being written now changes its stamp again
        self._stamp = stamp
        return changed or _code_of(before) != _code_of(self.error)


def _code_of(error: ConfigError | None) -> ErrorCode | None:
    return None if error is None else error.code
