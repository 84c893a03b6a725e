"""Measures a new data path with a short train of datagrams, before any payload, where the rate is for us to find."""

from __future__ import annotations

from collections.abc import Callable

from fedrdma_fate.core.path_probe import JointAnswer, ProbedSide, ProbingSide, Train
from fedrdma_fate.engine.link_datagrams import COPIES, LinkDatagrams
from fedrdma_fate.engine.path_memory import PathMemory
from fedrdma_fate.ports import Endpoint
from fedrdma_fate.wire.datagrams import PathProbe, PathProbeAnswer, TrainWanted

ANSWER_COPIES = 4
"""Of an answer, which is short, and once for a path: without it the first transfer knows nothing of the path. Where a
fifth of all packets is lost, all four are once in 600 times."""


class PathProbing:
    """Both halves, of one link. Runs on the link's thread."""

    def __init__(self, memory: PathMemory, datagrams: LinkDatagrams, told: Callable[[float], None]) -> None:
        """
        Args:
            memory: what is known of the path.
            datagrams: of the link.
            told: called with the time when what nobody knew is known, or is waited for no longer.
        """
        self._memory = memory
        self._datagrams = datagrams
        self._told = told
        self._probing = ProbingSide()
        self._probed = ProbedSide()

    @property
    def probed_rate(self) -> float | None:
        """Bytes a second at which the peer's latest train came; None where that could not be told."""
        return self._probed.rate

    @property
    def joint(self) -> JointAnswer | None:
        """What the latest train has told that went with those of other links; None while that is not known."""
        return self._probing.joint

    @property
    def wanted(self) -> JointAnswer | None:
        """How the latest train of the peer came that was wanted of it; None while that is not known."""
        return self._probed.wanted

    def want_train(self, began: float, count: int) -> None:
        """Ask for a train that others are wanted with, from this moment on."""
        self._datagrams.post(self._probed.want(began, count), COPIES)

    def probe_jointly(self, began: float, count: int) -> None:
        """Send a train that others go with, from this moment on, to other peers."""
        if self._memory.known is not None:
            self._datagrams.post_train(self._probing.start_joint(began, count))

    def path_up(self, endpoint: Endpoint, now: float) -> None:
        """The data path is new. What a transfer has found of the old one is better than what a train would."""
        self._probing, self._probed = ProbingSide(), ProbedSide()
        if not endpoint.chunk_service.self_paced and not self._memory.proved:
            self._send_train(self._probing.start(now))
            self._memory.awaits_train = self._memory.is_probing and self._memory.known is None
            self._memory.lost_trains = False

    def path_lost(self) -> None:
        """Nothing can be measured until it is renewed."""
        self._memory.is_probing = self._memory.awaits_train = False
        self._probing, self._probed = ProbingSide(), ProbedSide()

    def on_datagram(self, datagram: PathProbe | PathProbeAnswer | TrainWanted, now: float) -> None:
        """The peer measures, wants a train of ours, or says how one arrived."""
        if isinstance(datagram, TrainWanted):
            if (train := self._probing.on_wanted(datagram.number, datagram.count)) is not None:
                self._datagrams.post_train(train)
            return
        if isinstance(datagram, PathProbe):
            if (train := self._probing.on_heard(now)) is not None:
                self._send_train(train)
            self._answer(self._probed.on_probe(datagram, now))
            return
        self._memory.is_probing = False
        if (found := self._probing.on_answer(datagram, now)) is not None:
            self._memory.learn(found, "probed")
        self._look_whether_told(now)

    def timer(self) -> float | None:
        """When `on_timer` wants to be called."""
        awaited = self._probing.awaited_until() if self._memory.awaits_train else None
        due = (self._probing.timer(), self._probed.timer(), awaited)
        return min((moment for moment in due if moment is not None), default=None)

    def on_timer(self, now: float) -> None:
        """Send another train, answer one whose end was lost."""
        train = self._probing.on_timer(now)
        if train is not None:
            self._send_train(train)
        self._answer(self._probed.on_timer(now))
        self._look_whether_told(now)

    def _look_whether_told(self, now: float) -> None:
        memory = self._memory
        if memory.awaits_train and (memory.known is not None or not self._probing.is_awaited(now)):
            memory.awaits_train, memory.lost_trains = False, memory.known is None and not self._probing.most_came
            self._told(now)

    def _send_train(self, train: Train) -> None:
        # a path that breaks just now says so again when it is asked to make progress
        if not self._datagrams.post_train(train):
            self._probing = ProbingSide()
        else:
            self._memory.is_probing = True

    def _answer(self, answer: PathProbeAnswer | None) -> None:
        if answer is not None:
            self._datagrams.post(answer, ANSWER_COPIES)
