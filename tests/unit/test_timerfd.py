"""Timers as descriptors for poll."""

from __future__ import annotations

import select

from fedrdma_fate.timerfd import Timer


def test_a_timer_expires_once_and_only_after_its_time() -> None:
    timer = Timer()
    poller = select.poll()
    poller.register(timer.fileno, select.POLLIN)
    timer.set(0.002)
    assert poller.poll(0) == []
    assert poller.poll(1000)
    assert timer.expired()
    assert poller.poll(10) == []
    assert not timer.expired()
    timer.close()
    timer.close()


def test_a_timer_with_an_interval_expires_again_and_again_without_being_set() -> None:
    timer = Timer(0.002)
    poller = select.poll()
    poller.register(timer.fileno, select.POLLIN)
    assert not timer.expired()
    for _ in range(3):
        assert poller.poll(1000)
        assert timer.expired()
    timer.close()
