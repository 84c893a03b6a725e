"""In how many sessions the tasks of a listed user are: each is remembered until its party has left it."""

from __future__ import annotations

from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party

MOST_SESSIONS_OF_A_USER = 1024
"""A job is one session; a task that was killed leaves its own behind until that ends (`timeouts.session`)."""


class UserSessions:
    """Parties of sessions that were joined and not left, by whoever was first. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._of_user: dict[int, set[tuple[str, Party]]] = {}

    def join(self, user: int, session: str, party: Party) -> None:
        """A task of this user attaches.

        Raises:
            GatewayError: LIMIT_REACHED when its user is in so many others.
        """
        if any((session, party) in joined for joined in self._of_user.values()):
            return
        joined = self._of_user.setdefault(user, set())
        if len(joined) >= MOST_SESSIONS_OF_A_USER:
            raise GatewayError(
                ErrorCode.LIMIT_REACHED,
                f"tasks of user {user} are in {MOST_SESSIONS_OF_A_USER} sessions already.",
                "Leave those that have ended: FATE's contexts do when they are destroyed, and the gateway ends them "
                "`timeouts.session` after their last task has gone.",
            )
        joined.add((session, party))

    def leave(self, session: str, party: Party) -> None:
        """The party is in the session no more."""
        for user, joined in list(self._of_user.items()):
            joined.discard((session, party))
            if not joined:
                del self._of_user[user]

    def end(self, session: str) -> None:
        """No party is in the session any more."""
        for joined in list(self._of_user.values()):
            for place in [place for place in joined if place[0] == session]:
                self.leave(*place)
