"""A nonce is given out once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from fedrdma_fate.security.nonces import NonceCounter, NonceError, nonce_of


def test_every_sealing_has_a_nonce_of_its_own() -> None:
    counter = NonceCounter()
    nonces = [nonce_of(counter.take()) for _ in range(1000)]
    assert len(set(nonces)) == 1000
    assert {len(nonce) for nonce in nonces} == {12}


def test_a_nonce_that_is_asked_for_twice_is_refused() -> None:
    counter = NonceCounter()
    assert counter.claim(5) == 5
    with pytest.raises(NonceError, match="sealing 5 is asked for"):
        counter.claim(5)
    with pytest.raises(NonceError):
        counter.claim(3)
    assert counter.take() == 6


def test_there_are_no_more_nonces_than_the_key_may_be_used_with() -> None:
    counter = NonceCounter(most=3)
    assert [counter.take() for _ in range(3)] == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(NonceError, match="3 sealings"):
            counter.take()
    assert counter.taken == 3


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_counter_cannot_be_copied(copying: Callable[[object], object]) -> None:
    with pytest.raises(NonceError, match="copied"):
        copying(NonceCounter())
