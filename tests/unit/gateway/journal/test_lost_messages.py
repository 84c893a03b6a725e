"""As many messages as may wait of a site may be lost at once, and both ends are told of each."""

from __future__ import annotations

import pytest

from fedrdma_fate.gateway.config.schema import LimitsConfig
from fedrdma_fate.gateway.journal import lost_messages
from fedrdma_fate.gateway.journal.lost_messages import REMEMBERED_LOST, LostMessages
from fedrdma_fate.gateway.journal.state import JournalState
from fedrdma_fate.gateway.journal_records import Left, Lost, Over
from fedrdma_fate.wire.frames import MessageKey, Party

GUEST, HOST = Party("guest", "9999"), Party("host", "10000")


def lost(transfer: int, origin: str = "a", session: str = "s", destination: Party = HOST) -> Lost:
    return Lost(origin, transfer, MessageKey(session, str(transfer), "t", GUEST, destination), "why")


def test_of_all_that_may_wait_of_a_site_none_is_forgotten() -> None:
    messages = LostMessages()
    for transfer in range(LimitsConfig().messages):
        messages.add(lost(transfer))
    assert len(messages) == LimitsConfig().messages == REMEMBERED_LOST


def test_of_more_the_oldest_of_the_same_site_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_messages, "REMEMBERED_LOST", 2)
    messages = LostMessages()
    for each in (lost(1, "b"), lost(1), lost(2), lost(3), lost(3)):
        messages.add(each)
    assert list(messages.values()) == [lost(1, "b"), lost(2), lost(3)]


def test_they_go_with_their_party_and_their_session() -> None:
    state = JournalState()
    for each in (lost(1), lost(2, session="t"), lost(3, destination=GUEST), lost(4, "b")):
        state.apply(each)
    state.apply(Left("s", HOST))
    assert list(state.lost.values()) == [lost(2, session="t"), lost(3, destination=GUEST)]
    state.apply(Over("s", "why"))
    assert list(state.lost.values()) == [lost(2, session="t")]
