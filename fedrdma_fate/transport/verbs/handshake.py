"""How two ends of a link find out that they reach each other, before anything is entrusted to it."""

from __future__ import annotations

import select
import threading
import time

from fedrdma_fate.ports import Role
from fedrdma_fate.transport.verbs.interface import Outcome, Target, VerbsError, WorkCompletion
from fedrdma_fate.transport.verbs.link_messages import LinkMessage, LinkMessageKind
from fedrdma_fate.transport.verbs.queue_pairs import LinkQueuePairs

_PROBE = 1
"""Work request of the write of no bytes that tests a queue pair."""
_NOWHERE = Target(0, 0)

LOOK_SECONDS = 0.1
"""Between two looks whether the peer has begun another attempt, of which nobody wakes who waits in this one."""


class HandshakeError(Exception):
    """The two ends do not reach each other."""


class Handshake:
    """The link test: each end says hello with the other's token, and gets a write through on every queue pair.

    The passive end is silent until it has heard the active one, which shows that the other end is ready.
    """

    def __init__(
        self, pairs: LinkQueuePairs, role: Role, own_token: bytes, peer_token: bytes, abandoned: threading.Event
    ) -> None:
        self._pairs = pairs
        self._role = role
        self._own_token = own_token
        self._peer_token = peer_token
        self._heard = False
        self._probing: set[int] = set()
        self._abandoned = abandoned
        self.early: list[WorkCompletion] = []

    def run(self, timeout: float) -> None:
        """Wait, on connected queue pairs, until both ends know; `early` then holds what came on the link meanwhile.

        Raises:
            HandshakeError: they do not within so many seconds, the wrong peer is there, the transport is closed, or
                nobody waits for it any more.
        """
        # only now is it known how many of them the peer uses
        self._probing = {pair.number for pair in self._pairs.data}
        deadline = time.monotonic() + timeout
        poller = select.poll()
        poller.register(self._pairs.queue.fileno, select.POLLIN)
        poller.register(self._pairs.context.stop_fileno, select.POLLIN)
        try:
            if self._role == "active":
                self._say_hello()
            while not self._done():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise HandshakeError(f"the peer was not heard within {timeout:g} s")
                poller.poll(min(left, LOOK_SECONDS) * 1000)
                if self._abandoned.is_set():
                    raise HandshakeError("another attempt has begun")
                if self._pairs.context.stopped:
                    raise HandshakeError("the transport was closed")
                self._take_in()
        except VerbsError as error:
            raise HandshakeError(str(error)) from error

    def _done(self) -> bool:
        return self._heard and not self._probing and self._pairs.messages.quiet

    def _say_hello(self) -> None:
        self._pairs.messages.send(LinkMessageKind.HELLO, self._peer_token)

    def _take_in(self) -> None:
        queue = self._pairs.queue
        queue.arm()
        while found := queue.poll():
            for done in found:
                self._on_completion(done)

    def _on_completion(self, done: WorkCompletion) -> None:
        if done.outcome is not Outcome.DONE:
            raise HandshakeError(f"the link test failed: {done.text}")
        if done.pair == self._pairs.messages.pair.number:
            message = self._pairs.messages.on_completion(done)
            if message is not None:
                self._on_message(message)
        elif done.pair in self._probing and done.work_request == _PROBE:
            self._probing.discard(done.pair)
        else:
            self.early.append(done)

    def _on_message(self, message: LinkMessage) -> None:
        if message.kind == LinkMessageKind.CLOSED:
            raise HandshakeError(message.text)
        if message.kind != LinkMessageKind.HELLO or message.body != self._own_token:
            raise HandshakeError("somebody else answers at the peer's queue pair")
        if self._heard:
            return
        self._heard = True
        if self._role == "passive":
            self._say_hello()
        for pair in self._pairs.data:
            pair.write(_PROBE, self._pairs.scratch.piece(0, 0), _NOWHERE, signalled=True)
