"""How two ends of a link find out that they reach each other, before anything is entrusted to it."""

from __future__ import annotations

import select
import time

from fedrdma_fate.ports import Role
from fedrdma_fate.transport.verbs.interface import Outcome, Target, VerbsError, WorkCompletion
from fedrdma_fate.transport.verbs.link_messages import Notice, NoticeKind
from fedrdma_fate.transport.verbs.queue_pairs import LinkParts

_PROBE = 1
_NOWHERE = Target(0, 0)


class NotMetError(Exception):
    """The two ends do not reach each other."""


class Meeting:
    """The link test: each end says hello with the other's token, and gets a write through on every queue pair.

    The passive end is silent until it has heard the active one, which shows that the other end is ready.
    """

    def __init__(self, parts: LinkParts, role: Role, own_token: bytes, peer_token: bytes) -> None:
        self._parts = parts
        self._role = role
        self._own_token = own_token
        self._peer_token = peer_token
        self._heard = False
        self._probing: set[int] = set()
        self.early: list[WorkCompletion] = []

    def hold(self, timeout: float) -> None:
        """Wait, on connected queue pairs, until both ends know; `early` then holds what came on the link meanwhile.

        Raises:
            NotMetError: they do not within so many seconds, the wrong peer is there, or the transport is closed.
        """
        # only now is it known how many of them the peer uses
        self._probing = {pair.number for pair in self._parts.data}
        deadline = time.monotonic() + timeout
        poller = select.poll()
        poller.register(self._parts.queue.fileno, select.POLLIN)
        poller.register(self._parts.host.stop_fileno, select.POLLIN)
        try:
            if self._role == "active":
                self._say_hello()
            while not self._done():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise NotMetError(f"the peer was not heard within {timeout:g} s")
                poller.poll(left * 1000)
                if self._parts.host.stopped:
                    raise NotMetError("the transport was closed")
                self._take_in()
        except VerbsError as error:
            raise NotMetError(str(error)) from error

    def _done(self) -> bool:
        return self._heard and not self._probing and self._parts.notices.quiet

    def _say_hello(self) -> None:
        self._parts.notices.send(NoticeKind.HELLO, self._peer_token)

    def _take_in(self) -> None:
        queue = self._parts.queue
        queue.arm()
        while found := queue.poll():
            for done in found:
                self._on_completion(done)

    def _on_completion(self, done: WorkCompletion) -> None:
        if done.outcome is not Outcome.DONE:
            raise NotMetError(f"the link test failed: {done.text}")
        if done.pair == self._parts.notices.pair.number:
            notice = self._parts.notices.on_completion(done)
            if notice is not None:
                self._on_notice(notice)
        elif done.pair in self._probing and done.work_request == _PROBE:
            self._probing.discard(done.pair)
        else:
            self.early.append(done)

    def _on_notice(self, notice: Notice) -> None:
        if notice.kind == NoticeKind.CLOSED:
            raise NotMetError(notice.text)
        if notice.kind != NoticeKind.HELLO or notice.body != self._own_token:
            raise NotMetError("somebody else answers at the peer's queue pair")
        if self._heard:
            return
        self._heard = True
        if self._role == "passive":
            self._say_hello()
        for pair in self._parts.data:
            pair.write(_PROBE, self._parts.scratch.piece(0, 0), _NOWHERE, signalled=True)
