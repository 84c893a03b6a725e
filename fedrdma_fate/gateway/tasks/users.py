"""Which users of the host may run tasks here, and for which parties: the kernel says who has connected."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from fedrdma_fate.gateway.config.errors import bad_value
from fedrdma_fate.gateway.config.schema import GatewayConfig
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party


class TaskUsers:
    """The gateway's own user, for every party served here, and those that are listed, each for its parties."""

    def __init__(self, listed: Mapping[int, frozenset[str]]) -> None:
        """Use `of_config`.

        Args:
            listed: parties, as configured, by the number of the user.
        """
        self._own = os.geteuid()
        self._listed = listed

    @classmethod
    def of_config(cls, config: GatewayConfig) -> TaskUsers:
        """As the configuration lists them.

        Raises:
            ConfigError: CONFIG_BAD_VALUE when a user is not one of this host.
        """
        return cls({_number(each.user): frozenset(each.parties) for each in config.task_users})

    @property
    def only_own(self) -> bool:
        """Whether nobody else is listed."""
        return not self._listed

    def admits(self, user: int) -> bool:
        """Whether this user may connect at all."""
        return self.is_own(user) or user in self._listed

    def is_own(self, user: int) -> bool:
        """Whether it is the gateway's own, or root: who could do with the gateway as it likes."""
        return user in (self._own, 0)

    def may_run_for(self, user: int, party: Party) -> bool:
        """Whether the user's tasks may run for the party."""
        parties = self._listed.get(user, frozenset())
        return self.is_own(user) or str(party) in parties or party.party_id in parties

    def check(self, user: int, party: Party) -> None:
        """Do nothing where the user's tasks may run for the party.

        Raises:
            GatewayError: WRONG_PARTY.
        """
        if not self.may_run_for(user, party):
            raise GatewayError(
                ErrorCode.WRONG_PARTY,
                f"user {user} may not run tasks for {party} here.",
                "Add the party to the user's in `task_users` of the gateway's configuration.",
            )

    def check_own(self, user: int, what: str) -> None:
        """Do nothing where the user is the gateway's own.

        Raises:
            GatewayError: USER_REFUSED.
        """
        if not self.is_own(user):
            # a place in `task_users` does not let it
            raise refused(user, what, "Run it as the gateway's user.")


_TASKS = "Run it as the gateway's user; tasks of other users need a place in `task_users` of its configuration."


def refused(user: int, what: str, remedy: str = _TASKS) -> GatewayError:
    """The error for a user who may not do this."""
    return GatewayError(
        ErrorCode.USER_REFUSED,
        f"user {user} may not {what}.",
        remedy,
    )


def _number(user: str) -> int:
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise bad_value("task_users.user", user, "", "Name a user of this host, or give its number.") from None
