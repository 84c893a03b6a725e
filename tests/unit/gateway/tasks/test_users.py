"""What a user is told to do who may not do something."""

from __future__ import annotations

import os

import pytest

from fedrdma_fate.gateway.tasks.users import TaskUsers, refused
from fedrdma_fate.wire.errors import ErrorCode, GatewayError


def test_who_asks_for_what_only_the_gateways_user_may_do_is_not_sent_to_the_task_users() -> None:
    with pytest.raises(GatewayError, match="may not drop a session") as caught:
        TaskUsers({os.geteuid() + 1: frozenset()}).check_own(os.geteuid() + 1, "drop a session")
    assert caught.value.code is ErrorCode.USER_REFUSED
    assert "task_users" not in caught.value.remedy
    assert "task_users" in refused(os.geteuid() + 1, "run tasks here").remedy
